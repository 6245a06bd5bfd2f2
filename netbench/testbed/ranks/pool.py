"""All ranks of a session, driven in step: connect, prepare the plan, run an iteration.

A rank is a process on a node that exchanges JSON lines over a `Channel`, as described in
`netbench.trainers.protocol`. One reader thread per channel feeds one queue, so that the session
blocks: polling would keep virtual time from advancing.

A rank that dies, reports an error or hangs ends the session with one message.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from netbench.errors import TestbedError
from netbench.network.nodes import Channel
from netbench.plan.experiment import Experiment, experiment_hash, experiment_to_json
from netbench.plan.model import Plan
from netbench.testbed.interface import Clocks, Testbed
from netbench.testbed.ranks.devices import device_order
from netbench.testbed.ranks.failures import Failure, explain, failure_of
from netbench.testbed.ranks.hangs import WATCH_S, Watch, process_number

Message = dict[str, Any]

SETTLE_S = 2.0
"""Time to wait for more failures after the first, by the session's clock. Ranks that lost a
connection often report before the death of the rank that caused it is known."""

START_S = 600.0
"""Extra time for ranks to start, seconds: 64 that import torch on two cores send nothing, and their
processes are not known yet."""

SHOWN_CHARACTERS = 200
"""Length of the part of an invalid line that an error shows."""

SLEEP_MARGIN = 2.0
"""Virtual devices may sleep for this multiple of the plan's compute time before they count as hung:
a placement may put several stages on one device."""


class Ranks:
    """Channels to ranks, and their messages. Rank i is on node `rank_nodes[i]`."""

    def __init__(self, testbed: Testbed, rank_nodes: Sequence[int]) -> None:
        self._testbed = testbed
        self._nodes = testbed.nodes
        self._rank_nodes = tuple(rank_nodes)
        self._channels: list[Channel] = []
        self._present: set[int] = set()
        self._pids: list[int] = []
        self._inbox: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._oom_kills = testbed.activity().num_oom_kills

    @property
    def num_ranks(self) -> int:
        return len(self._rank_nodes)

    def stop(self) -> None:
        """Order every rank to end, and close the channels."""
        self._order(op="stop")
        for channel in self._channels:
            channel.close()

    def start(self, on_ready: Callable[[int], None]) -> list[Message]:
        """Start every rank and wait until each said `started`.

        on_ready: called with the number of ranks that have started, whenever one has.
        """
        for rank, node in enumerate(self._rank_nodes):
            self._channels.append(self._testbed.start_rank(node, rank))
            self._follow(rank)
        started = self._collect("started", "the start of the ranks", on_ready, START_S)
        self._pids = [self._process(rank, answer) for rank, answer in enumerate(started)]
        return started

    def _process(self, rank: int, message: Message) -> int:
        """Return the number of the process that a message names; 0 if it names none."""
        pid = message.get("pid", 0)
        return pid and process_number(self._nodes[self._rank_nodes[rank]].kernel, pid)

    def _follow(self, rank: int) -> None:
        self._present.add(rank)
        arguments = (rank, self._channels[rank])
        threading.Thread(target=self._read, args=arguments, daemon=True).start()

    def _order(self, **message: Any) -> None:
        for rank in sorted(self._present):
            self._send(rank, **message)

    def _send(self, rank: int, /, **message: Any) -> None:
        with suppress(TestbedError):  # it has ended; the end of its channel says how
            self._channels[rank].send(json.dumps(message))

    def _read(self, rank: int, channel: Channel) -> None:
        try:
            while (line := channel.receive()) is not None:
                self._inbox.put((rank, json.loads(line)))
        except json.JSONDecodeError as error:
            found = f"not a message: {error.doc[:SHOWN_CHARACTERS]!r}"
            self._inbox.put((rank, {"event": "error", "message": found}))
        except TestbedError as error:
            self._inbox.put((rank, {"event": "error", "message": str(error)}))
        self._inbox.put((rank, None))

    def _collect(
        self,
        event: str,
        doing: str,
        on_answer: Callable[[int], None] = lambda count: None,
        allowed_s: float = 0.0,
    ) -> list[Message]:
        """Wait for one `event` from every rank; return them in rank order."""
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
        """Return a function that makes the watch on first use: most steps are too short for it."""
        pids = self._pids or [0] * len(self._channels)
        return cache(lambda: Watch(pids, self._name, allowed_s, self._testbed.activity))

    def _next(
        self, missing: Sequence[int], doing: str, watch: Callable[[], Watch]
    ) -> tuple[int, Message]:
        """Return the next rank and message. Raises TestbedError once a rank fails or hangs."""
        while True:
            rank, message = self._hear(missing, doing, watch)
            if failure := self._failure(rank, message):
                raise TestbedError(self._explain(failure, doing))
            if message is not None:
                return rank, message

    def _failure(self, rank: int, message: Message | None) -> Failure | None:
        return failure_of(rank, message)

    def _last_words(self, rank: int) -> str:
        """Return what a rank printed last, after its name or "it", if that is known."""
        return ""

    def _hear(
        self, missing: Sequence[int], doing: str, watch: Callable[[], Watch]
    ) -> tuple[int, Message | None]:
        while True:
            try:
                return self._inbox.get(timeout=WATCH_S)
            except queue.Empty:
                if why := watch().check(missing):
                    silent = watch().blamed[0]
                    words = self._last_words(silent)
                    after = f"; {self._name(silent)} {words}" if words else ""
                    raise TestbedError(f"{why}, in {doing}{after}") from None

    def _explain(self, first: Failure, doing: str) -> str:
        failures = [first, *self._further_failures(self._present - {first.rank})]
        num_oom_kills = self._testbed.activity().num_oom_kills - self._oom_kills
        text, cause = explain(failures, self._name, doing, num_oom_kills)
        words = self._last_words(cause)
        return f"{text}; it {words}" if words else text

    def _further_failures(self, running: set[int]) -> Iterable[Failure]:
        """Yield failures until all `running` ranks have failed or `SETTLE_S` has passed."""
        end_s = time.monotonic() + SETTLE_S
        with suppress(queue.Empty):
            while running and (left_s := end_s - time.monotonic()) > 0:
                if failure := self._failure(*self._inbox.get(timeout=left_s)):
                    running.discard(failure.rank)
                    yield failure

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._nodes[self._rank_nodes[rank]].name}"


class RankPool(Ranks):
    """Trainers of a plan; rank i owns device i.

    clock_error_s: bound of the error of the last iteration's times, seconds.
    """

    def __init__(self, testbed: Testbed, plan: Experiment) -> None:
        super().__init__(testbed, plan.device_nodes)
        self._plan = plan
        self._clocks = Clocks.shared()
        self._start_at_s = 0.0
        self.clock_error_s = 0.0

    def connect(self, store_port: int) -> list[Message]:
        """Join all ranks into one world and make every connection. Rank 0 serves the store."""
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
                device=device_order(self._plan, self._nodes, rank),
            )
        return self._collect("ready", "connecting")

    def use(self, plan: Experiment) -> None:
        """Prepare and run `plan` from now on, which has the same ranks."""
        self._plan = plan

    def forget(self) -> None:
        """Have every rank drop the trainers of the plans that it has prepared."""
        self._order(op="forget")

    def prepare(self) -> list[Message]:
        """Build what the plan needs on every rank and warm the connections it uses."""
        self._order(op="prepare", plan=experiment_to_json(self._plan))
        return self._collect("prepared", f"the preparation of {self._plan.variant}")

    def run(self, iteration: int, start_at_s: float, trace: bool = False) -> list[Message]:
        """Run one iteration of the prepared plan on all ranks; their answers, in rank order.

        start_at_s: common start, and all times in the answers, by the clock of this process. trace:
        have every rank report what it did, and when.
        """
        self._order_run(iteration, start_at_s, trace=trace)
        allowed_s = allowance_s(self._plan)
        answers = self._collect("iteration", self._doing(iteration), allowed_s=allowed_s)
        return self._by_our_clock(answers)

    def _order_run(self, iteration: int, start_at_s: float, **more: Any) -> None:
        """Send every rank the order to run, with the start by its own clock."""
        order = {"plan_hash": experiment_hash(self._plan), "iteration": iteration, **more}
        self._clocks, self._start_at_s = self._testbed.clocks(), start_at_s
        for rank in sorted(self._present):
            start_at = self._clocks.to_node(self._rank_nodes[rank], start_at_s)
            self._send(rank, op="run", start_at=start_at, **order)

    def _by_our_clock(self, answers: Sequence[Message]) -> list[Message]:
        """Convert times of ranks to the clock of this process, as it was read before and after.

        Events are in seconds after the common start, before and after.
        """
        before, after = self._clocks, self._testbed.clocks()
        self.clock_error_s = max(before.error_s, after.error_s)
        found = []
        for answer in answers:
            node = self._rank_nodes[answer["rank"]]
            times = {
                key: after.from_node(node, answer[key], before) for key in ("start_s", "end_s")
            }
            origin_s = before.to_node(node, self._start_at_s)
            events = [
                [kind, *self._since_start(node, origin_s, (begin_s, end_s), after), details]
                for kind, begin_s, end_s, details in answer.get("events", ())
            ]
            found.append({**answer, **times, "events": events})
        return found

    def _since_start(
        self, node: int, origin_s: float, moments_s: Sequence[float], after: Clocks
    ) -> list[float]:
        """Convert seconds after `origin_s`, which is by a node's clock, to ours."""
        if after.offsets_s.get(node) == self._clocks.offsets_s.get(node):
            return list(moments_s)  # to the bit: the sum would round
        return [
            after.from_node(node, origin_s + moment_s, self._clocks) - self._start_at_s
            for moment_s in moments_s
        ]

    def _doing(self, iteration: int) -> str:
        plan = self._plan
        return f"iteration {iteration} of {plan.variant} (plan {experiment_hash(plan)})"


def allowance_s(plan: Experiment) -> float:
    """Return how long the ranks of `plan` may be silent because their devices sleep, seconds.

    The stages of a replica run one after the other, on the slowest devices.
    """
    if not isinstance(plan, Plan):
        return 0.0
    passes = plan.num_rounds * plan.num_micro_batches
    return SLEEP_MARGIN * sum(
        passes * (stage.forward_s + stage.backward_s) + stage.optimizer_s
        for stage in plan.at_slowest().stages
    )
