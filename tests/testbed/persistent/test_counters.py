"""Counters of a persistent network, read over a connection; the daemon is a double."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from netbench.errors import NetworkError, TestbedError
from netbench.network.probing.usage import Counters
from netbench.testbed.namespaces import node_addresses
from netbench.testbed.persistent.client import PersistentNode
from netbench.testbed.persistent.frames import END, ERRORS, OUTPUT, frame, json_frame
from netbench.testbed.persistent.scenario import open_counters

NODES = node_addresses(["a", "b"])


class FakeNetwork:
    """A persistent network in which a command is started, once. argv: its words."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.argv: Sequence[str] = ()

    @property
    def nodes(self) -> list[PersistentNode]:
        return [PersistentNode(self, 0)]  # type: ignore[arg-type]

    def start(
        self, node: int, argv: Sequence[str], size: object, *, wait: bool, patience_s: float
    ) -> socket.socket:
        assert (node, size, wait) == (0, None, True)
        self.argv = argv
        return self.here


def answer(opened: FakeNetwork, *found: dict[str, Any]) -> None:
    opened.there.sendall(frame(OUTPUT, json.dumps(found).encode() + b"\n"))


def test_looks_are_of_nodes() -> None:
    """In the order of the namespaces that were asked for; one may have failed."""
    opened, leaves = FakeNetwork(), {"6e62:2": {"bytes": 7}}
    with opened.there, open_counters(opened, NODES) as look:  # type: ignore[arg-type]
        assert opened.argv[-3:] == ("eth0", "/run/netns/n0", "/run/netns/n1")
        answer(opened, {"at_s": 1.5, "leaves": leaves}, {"error": "there is no interface eth0"})
        found = look()
        assert found[0] == Counters(at_s=1.5, leaves=leaves)
        assert isinstance(found[1], NetworkError)
        assert str(found[1]) == "there is no interface eth0"


def test_what_ends_is_told() -> None:
    """With its last words."""
    opened = FakeNetwork()
    with opened.there, open_counters(opened, NODES) as look:  # type: ignore[arg-type]
        opened.there.sendall(frame(ERRORS, b"no module\n") + json_frame(END, {"status": 1}))
        with pytest.raises(TestbedError, match="ended with 1: no module"):
            look()
