"""Send the agent to hosts, ask it, and remove it; or one that is installed there.

The agent gets a temporary folder that only the login user and root can enter. It is run only after
its checksum was verified on the host. It receives nothing but arguments and JSON on stdin.

One process of it stays on each host and answers request after request. Where it cannot, or has
ended, each request starts a new one.
"""

import binascii
import functools
import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netbench.errors import NetbenchError, NetworkError
from netbench.network.nodes import ALONE, Channel, Completed, Node
from netbench.network.remote.agent.messages import FOLDER_PREFIX, SERVE, STATE_FOLDER
from netbench.network.remote.bytecode import add_module

ROOT = Path(__file__).parents[3]
"""Parent folder of the package."""

AGENT = "netbench/network/remote/agent"

SHARED = ("netbench/network/shaping/batch.py",)
"""Modules that the agent shares with the controller."""

FOLDERS: tuple[str, ...] = ("/tmp", "/dev/shm", "/var/tmp")
"""Folders to try for the agent, in order: the first that can be written."""

MIN_PYTHON = (3, 9)

_INSTALL = "write it with `netbench net agent FILE`, and install it as root (docs/security.md)"

_NOT_THERE = 2  # Python's exit status when it finds no file to run

BUSY_S = 10.0
"""Longest wait for the agent that stays while it answers another request, seconds."""

_CHECK = """\
import hashlib, json, os, sys
about = os.stat(sys.argv[1])
with open(sys.argv[1], "rb") as file:
    checksum = hashlib.sha256(file.read()).hexdigest()
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "ssh": os.environ.get("SSH_CONNECTION", ""),
    "checksum": checksum,
    "is_open": bool(about.st_uid or about.st_mode & 18),
}))
"""
"""Program for any Python 3: print its version, the SSH connection, an agent's checksum, and whether
others than root may write the agent."""

_RECEIVE = """\
import binascii, hashlib, json, os, sys
found = {"version": list(sys.version_info[:3]), "ssh": os.environ.get("SSH_CONNECTION", "")}
found.update(path="", checksum="", refused=[])
line = sys.stdin.readline()
if not line.endswith("\\n"):
    sys.exit("the connection ended")
os.umask(63)
for folder in sys.argv[2:]:
    made = folder + "/" + sys.argv[1] + binascii.hexlify(os.urandom(8)).decode()
    path = made + "/agent.zip"
    try:
        os.mkdir(made)
        with open(path, "xb") as file:
            file.write(binascii.a2b_base64(line))
        with open(path, "rb") as file:
            found.update(path=path, checksum=hashlib.sha256(file.read()).hexdigest())
        break
    except OSError as error:
        found["refused"].append(folder + ": " + str(error.strerror))
        for remove, name in ((os.unlink, path), (os.rmdir, made)):
            try:
                remove(name)
            except OSError:
                pass
print(json.dumps(found))
"""
"""Program for any Python 3: write the agent, in base64 on a line of stdin, into a new folder inside
the first of some that can be written. Print what `_CHECK` prints, its path, and why not elsewhere.
"""


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
    """Sends and asks the agent on every host; node i is `machines[i]`.

    The agent stays until `remove`, or until the connection ends, if sooner.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self._sent: dict[int, Sent] = {}
        self._serving: dict[int, Channel] = {}
        self._locks = [threading.Lock() for _ in machines]

    def send(self, node: int) -> Sent:
        """Send the agent unless it is there already. Raises NetbenchError if it cannot be run."""
        if node not in self._sent:
            self._sent[node] = self._send(node)
        return self._sent[node]

    def addresses(self, node: int) -> tuple[str, ...]:
        """Return the host's addresses on the network to shape."""
        return self.machines[node].addresses or self.send(node).ssh[2:3]

    def ask(self, node: int, operation: str, request: Mapping[str, Any]) -> Any:
        """Ask the agent and return its answer. Raises AgentRefused for an error that it answers.

        Raises NetbenchError if the call fails. An agent that is missing, for example because the
        host cleaned its temporary folder, is sent again.
        """
        answer = self._served(node, operation, request)
        if answer is None:
            answer = self._called(node, operation, request)
        if "error" in answer:
            raise AgentRefused(answer["error"])
        return answer["ok"]

    def _served(self, node: int, operation: str, request: Mapping[str, Any]) -> Any:
        """Return the answer of the process that stays; None if there is none."""
        _, line = self._command(node, operation, request)
        if not self._locks[node].acquire(timeout=BUSY_S):
            return None
        try:
            channel = self._serving.get(node) or self._serve(node)
            channel.send(f"{operation} {line}")
            if (answer := channel.receive()) is not None:
                return json.loads(answer)
        except (NetbenchError, ValueError):
            pass  # the call that follows says what is wrong
        finally:
            self._locks[node].release()
        self._stop_serving(node)
        return None

    def _serve(self, node: int) -> Channel:
        """Start the process that stays. When its stdin ends it deletes the agent that was sent."""
        machine = self.machines[node]
        argv = (machine.python, *ALONE, self.send(node).path, SERVE)
        channel = self._serving[node] = machine.root.open(argv)
        return channel

    def _stop_serving(self, node: int) -> None:
        channel = self._serving.pop(node, None)
        if channel is not None:
            with suppress(NetbenchError):
                channel.close()

    def _called(self, node: int, operation: str, request: Mapping[str, Any]) -> Any:
        """Return the answer of a process for this request alone."""
        status, stdout, stderr = self._call(node, operation, request)
        if status == _NOT_THERE and "can't open file" in stderr:
            self._sent.pop(node, None)
            status, stdout, stderr = self._call(node, operation, request)
        try:
            return json.loads(stdout)
        except ValueError:
            text = " | ".join((stderr or stdout).strip().splitlines()[-3:])
            raise NetworkError(
                f"`{operation}` ended with {status}: {text or 'it printed nothing'}"
            ) from None

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
        try:
            if sent is not None:
                self._remove(node, sent.path)
        finally:
            self._stop_serving(node)

    def _send(self, node: int) -> Sent:
        machine = self.machines[node]
        if machine.agent_path:
            return self._checked(node, agent_zip(), machine.agent_path)
        source = agent_zip(compiled=True)
        argv = (machine.python, *ALONE, "-c", _RECEIVE, FOLDER_PREFIX, *FOLDERS)
        text = binascii.b2a_base64(source).decode()
        found = self._understood(node, *machine.node.run(argv, text))
        ssh = tuple(found["ssh"].split())
        try:
            self._check_version(node, found["version"])
            if not found["path"]:
                if armed := self._armed(node):
                    return Sent(path=armed, ssh=ssh)
                raise NetworkError(f"no room for the agent: {'; '.join(found['refused'])}")
            if not re.fullmatch(r"/[\w./-]+", found["path"]):
                raise NetworkError(f"{found['path']!r} is not the path of an agent")
            self._check_sum(node, source, found)
        except BaseException:
            if found["path"]:
                with suppress(NetbenchError):  # the first error is the one to report
                    self._remove(node, found["path"])
            raise
        sent = self._sent[node] = Sent(path=found["path"], ssh=ssh)
        with suppress(NetbenchError):  # then only `remove` deletes the folder
            self._stop_serving(node)
            self._serve(node)
        return sent

    def _armed(self, node: int) -> str:
        """Return the path of the agent that a shaped host keeps; only root can change it."""
        command = ("sh", "-c", 'ls -t "$1"/*.zip', "sh", STATE_FOLDER)
        copies = self.machines[node].root.run(command).stdout.splitlines()
        return copies[0] if copies else ""

    def _checked(self, node: int, source: bytes, path: str) -> Sent:
        """Return an agent that is installed, if it is root's and this version's."""
        machine = self.machines[node]
        status, stdout, stderr = machine.node.run((machine.python, *ALONE, "-c", _CHECK, path))
        if status and "FileNotFoundError" in stderr:
            raise NetworkError(f"there is no {path}; {_INSTALL}")
        found = self._understood(node, status, stdout, stderr)
        self._check_version(node, found["version"])
        if found["is_open"]:
            raise NetworkError(f"others than root may write {path}, so it was not run; {_INSTALL}")
        self._check_sum(node, source, {**found, "path": path}, f"; {_INSTALL}")
        return Sent(path=path, ssh=tuple(found["ssh"].split()))

    def _understood(self, node: int, status: int, stdout: str, stderr: str) -> dict[str, Any]:
        """Return what a program of this module printed. Raises NetworkError if Python failed."""
        python = self.machines[node].python
        if status:
            text = " ".join(stderr.split()[-20:])
            raise NetworkError(
                f"`{python}` does not run ({text}); install Python 3.9 or later, or name "
                "another one in the inventory (`python:`)"
            )
        try:
            return dict(json.loads(stdout))
        except ValueError:
            raise NetworkError(
                f"`{python}` is not a Python: asked for its version it answered "
                f"{stdout[:60]!r}; name one in the inventory (`python:`)"
            ) from None

    def _check_version(self, node: int, version: Sequence[int]) -> None:
        if tuple(version) < MIN_PYTHON:
            raise NetworkError(
                f"`{self.machines[node].python}` is Python {'.'.join(map(str, version))}, the node "
                "needs 3.9 or later; name another one in the inventory (`python:`)"
            )

    def _check_sum(
        self, node: int, source: bytes, found: Mapping[str, Any], remedy: str = ""
    ) -> None:
        if found["checksum"] != hashlib.sha256(source).hexdigest():
            raise NetworkError(f"{found['path']} has a wrong checksum and was not run{remedy}")

    def _remove(self, node: int, path: str) -> None:
        if path.startswith(STATE_FOLDER) or path == self.machines[node].agent_path:
            return  # the host's own
        self.machines[node].node.run(("rm", "-rf", "--", path.rpartition("/")[0]))
