"""The `command` system: a user's script on every rank, and its reports.

The script is started as `torchrun` would start it, on the node of its rank. It gets no orders; only
its output is read (`reports`).
"""

import dataclasses
import os
import queue
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from netbench.errors import TestbedError
from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash
from netbench.testbed.guest.boot import PASSED_VARIABLES
from netbench.testbed.interface import NodeAddress, Testbed
from netbench.testbed.ranks.failures import Failure, failure_of
from netbench.testbed.ranks.pool import Message, Ranks
from netbench.testbed.ranks.reports import Iteration, Iterations, Report, read_line

TAIL_LINES = 10
"""Number of lines of a script's output in an error message."""

STOP_S = 10.0
"""Deadline for scripts to stop, seconds. They are killed after 5."""

LOST_PEER = re.compile(
    r"connection (closed|reset)|broken pipe|DistNetworkError|ncclRemoteError|ncclSystemError", re.I
)
"""Matches the last lines of a script that failed because another one had ended. Source: gloo's
tcp/pair.cc, torch's distributed exceptions, NCCL's error codes."""


def script_environment(
    plan: Plan,
    rank: int,
    nodes: Sequence[NodeAddress],
    store_port: int,
    plan_file: str,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of `rank`: torchrun's variables, netbench's and `inherited` ones.

    nodes: of the scenario, in order. Documented in docs/own-trainer.md.
    """
    rank_nodes = nodes_of_ranks(plan)
    node = nodes[rank_nodes[rank]]
    neighbours = [r for r, index in enumerate(rank_nodes) if index == node.index]
    region = plan.network.regions[plan.network.node_regions[node.index]]
    return {
        **inherited,
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
        "NETBENCH_PLAN": plan_file,
        "NETBENCH_NODE": node.name,
        "NETBENCH_REGION": region,
        "NETBENCH_PLACEMENT": ",".join(map(str, plan.placement)),
        "NETBENCH_ITERATIONS": str(plan.iterations),
    }


def inherited_environment(python: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a node's environment that scripts inherit.

    `python` is the user's if a virtual environment is active, else netbench's, which has torch.
    """
    kept = {name: environment[name] for name in PASSED_VARIABLES if name in environment}
    directories = [str(Path(python).parent), kept.get("PATH", os.defpath)]
    path = os.pathsep.join(reversed(directories) if "VIRTUAL_ENV" in kept else directories)
    return {**kept, "PATH": path}


def nodes_of_ranks(plan: Plan) -> tuple[int, ...]:
    """Return the node of every rank: that of the device which the placement gives it."""
    return tuple(plan.device_nodes[device] for device in plan.placement)


class ScriptPool(Ranks):
    """Scripts of one plan. on_output: called with the rank and text of every line."""

    def __init__(self, testbed: Testbed, plan: Plan, on_output: Callable[[int, str], None]) -> None:
        super().__init__(testbed, nodes_of_ranks(plan))
        self._plan = plan
        self._on_output = on_output
        self._tails: list[deque[str]] = [deque(maxlen=TAIL_LINES) for _ in plan.placement]
        self._found = Iterations(len(plan.placement))
        self._steps = Iterations(len(plan.placement))
        self._stepped: list[Iteration] = []
        self._has_reports = bool(plan.iteration_regex)
        self._by_steps = False
        self._reported_s = [time.monotonic()] * len(plan.placement)
        self._ended: set[int] = set()
        self._closed: set[int] = set()

    def launch(self, directory: Path, plan_file: str, store_port: int) -> None:
        """Start the script on every rank, in `directory`."""
        for rank in range(len(self._channels)):
            inherited = self._testbed.environment(self._rank_nodes[rank])
            environment = script_environment(
                self._plan, rank, self._nodes, store_port, plan_file, inherited
            )
            what = {"argv": list(self._plan.script), "directory": str(directory)}
            self._send(rank, op="start", environment=environment, **what)

    def iterations(self) -> Iterator[Iteration]:
        """Yield iterations as they are finished, until all scripts have ended.

        Raises TestbedError once a script fails or hangs, or a loss is not a number. Iterations
        finished before are yielded first.
        """
        everyone = range(len(self._channels))
        doing = f"{self._plan.variant} (plan {plan_hash(self._plan)})"
        while running := [rank for rank in everyone if rank not in self._ended]:
            try:
                rank, message = self._next(running, doing, self._watch(0.0))
                finished = self._take(rank, message)
            except TestbedError:
                yield from self._rest()
                raise
            yield from finished
        yield from self._rest()

    def _rest(self) -> list[Iteration]:
        """Return the iterations that are finished once no rank reports any more."""
        if self._has_reports or self._by_steps:
            return self._found.end()
        return [*self._stepped, *self._steps.end()][: self._plan.iterations]

    def stop(self) -> None:
        """Order every script to end, wait until it has, and close the channels."""
        self._order(op="stop")
        end_s = time.monotonic() + STOP_S
        open_channels = set(range(len(self._channels))) - self._closed
        with suppress(queue.Empty):
            while open_channels:
                rank, message = self._inbox.get(timeout=max(0.0, end_s - time.monotonic()))
                self._failure(rank, message)
                open_channels -= self._closed
        for channel in self._channels:
            channel.close()

    def _take(self, rank: int, message: Message) -> list[Iteration]:
        """Return the iterations that a message of a script finishes."""
        if message["event"] == "running":
            self._pids[rank] = self._process(rank, message)
        if message["event"] == "step":
            return self._take_step(rank, message["iteration_s"])
        if message["event"] != "output" or self._by_steps:
            return []
        now_s = time.monotonic()
        elapsed_s = now_s - self._reported_s[rank]
        try:
            report = read_line(
                message["text"], self._plan.workload.batch, self._plan.iteration_regex, elapsed_s
            )
            if not report:
                return []
            self._reported_s[rank], self._has_reports = now_s, True
            return self._found.add(rank, report)
        except TestbedError as error:
            raise TestbedError(f"{self._name(rank)}: {error}") from None

    def _take_step(self, rank: int, iteration_s: float) -> list[Iteration]:
        """Return all planned iterations once that many steps of the optimizers are finished, unless
        the script reports by itself."""
        if self._has_reports or self._by_steps:
            return []
        report = Report(kind="optimizer step", iteration_s=iteration_s)
        self._stepped += self._steps.add(rank, report)
        if len(self._stepped) < self._plan.iterations:
            return []
        self._by_steps = True
        return self._stepped[: self._plan.iterations]

    def _failure(self, rank: int, message: Message | None) -> Failure | None:
        """Return the failure that a message reports, if any.

        A script may end with success, and then its channel ends. The failure of a script that lost
        a connection is secondary. A failure after the last iteration is only printed: torch 2.13
        may abort an interpreter that ends while a thread of gloo drops its last work.
        """
        if message is None:
            self._closed.add(rank)
            return None if rank in self._ended else failure_of(rank, message)
        if message["event"] == "output":
            self._tails[rank].append(message["text"])
            self._on_output(rank, message["text"])
        if message["event"] == "ended":
            self._ended.add(rank)
        failure = failure_of(rank, message)
        done = self._by_steps or self._found.has_all(rank, self._plan.iterations)
        if failure and message["event"] == "ended" and done:
            self._on_output(rank, f"netbench: {failure.what}, after its last iteration")
            return None
        lost = failure and LOST_PEER.search("\n".join(self._tails[rank]))
        if failure and message["event"] == "ended" and message["status"] > 0 and lost:
            return dataclasses.replace(failure, is_secondary=True)
        return failure

    def _last_words(self, rank: int) -> str:
        lines = "".join(f"\n  | {line}" for line in self._tails[rank])
        return f"printed last:{lines}" if lines else "printed nothing"
