"""Events that ranks record in an iteration."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash
from netbench.testbed.runs.controller import keep_trace
from netbench.timelines import read_timeline, trace_path
from netbench.trainers.events import RECORDER, Recorder, recorded
from tests.trainers.rank_processes import ATTEMPTS

SPANS = {"forward", "backward", "weight", "optimizer", "collective", "barrier"}


def traced(ranks: Any, plan: Plan) -> list[dict[str, Any]]:
    """An iteration after one that warms up, recorded."""
    key = ranks.prepare(plan)
    ranks.run(key, 0)
    start_at = time.monotonic() + 0.02
    order = {"plan_hash": key, "iteration": 1, "start_at": start_at, "trace": True}
    answers: list[dict[str, Any]] = ranks.all("iteration", op="run", **order)
    for answer in answers:
        answer["start_at"] = start_at
    return answers


@pytest.fixture
def four_ranks(start_ranks: Callable[[int], Any]) -> Any:
    ranks = start_ranks(4)
    ranks.connect()
    return ranks


def events_of(answer: dict[str, Any], *kinds: str) -> list[Any]:
    return [event for event in answer["events"] if event[0] in kinds]


def test_nothing_is_recorded_unless_asked_for(
    four_ranks: Any, plan_of: Callable[..., Plan]
) -> None:
    """Neither before a traced iteration nor after it."""
    plan = plan_of()
    key = four_ranks.prepare(plan)
    assert all(answer["events"] == [] for answer in four_ranks.run(key, 0))
    assert all(answer["events"] for answer in traced(four_ranks, plan))
    assert all(answer["events"] == [] for answer in four_ranks.run(key, 2))


def test_gpipe_records_every_pass_message_barrier_and_collective(
    four_ranks: Any, plan_of: Callable[..., Plan]
) -> None:
    """2 rounds of 3 micro-batches over 2 stages, 2 replicas; as many as the schedule has, as long
    as the plan computes, inside the iteration."""
    plan = plan_of(placement=(2, 0, 3, 1), num_rounds=2, num_micro_batches=3, forward_s=0.004)
    answers = traced(four_ranks, plan)
    for rank, process in enumerate(plan.placement):
        answer, stage = answers[process], rank % 2
        for kind, seconds in (("forward", 0.004), ("backward", 0.012)):
            passes = events_of(answer, kind)
            assert [event[3]["micro_batch"] for event in passes] == [0, 1, 2, 0, 1, 2]
            assert all(event[2] - event[1] >= seconds for event in passes)
        assert len(events_of(answer, "barrier")) == 3
        assert len(events_of(answer, "collective")) == 2
        assert len(events_of(answer, "optimizer")) == (1 if rank < 2 else 0)
        sends, receives = events_of(answer, "send"), events_of(answer, "receive")
        assert [event[3]["message"] for event in sends] == list(range(6))
        assert [event[3]["message"] for event in receives] == list(range(6))
        neighbour = plan.placement[rank + 1 if stage == 0 else rank - 1]
        assert {event[3]["peer"] for event in sends + receives} == {neighbour}
        assert {event[3]["bytes"] for event in sends + receives} == {plan.activation_bytes}
        last_s = answer["end_s"] - answer["start_at"]
        assert all(0 <= event[1] <= event[2] for event in answer["events"])
        assert all(event[2] <= last_s for event in answer["events"] if event[0] in SPANS)


def test_a_receive_ends_after_its_send_began(four_ranks: Any, plan_of: Callable[..., Plan]) -> None:
    """Matched by sender, receiver, tag and number: on one clock, cause comes before effect."""
    plan = plan_of(system="megatron", num_micro_batches=4)
    answers = traced(four_ranks, plan)
    sent = {
        (process, event[3]["peer"], event[3]["tag"], event[3]["message"]): event
        for process, answer in enumerate(answers)
        for event in events_of(answer, "send")
    }
    num_received = 0
    for process, answer in enumerate(answers):
        for event in events_of(answer, "receive"):
            key = event[3]["peer"], process, event[3]["tag"], event[3]["message"]
            assert sent[key][1] <= event[2]
            num_received += 1
    assert num_received == len(sent) == 2 * 2 * 4


def test_passes_and_waits_of_zero3_add_up_to_the_phases(
    four_ranks: Any, plan_of: Callable[..., Plan]
) -> None:
    """The device's spans do not overlap. Collectives run beside it, in a thread."""
    plan = plan_of(
        system="zero3", pp=1, dp=4, num_micro_batches=2, forward_s=0.01, units=(1, 1),
        live_parameters=0,
    )  # fmt: skip
    for _ in range(ATTEMPTS):  # a busy machine may spend a while between a span and its phase
        unlike_s = 0.0
        for answer in traced(four_ranks, plan):
            spans = [
                event
                for event in answer["events"]
                if event[0] in SPANS and (event[0] != "collective" or event[3]["name"] == "wait")
            ]
            assert len(spans) < len(events_of(answer, *SPANS))
            for before, after in itertools.pairwise(spans):
                assert before[2] <= after[1]
            spent_s = dict.fromkeys(SPANS, 0.0)
            for kind, start_s, end_s, _ in spans:
                spent_s[kind] += end_s - start_s
            phases = answer["phases"]
            assert spent_s["collective"] <= phases["sync_s"]  # which is the rest
            for kind in ("forward", "backward"):
                unlike_s = max(unlike_s, abs(spent_s[kind] - phases[f"{kind}_s"]))
        if unlike_s < 0.005:
            break
    assert unlike_s < 0.005


def test_a_kept_trace_reads_as_what_was_recorded(
    four_ranks: Any, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """By logical rank, with peers by logical rank and bytes at full size, to a nanosecond."""
    plan = plan_of(placement=(2, 0, 3, 1), scale=4.0)
    answers = traced(four_ranks, plan)
    keep_trace(tmp_path, plan, 1.5, {str(answer["rank"]): answer["events"] for answer in answers})
    found = read_timeline(trace_path(tmp_path, plan_hash(plan)))
    assert (found.source, found.iteration_s, found.plan) == ("emulated", 1.5, plan_hash(plan))
    for rank, process in enumerate(plan.placement):
        mine = [piece for piece in found.slices if piece.rank == rank]
        events = answers[process]["events"]
        assert len(mine) == len(events)
        expected = sorted((event[0], max(0.0, event[1]), event[2]) for event in events)
        for piece, (kind, start_s, end_s) in zip(
            sorted(mine, key=lambda piece: (piece.kind, piece.start_s)), expected, strict=True
        ):
            assert piece.kind == kind
            assert piece.start_s == pytest.approx(start_s, abs=2e-9)
            assert piece.end_s == pytest.approx(end_s, abs=4e-9)
        sends = [piece for piece in mine if piece.kind == "send"]
        assert {piece.peer for piece in sends} == {rank + 1 if rank % 2 == 0 else rank - 1}
        (size,) = {dict(piece.args)["bytes"] for piece in sends}
        assert size == pytest.approx(plan.activation_bytes, rel=0.05)  # less headers, then scaled


def test_a_span_inside_another_interrupts_it() -> None:
    """forward, collective, forward: one after the other."""
    recorder = Recorder()
    recorder.begin()
    with recorder.span("forward", micro_batch=3):
        time.monotonic()
        with recorder.span("collective"):
            time.monotonic()
        time.monotonic()
    events = recorder.take()
    assert [event.kind for event in events] == ["forward", "collective", "forward"]
    assert [event.details for event in events] == [{"micro_batch": 3}, {}, {"micro_batch": 3}]
    for before, after in itertools.pairwise(events):
        assert before.end_s <= after.start_s


def test_threads_do_not_interrupt_each_other() -> None:
    """A collective of another thread goes on beside the pass."""
    recorder = Recorder()
    recorder.begin()

    def communicate() -> None:
        with recorder.span("collective"):
            time.monotonic()

    with recorder.span("backward"):
        thread = threading.Thread(target=communicate)
        thread.start()
        thread.join()
    backward, collective = recorder.take()
    assert backward.start_s <= collective.start_s <= collective.end_s <= backward.end_s


def test_what_raises_is_recorded_too() -> None:
    """And the recorder goes on."""
    recorder = Recorder()
    recorder.begin()
    with pytest.raises(ValueError, match="broken"), recorder.span("forward"):
        raise ValueError("broken")
    with recorder.span("optimizer"):
        pass
    assert [event.kind for event in recorder.take()] == ["forward", "optimizer"]


def test_a_decorated_function_is_itself_when_nothing_is_recorded() -> None:
    """Its result, its name, and no event."""

    @recorded("collective")
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert (add(1), add.__name__, RECORDER.take()) == (3, "add", [])
    RECORDER.begin()
    assert add(1, b=4) == 5
    (event,) = RECORDER.take()
    assert (event.kind, event.details) == ("collective", {"name": "add"})
