"""The controller, against sessions that are scripts of events."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from netbench.errors import TestbedError
from netbench.plan.benchmark import CollectivePlan
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution, Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Environment, HostSample, Record, Run, RunStore, read_run
from netbench.scenario import load_scenario
from netbench.scenario.model import NO_TCP, Tcp
from netbench.systems.ddp import Ddp
from netbench.testbed.runs import controller as local
from netbench.testbed.runs.controller import SessionSetup, check_emulable, extended, run_plans
from netbench.testing.nodes import LAPTOP
from netbench.timelines import read_timeline, trace_path

Event = dict[str, Any]
HELLO: Event = {"event": "hello", "kernel": "6.12", "versions": {"torch": "2"}}
GOOD_PROBE: Event = {"event": "probe", "probe": {"trustworthy": True, "reasons": []}}


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, ...]:
    scenario = load_scenario("example-two-labs")
    sweep = scenario.sweep
    found = build_plans(
        scenario,
        Choices(
            variants=("dtfm-scheduled", "dtfm-random", "zero3"),
            layers=sweep.default_layers,
            batch=sweep.default_batch,
            seeds=(1,),
        ),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )
    return tuple(with_tcp(plan, Tcp(congestion="cubic")) for plan in found)


def with_tcp(plan: Plan, tcp: Tcp) -> Plan:
    return dataclasses.replace(plan, network=dataclasses.replace(plan.network, tcp=tcp))


class Recorder:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.certificates: list[Mapping[str, str]] = []
        self.parts: list[tuple[str, int, int, float]] = []

    def place(self, session: int, host: str) -> None:
        assert session == 0

    def phase(self, session: int, name: str, done: int, total: int) -> None:
        pass

    def certificate(self, hosts: Mapping[str, str]) -> None:
        self.certificates.append(hosts)

    def part(self, plan: Plan, iteration: int, periods: int, iteration_s: float) -> None:
        self.parts.append((plan_hash(plan), iteration, periods, iteration_s))

    def iteration(self, plan: Plan | CollectivePlan, record: Record) -> None:
        self.records.append(record)


class FakeSession:
    """Plays events and remembers that it was closed."""

    closed = 0

    def console_tail(self, *, booted: bool = False) -> str:
        return "" if booted else "\nlast console lines:\n  | Kernel panic"

    def close(self) -> None:
        FakeSession.closed += 1


def iteration(plan_key: str, index: int, late_start_s: float = 0.0) -> Event:
    return {
        "event": "iteration",
        "plan_hash": plan_key,
        "iteration": index,
        "iteration_s": 1.5 + index,
        "phases": {"forward_s": 1.0},
        "late_start_s": late_start_s,
    }


Script = Callable[[Mapping[str, Any]], list[Event | None]]


def obedient(job: Mapping[str, Any]) -> list[Event | None]:
    """Runs what is not finished, then is done."""
    iterations = [
        iteration(hash_of(plan), i)
        for plan, finished in zip(job["plans"], job["finished"], strict=True)
        for i in range(2)
        if i not in finished
    ]
    return [HELLO, GOOD_PROBE, *iterations, {"event": "done"}, None]


def hash_of(plan_text: str) -> str:
    import hashlib

    return hashlib.sha256(plan_text.encode()).hexdigest()[:12]


def run(
    plans: tuple[Plan, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Script = obedient,
    finished: Mapping[str, list[int]] | None = None,
    testbed: str = "guest-virtual",
) -> tuple[Run, Recorder]:
    def start(
        testbed: str,
        host: object,
        job: Mapping[str, Any],
        num_ranks: int,
        on_event: Callable[[Event | None], None],
    ) -> FakeSession:
        for event in script(job):
            on_event(event)
        return FakeSession()

    def open_store(environment: Environment) -> RunStore:
        store = RunStore.create(
            folder,
            scenario="example-two-labs",
            created=datetime(2026, 1, 2),
            command=["netbench"],
            environment=environment,
        )
        for plan in plans:
            store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
        return store

    monkeypatch.setattr(local, "start_session", start)
    recorder = Recorder()
    path = run_plans(
        plans,
        SessionSetup(testbed=testbed, machine=LAPTOP, preload=None),
        open_store=open_store,
        finished=finished or {},
        observer=recorder,
    )
    return read_run(path), recorder


def test_every_iteration_is_on_disk_with_its_warm_ups_flagged(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three plans, each in its own session: one record file, a verdict at its end."""
    found, recorder = run(plans, tmp_path, monkeypatch)
    assert not found.reasons
    assert len(found.records) == len(recorder.records) == 6
    assert [r.warmup for r in found.records if r.plan_hash == plan_hash(plans[0])] == [True, False]
    assert found.verdicts[-1].trustworthy
    assert {record.source for record in found.records} == {"emulated"}


def test_what_ranks_recorded_is_kept_beside_the_records(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trace for each plan whose events came, by logical rank; none where none came."""
    chosen = plans[1]
    events = {
        f"{process}": [["forward", 0.25, 0.5 + process, {"micro_batch": 3}]] for process in range(4)
    }

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        return [
            event | {"trace": events}
            if event and event.get("plan_hash") == plan_hash(chosen) and event["iteration"] == 1
            else event
            for event in obedient(job)
        ]

    found, _ = run(plans, tmp_path, monkeypatch, script)
    folder = found.path.parent
    assert [path.name for path in (folder / "traces").iterdir()] == [
        trace_path(folder, plan_hash(chosen)).name
    ]
    timeline = read_timeline(trace_path(folder, plan_hash(chosen)))
    assert timeline.iteration_s == 2.5
    assert {(piece.rank, piece.end_s) for piece in timeline.slices} == {
        (rank, 0.5 + process) for rank, process in enumerate(chosen.placement)
    }


def test_finished_iterations_are_not_run_again(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that is complete is in no session's job; one half done gets the other half."""
    first, second = plan_hash(plans[0]), plan_hash(plans[1])
    _, recorder = run(plans, tmp_path, monkeypatch, finished={first: [0, 1], second: [0]})
    ran = {(record.plan_hash, record.iteration) for record in recorder.records}
    assert ran == {(second, 1), (plan_hash(plans[2]), 0), (plan_hash(plans[2]), 1)}


def test_a_probe_outside_tolerance_is_a_reason_not_to_trust(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sessions find it; it is said once."""
    bad = {"event": "probe", "probe": {"trustworthy": False, "reasons": ["rtt is off"]}}
    found, _ = run(plans, tmp_path, monkeypatch, lambda job: [HELLO, bad, *obedient(job)[2:]])
    assert found.reasons == ("rtt is off",)
    assert not found.verdicts[-1].trustworthy


def test_dropped_packets_are_a_reason_not_to_trust(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that overflowed slowed TCP down by something the scenario does not have."""

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        (key,) = map(hash_of, job["plans"])
        drops = {"event": "drops", "plan_hash": key, "iteration": 1, "packets": 3}
        return [*obedient(job)[:-2], drops, {"event": "done"}]

    found, _ = run(plans, tmp_path, monkeypatch, script)
    assert "dropped 3 packets" in found.reasons[0]


def test_a_peer_that_went_is_recorded_and_a_reason_not_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iteration keeps how many ended it; those of other systems keep nothing."""
    (plan,) = build_plans(
        load_scenario("example-two-labs"),
        Choices(variants=["hivemind"], layers=[8], batch=[16], seeds=[1]),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        first, second = (iteration(plan_hash(plan), index) for index in range(2))
        second |= {"peers": 3, "gone": ["rank 2 on node2 was killed by SIGKILL"]}
        return [HELLO, GOOD_PROBE, first, second, {"event": "done"}, None]

    found, _ = run((plan,), tmp_path, monkeypatch, script)
    assert found.reasons == (
        "hivemind iteration 1: 3 of 4 peers ended it; rank 2 on node2 was killed by SIGKILL",
    )
    assert [record.peers for record in found.records] == [None, 3]


@pytest.mark.parametrize(("timed", "refused"), [(8, False), (4, False), (6, True), (1, True)])
def test_local_steps_are_timed_over_whole_rounds(timed: int, refused: bool) -> None:
    """Whatever the warm-up: any four iterations in a row have one outer step."""
    scenario = load_scenario("example-two-labs")
    plans = build_plans(
        scenario,
        Choices(variants=["diloco-h4"], layers=[8], batch=[16], seeds=[1]),
        Execution(iterations=timed + 3, warmup_iterations=3),
    )
    if not refused:
        check_emulable(plans)
        return
    with pytest.raises(TestbedError, match="--iterations 4 or a multiple"):
        check_emulable(plans)


def test_a_rank_that_starts_late_is_a_reason_not_to_trust(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was too busy for real time."""
    key = plan_hash(plans[0])
    late: Script = lambda job: [HELLO, GOOD_PROBE, iteration(key, 0, 0.2), {"event": "done"}]  # noqa: E731
    found, _ = run(plans[:1], tmp_path, monkeypatch, late)
    assert "0.200 s late" in found.reasons[0]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"event": "error", "message": "rank 3 on ohio-1: lost"}, r"rank 3 on ohio-1: lost"),
        (None, r"(?s)ended unexpectedly.*Kernel panic"),
    ],
)
def test_a_session_that_fails_leaves_what_it_finished(
    plans: tuple[Plan, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: Event | None,
    said: str,
) -> None:
    """The error says what went wrong and how to go on; all sessions are ended."""
    key, FakeSession.closed = plan_hash(plans[0]), 0
    with pytest.raises(TestbedError, match=said) as caught:
        run(plans[:1], tmp_path, monkeypatch, lambda job: [HELLO, iteration(key, 0), last])
    assert "--resume" in str(caught.value)
    (path,) = tmp_path.glob("*/records.jsonl")
    assert [record.iteration for record in read_run(path).records] == [0]
    assert FakeSession.closed == 1


@pytest.mark.parametrize(
    ("parts", "last"), [((), "iteration 0"), ((1, 2), "a part of iteration 1")]
)
def test_silence_is_reported_with_the_console(
    plans: tuple[Plan, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: tuple[int, ...],
    last: str,
) -> None:
    """A guest that hangs says nothing for longer than the limit; where it was is said."""
    monkeypatch.setattr(local, "STALL_S", 0.01)
    plan, key = plans[0], plan_hash(plans[0])
    events: list[Event | None] = [HELLO, iteration(key, 0)]
    if parts:
        part = {"event": "part", "plan_hash": key, "iteration": 1, "periods": 1, "iteration_s": 1.0}
        events.append(part)
    said = rf"(?s)no sign of life.*session 1 after {last} of dtfm-scheduled.*Kernel panic"
    with pytest.raises(TestbedError, match=said):
        run((plan,), tmp_path, monkeypatch, lambda job: events)


def test_what_no_trainer_runs_is_refused_before_a_session_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naming the plan, not the good one beside it, and what can run it."""
    example = load_scenario("example-two-labs")
    good, bad = build_plans(
        example,
        Choices(variants=["megatron", "ddp"], layers=[8], batch=[16], seeds=[1]),
        Execution(iterations=2, warmup_iterations=1),
    )
    monkeypatch.setattr(Ddp, "trainer", "")
    with pytest.raises(TestbedError, match="--testbed sim can") as caught:
        run((good, bad), tmp_path, monkeypatch, lambda job: pytest.fail("a session was started"))
    assert plan_hash(bad) in str(caught.value)
    assert plan_hash(good) not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "variant",
    [
        "megatron-random",
        "megatron-p2",
        "megatron-p2t2-sp",
        "megatron-p2-zero-bubble",
        "megatron-p2-interleaved2",
        "dtfm-scheduled-1f1b",
        "dtfm-random-allreduce",
        "dtfm-random-sharded-ps",
        "zero3-random",
    ],
)
def test_what_a_trainer_runs_is_not_refused(variant: str) -> None:
    """Other placements, layouts and schedules are nothing new to them."""
    check_emulable(
        build_plans(
            load_scenario("example-two-labs"),
            Choices(variants=[variant], layers=[8], batch=[16], seeds=[1]),
            Execution(iterations=2, warmup_iterations=1),
        )
    )


def test_where_tcp_acts_every_plan_has_a_session_of_its_own(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections remember what they carried, so a plan would depend on the plan before it."""
    jobs: list[str] = []

    def noted(job: Mapping[str, Any]) -> list[Event | None]:
        jobs.extend(map(hash_of, job["plans"]))
        return obedient(job)

    before = FakeSession.closed
    run(plans, tmp_path, monkeypatch, noted)
    assert jobs == [plan_hash(plan) for plan in plans]
    assert FakeSession.closed - before == 3


def test_doubts_are_on_disk_before_the_iteration_and_survive_an_interruption(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session dies right after a late iteration; what finishes the run has no doubts."""
    key = plan_hash(plans[0])
    with pytest.raises(TestbedError):
        run(plans[:1], tmp_path, monkeypatch, lambda job: [HELLO, iteration(key, 0, 0.2), None])
    (path,) = tmp_path.glob("*/records.jsonl")
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["run", "plan", "doubt", "iteration"]
    monkeypatch.setattr(RunStore, "create", lambda *_, **__: RunStore.open(path))
    found, _ = run(plans[:1], tmp_path, monkeypatch, finished={key: [0]})
    assert "0.200 s late" in found.verdicts[-1].reasons[0]
    assert not found.verdicts[-1].trustworthy


def test_what_scripts_print_is_kept_per_rank_up_to_a_limit(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the records, in the order printed; a loop that prints does not fill the disk."""
    monkeypatch.setattr(local, "OUTPUT_BYTES", 10)
    key = plan_hash(plans[0])

    def prints(job: Mapping[str, Any]) -> list[Event | None]:
        lines = [(0, "one"), (1, "other"), (0, "two: longer"), (0, "three")]
        output = [
            {"event": "output", "plan_hash": key, "rank": rank, "text": text}
            for rank, text in lines
        ]
        return [HELLO, *output, {"event": "done"}]

    found, _ = run(plans[:1], tmp_path, monkeypatch, prints)
    folder = found.path.parent / "output"
    assert (folder / f"{key}-rank-0.log").read_text() == "one\ntwo: longer\n"
    assert (folder / f"{key}-rank-1.log").read_text() == "other\n"


@pytest.mark.parametrize(
    ("compute", "source"),
    [("virtual", "emulated"), ("cpu", "measured"), ("cuda", "measured"), ("script", "measured")],
)
def test_only_what_computes_is_measured(
    compute: str,
    source: str,
    plans: tuple[Plan, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records and their trace."""

    def traced(job: Mapping[str, Any]) -> list[Event | None]:
        events = obedient(job)
        for event in events:
            if event and event["event"] == "iteration":
                event |= {"trace": {"0": [["forward", 0.0, 1.0, {}]]}, "clock_error_s": 1e-4}
        return events

    plan = dataclasses.replace(plans[0], compute=compute)
    found, _ = run((plan,), tmp_path, monkeypatch, traced)
    assert {record.source for record in found.records} == {source}
    trace = read_timeline(trace_path(found.path.parent, plan_hash(plan)))
    assert (trace.source, trace.clock_error_s) == (source, 1e-4)


def test_samples_of_hosts_are_recorded(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = HostSample(
        host="gpu-1", seconds=2.0, cpu_s=1.0, sent_bytes=7, memory_bytes=9, gpu_memory_bytes=None
    )

    def sampled(job: Mapping[str, Any]) -> list[Event | None]:
        events = obedient(job)
        for event in events:
            if event and event["event"] == "iteration":
                event["hosts"] = [dataclasses.asdict(sample)]
        return events

    found, _ = run(plans[:1], tmp_path, monkeypatch, sampled)
    assert [record.hosts for record in found.records] == [(sample,), (sample,)]


class PressedAgain(FakeSession):
    """Takes its time to close, in which the user presses Ctrl-C again and again."""

    is_restored = False

    def close(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        PressedAgain.is_restored = True


def test_a_second_interruption_does_not_keep_the_first_from_restoring_the_network(
    plans: tuple[Plan, ...],
) -> None:
    def start(task: object, on_event: Callable[[Event | None], None]) -> PressedAgain:
        on_event(HELLO)
        return PressedAgain()

    def interrupted(environment: Environment) -> RunStore:
        raise KeyboardInterrupt

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    setup = SessionSetup(testbed="cluster", start=start)
    with pytest.raises(KeyboardInterrupt):
        run_plans(plans[:1], setup, open_store=interrupted, finished={}, observer=Recorder())
    assert PressedAgain.is_restored
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_plans_that_share_their_parts_run_as_one(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session for 4, 8 and 16 micro-batches. 2 and 4 took 0.6 s and 1 s, which repeats, then
    0.4 s and 0.5 s, of which the latter counts. The one that was recorded before is not recorded
    again."""
    first = dataclasses.replace(plans[0], num_rounds=1)
    family = tuple(
        dataclasses.replace(
            first,
            parts=(2, 4),
            num_micro_batches=count,
            workload=dataclasses.replace(first.workload, batch=4 * count),
        )
        for count in (4, 8, 16)
    )
    sessions: list[str] = []

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        (key,) = map(hash_of, job["plans"])
        sessions.append(key)
        assert job["finished"] == [[]]
        spent_s = {"forward_s": 0.2, "backward_s": 0.4, "sync_s": 0.3, "optimizer_s": 0.1}
        times = {"iteration_s": 1.0, "passes_s": 0.6, "phases": spent_s}
        short = iteration(key, 1) | times | {"sent_bytes": [100]}
        spent_s = {"forward_s": 0.3, "backward_s": 0.6, "sync_s": 0.4, "optimizer_s": 0.2}
        times = {"iteration_s": 1.5, "passes_s": 1.0, "phases": spent_s}
        long = iteration(key, 1) | times | {"sent_bytes": [150], "parts": [short]}
        drops = {"event": "drops", "plan_hash": key, "iteration": 1, "packets": 3}
        part = {"event": "part", "plan_hash": key, "iteration": 1, "periods": 2, "iteration_s": 1.0}
        return [HELLO, GOOD_PROBE, part, drops, long, {"event": "done"}, None]

    finished = {plan_hash(family[0]): [0, 1], plan_hash(family[1]): [0]}
    found, recorder = run(family, tmp_path, monkeypatch, script, finished)
    assert sessions == [plan_hash(family[0])]
    assert recorder.parts == [(plan_hash(family[1]), 1, 2, 1.0)]
    assert [record.plan_hash for record in recorder.records] == [*map(plan_hash, family[1:])]
    assert [record.iteration_s for record in recorder.records] == pytest.approx([2.3, 3.9])
    assert recorder.records[0].phases == pytest.approx(
        {"forward_s": 0.5, "backward_s": 1.0, "sync_s": 0.6, "optimizer_s": 0.2}
    )
    assert [record.sent_bytes for record in recorder.records] == [(250,), (450,)]
    assert {record.parts_s for record in found.records} == {(1.0, 1.5)}
    assert len(found.reasons) == 1


def test_the_update_is_not_repeated_with_the_micro_step_that_stands_for_all(
    plans: tuple[Plan, ...],
) -> None:
    """A micro-step with both layers beside the first unit takes 0.9 s, and 0.1 s the update after
    it; four micro-steps."""
    plan = dataclasses.replace(
        plans[0], schedule="none", units=(1, 1, 1), layer_parts=True, parts=(1, 2),
        num_micro_batches=4,
    )  # fmt: skip
    phases = {"forward_s": 0.1, "sync_s": 0.4, "optimizer_s": 0.1}
    short = {"iteration_s": 0.6, "phases": phases, "sent_bytes": [100]}
    phases = {"forward_s": 0.2, "sync_s": 0.7, "optimizer_s": 0.1}
    long = {"iteration_s": 1.0, "phases": phases, "sent_bytes": [150], "parts": [short]}
    found = extended(plan, long)
    assert found["iteration_s"] == pytest.approx(3.7)
    expected = {"forward_s": 0.8, "sync_s": 2.8, "optimizer_s": 0.1}
    assert found["phases"] == pytest.approx(expected)
    assert found["sent_bytes"] == [600]


def test_where_tcp_does_not_act_plans_share_sessions(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is half done. The doubt about dropped packets names the plan that had them."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    quick = tuple(with_tcp(plan, NO_TCP) for plan in plans)
    keys = [plan_hash(plan) for plan in quick]
    sessions: list[list[str]] = []

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        sessions.append([*map(hash_of, job["plans"])])
        assert job["finished"] == [[], [0], []]
        drops = {"event": "drops", "plan_hash": keys[2], "iteration": 1, "packets": 3}
        return [*obedient(job)[:-2], drops, {"event": "done"}, None]

    found, recorder = run(quick, tmp_path, monkeypatch, script, {keys[1]: [0]})
    assert sessions == [keys]
    recorded = [(record.plan_hash, record.iteration) for record in recorder.records]
    assert recorded == [(keys[0], 0), (keys[0], 1), (keys[1], 1), (keys[2], 0), (keys[2], 1)]
    (dropped,) = [reason for reason in found.reasons if "3 packets" in reason]
    assert dropped.startswith("zero3 ")


def test_in_real_time_every_plan_has_a_session_of_its_own(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TCP may act or not."""
    quick = tuple(with_tcp(plan, NO_TCP) for plan in plans)
    sessions: list[int] = []

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        sessions.append(len(job["plans"]))
        return obedient(job)

    run(quick, tmp_path, monkeypatch, script, testbed="native")
    assert sessions == [1, 1, 1]


def test_a_late_start_is_a_doubt_about_each_plan_that_runs_as_another(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them may have been recorded before."""
    first = dataclasses.replace(plans[0], num_rounds=1, parts=(2, 4), num_micro_batches=4)
    second = dataclasses.replace(first, num_micro_batches=8)
    size = first.workload.batch // 4
    first, second = (
        dataclasses.replace(
            plan, workload=dataclasses.replace(plan.workload, batch=size * plan.num_micro_batches)
        )
        for plan in (first, second)
    )
    key = plan_hash(first)

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        part = {**iteration(key, 1), "sent_bytes": [], "passes_s": 1.0}
        part["phases"] = {"forward_s": 0.5, "backward_s": 0.5, "sync_s": 0.3, "optimizer_s": 0.1}
        late = {**part, "iteration_s": 2.5, "passes_s": 2.0, "late_start_s": 0.2, "parts": [part]}
        return [HELLO, GOOD_PROBE, late, {"event": "done"}, None]

    finished = {key: [0, 1], plan_hash(second): [0]}
    found, _ = run((first, second), tmp_path, monkeypatch, script, finished)
    (reason,) = found.reasons
    assert "started 0.200 s late" in reason


def test_a_network_is_verified_once_in_a_run(
    plans: tuple[Plan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two systems that send messages of one size share a verification; zero3 sends others."""
    asked: list[bool] = []

    def script(job: Mapping[str, Any]) -> list[Event | None]:
        asked.append(job["verify"])
        return obedient(job)

    run(plans, tmp_path, monkeypatch, script)
    assert asked == [True, False, True]
