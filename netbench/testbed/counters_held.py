"""Counters of the queues of a network held open, from another process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from netbench.errors import NetworkError, TestbedError
from netbench.network.usage import Look
from netbench.testbed.held_channel import HeldChannel
from netbench.testbed.hold import Held
from netbench.testbed.namespaces import namespace_path
from netbench.testbed.transport import NodeAddress

COUNTERS = "netbench.network.counters"

END_S = 10.0
"""For what reads the counters to end, seconds."""

Looks = Callable[[], dict[int, Look | Exception]]
"""Look at all nodes, now: node -> what its queues have counted, or why that is not known."""


@contextmanager
def open_counters(held: Held, nodes: Sequence[NodeAddress]) -> Iterator[Looks]:
    """One process in the network that looks at every node, until the context ends.

    nodes: with the routers. Raises TestbedError, as a look does, when the network has gone.
    """
    files = [str(namespace_path(node.index)) for node in nodes]
    argv = (sys.executable, "-m", COUNTERS, nodes[0].interface, *files)
    with held.start(0, argv, None, wait=True) as connection:
        channel = HeldChannel(connection, "the reading of counters")

        def look() -> dict[int, Look | Exception]:
            channel.send("")
            line = channel.receive()
            if line is None:
                channel.finish(END_S)
                raise TestbedError("the reading of counters ended")
            answers = zip(nodes, json.loads(line), strict=True)
            return {
                node.index: NetworkError(answer["error"]) if "error" in answer else Look(**answer)
                for node, answer in answers
            }

        yield look
