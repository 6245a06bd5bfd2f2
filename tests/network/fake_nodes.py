"""A double for the transport: nodes that know just enough of `tc` to be shaped."""

from __future__ import annotations

import json
from collections.abc import Sequence

from netbench.network.shaping.batch import HANDLE
from netbench.testing.nodes import FakeNode, fake_nodes


class FakeNodes:
    """Each node has one interface. roots: kind and handle of its root qdisc, as the kernel's.

    broken: node -> what its tc says when it is given a program. commands: all that was run.
    shown: command -> what it prints. Without, every interface is shown bare beneath its root.
    """

    def __init__(self, num_nodes: int) -> None:
        self.roots = dict.fromkeys(range(num_nodes), ("noqueue", "0:"))
        self.loaded: dict[int, str] = {}
        self.broken: dict[int, str] = {}
        self.shown: dict[str, str] = {}
        self.commands: list[tuple[int, str]] = []

    @property
    def nodes(self) -> list[FakeNode]:
        return fake_nodes(self.run)

    def run(self, node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        line = " ".join(argv)
        self.commands.append((node, line))
        if line.startswith("ip link set"):
            return 0, "", ""
        if line.endswith("tc -batch -"):
            return self._load(node, stdin)
        if line.startswith("tc qdisc del"):
            return self._delete(node)
        if line == "tc -j qdisc show dev eth0":
            kind, handle = self.roots[node]
            return 0, json.dumps([{"kind": kind, "handle": handle, "root": True}]), ""
        if line == "sh -s eth0" and line not in self.shown:
            kind, handle = self.roots[node]
            root = json.dumps([{"kind": kind, "handle": handle, "root": True}])
            return 0, f"{root}\n[]\n--\n\n--\n[]\n", ""
        return 0, self.shown[line], ""

    def _load(self, node: int, program: str) -> tuple[int, str, str]:
        first, _, rest = program.partition("\n")
        if first.startswith("qdisc del"):
            status, _, words = self._delete(node)
            return (status, "", words) if status else self._load(node, rest)
        if not first.startswith("qdisc add dev eth0 root") and self.roots[node][1] == HANDLE:
            self.loaded[node] = program
            return 0, "", ""
        if self.roots[node][1] != "0:":
            return 1, "", "Error: Exclusivity flag on, cannot modify.\nCommand failed -:1\n"
        self.roots[node] = ("htb", HANDLE)
        if node in self.broken:
            return 1, "", self.broken[node]
        self.loaded[node] = program
        return 0, "", ""

    def _delete(self, node: int) -> tuple[int, str, str]:
        if self.roots[node][1] != HANDLE:
            return 2, "", "Error: Invalid handle.\n"
        self.roots[node] = ("noqueue", "0:")
        return 0, "", ""
