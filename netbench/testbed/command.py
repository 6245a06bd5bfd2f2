"""The `command` system: a script of somebody's own on every rank, and what it reports.

It is started as `torchrun` would, in the namespace of its rank's node, and runs freely: there are
no orders, only what it prints (`reports`).
"""

from __future__ import annotations

import dataclasses
import os
import queue
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from netbench.errors import TestbedError
from netbench.plan import Plan
from netbench.plan.serial import plan_hash
from netbench.testbed.activity import Sample, read_sample
from netbench.testbed.failures import Complaint, complaint_of
from netbench.testbed.guest import PASSED_VARIABLES
from netbench.testbed.ranks import Message, Ranks
from netbench.testbed.reports import Iteration, Iterations, read_line
from netbench.testbed.transport import NodeAddress, Transport

TAIL_LINES = 10
"""Of a script's output, how many an error shows."""

STOP_S = 10.0
"""Scripts that are told to stop have ended by then, seconds: they are killed after 5."""

LOST_PEER = re.compile(
    r"connection (closed|reset)|broken pipe|DistNetworkError|ncclRemoteError|ncclSystemError", re.I
)
"""What the last lines of a script say that failed because another one was gone. Source: gloo's
tcp/pair.cc, torch's distributed exceptions, NCCL's error codes."""


def script_environment(
    plan: Plan,
    rank: int,
    nodes: Sequence[NodeAddress],
    store_port: int,
    plan_file: Path,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """The environment of `rank`: torchrun's variables, netbench's own and a few inherited ones.

    nodes: of the scenario, in order. Documented in docs/own-trainer.md.
    """
    rank_nodes = nodes_of_ranks(plan)
    node = nodes[rank_nodes[rank]]
    neighbours = [r for r, index in enumerate(rank_nodes) if index == node.index]
    region = plan.network.regions[plan.network.node_regions[node.index]]
    kept = {name: inherited[name] for name in PASSED_VARIABLES if name in inherited}
    # `python` is the one that was chosen, else netbench's own, which has torch.
    directories = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    path = os.pathsep.join(reversed(directories) if "VIRTUAL_ENV" in kept else directories)
    return {
        **kept,
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(len(rank_nodes)),
        "LOCAL_RANK": str(neighbours.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(neighbours)),
        "GROUP_RANK": str(node.index),
        "NODE_RANK": str(node.index),
        "GROUP_WORLD_SIZE": str(len(set(rank_nodes))),
        "MASTER_ADDR": nodes[rank_nodes[0]].address,
        "MASTER_PORT": str(store_port),
        "GLOO_SOCKET_IFNAME": node.interface,
        "NCCL_SOCKET_IFNAME": node.interface,
        "NETBENCH_PLAN": str(plan_file),
        "NETBENCH_NODE": node.name,
        "NETBENCH_REGION": region,
        "NETBENCH_PLACEMENT": ",".join(map(str, plan.placement)),
        "NETBENCH_ITERATIONS": str(plan.iterations),
    }


def nodes_of_ranks(plan: Plan) -> tuple[int, ...]:
    """The node of every rank: of the device that the placement gives it."""
    return tuple(plan.device_nodes[device] for device in plan.placement)


class ScriptPool(Ranks):
    """The scripts of one plan. on_output: told of every line, with its rank."""

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        plan: Plan,
        on_output: Callable[[int, str], None],
        read: Callable[[], Sample] = read_sample,
    ) -> None:
        super().__init__(nodes, nodes_of_ranks(plan), read)
        self._plan = plan
        self._on_output = on_output
        self._tails: list[deque[str]] = [deque(maxlen=TAIL_LINES) for _ in plan.placement]
        self._found = Iterations(len(plan.placement))
        self._ended: set[int] = set()
        self._closed: set[int] = set()

    def start(self, transport: Transport, on_ready: Callable[[int], None]) -> None:
        """Start who will start a script, on every rank's node; `on_ready(count)` as they come."""
        self._start(transport.start_command, on_ready)

    def launch(self, directory: Path, plan_file: Path, store_port: int) -> None:
        """Start the script on every rank, in `directory`."""
        for rank in range(len(self._channels)):
            environment = script_environment(
                self._plan, rank, self._nodes, store_port, plan_file, os.environ
            )
            self._send(
                rank,
                op="start",
                argv=list(self._plan.script),
                environment=environment,
                directory=str(directory),
            )

    def iterations(self) -> Iterator[Iteration]:
        """Iterations as they are finished, until all scripts have ended.

        Raises TestbedError once a script fails or hangs, or a loss is no number; what was finished
        before is yielded first.
        """
        found, everyone = self._found, range(len(self._channels))
        doing = f"{self._plan.variant} (plan {plan_hash(self._plan)})"
        while running := [rank for rank in everyone if rank not in self._ended]:
            try:
                rank, message = self._next(running, doing, self._watch(0.0))
                finished = self._take(rank, message, found)
            except TestbedError:
                yield from found.end()
                raise
            yield from finished
        yield from found.end()

    def stop(self) -> None:
        """Ask every script to end, wait until it has, and drop the channels."""
        self._order(op="stop")
        end_s = time.monotonic() + STOP_S
        open_channels = set(range(len(self._channels))) - self._closed
        with suppress(queue.Empty):
            while open_channels:
                rank, message = self._inbox.get(timeout=max(0.0, end_s - time.monotonic()))
                self._complaint(rank, message)
                open_channels -= self._closed
        for channel in self._channels:
            channel.close()

    def _take(self, rank: int, message: Message, found: Iterations) -> list[Iteration]:
        """What a message of a script finishes."""
        if message["event"] == "running":
            self._pids[rank] = message["pid"]
        if message["event"] != "output":
            return []
        try:
            report = read_line(message["text"], self._plan.workload.batch)
            return found.add(rank, report) if report else []
        except TestbedError as error:
            raise TestbedError(f"{self._name(rank)}: {error}") from None

    def _complaint(self, rank: int, message: Message | None) -> Complaint | None:
        """A script may end well, and then its channel; one that fails for a connection follows.

        How it ends after its last iteration is told, and changes nothing: torch 2.13 may abort an
        interpreter that ends while a thread of gloo drops its last work.
        """
        if message is None:
            self._closed.add(rank)
            return None if rank in self._ended else complaint_of(rank, message)
        if message["event"] == "output":
            self._tails[rank].append(message["text"])
            self._on_output(rank, message["text"])
        if message["event"] == "ended":
            self._ended.add(rank)
        complaint = complaint_of(rank, message)
        done = self._found.has_all(rank, self._plan.iterations)
        if complaint and message["event"] == "ended" and done:
            self._on_output(rank, f"netbench: {complaint.what}, after its last iteration")
            return None
        lost = complaint and LOST_PEER.search("\n".join(self._tails[rank]))
        if complaint and message["event"] == "ended" and message["status"] > 0 and lost:
            return dataclasses.replace(complaint, follows=True)
        return complaint

    def _details(self, rank: int) -> str:
        lines = "".join(f"\n  | {line}" for line in self._tails[rank])
        return f"; it printed last:{lines}" if lines else "; it printed nothing"
