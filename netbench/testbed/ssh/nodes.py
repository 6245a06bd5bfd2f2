"""A host over SSH: run a command, open a channel to one that stays.

`HostNode` is what hosts over SSH and this machine (`this_machine`) have in common.

Output is always drained, both streams at once, and kept within limits: a command may fill one
stream while it waits for another. Nothing reaches a remote shell unquoted. Every call has a
deadline, and every error names the host.
"""

import math
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import paramiko

from netbench.errors import TestbedError
from netbench.network.nodes import COMMAND_TIMEOUT_S, Channel, Completed
from netbench.testbed.lines import MAX_OUTPUT_BYTES, LineBuffer, last_lines
from netbench.testbed.ssh.host import Host
from netbench.units import format_bytes

SHORT_S = 60.0
"""Deadline of a command that only asks, seconds."""

KEPT_ERROR_BYTES = 1 << 13
"""Bytes kept of the end of a persistent command's stderr, for messages."""

LAST_ERRORS_S = 5.0
"""Deadline for the rest of stderr once stdout has ended, seconds. A process left in the background
may keep stderr open."""

FAILURES = (OSError, EOFError, paramiko.SSHException)
"""Exceptions of paramiko when a host, or the way to it, fails."""

_CHUNK_BYTES = 1 << 16
_SHOWN_CHARACTERS = 120


class HostNode(ABC):
    """A host as its login user reaches it, or root: a `netbench.network.nodes.Node`."""

    def __init__(self, host: Host, is_root: bool = False) -> None:
        self._host = host
        self._is_root = is_root

    @property
    def python(self) -> str:
        """The interpreter that the inventory names."""
        return self._host.python

    @property
    @abstractmethod
    def as_root(self) -> "HostNode":
        """The host as root reaches it: through `sudo -n`, unless the login user is root."""

    def run(
        self, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Completed:
        """Run a command to its end. More than `MAX_OUTPUT_BYTES` of output are an error.

        The status of a command ended by a signal is -1, or 128 + the signal where the login shell
        has it so. timeout_s: from the login on; a late command may run on.
        """
        sudo = self._sudo()
        completed = self._run([*sudo, *argv], stdin.encode(), timeout_s)
        if completed.status != 0 and sudo and "sudo" in completed.stderr:
            self._check_sudo(sudo)
        return completed

    def open(self, argv: Sequence[str]) -> "HostChannel":
        """Start a command that stays: lines to its stdin, lines from its stdout."""
        return self._open([*self._sudo(), *argv])

    def own_address(self) -> str:
        """Return the address at which the host takes our SSH connection, as the host sees it."""
        argv = ["printenv", "SSH_CONNECTION"]
        status, stdout, _ = self._run(argv, b"", SHORT_S)
        fields = stdout.split()  # client address, client port, server address, server port
        if status != 0 or len(fields) != 4 or "%" in fields[2]:  # a link-local address has a %
            raise TestbedError(
                f"{self._host.name}: does not say at which address it takes SSH; "
                "write its data_address into the inventory"
            )
        return fields[2]

    def _sudo(self) -> list[str]:
        host = self._host
        if not self._is_root or host.user == "root":
            return []
        if not host.sudo:
            raise TestbedError(
                f"{host.name}: needs root, logs in as {host.user} and has sudo: false; "
                "log in as root, or let the user use sudo without a password"
            )
        return ["sudo", "-n", "--"]

    def _check_sudo(self, sudo: Sequence[str]) -> None:
        """Tell a sudo that refuses from a command that failed, in whatever language it says so."""
        status, _, stderr = self._run([*sudo, "true"], b"", SHORT_S)
        if status != 0:
            host = self._host
            raise TestbedError(
                f"{host.name}: {host.user} cannot become root: {' '.join(stderr.split())}; "
                f'allow it without a password (in /etc/sudoers.d: "{host.user} ALL=(root) '
                'NOPASSWD: ALL"), or log in as root'
            )

    @abstractmethod
    def _run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
        """Run a command to its end as the login user."""

    @abstractmethod
    def _open(self, argv: Sequence[str]) -> "HostChannel":
        """Start a command that stays, as the login user."""


class HostChannel(Channel, Protocol):
    """A channel to a command on a host."""

    def receive(self, timeout_s: float | None = None) -> str | None:
        """Return the next line; see `SshChannel.receive`."""

    def last_words(self) -> str:
        """Return the last three lines that an ended command wrote to stderr, joined into one."""


class SshNode(HostNode):
    """A host over SSH. link: returns the connection to a host."""

    def __init__(
        self,
        host: Host,
        link: Callable[[Host], paramiko.Transport],
        connect_timeout_s: float,
        is_root: bool = False,
    ) -> None:
        super().__init__(host, is_root)
        self._link = link
        self._connect_timeout_s = connect_timeout_s

    @property
    def as_root(self) -> "SshNode":
        return SshNode(self._host, self._link, self._connect_timeout_s, is_root=True)

    def _open(self, argv: Sequence[str]) -> "SshChannel":
        return SshChannel(self._start(argv), self._host.name)

    def _run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
        name = self._host.name
        channel = self._start(argv)
        errors = _Errors(channel, MAX_OUTPUT_BYTES)
        feed = threading.Thread(target=_feed, args=(channel, stdin), daemon=True)
        feed.start()  # never joined: it may be stuck in the socket of a host that is gone
        output, status, has_failed = bytearray(), -1, False
        with at_last(timeout_s, channel.close) as late:
            try:
                while (chunk := channel.recv(_CHUNK_BYTES)) and len(output) <= MAX_OUTPUT_BYTES:
                    output += chunk
                if not chunk:
                    status = channel.recv_exit_status()
            except FAILURES:  # the connection broke while its window was extended
                has_failed = True
        if len(output) > MAX_OUTPUT_BYTES:
            why = f"more than {format_bytes(MAX_OUTPUT_BYTES)} of output from"
        elif late.is_set():
            why = f"no answer within {timeout_s:g} s from"
        elif has_failed or (status == -1 and not channel.get_transport().is_active()):
            why = "the SSH connection was lost during"
        else:
            why = ""
            errors.join(LAST_ERRORS_S)
        with suppress(*FAILURES):
            channel.close()
        if why:
            raise TestbedError(f"{name}: {why}: {_shown(argv)}")
        return Completed(
            status, output.decode(errors="replace"), errors.tail.decode(errors="replace")
        )

    def _start(self, argv: Sequence[str]) -> paramiko.Channel:
        """Start a session that runs `argv`: one shell word per argument."""
        link = self._link(self._host)
        try:
            channel = link.open_session(timeout=self._connect_timeout_s)
            with at_last(self._connect_timeout_s, channel.close):
                channel.exec_command(shlex.join(argv))
        except FAILURES as error:
            raise TestbedError(
                f"{self._host.name}: its sshd did not start: {_shown(argv)} ({what_failed(error)})"
            ) from error
        return channel


class SshChannel:
    """A `netbench.network.nodes.Channel` over one SSH session."""

    def __init__(self, channel: paramiko.Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._lines = LineBuffer()
        self._errors = _Errors(channel, KEPT_ERROR_BYTES)

    def send(self, line: str) -> None:
        """Send one line (without its newline)."""
        try:
            self._channel.sendall(line.encode() + b"\n")
        except FAILURES as error:
            said = self.last_words() or what_failed(error)
            raise TestbedError(f"{self._name}: the command there has ended: {said}") from error

    def receive(self, timeout_s: float | None = None) -> str | None:
        """Return the next line, or None when the command has ended or the host is gone.

        Raises TestbedError when no line came within `timeout_s` (None: no limit), or it has no end.
        """
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if timeout_s is None else max(0.0, end - time.monotonic())
            try:
                if (line := self._lines.take()) is not None:
                    return line
                self._channel.settimeout(left_s)
                chunk = self._channel.recv(_CHUNK_BYTES)
            except TestbedError as error:
                raise TestbedError(f"{self._name}: {error}") from None
            except TimeoutError:
                raise TestbedError(f"{self._name}: silent for {timeout_s:g} s") from None
            except FAILURES:  # the connection broke while its window was extended
                return None
            finally:
                self._channel.settimeout(None)
            if not chunk:
                return None
            self._lines.feed(chunk)

    def last_words(self) -> str:
        """Return the last three lines that an ended command wrote to stderr, joined into one."""
        self._errors.join(LAST_ERRORS_S)
        return last_lines(self._errors.tail)

    def close(self) -> None:
        """Close the channel: the command reads the end of its stdin."""
        with suppress(*FAILURES):  # the host was faster
            self._channel.close()


class _Errors(threading.Thread):
    """Drains the stderr of a command and keeps its end."""

    def __init__(self, channel: paramiko.Channel, kept_bytes: int) -> None:
        super().__init__(daemon=True)
        self._channel = channel
        self._kept_bytes = kept_bytes
        self._kept = bytearray()
        self.start()

    def run(self) -> None:
        while True:
            try:
                chunk = self._channel.recv_stderr(_CHUNK_BYTES)
            except TimeoutError:  # `receive` sets it, for both streams
                continue
            except FAILURES:  # the connection broke; whoever reads stdout reports it
                return
            if not chunk:
                return
            self._kept += chunk
            if len(self._kept) > 2 * self._kept_bytes:
                del self._kept[: -self._kept_bytes]

    @property
    def tail(self) -> bytes:
        return bytes(self._kept[-self._kept_bytes :])


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    with suppress(*FAILURES):  # a command need not read its input
        channel.sendall(data)
        channel.shutdown_write()


@contextmanager
def at_last(timeout_s: float, stop: Callable[[], object]) -> Iterator[threading.Event]:
    """Call `stop` if the block takes longer than `timeout_s`, and set the event."""
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


def _shown(argv: Sequence[str]) -> str:
    """Return a command as one short line for a message."""
    text = shlex.join(argv)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def what_failed(error: BaseException) -> str:
    """Return the text of an exception, or its kind if it has none."""
    if isinstance(error, paramiko.ChannelException):
        return str(error.text)
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said or type(error).__name__
