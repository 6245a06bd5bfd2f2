"""Machines reached over SSH, with paramiko.

A host key is checked against known_hosts files and never accepted unseen. Nothing reaches a remote
shell unquoted. Every call has a deadline, and every error names the host.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shlex
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path, PurePosixPath

import paramiko

from netbench.errors import TestbedError
from netbench.network.command import at_once
from netbench.testbed.inventory import Host
from netbench.testbed.known_hosts import KnownHosts
from netbench.testbed.transport import COMMAND_TIMEOUT_S

CONNECT_TIMEOUT_S = 30.0
"""From the first packet to a login, of a host and of each one on the way to it, seconds."""

KEEPALIVE_S = 15.0
"""Between signs of life on a connection, seconds."""

LOST_AFTER_S = 30.0
"""A connection whose packets nobody acknowledged for so long is given up, seconds."""

PUT_TIMEOUT_S = 60.0
"""For one file, seconds. The largest is the agent: 100 KB."""

CLOSE_TIMEOUT_S = 5.0
"""For all connections at once, seconds: a thread each, which looks up every 0.1 s."""

DEFAULT_KEYS = tuple(Path(f"~/.ssh/id_{kind}") for kind in ("ed25519", "ecdsa", "rsa"))
"""Tried where an inventory names none: OpenSSH's, of the kinds paramiko knows."""

FAILURES = (OSError, EOFError, paramiko.SSHException)
"""What paramiko raises when a host, or the way to it, fails."""

_CHUNK_BYTES = 1 << 16
_SHOWN_CHARACTERS = 120

_CHANNEL_HEADER = struct.Struct(">BI")  # kind, recipient: RFC 4254, section 5
_FOR_OPEN_CHANNELS = (93, 94, 95, 96, 98)  # window, data, extended data, EOF, request

_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux only

# What paramiko logs, it also raises; without a handler Python would print it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Hosts(AbstractContextManager["Hosts"]):
    """Commands, files and channels on hosts, by node index; one connection each, when first needed.

    Safe to use from several threads. A connection found lost is made again at the next call.
    All methods raise TestbedError.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        known_hosts: Sequence[Path],
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._hosts = tuple(hosts)
        self._known = KnownHosts(known_hosts)
        self._connect_timeout_s = connect_timeout_s
        self._links: dict[Host, Future[paramiko.Transport]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str, str]:
        """Run a command to its end, as the login user: exit status, stdout, stderr.

        Ended by a signal: -1, or 128 + the signal, as the login shell has it. timeout_s is from
        the login on; a late command may run on.
        """
        host = self._hosts[node]
        channel = self._start(host, argv)
        with _at_last(timeout_s, channel.close) as late:
            status, stdout, stderr = _communicate(channel, stdin)
        if late.is_set():
            raise TestbedError(
                f"{host.name}: no answer within {timeout_s:g} s from: {_shown(argv)}"
            )
        if status == -1 and not channel.get_transport().is_active():
            raise TestbedError(f"{host.name}: the SSH connection was lost during: {_shown(argv)}")
        return status, stdout.decode(errors="replace"), stderr.decode(errors="replace")

    def run_as_root(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str, str]:
        """`run` as root: through `sudo -n`, unless the login user is root."""
        sudo = self._sudo(node)
        status, stdout, stderr = self.run(node, [*sudo, *argv], stdin, timeout_s)
        if status != 0 and sudo and "sudo" in stderr:
            self._check_sudo(node, sudo)
        return status, stdout, stderr

    def put(self, node: int, data: bytes, path: str, mode: int = 0o600) -> None:
        """Write a new file as the login user, over SFTP, and check its SHA-256 there.

        One that exists is an error: nothing that others left in a shared folder is written to.
        """
        host = self._hosts[node]
        with self._sftp(host) as sftp:
            self._write(node, sftp, data, path, mode)
        status, stdout, stderr = self.run(node, ["sha256sum", "--", path], timeout_s=PUT_TIMEOUT_S)
        found = stdout.lstrip("\\").partition(" ")[0]  # a backslash: the name has an odd character
        if found != hashlib.sha256(data).hexdigest():
            what = f"has SHA-256 {found}" if status == 0 else f"was not checked: {stderr.strip()}"
            raise TestbedError(f"{host.name}: {path} {what} after it was sent; send it again")

    def open(self, node: int, argv: Sequence[str], as_root: bool = False) -> SshChannel:
        """Start a command that stays: lines to its stdin, lines from its stdout."""
        host = self._hosts[node]
        sudo = self._sudo(node) if as_root else []
        return SshChannel(self._start(host, [*sudo, *argv]), host.name)

    def own_address(self, node: int) -> str:
        """The address at which the node takes our SSH connection, as the node itself sees it."""
        status, stdout, _ = self.run(
            node, ["printenv", "SSH_CONNECTION"], timeout_s=self._connect_timeout_s
        )
        words = stdout.split()  # client address, client port, server address, server port
        if status != 0 or len(words) != 4 or "%" in words[2]:  # a link-local address has a %
            raise TestbedError(
                f"{self._hosts[node].name}: does not say at which address it takes SSH; "
                "write its data_address into the inventory"
            )
        return words[2]

    def close(self) -> None:
        """Drop all connections, for good."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
        made = [future.result() for future in links if future.done() and not future.exception()]
        at_once({index: link.close for index, link in enumerate(made)}, CLOSE_TIMEOUT_S)

    def _sudo(self, node: int) -> list[str]:
        host = self._hosts[node]
        if host.user == "root":
            return []
        if not host.sudo:
            raise TestbedError(
                f"{host.name}: needs root, logs in as {host.user} and has sudo: false; "
                "log in as root, or let the user use sudo without a password"
            )
        return ["sudo", "-n", "--"]

    def _check_sudo(self, node: int, sudo: Sequence[str]) -> None:
        """Tell a sudo that refuses from a command that failed, in whatever language it says so."""
        status, _, stderr = self.run(node, [*sudo, "true"], timeout_s=self._connect_timeout_s)
        if status != 0:
            host = self._hosts[node]
            raise TestbedError(
                f"{host.name}: {host.user} cannot become root: {' '.join(stderr.split())}; "
                f'allow it without a password (in /etc/sudoers.d: "{host.user} ALL=(root) '
                'NOPASSWD: ALL"), or log in as root'
            )

    def _start(self, host: Host, argv: Sequence[str]) -> paramiko.Channel:
        """A session that runs `argv`: one shell word per argument."""
        link = self._link(host)
        try:
            channel = link.open_session(timeout=self._connect_timeout_s)
            with _at_last(self._connect_timeout_s, channel.close):
                channel.exec_command(shlex.join(argv))
        except FAILURES as error:
            raise TestbedError(
                f"{host.name}: its sshd did not start: {_shown(argv)} ({_words(error)})"
            ) from error
        return channel

    @contextmanager
    def _sftp(self, host: Host) -> Iterator[paramiko.SFTPClient]:
        link = self._link(host)
        try:
            channel = link.open_session(timeout=self._connect_timeout_s)
            with _at_last(PUT_TIMEOUT_S, channel.close):
                channel.invoke_subsystem("sftp")
                sftp = paramiko.SFTPClient(channel)
        except FAILURES as error:
            raise TestbedError(
                f"{host.name}: its sshd offers no SFTP ({_words(error)}); add "
                '"Subsystem sftp internal-sftp" to its sshd_config'
            ) from error
        with sftp:
            yield sftp

    def _write(
        self, node: int, sftp: paramiko.SFTPClient, data: bytes, path: str, mode: int
    ) -> None:
        name, made = self._hosts[node].name, False
        with _at_last(PUT_TIMEOUT_S, sftp.close) as late:
            try:
                with sftp.open(path, "wx") as file:
                    made = True
                    file.chmod(mode)
                    file.write(data)
            except FAILURES as error:
                why = f"not within {PUT_TIMEOUT_S:g} s" if late.is_set() else _words(error)
                room = self._room(node, path)
                if made and not late.is_set():
                    with suppress(*FAILURES):
                        sftp.remove(path)
                raise TestbedError(f"{name}: cannot write {path}: {why}{room}") from error

    def _room(self, node: int, path: str) -> str:
        """What `df` says of the folder of a file that could not be written; SFTP says only that."""
        folder = str(PurePosixPath(path).parent)
        with suppress(TestbedError):
            status, stdout, _ = self.run(node, ["df", "-Ph", "--", folder], timeout_s=10.0)
            if status == 0:
                *_, size, _, free, _, mount = stdout.splitlines()[-1].split()
                return f" ({free} of {size} free on {mount})"
        return ""

    def _link(self, host: Host) -> paramiko.Transport:
        """The connection to `host`, made if there is none; one thread makes it, others wait."""
        with self._lock:
            if self._closed:
                raise TestbedError(f"{host.name}: the connections are closed")
            future = self._links.get(host)
            if future is not None and future.done() and not future.result().is_active():
                future = None
            mine = future is None
            if future is None:
                future = self._links[host] = Future()
        if mine:
            try:
                future.set_result(self._connect(host))
            except BaseException as error:
                with self._lock:
                    self._links.pop(host, None)
                future.set_exception(error)
        return future.result()

    def _connect(self, host: Host) -> paramiko.Transport:
        """Connect, check the host's key, log in: all within one deadline."""
        jump = self._link(host.jump) if host.jump else None
        end = time.monotonic() + self._connect_timeout_s
        connection = _tcp(host, end) if jump is None else _tunnel(host, jump, end)
        link: paramiko.Transport | None = None
        with _at_last(end - time.monotonic(), connection.close) as late:
            try:
                link = _Link(connection)
                link.banner_timeout = link.handshake_timeout = self._connect_timeout_s
                link.auth_timeout = self._connect_timeout_s
                self._negotiate(host, link)
                _log_in(host, link)
            except (*FAILURES, TestbedError) as error:
                if link is not None:
                    link.close()
                connection.close()
                if late.is_set():
                    why = f"its sshd gave no answer within {self._connect_timeout_s:g} s"
                    raise TestbedError(f"{_named(host)}: {why}") from error
                if isinstance(error, TestbedError):
                    raise
                raise TestbedError(f"{_named(host)}: SSH failed: {_words(error)}") from error
        link.set_keepalive(KEEPALIVE_S)
        if self._closed:
            link.close()
            raise TestbedError(f"{host.name}: the connection is no longer wanted")
        return link

    def _negotiate(self, host: Host, link: paramiko.Transport) -> None:
        """Agree on keys, asking for a host key that is known; refuse any other."""
        options = link.get_security_options()
        wanted = {name for kind in self._known.kinds(host) for name in _signatures(kind)}
        options.key_types = sorted(options.key_types, key=lambda name: name not in wanted)
        link.start_client(timeout=self._connect_timeout_s)
        shown = link.get_remote_server_key()
        try:
            self._known.check(host, shown.get_name(), shown.asbytes())
        except TestbedError as error:
            raise TestbedError(f"{_named(host)}: {error}") from None


class _Link(paramiko.Transport):  # type: ignore[misc]  # paramiko ships no types
    """A connection on which nothing follows the CLOSE of a channel; sshd would hang up for that.

    paramiko lets go of a channel's lock before it sends what it made for it, so that an EOF or data
    of one thread could be overtaken by the CLOSE of another.
    """

    def __init__(self, connection: socket.socket | paramiko.Channel) -> None:
        super().__init__(connection)
        self._in_order = threading.Lock()

    def _send_user_message(self, data: paramiko.Message) -> None:
        kind, recipient = _CHANNEL_HEADER.unpack(data.asbytes()[: _CHANNEL_HEADER.size])
        with self._in_order:
            if kind not in _FOR_OPEN_CHANNELS or self._is_open(recipient):
                super()._send_user_message(data)

    def _is_open(self, remote_id: int) -> bool:
        channels = self._channels.values()
        return any(one.remote_chanid == remote_id and not one.closed for one in channels)


class SshChannel:
    """A `netbench.testbed.transport.Channel` over one SSH session."""

    def __init__(self, channel: paramiko.Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._received = bytearray()

    def send(self, line: str) -> None:
        """Send one line (without its newline)."""
        try:
            self._channel.sendall(line.encode() + b"\n")
        except FAILURES as error:
            words = self.last_words() or _words(error)
            raise TestbedError(f"{self._name}: the command there has ended: {words}") from error

    def receive(self, timeout_s: float | None = None) -> str | None:
        """The next line; None when the command has ended or the host is gone.

        Raises TestbedError when nothing came within `timeout_s` (None: wait for ever).
        """
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left_s = None if timeout_s is None else max(0.0, end - time.monotonic())
            self._channel.settimeout(left_s)
            try:
                chunk = self._channel.recv(_CHUNK_BYTES)
            except TimeoutError:
                raise TestbedError(f"{self._name}: silent for {timeout_s:g} s") from None
            finally:
                self._channel.settimeout(None)
            if not chunk:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line.decode(errors="replace") + "\n"

    def last_words(self) -> str:
        """What a command that has ended wrote to stderr, its last three lines in one."""
        with suppress(OSError):
            text = self._channel.makefile_stderr("rb").read().decode(errors="replace")
            return " | ".join(text.strip().splitlines()[-3:])
        return ""

    def close(self) -> None:
        """Drop the channel: the command reads the end of its stdin."""
        with suppress(*FAILURES):  # the host was faster
            self._channel.close()


def _tcp(host: Host, end: float) -> socket.socket:
    """A TCP connection to the first of the host's addresses that takes it."""
    try:
        found = socket.getaddrinfo(host.address, host.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TestbedError(f"{_named(host)}: no such host: {_words(error)}") from error
    failure: OSError = TimeoutError("no address")
    for tried, (family, kind, protocol, _, address) in enumerate(found):
        connection = socket.socket(family, kind, protocol)
        left_s = (end - time.monotonic()) / (len(found) - tried)
        connection.settimeout(max(0.1, left_s))
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _TCP_USER_TIMEOUT is not None:
            lost_after_ms = int(LOST_AFTER_S * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, lost_after_ms)
        return connection
    raise TestbedError(f"{_named(host)}: no connection: {_words(failure)}") from failure


def _tunnel(host: Host, jump: paramiko.Transport, end: float) -> paramiko.Channel:
    """A channel to the host's sshd through its jump host."""
    try:
        return jump.open_channel(
            "direct-tcpip",
            (host.address, host.port),
            ("127.0.0.1", 0),  # where from: sshd only logs it
            timeout=max(0.1, end - time.monotonic()),
        )
    except FAILURES as error:
        way = host.jump.login if host.jump else ""
        raise TestbedError(
            f"{_named(host)}: not reached from the jump host {way}: {_words(error)}"
        ) from error


def _log_in(host: Host, link: paramiko.Transport) -> None:
    """Offer the host's keys, or the usual ones, then the agent's, until one is taken."""
    refused: list[str] = []
    for path in host.keys or [path.expanduser() for path in DEFAULT_KEYS]:
        if not host.keys and not path.exists():
            continue
        try:
            key = paramiko.PKey.from_path(str(path))
        except TypeError:  # what cryptography raises for one that is encrypted
            refused.append(f"{path} has a passphrase (`ssh-add {path}` gives it to the agent)")
            continue
        except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType):
            refused.append(f"{path} cannot be read as a private key")
            continue
        if _is_taken(host, link, key):
            return
        refused.append(f"{path} is not accepted")
    if host.use_agent:
        with _agent(host) as agent:
            keys = [key for key in agent.get_keys() if _is_named(host, key)]
            if any(_is_taken(host, link, key) for key in keys):
                return
        which = "named keys (IdentitiesOnly)" if host.only_named else "keys"
        refused.append(f"none of the SSH agent's {len(keys)} {which} is accepted")
    raise TestbedError(f"{_named(host)}: login refused: {'; '.join(refused) or 'no key to try'}")


@contextmanager
def _agent(host: Host) -> Iterator[paramiko.agent.AgentSSH]:
    """The SSH agent whose keys the host is offered."""
    if host.agent_socket is None:
        with closing(paramiko.Agent()) as agent:
            yield agent
        return
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.connect(str(host.agent_socket))
        except OSError as error:
            raise TestbedError(
                f"{_named(host)}: no SSH agent at {host.agent_socket} (IdentityAgent): "
                f"{_words(error)}"
            ) from error
        asked = paramiko.agent.AgentSSH()
        asked._connect(connection)  # `Agent` knows only SSH_AUTH_SOCK
        yield asked


def _is_named(host: Host, key: paramiko.AgentKey) -> bool:
    """Whether a key of the agent may be offered (IdentitiesOnly)."""
    if not host.only_named:
        return True
    for path in host.keys:
        with suppress(OSError, ValueError, UnicodeDecodeError):
            public = path if path.suffix == ".pub" else Path(f"{path}.pub")
            if paramiko.pkey.PublicBlob.from_file(str(public)).key_blob == key.asbytes():
                return True
    return False


def _is_taken(host: Host, link: paramiko.Transport, key: paramiko.PKey) -> bool:
    """Whether the host lets us in with `key`. Raises where no other key can help."""
    try:
        more = link.auth_publickey(host.user, key)
    except paramiko.BadAuthenticationType as error:
        ways = ", ".join(error.allowed_types)
        raise TestbedError(f"{_named(host)}: takes no keys, only {ways}") from error
    except paramiko.AuthenticationException as error:
        if link.is_active():
            return False
        raise TestbedError(
            f"{_named(host)}: login refused: it hung up before every key was tried; name the right "
            "one (`key`), and leave those of the agent out (`agent: false`)"
        ) from error
    if more:
        raise TestbedError(f"{_named(host)}: wants more than a key: {', '.join(more)}")
    return True


def _communicate(channel: paramiko.Channel, stdin: str) -> tuple[int, bytes, bytes]:
    """Feed and drain a command until it ends: exit status, stdout, stderr.

    All three at once: a command may fill one stream while it waits for another. What feeds is not
    waited for: it may be stuck in the socket of a host that is gone.
    """
    output: list[bytes] = []
    errors: list[bytes] = []
    threading.Thread(target=_feed, args=(channel, stdin.encode()), daemon=True).start()
    draining = threading.Thread(target=_drain, args=(channel.recv_stderr, errors), daemon=True)
    draining.start()
    _drain(channel.recv, output)
    draining.join()
    status: int = channel.recv_exit_status()
    with suppress(*FAILURES):
        channel.close()
    return status, b"".join(output), b"".join(errors)


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    with suppress(*FAILURES):  # a command need not read what it is given
        channel.sendall(data)
        channel.shutdown_write()


def _drain(receive: Callable[[int], bytes], chunks: list[bytes]) -> None:
    while chunk := receive(_CHUNK_BYTES):
        chunks.append(chunk)


@contextmanager
def _at_last(timeout_s: float, stop: Callable[[], object]) -> Iterator[threading.Event]:
    """Call `stop` if the block takes longer than `timeout_s`; the event says that it was called."""
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(*FAILURES):
            stop()

    timer = threading.Timer(max(0.0, timeout_s), end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _signatures(kind: str) -> tuple[str, ...]:
    """Names under which SSH negotiates a kind of host key. Source: RFC 8332 for RSA."""
    return ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa") if kind == "ssh-rsa" else (kind,)


def _named(host: Host) -> str:
    """Name and login."""
    return f"{host.name} ({host.login})"


def _shown(argv: Sequence[str]) -> str:
    """A command for a message: in one short line."""
    text = shlex.join(argv)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _words(error: BaseException) -> str:
    """What an exception says; its kind where it says nothing."""
    if isinstance(error, paramiko.ChannelException):
        return str(error.text)
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said or type(error).__name__
