"""Machines for a fleet: the agent itself runs, in this process, on kernels that are doubles."""

from __future__ import annotations

import binascii
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from netbench.errors import TestbedError
from netbench.network.remote import deployer
from netbench.network.remote.agent import division, host, state, timer
from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.messages import SERVE
from netbench.network.remote.agent.operations import OPERATIONS
from netbench.network.remote.deployer import Machine
from netbench.network.shaping.batch import HANDLE
from netbench.testing.nodes import FakeChannel, FakeNode

GOLDEN = Path(__file__).parent / "golden" / "network"
DEFAULT = {"kind": "noqueue", "handle": "0:", "root": True, "options": {}}
FORMER = {"net.ipv4.tcp_rmem": "4096\t131072\t6291456", "net.ipv4.tcp_wmem": "4096\t16384\t4194304"}


class FakeKernel:
    """One interface, eth0 or as `name` says, with just enough of `tc`, `ip` and /proc/sys.

    broken: what tc says to a batch. commands: all that was run. Shaped, it shows what the real tc
    printed of the program `pair`.
    """

    INDEX = 2

    def __init__(self, folder: Path) -> None:
        self.root: dict[str, Any] = DEFAULT
        self.name = "eth0"
        self.segments = 65535
        self.broken = ""
        self.commands: list[str] = []
        self.sysctl = folder
        for name, value in FORMER.items():
            path = folder.joinpath(*name.split("."))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value + "\n")

    def setting(self, name: str) -> str:
        return self.sysctl.joinpath(*name.split(".")).read_text().rstrip("\n")

    def ifindex(self, interface: str) -> int | None:
        return self.INDEX if interface == self.name else None

    def ifname(self, index: int) -> str | None:
        return self.name if index == self.INDEX else None

    def run(self, argv: list[str], stdin: str = "") -> tuple[int, str, str]:
        line = " ".join(argv).replace(f" dev {self.name}", " dev eth0")
        stdin = stdin.replace(f" dev {self.name}", " dev eth0")
        self.commands.append(line)
        if line == "tc -batch -":
            return self._load(stdin)
        if line.startswith("tc qdisc del dev eth0 root"):
            self.root = DEFAULT
        if line.startswith("ip link set dev eth0 gso_max_segs"):
            self.segments = int(argv[-1])
        return 0, self._shown(line, stdin), ""

    def _shown(self, line: str, stdin: str) -> str:
        ours = self.root["handle"] == HANDLE
        kind, handle = self.root["kind"], self.root["handle"]
        shown = {
            "tc -V": "tc utility, iproute2-6.1.0, libbpf 1.1.2\n",
            "tc -j qdisc show dev eth0": json.dumps([self.root]),
            "tc qdisc show dev eth0": f"qdisc {kind} {handle} root refcnt 2\n",
            "tc -s -j -batch -": (GOLDEN / "pair.tables.json").read_text()
            if ours
            else f"{json.dumps([self.root])}\n[]",
            "tc -d class show dev eth0": (GOLDEN / "pair.classes.txt").read_text() if ours else "",
            "ip -j -d link show dev eth0": json.dumps(
                [{"ifindex": self.INDEX, "mtu": 1500, "gso_max_segs": self.segments}]
            ),
        }
        if line.startswith("ip -j route get"):
            return json.dumps([{"dev": "eth0"}])
        if line == "unshare --net -- tc -j -batch -":
            words = stdin.splitlines()[0].split()
            options = {words[8]: int(words[9])} if len(words) > 8 else {}
            return json.dumps([{**DEFAULT, "kind": words[7], "options": options}])
        return shown.get(line, "")

    def _load(self, text: str) -> tuple[int, str, str]:
        words = text.split()
        if self.broken:
            return 1, "", self.broken
        if text.startswith("qdisc add dev eth0 root") and self.root["handle"] != "0:":
            return 1, "", "Error: Exclusivity flag on, cannot modify.\nCommand failed -:1\n"
        options = {words[8]: int(words[9])} if words[7] == "pfifo" else {}
        self.root = {"kind": words[7], "handle": words[6], "root": True, "options": options}
        return 0, "", ""


class FakeReplay(FakeChannel):
    """A channel to an agent's `replay` on a node whose clock is `ahead_s` of ours; it loads what
    it is told at once, and says it is late by `late_s`.

    refuses: what it answers to the step of that number. loaded: [time_s, text].
    """

    def __init__(
        self, ahead_s: float = 0.0, late_s: float = 1e-4, refuses: dict[int, str] | None = None
    ) -> None:
        super().__init__(self._answers)
        self.ahead_s, self.late_s, self.refuses = ahead_s, late_s, refuses or {}
        self.steps: list[list[object]] | None = None
        self.start_s = 0.0
        self.loaded: list[list[object]] = []

    def _answers(self, line: str) -> Iterator[str]:
        order = json.loads(line)
        if self.steps is None:
            self.steps = order["steps"]
        elif "clock" in order:
            yield json.dumps({"at_s": time.monotonic() + self.ahead_s})
        else:
            self.start_s = order["start_s"]
            yield from self._load_all()

    def _load_all(self) -> Iterator[str]:
        for number, step in enumerate(self.steps or ()):
            if number in self.refuses:
                yield json.dumps({"error": self.refuses[number]})
                return
            self.loaded.append(step)
            yield json.dumps({"late_s": self.late_s})


class FakeMachines:
    """`run` and `run_as_root` for a fleet. lost: nodes that are not reached. python,
    checksum: what the check before the first run answers. files: what is there, by node and path.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, num_machines: int) -> None:
        self.kernels = [FakeKernel(folder / str(node)) for node in range(num_machines)]
        self.lost: set[int] = set()
        self.python = [3, 11, 2]
        self.checksum = ""
        self.files: dict[tuple[int, str], bytes] = {}
        self.full: set[str] = set()
        self.asked: list[tuple[int, str]] = []
        self.boottime_s = 1000.0
        self.replays: dict[int, FakeReplay] = {}
        self._node = 0
        self._lock = threading.Lock()
        patch.setattr(state, "STATE", folder / "state")
        patch.setattr(state, "MIRROR", folder / "mirror")
        patch.setattr(deployer, "STATE_FOLDER", str(folder / "state"))
        patch.setattr(timer, "SYSTEMD", folder / "none")
        patch.setattr(division, "NAMESPACES", folder / "netns")
        patch.setattr(host, "run_tool", lambda *argv: self.kernels[self._node].run(*argv))
        patch.setattr(host, "namespace", lambda process="self": self._node)
        patch.setattr(host, "now_s", lambda: self.boottime_s)
        patch.setattr(host, "ifindex", lambda name: self.kernels[self._node].ifindex(name))
        patch.setattr(host, "ifname", lambda index: self.kernels[self._node].ifname(index))
        patch.setattr(timer, "start", lambda record: None)

    @property
    def nodes(self) -> list[FakeHost]:
        return [FakeHost(node, self) for node in range(len(self.kernels))]

    def machine(self, node: int, **about: Any) -> Machine:
        """A machine of a fleet."""
        host = self.nodes[node]
        named = {"name": f"m{node}", "interface": "eth0", "root": host.as_root, **about}
        return Machine(**named, node=host)

    def run(self, node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        self._reach(node)
        if argv[0] == "rm":
            folder = argv[-1]
            kept = {at: d for at, d in self.files.items() if not at[1].startswith(folder + "/")}
            self.files = {**kept, **{at: d for at, d in self.files.items() if at[0] != node}}
            return 0, "", ""
        ssh = f"192.0.2.9 50000 192.0.2.{node + 1} 22"
        about: dict[str, Any] = {"version": self.python, "ssh": ssh, "is_open": True}
        path, refused = argv[-1], []
        if stdin:  # the agent, for the first of some folders
            prefix, *folders = argv[5:]
            refused = [f"{folder}: No space left on device" for folder in folders]
            free = [folder for folder in folders if folder.split("/")[1] not in self.full]
            path = f"{free[0]}/{prefix}aaaaaaaaaa/agent.zip" if free else ""
            self.files[node, path] = binascii.a2b_base64(stdin)
        checksum = self.checksum or hashlib.sha256(self.files[node, path]).hexdigest()
        return 0, json.dumps({**about, "path": path, "checksum": checksum, "refused": refused}), ""

    def run_as_root(self, node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        self._reach(node)
        if argv[0] == "sh":  # `Deployer._armed`
            copies = sorted(state.STATE.glob(f"*@{node}.zip"))
            self.files.update({(node, str(copy)): b"" for copy in copies})
            return 0, "\n".join(map(str, copies)), ""
        *_, path, operation = argv
        if (node, path) not in self.files:
            return 2, "", f"python3: can't open file '{path}': [Errno 2] No such file"
        with self._lock, pytest.MonkeyPatch.context() as patch:
            self._node = node
            patch.setattr(host, "SYSCTL", self.kernels[node].sysctl)
            self.asked.append((node, operation))
            try:
                answer = {"ok": OPERATIONS[operation](json.loads(stdin))}
            except AgentError as error:
                answer = {"error": str(error)}
        return int("error" in answer), json.dumps(answer), ""

    def open(self, node: int, argv: Sequence[str], as_root: bool = True) -> FakeChannel:
        self._reach(node)
        assert (node, argv[-2]) in self.files
        if argv[-1] == SERVE:
            return FakeChannel(lambda line: [self._served(node, argv, line)])
        self.asked.append((node, argv[-1]))
        return self.replays.setdefault(node, FakeReplay())

    def _served(self, node: int, argv: Sequence[str], line: str) -> str:
        operation, _, request = line.partition(" ")
        return self.run_as_root(node, [*argv[:-1], operation], request)[1]

    def _reach(self, node: int) -> None:
        if node in self.lost:
            raise TestbedError(f"m{node}: the SSH connection was lost")


class FakeHost(FakeNode):
    """A host as its login user reaches it. Channels are opened as root."""

    def __init__(self, node: int, machines: FakeMachines) -> None:
        super().__init__(node, machines.run)
        # Looked up late: tests replace it.
        self.as_root = FakeNode(node, lambda *call: machines.run_as_root(*call), machines.open)
