"""Pipeline schedules: complete, matched, bounded, and free of deadlock even without buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.trainers.schedules import (
    Action,
    Communicate,
    Compute,
    Phase,
    Transfer,
    gpipe_phase,
    one_forward_one_backward,
)

Schedule = Callable[[int, int, int], list[Action]]

SCHEDULES: dict[str, Schedule] = {
    "gpipe forward": lambda s, n, m: gpipe_phase(Phase.FORWARD, s, n, m),
    "gpipe backward": lambda s, n, m: gpipe_phase(Phase.BACKWARD, s, n, m),
    "1f1b": one_forward_one_backward,
}

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
num_stages = st.integers(1, 9)
num_micro_batches = st.integers(1, 20)


def transfers(actions: list[Action]) -> list[Transfer]:
    return [t for a in actions if isinstance(a, Communicate) for t in a.transfers]


@every_schedule
@given(stages=num_stages, micro_batches=num_micro_batches)
def test_every_send_has_its_receive_in_the_same_order(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    """Between neighbours, what one sends is what the other receives, in that order."""
    stage_transfers = [transfers(schedule(s, stages, micro_batches)) for s in range(stages)]
    for stage in range(stages):
        for phase in Phase:
            sent = [t.micro_batch for t in stage_transfers[stage] if t.is_send and t.phase is phase]
            target = stage + phase.value
            if not 0 <= target < stages:
                assert sent == []
                continue
            received = [
                t.micro_batch for t in stage_transfers[target] if not t.is_send and t.phase is phase
            ]
            assert sent == received


@given(stages=num_stages, micro_batches=num_micro_batches)
def test_every_stage_computes_every_micro_batch_once_per_phase(
    stages: int, micro_batches: int
) -> None:
    """GPipe's two phases, and 1F1B, come to the same work."""
    once = Counter((phase, i) for phase in Phase for i in range(micro_batches))
    for stage in range(stages):
        both = [a for phase in Phase for a in gpipe_phase(phase, stage, stages, micro_batches)]
        for actions in (both, one_forward_one_backward(stage, stages, micro_batches)):
            done = Counter((a.phase, a.micro_batch) for a in actions if isinstance(a, Compute))
            assert done == once


@given(stages=num_stages, micro_batches=num_micro_batches)
def test_1f1b_holds_at_most_the_stages_left_to_the_end(stages: int, micro_batches: int) -> None:
    """Micro-batches between forward and backward on a stage: at most stages - stage."""
    for stage in range(stages):
        held = 0
        for action in one_forward_one_backward(stage, stages, micro_batches):
            if isinstance(action, Compute):
                held += action.phase.value
                assert 0 <= held <= stages - stage


@every_schedule
@given(stages=num_stages, micro_batches=num_micro_batches)
def test_no_schedule_deadlocks_when_nothing_is_buffered(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    """Every group blocks until each of its transfers has met its partner."""
    left = [schedule(s, stages, micro_batches)[::-1] for s in range(stages)]
    offered: list[set[Transfer]] = [set() for _ in range(stages)]

    def advance(stage: int) -> bool:
        """Go on to the next group, or away; whether anything changed."""
        before = len(left[stage])
        while left[stage] and not offered[stage]:
            action = left[stage].pop()
            if isinstance(action, Communicate):
                offered[stage] = set(action.transfers)
        return len(left[stage]) != before

    def meet(stage: int) -> bool:
        """Complete this stage's sends that the neighbour receives; whether there was one."""
        met = False
        for transfer in [t for t in offered[stage] if t.is_send]:
            partner = Transfer(transfer.phase, transfer.micro_batch, False)
            target = stage + transfer.phase.value
            if partner in offered[target]:
                offered[target].remove(partner)
                offered[stage].remove(transfer)
                met = True
        return met

    while any([advance(s) for s in range(stages)] + [meet(s) for s in range(stages)]):
        pass
    assert left == [[]] * stages
    assert offered == [set()] * stages


@every_schedule
@given(stages=num_stages, micro_batches=num_micro_batches)
def test_a_stage_has_its_input_before_and_sends_its_output_after_computing(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    """A micro-batch is received, computed and sent on in this order."""
    for stage in range(stages):
        received, computed = set(), set()
        for action in schedule(stage, stages, micro_batches):
            if isinstance(action, Compute):
                key = (action.phase, action.micro_batch)
                has_source = 0 <= stage - action.phase.value < stages
                assert not has_source or key in received
                computed.add(key)
            else:
                for transfer in action.transfers:
                    key = (transfer.phase, transfer.micro_batch)
                    if transfer.is_send:
                        assert key in computed
                    else:
                        received.add(key)
