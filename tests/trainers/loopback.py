"""Four nodes that are all this machine, and a testbed that starts ranks of a fork server."""

from __future__ import annotations

import dataclasses
import json

from netbench.testbed.namespaces import SocketChannel, node_addresses
from netbench.testbed.ranks.hangs import Activity, read_activity
from netbench.testing.nodes import FakeTestbed
from tests.trainers.rank_processes import connect_to

NODES = tuple(
    dataclasses.replace(node, address="127.0.0.1", interface="lo")
    for node in node_addresses([f"lab-{index}" for index in range(4)])
)


def read_quiet() -> Activity:
    """Only processes: other traffic of this machine is on loopback too."""
    return dataclasses.replace(read_activity(), num_bytes=0)


class Loopback(FakeTestbed):
    """Ranks of a fork server, all in the namespace of this test."""

    def __init__(self, fork_server: str) -> None:
        super().__init__(NODES, self._start_rank, read_quiet)
        self._fork_server = fork_server

    def _start_rank(self, node: int, rank: int) -> SocketChannel:
        channel = SocketChannel(connect_to(self._fork_server))
        channel.send(json.dumps({"op": "fork", "rank": rank, "netns": None}))
        return channel
