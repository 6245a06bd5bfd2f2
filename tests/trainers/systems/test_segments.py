"""Segments of systems whose ranks all do the same, on loopback ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from netbench.plan.model import Plan
from netbench.systems.iteration import COLLECTIVE, OPTIMIZER, Call, Segment, SegmentBuilder
from netbench.trainers.communication.world import World
from netbench.trainers.systems import segments
from tests.trainers.processes import DEADLINE_S, on_processes
from tests.trainers.worlds import PostingWorld


def rank_of(world: World, plan: Plan, made: Sequence[Segment]) -> segments.SegmentRank:
    """A rank that runs these segments. This process is forked for the test."""
    system: Any = SimpleNamespace(segments=lambda plan: made)
    segments.system_of = lambda plan: system  # type: ignore[attr-defined]
    rank = segments.SegmentRank(world, plan)
    world.warm(rank.peers())
    return rank


def two_gathers(library: str) -> Segment:
    """One task with the same call twice, and the update."""
    call = Call(op="all-gather", size_bytes=4096.0, group_size=2, library=library)
    builder = SegmentBuilder()
    gathered = builder.add("network", COLLECTIVE, calls=[call] * 2)
    builder.add("device", OPTIMIZER, 0.001, after=[gathered])
    return builder.build("iteration", 2)


def _posted_when_waiting(world: PostingWorld, plan: Plan, library: str) -> list[int]:
    rank = rank_of(world, plan, [two_gathers(library)])
    world.num_posted = 0
    world.posted_when_waiting.clear()
    assert rank.iterate()["optimizer_s"] >= 0.002
    return world.posted_when_waiting


@pytest.mark.parametrize(("library", "ahead"), [("nccl", 1), ("gloo", 0)])
def test_nccl_awaits_the_next_collective_while_one_runs(
    plan_of: Callable[..., Plan], library: str, ahead: int
) -> None:
    """Its buffers are ready; a receiver of gloo first tells that it is. Four gathers, of two slices
    for each of two ranks."""
    plan = plan_of(system="zero3", pp=1, dp=2, placement=(0, 1))
    expected = [2 * min(before + 1 + ahead, 4) for before in range(4) for _ in range(2)]
    found = on_processes(2, _posted_when_waiting, plan, library, world_type=PostingWorld)
    assert found == [expected] * 2


def _fail_in_the_first_of_two(world: World, plan: Plan) -> tuple[str, bool]:
    """Return the message of what `iterate` raised, and True if the threads came to an end."""
    first, second = SegmentBuilder(), SegmentBuilder()
    failing = Call(op="all-gather", size_bytes=64.0, group_size=1, host_s=1.0)
    first.add("network", COLLECTIVE, calls=[failing])
    second.add("device", OPTIMIZER, 0.001)
    later = Call(op="all-gather", size_bytes=64.0, group_size=1, across=True)
    second.add("across", COLLECTIVE, calls=[later])
    rank = rank_of(world, plan, [first.build("first", 1), second.build("second", 1)])

    def compute(seconds: float) -> None:
        raise ConnectionError("the peer has gone")

    segments.compute = compute  # type: ignore[attr-defined]
    try:
        rank.iterate()
    except ConnectionError as error:
        ends = [thread.submit(bool).exception(DEADLINE_S) for thread in rank._threads.values()]
        return str(error), ends == [None, None]
    return "", False


def test_a_collective_that_fails_ends_all_threads(plan_of: Callable[..., Plan]) -> None:
    """One of them waits for the segment after it."""
    plan = plan_of(system="zero3", pp=1, dp=1, placement=(0,))
    assert on_processes(1, _fail_in_the_first_of_two, plan) == [("the peer has gone", True)]
