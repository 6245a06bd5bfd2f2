"""Pipeline schedules: complete, matched, bounded, free of deadlock; orders are the known ones."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.plan.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Exchange,
    Message,
    Program,
    Work,
    activation_layers,
    build_programs,
    gpipe,
    interleaved,
    needed,
    one_forward_one_backward,
    one_message_at_a_time,
    user,
    zero_bubble,
)

shapes = st.one_of(
    st.tuples(
        st.sampled_from(["gpipe", "gpipe in one thread", "1f1b", "1f1b-serial", "zero-bubble"]),
        st.integers(1, 9),
        st.integers(1, 20),
        st.just(1),
    ),
    st.builds(
        lambda stages, groups, chunks: ("interleaved", stages, stages * groups, chunks),
        st.integers(2, 9),
        st.integers(1, 5),
        st.integers(1, 4),
    ),
)
"""(name, stages, micro-batches, chunks) that a schedule is defined for."""


def phases(name: str, stages: int, micro_batches: int, chunks: int) -> tuple[list[Program], ...]:
    schedule, _, one_thread = name.partition(" ")
    return build_programs(schedule, stages, micro_batches, chunks, one_thread=bool(one_thread))


def meet_all(programs: list[Program]) -> list[Work]:
    """Carry the programs out as strictly as NCCL might: nothing is buffered, an exchange blocks its
    rank until all its messages have met their partners, and what a rank sends to another is taken
    in that order. All work, in an order in which it can be done. Fails where two different messages
    meet, or where all ranks are blocked."""
    depth = len(programs)
    left = [program[::-1] for program in programs]
    offered: list[list[Message]] = [[] for _ in programs]  # what the running exchange still sends
    awaited: list[list[Message]] = [[] for _ in programs]
    done: list[Work] = []

    def advance(stage: int) -> bool:
        """Go on to the next exchange; whether anything changed."""
        before = len(left[stage])
        while left[stage] and not offered[stage] and not awaited[stage]:
            step = left[stage].pop()
            if isinstance(step, Work):
                done.append(step)
            else:
                offered[stage], awaited[stage] = list(step.sends), list(step.receives)
        return len(left[stage]) != before

    def meet(source: int, target: int) -> bool:
        """Let the first message that both ends are at pass; whether there was one."""
        out = [m for m in offered[source] if target_of(m, depth) == target]
        into = [m for m in awaited[target] if m.virtual_stage % depth == source]
        if not out or not into:
            return False
        assert out[0] == into[0]
        offered[source].remove(out[0])
        awaited[target].remove(into[0])
        return True

    pairs = [(a, b) for a in range(depth) for b in range(depth)]
    while any([advance(s) for s in range(depth)] + [meet(*pair) for pair in pairs]):
        pass
    assert not any([*left, *offered, *awaited])
    return done


def target_of(message: Message, depth: int) -> int:
    """Forward to the stage after, backward to the one before, and round."""
    return (message.virtual_stage + {FORWARD: 1, BACKWARD: -1}[message.kind]) % depth


@settings(deadline=None)  # of wall-clock time, which a busy machine takes
@given(shape=shapes)
def test_no_schedule_deadlocks_and_messages_meet_in_order_when_nothing_is_buffered(
    shape: tuple[str, int, int, int],
) -> None:
    """All programs run to their end, in an order in which what a message needs is made before."""
    name, stages, micro_batches, chunks = shape
    made: set[Work] = set()
    for programs in phases(name, stages, micro_batches, chunks):
        for work in meet_all(programs):
            source = needed(work, stages * chunks)
            assert source is None or Work(*source) in made
            assert work.kind == FORWARD or Work(FORWARD, *work[1:]) in made
            assert work.kind != WEIGHT or Work(BACKWARD, *work[1:]) in made
            assert work not in made
            made.add(work)
    kinds = {FORWARD, BACKWARD} | ({WEIGHT} if name == "zero-bubble" else set())
    assert made == {
        Work(kind, stage, index)
        for kind in kinds
        for stage in range(stages * chunks)
        for index in range(micro_batches)
    }


@settings(deadline=None)
@given(shape=shapes)
def test_a_stage_has_its_input_before_and_sends_its_output_after_computing(
    shape: tuple[str, int, int, int],
) -> None:
    """A micro-batch is received, computed on its own stage, and sent on, in this order."""
    name, stages, micro_batches, chunks = shape
    for stage, program in chain.from_iterable(
        enumerate(programs) for programs in phases(name, stages, micro_batches, chunks)
    ):
        received: set[Message] = set()
        computed: set[Message] = set()
        for step in program:
            if isinstance(step, Exchange):
                assert set(step.sends) <= computed
                received.update(step.receives)
                continue
            assert step.virtual_stage % stages == stage
            source = needed(step, stages * chunks)
            assert source is None or source in received
            computed.add(Message(*step))


def test_messages_and_the_work_that_needs_them_know_each_other() -> None:
    """Activations are needed by the next virtual stage, gradients by the one before."""
    assert user(Message(FORWARD, 2, 5)) == Work(FORWARD, 3, 5)
    assert user(Message(BACKWARD, 2, 5)) == Work(BACKWARD, 1, 5)
    assert needed(Work(FORWARD, 3, 5), 4) == Message(FORWARD, 2, 5)
    assert needed(Work(BACKWARD, 1, 5), 4) == Message(BACKWARD, 2, 5)
    for work in (Work(FORWARD, 0, 5), Work(BACKWARD, 3, 5), Work(WEIGHT, 1, 5)):
        assert needed(work, 4) is None


def test_an_unknown_schedule_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        PlanError, match="'none' is not a pipeline schedule; expected one of gpipe, 1f"
    ):
        build_programs("none", 1, 1)


def names(program: Program) -> list[str]:
    """A stage's work in short, e.g. F0, B0."""
    return [f"{w.kind[0].upper()}{w.micro_batch}" for w in program if isinstance(w, Work)]


def shown(program: Program) -> list[str]:
    """A stage's steps in short: F0 computes, >F0 sends, <F0 receives."""
    return [
        f"{step.kind[0].upper()}{step.micro_batch}"
        if isinstance(step, Work)
        else " ".join(
            [f"<{m.kind[0].upper()}{m.micro_batch}" for m in step.receives]
            + [f">{m.kind[0].upper()}{m.micro_batch}" for m in step.sends]
        )
        for step in program
    ]


def test_gpipe_receives_and_sends_in_turn() -> None:
    """Worked by hand, for three stages and two micro-batches: first, middle and last forward."""
    forward, backward = gpipe(3, 2)
    assert [shown(program) for program in forward] == [
        ["F0", ">F0", "F1", ">F1"],
        ["<F0", "F0", ">F0", "<F1", "F1", ">F1"],
        ["<F0", "F0", "<F1", "F1"],
    ]
    assert shown(backward[0]) == ["<B0", "B0", "<B1", "B1"]


def test_gpipe_in_one_thread_receives_ahead() -> None:
    """The next micro-batch comes in while this one is sent, or where none is sent, computed."""
    forward, _ = gpipe(3, 3, one_thread=True)
    assert [shown(program) for program in forward] == [
        ["F0", ">F0", "F1", ">F1", "F2", ">F2"],
        ["<F0", "F0", "<F1 >F0", "F1", "<F2 >F1", "F2", ">F2"],
        ["<F0", "<F1", "F0", "<F2", "F1", "F2"],
    ]


def test_one_forward_one_backward_of_two_stages() -> None:
    """Worked by hand: the first stage runs one ahead."""
    first, last = one_forward_one_backward(2, 3)
    assert names(first) == ["F0", "F1", "B0", "F2", "B1", "B2"]
    assert names(last) == ["F0", "B0", "F1", "B1", "F2", "B2"]


def deepspeed_steps(stage: int, depth: int, count: int) -> list[str]:
    """A stage's program by DeepSpeed's rule, as `shown`: of the 2 (m + p - 1) steps of all stages,
    every other one is a forward pass, with the micro-batch that the stage has reached by then."""
    shown_steps: list[str] = []
    previous = -1
    for step in range(2 * (count + depth - 1)):
        forward = step % 2 == stage % 2
        index = (step - stage) // 2 if forward else (step - 2 * depth + 1 + stage) // 2
        has_index, has_previous = 0 <= index < count, 0 <= previous < count
        before, behind = stage > 0, stage < depth - 1
        if forward:
            shown_steps += [f"<F{index}"] if has_index and before else []
            shown_steps += [f">B{previous}"] if has_previous and before else []
        else:
            shown_steps += [f">F{previous}"] if has_previous and behind else []
            shown_steps += [f"<B{index}"] if has_index and behind else []
        shown_steps += [f"{'F' if forward else 'B'}{index}"] if has_index else []
        previous = index
    return shown_steps


@settings(deadline=None)
@given(depth=st.integers(1, 9), micro_batches=st.integers(1, 20))
def test_one_message_at_a_time_is_deepspeeds_order(depth: int, micro_batches: int) -> None:
    """Found from the number of a step alone, as `TrainSchedule` does, and not from 1F1B."""
    for stage, program in enumerate(one_message_at_a_time(depth, micro_batches)):
        assert shown(program) == deepspeed_steps(stage, depth, micro_batches)


@settings(deadline=None)
@given(depth=st.integers(1, 9), micro_batches=st.integers(1, 20))
def test_1f1b_holds_no_more_micro_batches_than_stages_behind_it(
    depth: int, micro_batches: int
) -> None:
    for stage, program in enumerate(one_forward_one_backward(depth, micro_batches)):
        held = most = 0
        for name in names(program):
            held += 1 if name[0] == "F" else -1
            most = max(most, held)
        assert most == min(depth - stage, micro_batches)


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


@pytest.mark.parametrize(
    ("schedule", "stage", "under_way"),
    [
        ("gpipe", 0, 64),
        ("gpipe", 7, 64),
        ("1f1b", 0, 8),
        ("1f1b", 7, 1),
        ("1f1b-serial", 0, 8),
        ("zero-bubble", 7, 8),
        ("none", 0, 1),
    ],
)
def test_schedules_keep_activations_of_micro_batches(
    schedule: str, stage: int, under_way: int
) -> None:
    """8 stages of 3 layers, 64 micro-batches."""
    found = activation_layers(
        schedule, stage=stage, num_stages=8, num_layers=3, num_micro_batches=64
    )
    assert found == 3 * under_way


def test_no_schedule_keeps_more_than_there_is() -> None:
    """Two micro-batches in 8 stages."""
    for schedule in ("gpipe", "1f1b", "zero-bubble"):
        assert (
            activation_layers(schedule, stage=0, num_stages=8, num_layers=3, num_micro_batches=2)
            == 6
        )
    interleaved = activation_layers(
        "interleaved", stage=0, num_stages=8, num_layers=4, num_micro_batches=2, num_chunks=2
    )
    assert interleaved == 8


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 3), (8, 2)])
def test_interleaving_keeps_more_than_1f1b(stages: int, chunks: int) -> None:
    """First stage: L (1 + (p - 1) / (p v)) layers. Source: Korthikanti et al. 2022, 4.2.3."""
    each = 2 * chunks
    found = activation_layers(
        "interleaved",
        stage=0,
        num_stages=stages,
        num_layers=each,
        num_micro_batches=64,
        num_chunks=chunks,
    )
    assert found == pytest.approx(stages * each * (1 + (stages - 1) / (stages * chunks)))
