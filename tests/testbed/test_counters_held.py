"""Counters of a held network, over the connection to what reads them; the holder is a double."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from netbench.errors import NetworkError, TestbedError
from netbench.network.usage import Look
from netbench.testbed.counters_held import open_counters
from netbench.testbed.frames import END, ERRORS, OUTPUT, frame, json_frame
from netbench.testbed.namespaces import node_addresses

NODES = node_addresses(["a", "b"])


class FakeHeld:
    """A held network in which a command is started, once. argv: its words."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.argv: Sequence[str] = ()

    def start(self, node: int, argv: Sequence[str], size: object, *, wait: bool) -> socket.socket:
        assert (node, size, wait) == (0, None, True)
        self.argv = argv
        return self.here


def answer(held: FakeHeld, *found: dict[str, Any]) -> None:
    held.there.sendall(frame(OUTPUT, json.dumps(found).encode() + b"\n"))


def test_looks_are_of_nodes() -> None:
    """In the order of the namespaces that were asked for; one may have failed."""
    held, leaves = FakeHeld(), {"6e62:2": {"bytes": 7}}
    with held.there, open_counters(held, NODES) as look:  # type: ignore[arg-type]
        assert held.argv[-3:] == ("eth0", "/run/netns/n0", "/run/netns/n1")
        answer(held, {"at_s": 1.5, "leaves": leaves}, {"error": "there is no interface eth0"})
        found = look()
        assert found[0] == Look(at_s=1.5, leaves=leaves)
        assert isinstance(found[1], NetworkError)
        assert str(found[1]) == "there is no interface eth0"


def test_what_ends_is_told() -> None:
    """With its last words."""
    held = FakeHeld()
    with held.there, open_counters(held, NODES) as look:  # type: ignore[arg-type]
        held.there.sendall(frame(ERRORS, b"no module\n") + json_frame(END, {"status": 1}))
        with pytest.raises(TestbedError, match="ended with 1: no module"):
            look()
