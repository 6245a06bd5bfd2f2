"""Send the agent to a host, ask it something, take it away again.

It goes into a fresh folder that only the login user and root can enter, is run only if its checksum
is right there, and nothing but arguments and JSON on stdin reaches it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netbench.errors import NetbenchError, NetworkError
from netbench.network import agent
from netbench.network.command import ALONE, Run, output_of
from netbench.network.replay import Channel

Put = Callable[[int, bytes, str], None]
"""Write a new file as the login user: (node, data, path). May raise."""

Open = Callable[[int, Sequence[str]], Channel]
"""Start a command that stays, as root: (node, argv). May raise."""

FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")
"""Where the agent goes: the first that has room."""

MIN_PYTHON = (3, 9)

_NOT_THERE = 2  # Python's exit status when it finds no file to run

_PLAIN = ("env", "LC_ALL=C")
"""Before a command whose complaints are read: they are in English then."""

_CHECK = (
    "import hashlib, json, os, sys; "
    "print(json.dumps([list(sys.version_info[:3]), "
    "hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest(), "
    "os.environ.get('SSH_CONNECTION', '')]))"
)
"""For any Python 3: its version, the agent's checksum, where the SSH connection comes and goes."""

_WARDEN = 'cat > /dev/null; rm -rf -- "$1"'
"""For any shell: takes a folder away when its input ends, however the controller ended."""


class Refused(NetworkError):
    """The agent's own answer: the host was reached, and says no."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A host. addresses: on the network to shape; none = the one it takes SSH at. interface: "" =
    the one that has them."""

    name: str
    python: str = "python3"
    addresses: tuple[str, ...] = ()
    interface: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Where the agent is on a host. ssh: addresses and ports of the connection, client then server,
    as the host sees them; empty where it is not reached by SSH."""

    path: str
    ssh: tuple[str, ...]


class Courier:
    """The agent on every host; node i is `machines[i]`.

    What is sent stays until `remove`; with `open_as_root`, not longer than the connection.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        run: Run,
        run_as_root: Run,
        put: Put,
        open_as_root: Open | None = None,
    ) -> None:
        self._open = open_as_root
        self.machines = tuple(machines)
        self._run = run
        self._run_as_root = run_as_root
        self._put = put
        self._sent: dict[int, Sent] = {}
        self._wardens: dict[int, Channel] = {}

    def send(self, node: int) -> Sent:
        """Send the agent, if it is not there. Raises NetbenchError with why it cannot be run."""
        if node not in self._sent:
            self._sent[node] = self._send(node)
        return self._sent[node]

    def addresses(self, node: int) -> tuple[str, ...]:
        """The host's addresses on the network to shape."""
        return self.machines[node].addresses or self.send(node).ssh[2:3]

    def ask(self, node: int, operation: str, request: Mapping[str, Any]) -> Any:
        """What the agent answers. Raises Refused when it says no, NetbenchError otherwise.

        One that has gone (a folder for temporary files is swept now and then) is sent again.
        """
        status, stdout, stderr = self._call(node, operation, request)
        if status == _NOT_THERE and "can't open file" in stderr:
            self._sent.pop(node, None)
            status, stdout, stderr = self._call(node, operation, request)
        try:
            answer = json.loads(stdout)
        except ValueError:
            words = " | ".join((stderr or stdout).strip().splitlines()[-3:])
            raise NetworkError(
                f"`{operation}` ended with {status}: {words or 'it printed nothing'}"
            ) from None
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def open(self, node: int, operation: str, request: Mapping[str, Any]) -> Channel:
        """Start an operation that goes on talking after its request. Raises NetbenchError."""
        if self._open is None:
            raise NetworkError(f"{self.machines[node].name} is not reached by a channel")
        argv, line = self._words(node, operation, request)
        channel = self._open(node, argv)
        channel.send(line)
        return channel

    def _call(self, node: int, operation: str, request: Mapping[str, Any]) -> tuple[int, str, str]:
        return self._run_as_root(node, *self._words(node, operation, request))

    def _words(
        self, node: int, operation: str, request: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], str]:
        """The command and its first line of input."""
        machine, sent = self.machines[node], self.send(node)
        about = {"interface": machine.interface, "addresses": list(self.addresses(node))}
        argv = (machine.python, *ALONE, sent.path, operation)
        return argv, json.dumps({**about, **request})

    def remove(self, node: int) -> None:
        """Take the agent away. Fine where it is not."""
        sent = self._sent.pop(node, None)
        if sent is not None:
            self._remove(node, sent.path)

    def _send(self, node: int) -> Sent:
        source = Path(agent.__file__).read_bytes()
        refusals = []
        for folder in FOLDERS:
            try:
                path = self._write(node, source, folder)
                break
            except NetbenchError as error:
                if not _lacks_room(error):
                    raise
                refusals.append(str(error))
        else:
            raise NetworkError(f"no room for the agent: {'; '.join(refusals)}")
        try:
            return self._checked(node, source, path)
        except BaseException:
            with suppress(NetbenchError):  # what came first is what is said
                self._remove(node, path)
            raise

    def _write(self, node: int, source: bytes, folder: str) -> str:
        template = f"{folder}/{agent.FOLDER_PREFIX}XXXXXXXXXX"
        made = output_of(self._run, node, (*_PLAIN, "mktemp", "-d", "--", template)).strip()
        if not re.fullmatch(r"/[\w./-]+", made):
            raise NetworkError(f"mktemp answered {made!r} instead of a folder's path")
        path = f"{made}/agent.py"
        former = self._wardens.pop(node, None)
        if former is not None:
            with suppress(NetbenchError):
                former.close()
        if self._open is not None:
            with suppress(NetbenchError):  # then it is `remove` alone that takes it away
                self._wardens[node] = self._open(node, ("sh", "-c", _WARDEN, "sh", made))
        try:
            self._put(node, source, path)
        except BaseException:
            with suppress(NetbenchError):  # what came first is what is said
                self._remove(node, path)
            raise
        return path

    def _checked(self, node: int, source: bytes, path: str) -> Sent:
        python = self.machines[node].python
        status, stdout, stderr = self._run(node, (python, *ALONE, "-c", _CHECK, path), "")
        if status:
            words = " ".join(stderr.split()[-20:])
            raise NetworkError(
                f"`{python}` does not run ({words}); install Python 3.9 or later, or name "
                "another one in the inventory (`python:`)"
            )
        version, checksum, connection = json.loads(stdout)
        if tuple(version) < MIN_PYTHON:
            raise NetworkError(
                f"`{python}` is Python {'.'.join(map(str, version))}, the node needs 3.9 or later; "
                "name another one in the inventory (`python:`)"
            )
        if checksum != hashlib.sha256(source).hexdigest():
            raise NetworkError(f"{path} arrived with another checksum; it was not run")
        return Sent(path=path, ssh=tuple(connection.split()))

    def _remove(self, node: int, path: str) -> None:
        warden = self._wardens.pop(node, None)
        try:
            self._run(node, (*_PLAIN, "rm", "-rf", "--", path.rpartition("/")[0]), "")
        finally:
            if warden is not None:
                warden.close()


def _lacks_room(error: NetbenchError) -> bool:
    """Whether another folder may do: this one is full, cannot be written to or is not there."""
    words = ("No space", "quota", "Failure", "Permission denied", "Read-only", "No such file")
    return any(word in str(error) for word in words)
