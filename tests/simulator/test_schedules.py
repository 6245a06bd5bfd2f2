"""Schedules as lists: every message has one sender and one receiver; orders are the known ones."""

from __future__ import annotations

from collections import Counter

import pytest

from netbench.simulator.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Exchange,
    Program,
    Work,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)

SCHEDULES = {
    "gpipe forward": gpipe(4, 6)[0],
    "gpipe backward": gpipe(4, 6)[1],
    "1f1b": one_forward_one_backward(4, 6),
    "1f1b, few micro-batches": one_forward_one_backward(4, 2),
    "zero-bubble": zero_bubble(4, 6),
    "interleaved": interleaved(4, 8, 3),
}


def names(program: Program) -> list[str]:
    """A stage's work in short, e.g. F0, B0."""
    return [f"{w.kind[0].upper()}{w.micro_batch}" for w in program if isinstance(w, Work)]


@pytest.mark.parametrize("programs", SCHEDULES.values(), ids=SCHEDULES)
def test_what_is_sent_is_received_once_in_the_same_order(programs: list[Program]) -> None:
    for stage in range(len(programs)):
        for other in range(len(programs)):
            exchanges = [
                [step for step in programs[index] if isinstance(step, Exchange)]
                for index in (stage, other)
            ]
            sent = [m for step in exchanges[0] for m in step.sends]
            received = [m for step in exchanges[1] for m in step.receives]
            common = [m for m in sent if m in set(received)]
            assert common == [m for m in received if m in set(sent)]
            assert max(Counter(sent).values(), default=1) == 1
    everything = [step for program in programs for step in program if isinstance(step, Exchange)]
    sent_all = Counter(m for step in everything for m in step.sends)
    assert sent_all == Counter(m for step in everything for m in step.receives)


@pytest.mark.parametrize("programs", SCHEDULES.values(), ids=SCHEDULES)
def test_input_comes_before_the_work_and_output_after(programs: list[Program]) -> None:
    for program in programs:
        position = {step: index for index, step in enumerate(program) if isinstance(step, Work)}
        for index, step in enumerate(program):
            if not isinstance(step, Exchange):
                continue
            for kind, virtual_stage, micro_batch in step.sends:
                assert position[Work(kind, virtual_stage, micro_batch)] < index
            for kind, virtual_stage, micro_batch in step.receives:
                target = virtual_stage + (1 if kind == FORWARD else -1)
                assert position[Work(kind, target, micro_batch)] > index


def test_one_forward_one_backward_of_two_stages() -> None:
    """Worked by hand: the first stage runs one ahead."""
    first, last = one_forward_one_backward(2, 3)
    assert names(first) == ["F0", "F1", "B0", "F2", "B1", "B2"]
    assert names(last) == ["F0", "B0", "F1", "B1", "F2", "B2"]


def test_1f1b_holds_no_more_micro_batches_than_stages_behind_it() -> None:
    depth = 5
    for stage, program in enumerate(one_forward_one_backward(depth, 20)):
        held = most = 0
        for name in names(program):
            held += 1 if name[0] == "F" else -1
            most = max(most, held)
        assert most == depth - stage


def test_interleaved_order_of_the_first_stage() -> None:
    """2 stages, 2 chunks, 2 micro-batches: Megatron's warm-up of stage 0 is 2 + 2 steps."""
    work = [step for step in interleaved(2, 2, 2)[0] if isinstance(step, Work)]
    assert [(w.kind, w.virtual_stage, w.micro_batch) for w in work] == [
        (FORWARD, 0, 0),
        (FORWARD, 0, 1),
        (FORWARD, 2, 0),
        (FORWARD, 2, 1),
        (BACKWARD, 2, 0),
        (BACKWARD, 2, 1),
        (BACKWARD, 0, 0),
        (BACKWARD, 0, 1),
    ]


def test_zero_bubble_owes_as_many_weight_gradients_as_its_stage_index() -> None:
    for stage, program in enumerate(zero_bubble(4, 9)):
        kinds = [step.kind for step in program if isinstance(step, Work)]
        assert Counter(kinds) == {FORWARD: 9, BACKWARD: 9, WEIGHT: 9}
        while kinds[-1] == WEIGHT:  # what is owed is paid in the end
            kinds.pop()
        assert kinds.count(BACKWARD) - kinds.count(WEIGHT) in (stage, stage + 1)
