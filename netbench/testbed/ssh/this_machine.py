"""This machine as a host of an inventory: without SSH, and without an sshd.

A command has a session of its own, so that Ctrl-C in a terminal reaches netbench alone, as with
hosts over SSH. It reads the end of its stdin when netbench ends, however that ends.
"""

import os
import socket
import subprocess
import threading
from collections.abc import Sequence

from netbench.errors import TestbedError
from netbench.network.nodes import Completed
from netbench.testbed.lines import MAX_OUTPUT_BYTES, last_lines
from netbench.testbed.namespaces import SocketChannel
from netbench.testbed.ssh.nodes import KEPT_ERROR_BYTES, LAST_ERRORS_S, HostNode
from netbench.units import format_bytes

HIDDEN = ("SSH_", "SUDO_")
"""Beginnings of environment variables that say how the user of netbench came here."""

_CHUNK_BYTES = 1 << 16
_NOT_FOUND = 127
"""Exit status of a shell for a command that does not exist."""


class LocalNode(HostNode):
    """This machine as the user of netbench reaches it, or root."""

    @property
    def as_root(self) -> "LocalNode":
        return LocalNode(self._host, is_root=True)

    def _run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            return Completed(_NOT_FOUND, "", f"{argv[0]}: {error.strerror}\n")
        with process:
            try:
                output, errors = process.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                text = f"{self._host.name}: no answer within {timeout_s:g} s from: {argv[0]}"
                raise TestbedError(text) from None
            except BaseException:
                process.kill()
                raise
        if len(output) > MAX_OUTPUT_BYTES:
            what = f"more than {format_bytes(MAX_OUTPUT_BYTES)} of output from: {argv[0]}"
            raise TestbedError(f"{self._host.name}: {what}")
        text = output.decode(errors="replace")
        return Completed(process.returncode, text, errors.decode(errors="replace"))

    def _open(self, argv: Sequence[str]) -> "LocalChannel":
        here, there = socket.socketpair()
        try:
            with there:
                process = subprocess.Popen(
                    argv,
                    stdin=there.fileno(),
                    stdout=there.fileno(),
                    stderr=subprocess.PIPE,
                    env=_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            here.close()
            what = f"{self._host.name}: cannot start {argv[0]}: {error.strerror}"
            raise TestbedError(what) from error
        return LocalChannel(here, process, self._host.name)


class LocalChannel(SocketChannel):
    """A channel to a command of this machine."""

    def __init__(
        self, connection: socket.socket, process: subprocess.Popen[bytes], name: str
    ) -> None:
        super().__init__(connection)
        self._name = name
        self._process = process
        self._tail = b""
        self._errors = threading.Thread(target=self._drain, daemon=True)
        self._errors.start()

    def send(self, line: str) -> None:
        try:
            super().send(line)
        except TestbedError as error:
            said = self.last_words() or str(error.__cause__)
            raise TestbedError(f"{self._name}: the command there has ended: {said}") from error

    def last_words(self) -> str:
        """Return the last three lines of stderr: see `HostChannel`."""
        self._errors.join(LAST_ERRORS_S)
        return last_lines(self._tail)

    def _drain(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            while chunk := os.read(errors.fileno(), _CHUNK_BYTES):
                self._tail = (self._tail + chunk)[-KEPT_ERROR_BYTES:]
        self._process.wait()


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(HIDDEN)}
