"""Machines reached over SSH, with paramiko.

A host key is checked against known_hosts files and never accepted unseen. Every call has a
deadline, and every error names the host.
"""

import logging
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import paramiko

from netbench.errors import TestbedError
from netbench.network.nodes import at_once
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.known_hosts import KnownHosts
from netbench.testbed.ssh.nodes import FAILURES, HostNode, SshNode, at_last, what_failed
from netbench.testbed.ssh.this_machine import LocalNode

CONNECT_TIMEOUT_S = 30.0
"""Deadline from the first packet to the login, per host and jump host, seconds."""

KEEPALIVE_S = 15.0
"""Interval of keep-alive messages on a connection, seconds."""

LOST_AFTER_S = 30.0
"""Time without acknowledged packets after which a connection counts as lost, seconds."""

FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 3.0
"""Pauses before a login that sshd has dropped is tried again: twice as long each time, and up to
half as long again, so that hosts behind one sshd do not come back together, seconds."""

CLOSE_TIMEOUT_S = 5.0
"""Deadline for closing all connections, seconds. Each has a thread that polls every 0.1 s."""

DEFAULT_KEYS = tuple(Path(f"~/.ssh/id_{kind}") for kind in ("ed25519", "ecdsa", "rsa"))
"""Keys to try if an inventory names none: OpenSSH's, of the kinds that paramiko knows."""

_CHANNEL_HEADER = struct.Struct(">BI")  # kind, recipient: RFC 4254, section 5
_FOR_OPEN_CHANNELS = (93, 94, 95, 96, 98)  # window, data, extended data, EOF, request

_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux only

# paramiko also raises what it logs. Without a handler Python would print it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


DROPPED = (
    "it closes connections before it says that it is an sshd; is the port right? An sshd with too "
    "many logins under way does so (MaxStartups in its sshd_config)"
)

TOO_MANY = "MaxStartups"
"""In the line that some versions of sshd send before they drop a connection."""


class Dropped(TestbedError):
    """The connection was closed before sshd said who it is, as with MaxStartups of sshd_config."""


class Hosts(AbstractContextManager["Hosts"]):
    """Hosts by node index; one connection each, made when it is first needed.

    Safe to use from several threads. A connection found lost is made again at the next call.
    All methods, and those of its nodes, raise TestbedError.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        known_hosts: Sequence[Path],
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._known = KnownHosts(known_hosts)
        self._connect_timeout_s = connect_timeout_s
        self._links: dict[Host, Future[paramiko.Transport]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._logins: dict[tuple[str, int, Host | None], threading.Lock] = {}
        self.nodes: tuple[HostNode, ...] = tuple(
            LocalNode(host) if host.is_local else SshNode(host, self._link, connect_timeout_s)
            for host in hosts
        )

    def __getitem__(self, node: int) -> HostNode:
        return self.nodes[node]

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop all connections, for good."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
        made = [future.result() for future in links if future.done() and not future.exception()]
        at_once({index: link.close for index, link in enumerate(made)}, CLOSE_TIMEOUT_S)

    def _link(self, host: Host) -> paramiko.Transport:
        """Return the connection to `host`. If there is none, one thread makes it; others wait."""
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
                # An sshd drops some of the logins that come at once (MaxStartups).
                sshd = (host.address, host.port, host.jump)
                with self._lock:
                    login = self._logins.setdefault(sshd, threading.Lock())
                with login:
                    future.set_result(self._connect(host))
            except BaseException as error:
                with self._lock:
                    self._links.pop(host, None)
                future.set_exception(error)
        return future.result()

    def _connect(self, host: Host) -> paramiko.Transport:
        """Connect, check the host's key and log in, within one deadline.

        An sshd that drops the connection because it has too many logins is tried again.
        """
        end, pause_s = time.monotonic() + self._connect_timeout_s, FIRST_PAUSE_S
        while True:
            try:
                return self._try_to_connect(host, end)
            except Dropped:
                wait_s = pause_s * random.uniform(1.0, 1.5)
                if self._closed or time.monotonic() + wait_s > end:
                    raise
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _try_to_connect(self, host: Host, end: float) -> paramiko.Transport:
        jump = self._link(host.jump) if host.jump else None
        connection = _tcp(host, end) if jump is None else _tunnel(host, jump, end)
        link: _Link | None = None
        with at_last(end - time.monotonic(), connection.close) as late:
            try:
                link = _Link(connection)
                # Later than `late`, which ends them all, or the error would name one of them.
                later_s = 2 * self._connect_timeout_s
                link.banner_timeout = link.handshake_timeout = link.auth_timeout = later_s
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
                if link is not None and link.is_dropped:
                    raise Dropped(f"{_named(host)}: {DROPPED}") from error
                raise TestbedError(f"{_named(host)}: SSH failed: {what_failed(error)}") from error
        link.set_keepalive(KEEPALIVE_S)
        if self._closed:
            link.close()
            raise TestbedError(f"{host.name}: the connection is no longer wanted")
        return link

    def _negotiate(self, host: Host, link: paramiko.Transport) -> None:
        """Negotiate keys. Ask for a host key that is known, and refuse any other."""
        options = link.get_security_options()
        wanted = {name for kind in self._known.kinds(host) for name in _signatures(kind)}
        options.key_types = sorted(options.key_types, key=lambda name: name not in wanted)
        link.start_client(timeout=2 * self._connect_timeout_s)
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
        self._said: list[str] = []

    @property
    def is_dropped(self) -> bool:
        """It was closed before sshd said its version, without other words than why."""
        return not self.remote_version and all(TOO_MANY in line for line in self._said)

    def _log(self, level: int, msg: object, *args: object) -> None:
        """Keep what came before the version; paramiko only logs it."""
        if str(msg).startswith("Banner: "):
            self._said.append(str(msg))
        super()._log(level, msg, *args)

    def _send_user_message(self, data: paramiko.Message) -> None:
        kind, recipient = _CHANNEL_HEADER.unpack(data.asbytes()[: _CHANNEL_HEADER.size])
        with self._in_order:
            if kind not in _FOR_OPEN_CHANNELS or self._is_open(recipient):
                super()._send_user_message(data)

    def _is_open(self, remote_id: int) -> bool:
        channels = self._channels.values()
        return any(one.remote_chanid == remote_id and not one.closed for one in channels)


def _tcp(host: Host, end: float) -> socket.socket:
    """Return a TCP connection to the first of the host's addresses that accepts it."""
    try:
        found = socket.getaddrinfo(host.address, host.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TestbedError(f"{_named(host)}: no such host: {what_failed(error)}") from error
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
    raise TestbedError(f"{_named(host)}: no connection: {what_failed(failure)}") from failure


def _tunnel(host: Host, jump: paramiko.Transport, end: float) -> paramiko.Channel:
    """Return a channel to the host's sshd through its jump host."""
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
            f"{_named(host)}: not reached from the jump host {way}: {what_failed(error)}"
        ) from error


def _log_in(host: Host, link: paramiko.Transport) -> None:
    """Offer the host's keys, or the default ones, then the agent's, until one is accepted."""
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
                f"{what_failed(error)}"
            ) from error
        asked = paramiko.agent.AgentSSH()
        asked._connect(connection)  # `Agent` knows only SSH_AUTH_SOCK
        yield asked


def _is_named(host: Host, key: paramiko.AgentKey) -> bool:
    """Return whether a key of the agent may be offered (IdentitiesOnly)."""
    if not host.only_named:
        return True
    for path in host.keys:
        with suppress(OSError, ValueError, UnicodeDecodeError):
            public = path if path.suffix == ".pub" else Path(f"{path}.pub")
            if paramiko.pkey.PublicBlob.from_file(str(public)).key_blob == key.asbytes():
                return True
    return False


def _is_taken(host: Host, link: paramiko.Transport, key: paramiko.PKey) -> bool:
    """Return whether the host accepts `key`. Raises TestbedError if no other key can help."""
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


def _signatures(kind: str) -> tuple[str, ...]:
    """Return the names under which SSH negotiates a kind of host key. Source: RFC 8332 for RSA."""
    return ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa") if kind == "ssh-rsa" else (kind,)


def _named(host: Host) -> str:
    return f"{host.name} ({host.login})"
