"""One session: runs plans on a fresh testbed, one after the other, and reports events.

Where TCP acts, a plan never shares a session: connections remember what they carried (congestion
window, round trip times), so a plan would run at another speed after another plan. For the same
reason a resumed plan repeats its finished iterations, without reporting them; it does so in every
session. A plan in parts begins with its shorter part, unreported, if TCP acts: its windows are
small on connections that have carried nothing. Plans of a session have the same network, scale and
nodes of ranks.

Everything about where the nodes are is behind `Testbed`. The events:

    phase      name, done, total: the current step, for progress
    probe      the network verification
    iteration  plan_hash, iteration, iteration_s, phases; passes_s: end of the last rank's forward
               and backward passes; trace: events of every rank, or null;
               peers: ranks that ended it, where ranks may leave (else null), gone: those that left
               and were not to; samples: that reached the model, if that differs;
               hosts: what each has used (`records.HostSample`); parts: all this of the shorter
               part of a plan in parts, beside that of the longer
    part       plan_hash, iteration, periods, iteration_s: of the part that ran first, unless the
               iteration was recorded before
    output     plan_hash, rank, text: a line that a script has printed
    drops      plan_hash, iteration, packets: that full queues dropped since the last such event;
               the limits were too short
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from netbench.errors import TestbedError
from netbench.network.probing.dynamics import Messages
from netbench.plan.experiment import Experiment, experiment_hash, is_elastic, message_sizes
from netbench.plan.model import Plan
from netbench.plan.serial import plan_to_json
from netbench.scenario.sharing import num_routers
from netbench.testbed.effort import warm_part
from netbench.testbed.interface import STORE_PORT, Testbed
from netbench.testbed.network import limited_network, network_of
from netbench.testbed.ranks.elastic import PeerPool
from netbench.testbed.ranks.interruptions import Interruptions
from netbench.testbed.ranks.pool import Message
from netbench.testbed.ranks.scripts import ScriptPool
from netbench.testbed.runs.launch import Emit, phase


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTask:
    """A plan of a session, and the indices of its iterations that were recorded before."""

    plan: Experiment
    finished: Collection[int]


def run_session(
    testbed: Testbed,
    tasks: Sequence[PlanTask],
    emit: Emit,
    *,
    trace: bool = False,
    verify: bool = True,
) -> None:
    """Run every unfinished iteration of the plans of `tasks` on `testbed`, which stays open.

    trace: have ranks report what they did in the last iteration of each plan. verify: measure the
    links; else they are only read back. Raises NetbenchError when a rank, or the network, fails.
    """
    plan = tasks[0].plan
    with phase(emit, "tune", 1):
        testbed.tune(*network_of(plan, testbed.name))
    session = _Session(testbed, tasks[0], emit, trace=trace, verify=verify)
    if isinstance(plan, Plan) and plan.script:
        session.run_script(plan)
    else:
        session.train(tasks[1:])


class _Session:
    """Runs plans one after the other, on the network of the first."""

    def __init__(
        self, testbed: Testbed, first: PlanTask, emit: Emit, *, trace: bool, verify: bool
    ) -> None:
        self._testbed = testbed
        self._emit = emit
        self._trace = trace
        self._verify = verify
        self._num_dropped = 0
        self._take(first)

    def _take(self, task: PlanTask) -> None:
        """Run the plan of `task` from now on."""
        plan = self._plan = task.plan
        self._parts: tuple[Experiment, ...] = (
            plan.shortened() if isinstance(plan, Plan) else (plan,)
        )
        self._hash = experiment_hash(plan)
        self._finished = frozenset(task.finished)
        missing = (i for i in range(plan.iterations) if i not in self._finished)
        self._last = max(missing, default=-1)
        self._churn = Interruptions(plan) if isinstance(plan, Plan) and plan.churn else None

    def train(self, following: Sequence[PlanTask]) -> None:
        """Run the iterations of this plan on trainers, and then those of the `following`."""
        pool = PeerPool(self._testbed, self._plan)
        self._start(pool)
        # Where TCP acts, connections must know the shaped network only, as on the machines. Else
        # they are set up at full speed, not at 1/scale of it. A later plan connects the pairs that
        # no plan before it has used, on the shaped network.
        shapes_first = self._plan.network.tcp.acts
        if shapes_first:
            _await_second()
            self._shape()
            _await_second()
        with phase(self._emit, "connect", 1):
            pool.connect(STORE_PORT)
        self._prepare(pool)
        if not shapes_first:
            self._shape()
        self._run_plan(pool)
        for task in following:
            pool.forget()
            self._take(task)
            self._prepare(pool)
            self._run_plan(pool)
        pool.stop()

    def _prepare(self, pool: PeerPool) -> None:
        with phase(self._emit, "prepare", 1):
            for part in self._parts:
                pool.use(part)
                pool.prepare()

    def _run_plan(self, pool: PeerPool) -> None:
        warm = warm_part(self._plan) if isinstance(self._plan, Plan) else None
        if warm is not None:
            with phase(self._emit, "warm", 1):
                self._run(pool, warm, 0, trace=False)
        for index in range(self._last + 1):
            long, *short = self._run_parts(pool, index)
            late_s = max(part["late_start_s"] for part in (long, *short))
            self._report(index, {**long, "late_start_s": late_s, "parts": short})

    def _run_parts(self, pool: PeerPool, index: int) -> list[Message]:
        """Run an iteration. Return what `iterate` does: of the longer part, and of the shorter if
        there are two.

        Where TCP acts the longer runs first, since the session has begun with one of them. Else no
        connection remembers what it carried, so the shorter does, and a time is known early.
        """
        longer_first = self._plan.network.tcp.acts
        found: list[Message] = []
        for part in reversed(self._parts) if longer_first else self._parts:
            if found and isinstance(self._plan, Plan):
                periods = self._plan.parts[-1 if longer_first else 0]
                self._report_part(index, periods, found[0]["iteration_s"])
            found.append(self._run(pool, part, index, self._trace and index == self._last))
        return found if longer_first else found[::-1]

    def run_script(self, plan: Plan) -> None:
        """Start the plan's script on every rank and report its iterations up to the last one."""
        self._shape()
        plan_file = self._testbed.publish(f"{self._hash}.json", plan_to_json(plan))
        pool = ScriptPool(self._testbed, plan, self._print)
        num_reported = 0
        try:
            self._start(pool)
            self._testbed.host_use()
            before = self._testbed.sent_bytes()
            pool.launch(Path.cwd(), plan_file, STORE_PORT)
            for index, iteration in zip(range(self._last + 1), pool.iterations(), strict=False):
                num_reported += 1
                after = self._testbed.sent_bytes()
                hosts = self._hosts(before, after)
                before = after
                self._report(index, {**asdict(iteration), "late_start_s": 0.0, "hosts": hosts})
        finally:
            pool.stop()
        if num_reported <= self._last:
            raise TestbedError(
                f"the scripts of plan {self._hash} ended well after reporting {num_reported} of "
                f"{self._last + 1} iterations; let them do NETBENCH_ITERATIONS, and report each, "
                "or say with --iteration-regex which lines do (docs/own-trainer.md)"
            )

    def _start(self, pool: PeerPool | ScriptPool) -> None:
        total = pool.num_ranks
        with phase(self._emit, "ranks", total):
            pool.start(lambda done: self._emit("phase", name="ranks", done=done, total=total))

    def _shape(self) -> None:
        network, scale = network_of(self._plan, self._testbed.name)
        with phase(self._emit, "shape", network.num_nodes + num_routers(network)):
            self._testbed.shape(network, scale)
        if self._verify:
            with phase(self._emit, "verify", 1):
                probe = self._testbed.verify(network, scale, self._messages())
            self._emit("probe", probe={"scale": scale, **probe})

    def _messages(self) -> Messages | None:
        """Return the messages that show whether TCP acts, None where it does not."""
        plan = self._plan
        if not plan.network.tcp.acts:
            return None
        return Messages(network=limited_network(plan), scale=plan.scale, sizes=message_sizes(plan))

    def _report(self, index: int, measured: Mapping[str, Any]) -> None:
        """Report dropped packets, then the iteration: doubts are on disk before it is."""
        total = self._testbed.dropped_packets()
        if total > self._num_dropped:
            packets = total - self._num_dropped
            self._emit("drops", plan_hash=self._hash, iteration=index, packets=packets)
            self._num_dropped = total
        if index in self._finished:
            self._emit("phase", name="repeat", done=index + 1, total=self._last)
        else:
            self._emit("iteration", plan_hash=self._hash, iteration=index, **measured)

    def _report_part(self, index: int, periods: int, iteration_s: float) -> None:
        if index not in self._finished:
            fields = {"iteration": index, "periods": periods, "iteration_s": iteration_s}
            self._emit("part", plan_hash=self._hash, **fields)

    def _print(self, rank: int, text: str) -> None:
        self._emit("output", plan_hash=self._hash, rank=rank, text=text)

    def _run(self, pool: PeerPool, part: Experiment, index: int, trace: bool) -> Message:
        pool.use(part)
        return self.iterate(pool, index, trace)

    def iterate(self, pool: PeerPool, index: int, trace: bool) -> Message:
        """Run one iteration and time it from the common start to the last rank's end, seconds.

        It starts on a whole second, see `_await_second`.
        """
        if self._churn:
            self._churn.readmit(pool, index)
        else:
            pool.readmit()
        self._testbed.host_use()
        start_at_s = float(math.ceil(time.monotonic() + self._testbed.start_margin_s))
        before = self._testbed.sent_bytes()
        with self._churn.during(pool, start_at_s) if self._churn else nullcontext():
            ended = pool.run(index, start_at_s, trace)
        after = self._testbed.sent_bytes()
        last = max(ended, key=lambda answer: float(answer["end_s"]))
        late_s = max(float(answer["start_s"]) for answer in ended) - start_at_s
        if self._churn:
            self._churn.advance(float(last["end_s"]) - start_at_s)
        samples = [answer["samples"] for answer in ended if answer.get("samples") is not None]
        losses = [answer["loss"] for answer in ended if answer.get("loss") is not None]
        return {
            "iteration_s": float(last["end_s"]) - start_at_s,
            "phases": last["phases"],
            "passes_s": max(map(_passes_end_s, ended)) - start_at_s,
            "late_start_s": late_s,
            "loss": sum(losses) if losses else None,
            "samples": sum(samples) if samples else None,
            "trace": {answer["rank"]: answer["events"] for answer in ended} if trace else None,
            "sent_bytes": [after[n] - before[n] for n in sorted({*self._plan.device_nodes})],
            "peers": len(ended) if is_elastic(self._plan) else None,
            "gone": pool.take_gone(),
            "clock_error_s": pool.clock_error_s,
            "hosts": self._hosts(before, after),
        }

    def _hosts(self, before: Sequence[int], after: Sequence[int]) -> list[dict[str, Any]]:
        """Return what was used on each host. before, after: bytes that each node has sent."""
        used = self._testbed.host_use()
        sent = dict.fromkeys(used, 0)
        for node in self._testbed.nodes if used else ():
            sent[node.kernel] += after[node.index] - before[node.index]
        return [{**values, "sent_bytes": sent[kernel]} for kernel, values in used.items()]


def _passes_end_s(answer: Message) -> float:
    """Return when a rank ended its forward and backward passes, seconds; its start if it has none.

    Those of a pipeline include waiting for messages.
    """
    passes = (answer["phases"].get(name, 0.0) for name in ("forward_s", "backward_s"))
    return float(answer["start_s"] + sum(passes))


def _await_second() -> None:
    """Wait for a whole second.

    TCP's timers tick every 10 ms. The offset of a start between two ticks would decide when an
    acknowledgement goes out, and what connections learn from it. It depends on how often programs
    read the clock before, for each reading takes virtual time.
    """
    now_s = time.monotonic()
    time.sleep(math.ceil(now_s) - now_s)
