"""All ranks of a session, driven in step: connect, prepare a plan, run an iteration.

A rank is a process on a node that speaks JSON lines over a `Channel` (`netbench.trainers.protocol`
describes them). One reader thread per channel feeds one queue, so that the session blocks instead
of polling: a poll would keep virtual time from advancing.

A rank that dies, says that it cannot go on, or hangs ends the session with one message.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from netbench.errors import TestbedError
from netbench.plan import Plan
from netbench.plan.experiment import Experiment, experiment_hash, experiment_to_json
from netbench.testbed.activity import WATCH_S, Sample, Watch, read_sample
from netbench.testbed.failures import Complaint, complaint_of, count_oom_kills, explain
from netbench.testbed.transport import Channel, NodeAddress, Transport

Message = dict[str, Any]

SETTLE_S = 2.0
"""After the first complaint, wait so long for others, by the session's clock: those who lost a
connection are often faster than the news that a rank has died."""

START_S = 600.0
"""Ranks may take this much longer to start: 64 that import torch on two cores send nothing, and
which processes they are is not known yet."""

SLEEP_MARGIN = 2.0
"""Virtual devices may sleep for this many times what the plan computes before they are taken for
hung: a placement may put several stages on one device."""


class Ranks:
    """Channels to ranks, and what comes from them. Rank i sits on node `rank_nodes[i]`."""

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        rank_nodes: Sequence[int],
        read: Callable[[], Sample] = read_sample,
    ) -> None:
        self._nodes = nodes
        self._rank_nodes = tuple(rank_nodes)
        self._read_sample = read
        self._channels: list[Channel] = []
        self._present: set[int] = set()
        self._pids: list[int] = []
        self._inbox: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._oom_kills = count_oom_kills()

    def stop(self) -> None:
        """Ask every rank to leave, and drop the channels."""
        self._order(op="stop")
        for channel in self._channels:
            channel.close()

    def _start(
        self, start: Callable[[int, int], Channel], on_ready: Callable[[int], None]
    ) -> list[Message]:
        """Start every rank with `start(node, rank)` and wait until each said `started`."""
        for rank, node in enumerate(self._rank_nodes):
            self._channels.append(start(node, rank))
            self._follow(rank)
        started = self._collect("started", "the start of the ranks", on_ready, START_S)
        self._pids = [message.get("pid", 0) for message in started]
        return started

    def _follow(self, rank: int) -> None:
        """Take in what a rank says from now on."""
        self._present.add(rank)
        arguments = (rank, self._channels[rank])
        threading.Thread(target=self._read, args=arguments, daemon=True).start()

    def _order(self, **message: Any) -> None:
        """Send the same to every rank."""
        for rank in sorted(self._present):
            self._send(rank, **message)

    def _send(self, rank: int, /, **message: Any) -> None:
        with suppress(TestbedError):  # it has gone, and its channel's end says how
            self._channels[rank].send(json.dumps(message))

    def _read(self, rank: int, channel: Channel) -> None:
        while (line := channel.receive()) is not None:
            try:
                self._inbox.put((rank, json.loads(line)))
            except json.JSONDecodeError:
                self._inbox.put((rank, {"event": "error", "message": f"not a message: {line!r}"}))
        self._inbox.put((rank, None))

    def _collect(
        self,
        event: str,
        doing: str,
        on_answer: Callable[[int], None] = lambda count: None,
        allowed_s: float = 0.0,
    ) -> list[Message]:
        """One `event` from every rank, in rank order."""
        answers: dict[int, Message] = {}
        everyone, watch = sorted(self._present), self._watch(allowed_s)
        while len(answers) < len(everyone):
            missing = [rank for rank in everyone if rank not in answers]
            rank, message = self._next(missing, doing, watch)
            if message["event"] == event:
                answers[rank] = message
                on_answer(len(answers))
        return [answers[rank] for rank in sorted(answers)]

    def _watch(self, allowed_s: float) -> Callable[[], Watch]:
        """Makes the watch when it is needed first: most steps are too short to look at."""
        made: list[Watch] = []

        def watch() -> Watch:
            if not made:
                pids = self._pids or [0] * len(self._channels)
                made.append(Watch(pids, self._name, allowed_s, self._read_sample))
            return made[0]

        return watch

    def _next(
        self, missing: Sequence[int], doing: str, watch: Callable[[], Watch]
    ) -> tuple[int, Message]:
        """The next message, and whose. Raises TestbedError once a rank dies, complains or hangs."""
        while True:
            rank, message = self._hear(missing, doing, watch)
            if complaint := self._complaint(rank, message):
                raise TestbedError(self._explain(complaint, doing))
            if message is not None:
                return rank, message

    def _complaint(self, rank: int, message: Message | None) -> Complaint | None:
        """What a message complains of, if anything."""
        return complaint_of(rank, message)

    def _details(self, rank: int) -> str:
        """What else is known of a rank that went wrong."""
        return ""

    def _hear(
        self, missing: Sequence[int], doing: str, watch: Callable[[], Watch]
    ) -> tuple[int, Message | None]:
        """Whatever comes next. Raises TestbedError once a rank hangs."""
        while True:
            try:
                return self._inbox.get(timeout=WATCH_S)
            except queue.Empty:
                if why := watch().look(missing):
                    raise TestbedError(f"{why}, in {doing}") from None

    def _explain(self, first: Complaint, doing: str) -> str:
        complaints = [first, *self._further_complaints()]
        num_oom_kills = count_oom_kills() - self._oom_kills
        text, cause = explain(complaints, self._name, doing, num_oom_kills)
        return text + self._details(cause)

    def _further_complaints(self) -> Iterable[Complaint]:
        end_s = time.monotonic() + SETTLE_S
        with suppress(queue.Empty):
            while (left_s := end_s - time.monotonic()) > 0:
                if complaint := self._complaint(*self._inbox.get(timeout=left_s)):
                    yield complaint

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._nodes[self._rank_nodes[rank]].name}"


class RankPool(Ranks):
    """The trainers of one session; rank i owns device i."""

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        device_nodes: Sequence[int],
        read: Callable[[], Sample] = read_sample,
    ) -> None:
        super().__init__(nodes, device_nodes, read)
        self._plans: dict[str, Experiment] = {}

    def start(self, transport: Transport, on_ready: Callable[[int], None]) -> list[Message]:
        """Start every rank and wait until each said `started`; `on_ready(count)` as they come."""
        return self._start(transport.start_rank, on_ready)

    def connect(self, store_port: int) -> list[Message]:
        """Join all ranks into one world; rank 0 serves the store. Every connection is made here."""
        store = f"{self._nodes[self._rank_nodes[0]].address}:{store_port}"
        for rank, index in enumerate(self._rank_nodes):
            node = self._nodes[index]
            self._send(
                rank,
                op="connect",
                rank=rank,
                world_size=len(self._channels),
                address=node.address,
                interface=node.interface,
                store=store,
                serve_store=rank == 0,
            )
        return self._collect("ready", "connecting")

    def prepare(self, plan: Experiment) -> list[Message]:
        """Build what `plan` needs on every rank and warm the connections it uses."""
        self._plans[experiment_hash(plan)] = plan
        self._order(op="prepare", plan=experiment_to_json(plan))
        return self._collect("prepared", f"the preparation of {plan.variant}")

    def run(
        self, plan_hash: str, iteration: int, start_at_s: float, trace: bool = False
    ) -> list[Message]:
        """One iteration of a prepared plan on all ranks, from one absolute start; rank order.

        trace: have every rank tell what it did, and when.
        """
        order = {"plan_hash": plan_hash, "iteration": iteration, "start_at": start_at_s}
        self._order(op="run", **order, trace=trace)
        allowed_s = allowance_s(self._plans[plan_hash])
        return self._collect("iteration", self._doing(plan_hash, iteration), allowed_s=allowed_s)

    def _doing(self, plan_hash: str, iteration: int) -> str:
        """An iteration, for messages."""
        return f"iteration {iteration} of {self._plans[plan_hash].variant} (plan {plan_hash})"


def allowance_s(plan: Experiment) -> float:
    """For how long the ranks of `plan` may be silent because their devices sleep, seconds."""
    return SLEEP_MARGIN * compute_s(plan)


def compute_s(plan: Experiment) -> float:
    """What all stages of one replica compute in an iteration, one after the other, on the slowest
    devices that there are, seconds."""
    if not isinstance(plan, Plan):
        return 0.0
    passes = plan.num_rounds * plan.num_micro_batches
    return sum(
        passes * (stage.forward_s + stage.backward_s) + stage.optimizer_s
        for stage in plan.at_slowest().stages
    )
