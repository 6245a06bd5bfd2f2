"""Send the agent to hosts, call it, and remove it; or call one that is installed there.

The agent gets a temporary folder that only the login user and root can enter. It is run only after
its checksum was verified on the host. It receives nothing but arguments and JSON on stdin.
"""

import functools
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netbench.errors import NetbenchError, NetworkError
from netbench.network.nodes import ALONE, Channel, Completed, Node, output_of
from netbench.network.remote.agent.messages import FOLDER_PREFIX, STATE_FOLDER
from netbench.network.remote.bytecode import add_module

ROOT = Path(__file__).parents[3]
"""Parent folder of the package."""

AGENT = "netbench/network/remote/agent"

SHARED = ("netbench/network/shaping/batch.py",)
"""Modules that the agent shares with the controller."""

FOLDERS: tuple[str, ...] = ("/tmp", "/dev/shm", "/var/tmp")
"""Folders to try for the agent, in order: the first that has room."""

MIN_PYTHON = (3, 9)

_INSTALL = "write it with `netbench net agent FILE`, and install it as root (docs/security.md)"

_NOT_THERE = 2  # Python's exit status when it finds no file to run

_PLAIN = ("env", "LC_ALL=C")
"""Prefix of a command whose error messages are parsed: makes them English."""

_CHECK = (
    "import hashlib, json, os, sys; "
    "print(json.dumps([list(sys.version_info[:3]), "
    "hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest(), "
    "os.environ.get('SSH_CONNECTION', ''), "
    "bool(os.stat(sys.argv[1]).st_uid or os.stat(sys.argv[1]).st_mode & 18)]))"
)
"""Program for any Python 3: print its version, the agent's checksum, the SSH connection, and
whether others than root may write the agent."""

_CLEANUP = 'cat > /dev/null; rm -rf -- "$1"'
"""Shell program: delete a folder when stdin ends, however the controller ended."""


@functools.cache
def agent_zip(*, compiled: bool = False) -> bytes:
    """Return the agent as a zip that Python runs, the same bytes on every machine.

    compiled: with its modules as this Python compiles them, so that it starts faster.
    """
    modules = (*SHARED, *(f"{AGENT}/{path.name}" for path in (ROOT / AGENT).glob("*.py")))
    packages = {
        f"{folder}/__init__.py" for module in modules for folder in Path(module).parents[:-1]
    }
    sources = {name: name for name in {*modules, *packages}}
    sources["__main__.py"] = f"{AGENT}/__main__.py"
    data = io.BytesIO()
    # Compressors differ between machines.
    how = zipfile.ZIP_DEFLATED if compiled else zipfile.ZIP_STORED
    with zipfile.ZipFile(data, "w", how) as archive:
        for name, source in sorted(sources.items()):
            text = (ROOT / source).read_bytes()
            if compiled:
                add_module(archive, name, text)
            else:
                archive.writestr(zipfile.ZipInfo(name), text)
    return data.getvalue()


class AgentRefused(NetworkError):
    """The agent was reached and answered with an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A host to shape.

    node, root: the host as its login user and as root reach it. addresses: on the network to shape;
    empty = the address at which it accepts SSH. interface: "" = the one that has these addresses.
    agent_path: of an agent that root has installed there; "" = it is sent. namespace: of the node
    that is shaped, "" = the host itself (`agent.division`).
    """

    name: str
    node: Node
    root: Node
    python: str = "python3"
    addresses: tuple[str, ...] = ()
    interface: str = ""
    agent_path: str = ""
    namespace: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Path of the agent on a host.

    ssh: address and port of the client, then of the server, as the host sees the connection; empty
    for a host that is not reached by SSH.
    """

    path: str
    ssh: tuple[str, ...]


class Deployer:
    """Sends and calls the agent on every host; node i is `machines[i]`.

    The agent stays until `remove`, or until the connection ends, if sooner.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self._sent: dict[int, Sent] = {}
        self._cleanups: dict[int, Channel] = {}

    def send(self, node: int) -> Sent:
        """Send the agent unless it is there already. Raises NetbenchError if it cannot be run."""
        if node not in self._sent:
            self._sent[node] = self._send(node)
        return self._sent[node]

    def addresses(self, node: int) -> tuple[str, ...]:
        """Return the host's addresses on the network to shape."""
        return self.machines[node].addresses or self.send(node).ssh[2:3]

    def ask(self, node: int, operation: str, request: Mapping[str, Any]) -> Any:
        """Call the agent and return its answer. Raises AgentRefused for an error that it answers.

        Raises NetbenchError if the call fails. An agent that is missing, for example because the
        host cleaned its temporary folder, is sent again.
        """
        status, stdout, stderr = self._call(node, operation, request)
        if status == _NOT_THERE and "can't open file" in stderr:
            self._sent.pop(node, None)
            status, stdout, stderr = self._call(node, operation, request)
        try:
            answer = json.loads(stdout)
        except ValueError:
            text = " | ".join((stderr or stdout).strip().splitlines()[-3:])
            raise NetworkError(
                f"`{operation}` ended with {status}: {text or 'it printed nothing'}"
            ) from None
        if "error" in answer:
            raise AgentRefused(answer["error"])
        return answer["ok"]

    def open(self, node: int, operation: str, request: Mapping[str, Any]) -> Channel:
        """Start an operation that continues after its request. Raises NetbenchError."""
        argv, line = self._command(node, operation, request)
        channel = self.machines[node].root.open(argv)
        channel.send(line)
        return channel

    def run(
        self, node: int, operation: str, request: Mapping[str, Any], stdin: str, timeout_s: float
    ) -> Completed:
        """Run an operation that reads more than its request, to its end. Raises NetbenchError."""
        argv, line = self._command(node, operation, request)
        return self.machines[node].root.run(argv, f"{line}\n{stdin}", timeout_s)

    def _call(self, node: int, operation: str, request: Mapping[str, Any]) -> Completed:
        return self.machines[node].root.run(*self._command(node, operation, request))

    def _command(
        self, node: int, operation: str, request: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], str]:
        """Return the argv of an operation and its first line of stdin."""
        machine, sent = self.machines[node], self.send(node)
        about: dict[str, Any] = {"interface": machine.interface}
        about["addresses"] = list(self.addresses(node))
        if machine.namespace:
            about["namespace"] = machine.namespace
        argv = (machine.python, *ALONE, sent.path, operation)
        return argv, json.dumps({**about, **request})

    def remove(self, node: int) -> None:
        """Delete the agent; do nothing if it was not sent."""
        sent = self._sent.pop(node, None)
        if sent is not None:
            self._remove(node, sent.path)

    def _send(self, node: int) -> Sent:
        if installed := self.machines[node].agent_path:
            return self._checked(node, agent_zip(), installed)
        source = agent_zip(compiled=True)
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
            if armed := self._armed(node):
                return armed
            raise NetworkError(f"no room for the agent: {'; '.join(refusals)}")
        try:
            return self._checked(node, source, path)
        except BaseException:
            with suppress(NetbenchError):  # the first error is the one to report
                self._remove(node, path)
            raise

    def _armed(self, node: int) -> Sent | None:
        """Return the copy of the agent that a shaped host keeps; only root can change it."""
        command = ("sh", "-c", 'ls -t "$1"/*.zip', "sh", STATE_FOLDER)
        copies = self.machines[node].root.run(command).stdout.splitlines()
        if not copies:
            return None
        return Sent(path=copies[0], ssh=self._checked(node, b"", os.devnull).ssh)

    def _write(self, node: int, source: bytes, folder: str) -> str:
        template = f"{folder}/{FOLDER_PREFIX}XXXXXXXXXX"
        made = output_of(
            self.machines[node].node, (*_PLAIN, "mktemp", "-d", "--", template)
        ).strip()
        if not re.fullmatch(r"/[\w./-]+", made):
            raise NetworkError(f"mktemp answered {made!r} instead of a folder's path")
        path = f"{made}/agent.zip"
        former = self._cleanups.pop(node, None)
        if former is not None:
            with suppress(NetbenchError):
                former.close()
        with suppress(NetbenchError):  # then only `remove` deletes the folder
            cleanup = ("sh", "-c", _CLEANUP, "sh", made)
            self._cleanups[node] = self.machines[node].root.open(cleanup)
        try:
            self.machines[node].node.put(source, path)
        except BaseException:
            with suppress(NetbenchError):  # the first error is the one to report
                self._remove(node, path)
            raise
        return path

    def _checked(self, node: int, source: bytes, path: str) -> Sent:
        machine = self.machines[node]
        python = machine.python
        status, stdout, stderr = machine.node.run((python, *ALONE, "-c", _CHECK, path))
        if status and "FileNotFoundError" in stderr:
            raise NetworkError(f"there is no {path}; {_INSTALL}")
        if status:
            text = " ".join(stderr.split()[-20:])
            raise NetworkError(
                f"`{python}` does not run ({text}); install Python 3.9 or later, or name "
                "another one in the inventory (`python:`)"
            )
        try:
            version, checksum, connection, is_open = json.loads(stdout)
        except ValueError:
            raise NetworkError(
                f"`{python}` is not a Python: asked for its version it answered "
                f"{stdout[:60]!r}; name one in the inventory (`python:`)"
            ) from None
        if tuple(version) < MIN_PYTHON:
            raise NetworkError(
                f"`{python}` is Python {'.'.join(map(str, version))}, the node needs 3.9 or later; "
                "name another one in the inventory (`python:`)"
            )
        if path == machine.agent_path and is_open:
            raise NetworkError(f"others than root may write {path}, so it was not run; {_INSTALL}")
        if checksum != hashlib.sha256(source).hexdigest():
            remedy = f"; {_INSTALL}" if path == machine.agent_path else ""
            raise NetworkError(f"{path} has a wrong checksum and was not run{remedy}")
        return Sent(path=path, ssh=tuple(connection.split()))

    def _remove(self, node: int, path: str) -> None:
        if path.startswith(STATE_FOLDER) or path == self.machines[node].agent_path:
            return  # the host's own
        cleanup = self._cleanups.pop(node, None)
        try:
            folder = path.rpartition("/")[0]
            self.machines[node].node.run((*_PLAIN, "rm", "-rf", "--", folder))
        finally:
            if cleanup is not None:
                cleanup.close()


def _lacks_room(error: NetbenchError) -> bool:
    """Return whether to try another folder: this one is full, read-only or missing."""
    signs = ("No space", "quota", "Failure", "Permission denied", "Read-only", "No such file")
    return any(sign in str(error) for sign in signs)
