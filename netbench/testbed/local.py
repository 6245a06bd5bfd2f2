"""The local testbed's controller: starts sessions, keeps every finished iteration, decides trust.

    plans -> sessions (one, or two guests side by side) -> events -> records

It is the only writer of the run's record file, so what a session finished is on disk whatever
happens to the session, and the sessions die with it.
"""

from __future__ import annotations

import os
import platform
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from netbench.errors import TestbedError
from netbench.plan import Plan, describe_plan
from netbench.plan.command import COMMAND
from netbench.plan.experiment import (
    Experiment,
    experiment_hash,
    experiment_record,
    experiment_to_json,
)
from netbench.plan.model import VIRTUAL
from netbench.plan.traffic import num_network_all_reduces
from netbench.records import Environment, Record, RunStore
from netbench.scenario.model import Network
from netbench.testbed.host import Host
from netbench.testbed.launch import SessionProcess, start_session
from netbench.testbed.traces import keep_trace
from netbench.units import counted

TOLERANCE = {"guest-virtual": 0.02, "guest-real": 0.05, "native": 0.05}
"""Relative deviation of a probed link that is still trusted, by mode."""

STALL_S = 900.0
"""Wall seconds without any event after which a session is taken for hung. The longest silence seen
is one zero3 iteration of 64 ranks, 1-2 minutes on two cores."""

LATE_START_S = 0.05
"""A rank may start an iteration this late before the iteration is not trusted, seconds."""

OUTPUT_BYTES = 64 << 20
"""What is kept of the output of one script: a loop that prints must not fill the disk."""

MAX_SESSIONS = 2
"""Guests side by side: a guest uses one core, and up to 3 GB with 64 ranks."""


GRADIENT_SLICES = 32
"""Messages that a stage's gradients are cut into at most (`MAX_SLICES` of the trainers)."""

TRAINED = {
    ("dtfm", "gpipe", "reduce-broadcast"),
    ("dtfm", "gpipe", "ring"),
    ("dtfm", "gpipe", "sharded-ps"),
    ("dtfm", "1f1b", "reduce-broadcast"),
    ("dtfm", "1f1b", "ring"),
    ("dtfm", "1f1b", "sharded-ps"),
    ("megatron", "1f1b", "ring"),
    ("megatron", "interleaved", "ring"),
    ("megatron", "zero-bubble", "ring"),
    ("zero3", "none", "shard"),
    ("ddp", "none", "ring"),
    ("ddp", "none", "tree"),
    ("ddp", "none", "central-ps"),
    ("ddp", "none", "sharded-ps"),
    ("hivemind", "none", "butterfly"),
    ("diloco", "none", "ring"),
    (COMMAND, "none", "none"),
}
"""(system, schedule, data_parallel) that `netbench.trainers` runs."""


class Observer(Protocol):
    """Who is told what goes on, e.g. a progress display."""

    def phase(self, session: int, name: str, done: int, total: int) -> None:
        """Session `session` (from 0) is at `done` of `total` of step `name`."""

    def iteration(self, plan: Experiment, record: Record) -> None:
        """An iteration is finished, and on disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to. reasons: why it is not trustworthy; empty when it is."""

    path: Path
    reasons: tuple[str, ...]

    @property
    def trustworthy(self) -> bool:
        return not self.reasons


def run_plans(
    plans: Sequence[Experiment],
    *,
    mode: str,
    transport: str,
    host: Host,
    shim: Path | None,
    open_store: Callable[[Environment], RunStore],
    finished: Mapping[str, Sequence[int]],
    observer: Observer,
    max_sessions: int = MAX_SESSIONS,
    trace: bool = False,
) -> Outcome:
    """Run every unfinished iteration of `plans`, which share a scale; a session shapes one network.

    mode: one of `launch.MODES`. transport: `namespaces` or `ssh`. shim: library to preload into
    ranks. open_store: called once, when the environment is known. finished: plan hash ->
    iterations recorded before. max_sessions: guests to run side by side. trace: keep one of the
    last iteration of every plan (`traces`).
    Raises TestbedError when a session fails, what was finished before being on disk; and before any
    starts, for what no trainer runs.
    """
    check_emulable(plans)
    todo = [
        plan for plan in plans if len(finished.get(experiment_hash(plan), ())) < plan.iterations
    ]
    limit = min(max_sessions if mode == "guest-virtual" else 1, os.cpu_count() or 1)
    networks = by_network(todo)
    parts = max(1, limit // max(1, len(networks)))
    controller = _Controller(plans, mode, open_store, observer)

    def start(index: int, share: Sequence[Experiment]) -> SessionProcess:
        job = {
            "plans": [experiment_to_json(plan) for plan in share],
            "finished": {key: list(done) for key, done in finished.items()},
            "transport": transport,
            "tolerance": TOLERANCE[mode],
            "rank_environment": {"LD_PRELOAD": str(shim)} if shim else {},
            "trace": trace,
        }
        num_ranks = len(share[0].device_nodes)
        return start_session(mode, host, job, num_ranks, controller.queue_for(index))

    try:
        controller.follow(
            [share for same in networks for share in partition(same, parts)], start, limit
        )
        return controller.conclude()
    finally:
        controller.close()


def by_network(plans: Sequence[Experiment]) -> list[list[Experiment]]:
    """Plans that one session can run, together: of one network, with the same devices on its nodes;
    in the order in which these come first."""
    groups: dict[tuple[Network, tuple[int, ...]], list[Experiment]] = {}
    for plan in plans:
        groups.setdefault((plan.network, plan.device_nodes), []).append(plan)
    return list(groups.values())


def check_emulable(plans: Sequence[Experiment]) -> None:
    """Raises TestbedError listing the plans that no trainer runs, or for half a round."""
    trained = [plan for plan in plans if isinstance(plan, Plan)]
    unknown = [plan for plan in trained if not has_trainer(plan)]
    if unknown:
        raise TestbedError(
            "no trainer runs these plans; --testbed sim can, or leave them out with --systems:\n"
            + "\n".join(f"  {describe_plan(plan)}" for plan in unknown)
        )
    for plan in trained:
        _check_rounds(plan)


def _check_rounds(plan: Plan) -> None:
    """A mean over iterations of which some are longer is one only over whole rounds."""
    timed = plan.iterations - plan.warmup_iterations
    if plan.local_steps and timed % plan.local_steps:
        raise TestbedError(
            f"{plan.variant} synchronises every {plan.local_steps} iterations, and {timed} are no "
            f"whole rounds: choose --iterations {plan.local_steps} or a multiple, or fewer local "
            f"steps (diloco-h{timed})"
        )


def has_trainer(plan: Plan) -> bool:
    """Whether the trainers run the plan's system, schedule and data parallelism."""
    return (plan.system, plan.schedule, plan.data_parallel) in TRAINED


def partition(plans: Sequence[Experiment], parts: int) -> list[list[Experiment]]:
    """Split plans into at most `parts` shares of about equal host cost, order kept in each."""
    shares: list[list[Experiment]] = [[] for _ in range(min(parts, len(plans)))]
    cost = [0.0] * len(shares)
    for plan in sorted(plans, key=host_cost, reverse=True):
        lightest = cost.index(min(cost))
        shares[lightest].append(plan)
        cost[lightest] += host_cost(plan)
    order = {id(plan): position for position, plan in enumerate(plans)}
    return [sorted(share, key=lambda plan: order[id(plan)]) for share in shares]


def host_cost(plan: Experiment) -> float:
    """What an iteration costs the host, in messages: these, not bytes, take its time."""
    if not isinstance(plan, Plan):
        return plan.payload_bytes / plan.scale * plan.num_nodes  # of one kind: only ratios count
    tp, pp, dp = plan.layout.tp, plan.layout.pp, plan.layout.dp
    if plan.data_parallel == "shard":
        ring, steps = plan.shard_ranks or dp, plan.num_micro_batches
        scatters = 1 if plan.accumulation == "keep" else steps
        messages = ring * (2 * steps + scatters) + 2 * (dp // ring - 1)
        return float(len(plan.units) * dp * messages)
    boundaries = pp * plan.num_chunks - 1 if pp > 1 else 0
    crossings = 2.0 * boundaries * dp * tp * plan.num_rounds * plan.num_micro_batches
    all_reduced = 2.0 * tp * (tp - 1) * num_network_all_reduces(plan)
    return crossings + all_reduced + 2.0 * (dp - 1) * GRADIENT_SLICES * pp * tp


def machine_name() -> str:
    """The host in a few words: processor, cores, memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{model}, {counted(os.cpu_count() or 1, 'core')}, {memory_bytes / 2**30:.0f} GiB"


class _Controller:
    """Turns the events of the sessions of one run into records and a verdict."""

    def __init__(
        self,
        plans: Sequence[Experiment],
        mode: str,
        open_store: Callable[[Environment], RunStore],
        observer: Observer,
    ) -> None:
        self._plans = {experiment_hash(plan): plan for plan in plans}
        self._mode = mode
        self._open_store = open_store
        self._observer = observer
        self._store: RunStore | None = None
        self._reasons: list[str] = []
        self._last: defaultdict[int, str] = defaultdict(lambda: "its start")
        self._running: dict[int, SessionProcess] = {}
        self._events: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()

    def queue_for(self, session: int) -> Callable[[dict[str, Any] | None], None]:
        return lambda event: self._events.put((session, event))

    def follow(
        self,
        shares: Sequence[Sequence[Experiment]],
        start: Callable[[int, Sequence[Experiment]], SessionProcess],
        limit: int,
    ) -> None:
        """Run a session for every share, `limit` at once, and handle their events.

        Raises TestbedError if one fails; none is left running, however this ends.
        """
        waiting = deque(enumerate(shares))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < limit:
                    index, share = waiting.popleft()
                    self._running[index] = start(index, share)
                self._next_event()
        finally:
            for session in self._running.values():
                session.close()

    def _next_event(self) -> None:
        try:
            index, event = self._events.get(timeout=STALL_S)
        except queue.Empty:
            tails = "".join(session.console_tail() for session in self._running.values())
            last = "; ".join(f"session {i + 1} after {self._last[i]}" for i in self._running)
            raise TestbedError(
                f"no sign of life for {STALL_S:g} s, {last}: a rank hangs, or computes for ever"
                f"{tails}{self._kept()}"
            ) from None
        if index not in self._running:
            return
        if event is None or event["event"] == "error":
            what = event["message"] if event else f"the {self._mode} session ended unexpectedly"
            tail = self._running[index].console_tail(booted=event is not None)
            raise TestbedError(f"{what}{tail}{self._kept()}")
        if event["event"] == "done":
            self._running.pop(index).close()
        else:
            self._handle(index, event)

    def _handle(self, session: int, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "phase":
            self._last[session] = f"step {event['name']}"
        elif kind == "iteration":
            variant = self._plans[event["plan_hash"]].variant
            self._last[session] = f"iteration {event['iteration']} of {variant}"
        if kind == "hello":
            self._open(event)
        elif kind == "phase":
            self._observer.phase(session, event["name"], event["done"], event["total"])
        elif kind == "probe":
            self._probe(event)
        elif kind == "iteration":
            self._iteration(event)
        elif kind == "output":
            self._keep_output(event)
        elif kind == "drops" and event["packets"]:
            self._distrust([f"the shaped queues dropped {counted(event['packets'], 'packet')}"])

    def _open(self, event: dict[str, Any]) -> None:
        if self._store is not None:
            return
        self._store = self._open_store(
            Environment(
                kernel=event["kernel"],
                mode=self._mode,
                scale=next(iter(self._plans.values())).scale,
                versions=event["versions"],
                machine=machine_name(),
            )
        )

    def _probe(self, event: dict[str, Any]) -> None:
        assert self._store is not None
        self._store.append_probe(event["probe"])
        self._distrust(event["probe"]["reasons"])

    def _iteration(self, event: dict[str, Any]) -> None:
        assert self._store is not None
        plan = self._plans[event["plan_hash"]]
        training = plan if isinstance(plan, Plan) else None
        record = experiment_record(
            plan,
            self._store.run_id,
            event["iteration_s"],
            "measured" if training and training.compute != VIRTUAL else "emulated",
            iteration=event["iteration"],
            warmup=event["iteration"] < plan.warmup_iterations,
            phases=event["phases"],
            loss=event.get("loss"),
            sent_bytes=tuple(event.get("sent_bytes", ())),
            peers=event.get("peers"),
        )
        self._store.append_iteration(record)
        if training and event.get("trace"):
            keep_trace(self._store.path.parent, training, record.iteration_s, event["trace"])
        if event.get("gone"):
            self._distrust(
                [
                    f"{plan.variant} iteration {record.iteration}: {record.peers} of "
                    f"{len(plan.device_nodes)} peers ended it; {'; '.join(event['gone'])}"
                ]
            )
        if event["late_start_s"] > LATE_START_S:
            self._distrust(
                [
                    f"{plan.variant} iteration {record.iteration}: a rank started "
                    f"{event['late_start_s']:.3f} s late; the machine is overloaded"
                ]
            )
        self._observer.iteration(plan, record)

    def _keep_output(self, event: dict[str, Any]) -> None:
        """A line that a script has printed: one file per plan and rank, beside the records."""
        assert self._store is not None
        folder = self._store.path.parent / "output"
        folder.mkdir(exist_ok=True)
        path = folder / f"{event['plan_hash']}-rank-{event['rank']}.log"
        with path.open("a", encoding="utf-8") as output:
            if output.tell() < OUTPUT_BYTES:
                output.write(event["text"] + "\n")

    def _distrust(self, reasons: Sequence[str]) -> None:
        self._reasons += [reason for reason in reasons if reason not in self._reasons]

    def _kept(self) -> str:
        if self._store is None:
            return ""
        folder = self._store.path.parent
        return f"\nFinished iterations are kept in {folder}; continue with --resume {folder}"

    def conclude(self) -> Outcome:
        """Record the verdict."""
        assert self._store is not None
        reasons = tuple(self._reasons)
        self._store.append_verdict(trustworthy=not reasons, reasons=reasons)
        return Outcome(path=self._store.path, reasons=reasons)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
