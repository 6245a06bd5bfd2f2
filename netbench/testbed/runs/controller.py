"""Controller of local runs: starts sessions, records every finished iteration, decides trust.

    plans -> sessions (two guests side by side) -> events -> records

Plans in parts that differ only in the number of periods are run as one. Where TCP does not act,
plans on the same network share the sessions of this machine's guests. Else a plan has its own.

It is the only writer of the run's record file: finished iterations and reasons not to trust them
are on disk whatever happens to a session. Sessions die with the controller.
"""

import os
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from netbench.errors import TestbedError
from netbench.machine import machine_name
from netbench.network.probing.fidelity import TOLERANCE
from netbench.plan.checks import dynamics_doubt
from netbench.plan.describe import describe_plan
from netbench.plan.experiment import (
    Experiment,
    experiment_hash,
    experiment_record,
    experiment_to_json,
    message_sizes,
)
from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.serial import plan_hash
from netbench.records import Environment, HostSample, Record, RunStore
from netbench.scenario.model import Network
from netbench.systems import system_of
from netbench.testbed.effort import emulation_s, extend, families
from netbench.testbed.lifetime import uninterrupted
from netbench.testbed.machine.capabilities import Capabilities
from netbench.testbed.runs.grouping import dealt
from netbench.testbed.runs.launch import start_session
from netbench.timelines import Slice, Timeline, trace_path, write_timeline
from netbench.units import counted, format_time
from netbench.version import TRAINER_RULES

STALL_S = 900.0
"""Silence of a session before it counts as hung, wall seconds, or longer if its iterations are."""

SLOWER = 30.0
"""Machines may be slower by this than the one on which `emulation_s` was measured, or busier."""

LATE_START_S = 0.05
"""Largest delay of a rank's start for which an iteration is trusted, seconds."""

OUTPUT_BYTES = 64 << 20
"""Limit of the recorded output of one script, so that a loop that prints does not fill the disk."""

MAX_SESSIONS = 2
"""Guests that run side by side. A guest uses one core, and up to 3 GB with 64 ranks."""


Event = dict[str, Any]
OnEvent = Callable[[Event | None], None]


class RunningSession(Protocol):
    """A running session: `launch.SessionProcess`, or one on a cluster."""

    def console_tail(self, *, booted: bool = False) -> str:
        """Return the last lines of its console as the end of an error message, or ""."""

    def close(self) -> None:
        """End everything that it started."""


class Observer(Protocol):
    """Receiver of progress, e.g. a display."""

    def place(self, session: int, host: str) -> None:
        """Report on which host session `session` (from 0) runs, if it is not this machine."""

    def phase(self, session: int, name: str, done: int, total: int) -> None:
        """Report that session `session` (from 0) has done `done` of `total` of step `name`."""

    def part(self, plan: Plan, iteration: int, periods: int, iteration_s: float) -> None:
        """Report the end of the first of two parts that stand for an iteration."""

    def iteration(self, plan: Experiment, record: Record) -> None:
        """Report an iteration that is finished and on disk."""

    def certificate(self, hosts: Mapping[str, str]) -> None:
        """Report what a session has left on its hosts, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTask:
    """The work of a session.

    plans: one, or several that run one after the other on the same network. finished: iterations of
    each that were recorded before. trace: keep a trace of the last iteration of each. verify:
    measure the network.
    """

    plans: Sequence[Experiment]
    finished: Sequence[Sequence[int]]
    trace: bool
    verify: bool

    def to_json(self) -> dict[str, Any]:
        """Return the part of a job that says this."""
        plans = [experiment_to_json(plan) for plan in self.plans]
        rest = {"finished": self.finished, "trace": self.trace, "verify": self.verify}
        return {"plans": plans, **rest}


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSetup:
    """Settings of the sessions of a run.

    testbed: one of `records.TESTBEDS`. ssh: start ranks by an sshd per node. preload: library to
    preload into ranks. trace: keep a trace of the last iteration of every plan. start: starts a
    session elsewhere, given its task, of one plan, and the receiver of its events; None = on this
    machine. side_by_side: number of sessions that may run at the same time now; None =
    as many as this machine can. place: description of where.
    """

    testbed: str
    machine: Capabilities | None = None
    preload: Path | None = None
    ssh: bool = False
    trace: bool = False
    start: Callable[["SessionTask", OnEvent], RunningSession] | None = None
    side_by_side: Callable[[], int] | None = None
    place: str = field(default_factory=machine_name)


def run_plans(
    plans: Sequence[Experiment],
    setup: SessionSetup,
    *,
    open_store: Callable[[Environment], RunStore],
    finished: Mapping[str, Sequence[int]],
    observer: Observer,
) -> Path:
    """Run every unfinished iteration of `plans`, which share a scale. Return the record file.

    open_store: called once, when the environment is known. finished: plan hash -> iterations
    recorded before. Raises TestbedError when a session fails (finished iterations are on disk), and
    before any session starts if no trainer runs a plan.
    """
    check_emulable(plans)
    return _Controller(plans, setup, open_store, finished, observer).run()


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
        # Only of whole rounds is the mean meaningful.
        timed = plan.iterations - plan.warmup_iterations
        if plan.local_steps and timed % plan.local_steps:
            raise TestbedError(
                f"{plan.variant} synchronises every {plan.local_steps} iterations, and {timed} are "
                f"not whole rounds: choose --iterations {plan.local_steps} or a multiple, or fewer "
                f"local steps (diloco-h{timed})"
            )


def has_trainer(plan: Plan) -> bool:
    """Return True if the trainers run the plan's system."""
    return bool(system_of(plan).trainer)


def keep_trace(
    run: Path,
    plan: Plan,
    iteration_s: float,
    events: Mapping[str, Sequence[Sequence[Any]]],
    clock_error_s: float = 0.0,
) -> None:
    """Write the trace of one iteration.

    run: the run's folder. events: by process (`netbench.trainers.protocol`), by one clock, without
    peers that have left. clock_error_s: bound of the error of that clock. Raises UsageError if the
    file cannot be written.
    """
    key = plan_hash(plan)
    path = trace_path(run, key)
    path.parent.mkdir(exist_ok=True)
    logical = {process: rank for rank, process in enumerate(plan.placement)}
    slices = [
        _slice(plan, logical, logical[int(process)], event)
        for process, some in events.items()
        for event in some
    ]
    timeline = Timeline(
        plan=key,
        source="emulated" if plan.compute == "virtual" else "measured",
        iteration_s=iteration_s,
        slices=tuple(sorted(slices, key=lambda piece: (piece.rank, piece.start_s))),
        clock_error_s=clock_error_s,
    )
    write_timeline(path, plan, timeline)


def _slice(plan: Plan, logical: dict[int, int], rank: int, event: Sequence[Any]) -> Slice:
    """Convert an event of a rank: peer by logical rank, bytes at full size."""
    kind, start_s, end_s, details = event
    args = {key: value for key, value in details.items() if key != "peer"}
    if "bytes" in args:
        args["bytes"] = round(args["bytes"] * plan.scale)
    return Slice(
        kind=kind,
        rank=rank,
        start_s=max(0.0, start_s),
        end_s=end_s,
        peer=logical[details["peer"]] if "peer" in details else -1,
        args=tuple(args.items()),
    )


def extended(plan: Plan, event: Event) -> Event:
    """Return the event of an iteration of `plan` from that of its longer part."""
    (short,) = event["parts"]
    pairs = zip(short["sent_bytes"], event["sent_bytes"], strict=True)
    iteration_s, phases = _extended_s(plan, short, event)
    return {
        **event,
        "iteration_s": iteration_s,
        "phases": phases,
        "sent_bytes": [round(extend(plan, *pair)) for pair in pairs],
        "parts_s": (short["iteration_s"], event["iteration_s"]),
    }


def _extended_s(plan: Plan, short: Event, long: Event) -> tuple[float, dict[str, float]]:
    """Return seconds and phases of an iteration.

    What follows the passes of a pipeline takes as long as in the longer part. TCP's windows depend
    on how long connections have been idle, so the parts differ there, and extended the difference
    would grow with the number of micro-batches.
    """
    update_s = long["phases"].get("optimizer_s", 0.0)
    phases = {
        name: extend(
            plan,
            short["phases"].get(name, 0.0),
            seconds,
            once=update_s if name == "optimizer_s" else 0.0,
        )
        for name, seconds in long["phases"].items()
    }
    if not plan.has_pipelines:
        iteration_s = extend(plan, short["iteration_s"], long["iteration_s"], once=update_s)
        return iteration_s, phases
    after_s = long["iteration_s"] - long["passes_s"]
    iteration_s = extend(plan, short["passes_s"], long["passes_s"]) + after_s
    phases["optimizer_s"] = long["phases"]["optimizer_s"]
    others_s = sum(seconds for name, seconds in phases.items() if name != "sync_s")
    phases["sync_s"] = max(0.0, iteration_s - others_s)
    return iteration_s, phases


class _Controller:
    """Turns the events of the sessions of one run into records and a verdict."""

    def __init__(
        self,
        plans: Sequence[Experiment],
        setup: SessionSetup,
        open_store: Callable[[Environment], RunStore],
        finished: Mapping[str, Sequence[int]],
        observer: Observer,
    ) -> None:
        self._plans = {experiment_hash(plan): plan for plan in plans}
        self._families = {
            keys[0]: keys
            for keys in (
                [experiment_hash(plan) for plan in family]
                for family in families(self._plans.values())
            )
        }
        self._setup = setup
        self._open_store = open_store
        self._finished = {key: set(finished.get(key, ())) for key in self._plans}
        self._observer = observer
        self._store: RunStore | None = None
        self._last: defaultdict[int, str] = defaultdict(lambda: "its start")
        self._running: dict[int, RunningSession] = {}
        self._started: list[Sequence[Experiment]] = []
        self._verified: set[tuple[Network, float, tuple[int, ...]]] = set()
        self._events: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()

    def run(self) -> Path:
        """Run sessions of all unfinished plans, and record their events and the verdict.

        Raises TestbedError if one fails. No session is left running: a second Ctrl-C does not keep
        the first from restoring the network.
        """
        unfinished = [
            self._plans[first]
            for first, family in self._families.items()
            if any(len(self._finished[key]) < self._plans[key].iterations for key in family)
        ]
        waiting = deque(self._divided(unfinished))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._side_by_side():
                    self._start(waiting.popleft())
                self._next_event()
            assert self._store is not None
            self._store.append_verdict()
            return self._store.path
        finally:
            with uninterrupted():
                for session in self._running.values():
                    session.close()
                self._take_certificates()
                if self._store is not None:
                    self._store.close()

    def _divided(self, plans: Sequence[Experiment]) -> list[list[Experiment]]:
        """Return the plans of each session."""
        if self._setup.start is not None or self._setup.testbed != "guest-virtual":
            return [[plan] for plan in plans]
        return dealt(plans, self._side_by_side())

    def _side_by_side(self) -> int:
        """Return how many sessions may run at the same time."""
        if self._setup.side_by_side is not None:
            return self._setup.side_by_side()
        most = MAX_SESSIONS if self._setup.testbed == "guest-virtual" else 1
        return min(most, os.cpu_count() or 1)

    def _start(self, plans: Sequence[Experiment]) -> None:
        index, setup = len(self._started), self._setup
        task = SessionTask(
            plans=plans,
            finished=[self._finished_by_all(plan) for plan in plans],
            trace=setup.trace,
            verify=self._is_new(plans[0]),
        )
        self._started.append(plans)

        def on_event(event: Event | None) -> None:
            self._events.put((index, event))

        if setup.start is not None:
            self._running[index] = setup.start(task, on_event)
            return
        assert setup.machine is not None
        job = {
            **task.to_json(),
            "ssh": setup.ssh,
            "tolerance": TOLERANCE[setup.testbed],
            "rank_environment": ({"LD_PRELOAD": str(setup.preload)} if setup.preload else {}),
        }
        num_ranks = len(plans[0].device_nodes)
        self._running[index] = start_session(setup.testbed, setup.machine, job, num_ranks, on_event)

    def _finished_by_all(self, plan: Experiment) -> list[int]:
        """Return the iterations that are recorded of all plans that run as `plan`."""
        family = self._families[experiment_hash(plan)]
        return sorted(set.intersection(*(self._finished[key] for key in family)))

    def _is_new(self, plan: Experiment) -> bool:
        """Return whether no session of this run has verified the network of `plan`.

        In virtual time, equal configurations deliver equal links.
        """
        if self._setup.testbed != "guest-virtual":
            return True
        sizes = message_sizes(plan) if plan.network.tcp.acts else ()
        key = (plan.network, plan.scale, sizes)
        is_new = key not in self._verified
        self._verified.add(key)
        return is_new

    def _stall_s(self) -> float:
        """Return how long running sessions may be silent: no longer than an iteration takes."""
        plans = [plan for index in self._running for plan in self._started[index]]
        virtual = [plan for plan in plans if isinstance(plan, Plan) and plan.compute == VIRTUAL]
        parts = [part for plan in virtual for part in plan.shortened()]
        return max([STALL_S, *(SLOWER * emulation_s(part) for part in parts)])

    def _next_event(self) -> None:
        stall_s = self._stall_s()
        try:
            index, event = self._events.get(timeout=stall_s)
        except queue.Empty:
            tails = "".join(session.console_tail() for session in self._running.values())
            last = "; ".join(f"session {i + 1} after {self._last[i]}" for i in self._running)
            raise TestbedError(
                f"no sign of life for {stall_s:g} s, {last}: a rank hangs or computes for ever"
                f"{tails}{self._kept()}"
            ) from None
        if index not in self._running:
            return
        if event is None or event["event"] == "error":
            ended = f"the {self._setup.testbed} session ended unexpectedly"
            what = event["message"] if event else ended
            tail = self._running[index].console_tail(booted=event is not None)
            raise TestbedError(f"{what}{tail}{self._kept()}")
        if event["event"] == "done":
            self._running.pop(index).close()
        else:
            self._handle(index, event)

    def _handle(self, session: int, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "hello":
            self._open(event)
            for plan in self._started[session]:
                if doubt := dynamics_doubt(plan):
                    self._doubt_family(plan, doubt)
        elif kind == "place":
            self._observer.place(session, event["host"])
        elif kind == "phase":
            self._last[session] = f"step {event['name']}"
            self._observer.phase(session, event["name"], event["done"], event["total"])
        elif kind == "probe":
            assert self._store is not None
            self._store.append_probe(event["probe"])
        elif kind == "iteration":
            variant = self._plans[event["plan_hash"]].variant
            self._last[session] = f"iteration {event['iteration']} of {variant}"
            for key in self._families[event["plan_hash"]]:
                if event["iteration"] not in self._finished[key]:
                    self._iteration(self._plans[key], event)
        elif kind == "part":
            self._part(session, event)
        elif kind == "output":
            self._keep_output(event)
        elif kind == "certificate":
            self._observer.certificate(event["hosts"])
        elif kind == "drops":
            dropped = counted(event["packets"], "packet")
            reason = f"iteration {event['iteration']}: the shaped queues dropped {dropped}"
            self._doubt_family(self._plans[event["plan_hash"]], reason)

    def _take_certificates(self) -> None:
        """Report what sessions that were closed have left on their hosts."""
        while not self._events.empty():
            _, event = self._events.get()
            if event and event["event"] == "certificate":
                self._observer.certificate(event["hosts"])

    def _open(self, event: dict[str, Any]) -> None:
        if self._store is not None:
            return
        self._store = self._open_store(
            Environment(
                kernel=event["kernel"],
                mode=self._setup.testbed,
                scale=next(iter(self._plans.values())).scale,
                versions=event["versions"],
                machine=self._setup.place,
                rules=TRAINER_RULES,
            )
        )

    def _part(self, session: int, event: dict[str, Any]) -> None:
        """Report a part for the first plan that lacks the iteration, of those that share it."""
        index, keys = event["iteration"], self._families[event["plan_hash"]]
        plan = next(self._plans[key] for key in keys if index not in self._finished[key])
        assert isinstance(plan, Plan)
        self._last[session] = f"a part of iteration {index} of {plan.variant}"
        self._observer.part(plan, index, event["periods"], event["iteration_s"])

    def _iteration(self, plan: Experiment, event: dict[str, Any]) -> None:
        assert self._store is not None
        training = plan if isinstance(plan, Plan) else None
        if training and event.get("parts"):
            event = extended(training, event)
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
            samples=event.get("samples"),
            hosts=tuple(map(HostSample.of, event.get("hosts", ()))),
            parts_s=event.get("parts_s", ()),
        )
        if event.get("gone"):
            peers = f"{record.peers} of {len(plan.device_nodes)} peers ended it"
            gone = "; ".join(event["gone"])
            self._doubt(plan, f"iteration {record.iteration}: {peers}; {gone}")
        clock_error_s = event.get("clock_error_s", 0.0)
        if 2 * clock_error_s > TOLERANCE[self._setup.testbed] * record.iteration_s:
            what = f"clocks of the hosts are known to {format_time(clock_error_s)} only"
            self._doubt(plan, f"iteration {record.iteration}: {what}")
        if event["late_start_s"] > LATE_START_S:
            late = f"a rank started {event['late_start_s']:.3f} s late; the machine is overloaded"
            self._doubt(plan, f"iteration {record.iteration}: {late}")
        self._store.append_iteration(record)
        if training and event.get("trace"):
            run, events = self._store.path.parent, event["trace"]
            keep_trace(run, training, record.iteration_s, events, clock_error_s)
        self._observer.iteration(plan, record)

    def _keep_output(self, event: dict[str, Any]) -> None:
        assert self._store is not None
        folder = self._store.path.parent / "output"
        folder.mkdir(exist_ok=True)
        path = folder / f"{event['plan_hash']}-rank-{event['rank']}.log"
        with path.open("a", encoding="utf-8") as output:
            if output.tell() < OUTPUT_BYTES:
                output.write(event["text"] + "\n")

    def _doubt(self, plan: Experiment, reason: str) -> None:
        """Record a reason not to trust a plan, before the iteration it is about."""
        assert self._store is not None
        self._store.append_doubt(experiment_hash(plan), f"{plan.variant} {reason}")

    def _doubt_family(self, plan: Experiment, reason: str) -> None:
        """Record a reason not to trust a plan, nor those that run as it."""
        for key in self._families[experiment_hash(plan)]:
            self._doubt(self._plans[key], reason)

    def _kept(self) -> str:
        if self._store is None:
            return ""
        folder = self._store.path.parent
        return f"\nFinished iterations are kept in {folder}; continue with --resume {folder}"
