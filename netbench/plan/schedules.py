"""Pipeline schedules as programs: plain lists of what each stage does, in order.

A virtual stage is a chunk of layers: `chunk * num_stages + stage`. Interleaving gives a stage
several. A message carries activations to the next virtual stage, or gradients to the previous one.
It is named after the virtual stage that makes it. Between two stages, messages are sent and
received in one order, whatever their kinds and chunks.

The simulator times these programs, the trainers carry them out. `SCHEDULES` has what else follows
from a schedule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from netbench.errors import PlanError

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"
"""Kinds of work on a micro-batch. weight: gradients of weights, if they are computed apart."""


class Work(NamedTuple):
    """Compute `kind` of one micro-batch on a virtual stage."""

    kind: str
    virtual_stage: int
    micro_batch: int


class Message(NamedTuple):
    """Activations (`forward`) or gradients (`backward`) that `virtual_stage` made."""

    kind: str
    virtual_stage: int
    micro_batch: int


class Exchange(NamedTuple):
    """Messages sent and received as one operation, which ends with the last of them."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


Program = list[Work | Exchange]


def user(message: Message) -> Work:
    """Return the work that needs a message, on the stage that receives it."""
    direction = 1 if message.kind == FORWARD else -1
    return Work(message.kind, message.virtual_stage + direction, message.micro_batch)


def needed(work: Work, num_virtual_stages: int) -> Message | None:
    """Return the message that work waits for; None if it needs none."""
    if work.kind == WEIGHT:
        return None
    source = work.virtual_stage - (1 if work.kind == FORWARD else -1)
    if not 0 <= source < num_virtual_stages:
        return None
    return Message(work.kind, source, work.micro_batch)


def gpipe(
    num_stages: int, num_micro_batches: int, *, one_thread: bool = False
) -> tuple[list[Program], list[Program]]:
    """All forward, then all backward: the programs of both phases, by stage.

    A stage receives 0, sends 0, receives 1, sends 1, ... on one communicator, beside its compute.
    Source of this order: DT-FM's release.
    one_thread: for an executor that runs a program in turn, and would else compute before it
    receives. The next receive is then one operation with the send of the result, or comes before
    the compute if nothing is sent.
    """

    def phase(kind: str, stage: int) -> Program:
        step = 1 if kind == FORWARD else -1
        has_source, has_target = 0 <= stage - step < num_stages, 0 <= stage + step < num_stages

        def received(index: int) -> tuple[Message, ...]:
            exists = has_source and index < num_micro_batches
            return (Message(kind, stage - step, index),) if exists else ()

        program: Program = []
        _exchange(program, (), received(0))
        for index in range(num_micro_batches):
            if one_thread and not has_target:
                _exchange(program, (), received(index + 1))
            program.append(Work(kind, stage, index))
            sent = (Message(kind, stage, index),) if has_target else ()
            if one_thread and has_target:
                _exchange(program, sent, received(index + 1))
            elif not one_thread:
                _exchange(program, sent, ())
                _exchange(program, (), received(index + 1))
        return program

    return (
        [phase(FORWARD, stage) for stage in range(num_stages)],
        [phase(BACKWARD, stage) for stage in range(num_stages)],
    )


def one_forward_one_backward(num_stages: int, num_micro_batches: int) -> list[Program]:
    """Synchronous 1F1B: neighbours exchange activations and gradients in one operation.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM" (2021); the order of operations is Megatron-LM's
    (`forward_backward_pipelining_without_interleaving`).
    """
    return [_one_f_one_b(stage, num_stages, num_micro_batches, ()) for stage in range(num_stages)]


def one_message_at_a_time(num_stages: int, num_micro_batches: int) -> list[Program]:
    """1F1B in which activations and gradients between two stages follow one another.

    Two neighbours exchange activations first, then gradients. Source: DeepSpeed's `TrainSchedule`
    (`deepspeed/runtime/pipe/schedule.py`), whose sends and receives block.
    """

    def apart(step: Work | Exchange) -> Program:
        if isinstance(step, Work):
            return [step]
        parts = [Exchange((message,), ()) for message in step.sends]
        parts += [Exchange((), (message,)) for message in step.receives]
        return [*sorted(parts, key=lambda part: (part.sends + part.receives)[0].kind != FORWARD)]

    return [
        [part for step in program for part in apart(step)]
        for program in one_forward_one_backward(num_stages, num_micro_batches)
    ]


def zero_bubble(num_stages: int, num_micro_batches: int) -> list[Program]:
    """1F1B with gradients of weights computed apart, as in ZB-H1: stage s defers up to s of them.

    The order is fixed, not optimised: on a free network the bubble is (p - 1) (F + B - W). The
    hand-made ZB-H1 reaches (p - 1) (F + B - 2 W), 1F1B (p - 1) (F + B).
    Source: Qi et al., "Zero Bubble Pipeline Parallelism" (2023), schedule H1.
    """
    return [
        _one_f_one_b(stage, num_stages, num_micro_batches, (stage,)) for stage in range(num_stages)
    ]


def _one_f_one_b(stage: int, depth: int, count: int, debt: tuple[int, ...]) -> Program:
    """debt: how many gradients of weights may be deferred; () = they are part of the backward."""
    warm_up = min(depth - stage - 1, count)
    program: Program = []
    weights = 0

    def exchange(peer: int, sends: list[Message], receives: list[Message]) -> None:
        if 0 <= peer < depth:
            _exchange(program, tuple(sends), tuple(receives))

    def weight(backwards: int) -> None:
        nonlocal weights
        if debt and backwards > weights + debt[0]:
            program.append(Work(WEIGHT, stage, weights))
            weights += 1

    def arrival(index: int) -> list[Message]:
        return [Message(FORWARD, stage - 1, index)] if index < count else []

    for index in range(warm_up):
        exchange(stage - 1, [], arrival(index))
        program.append(Work(FORWARD, stage, index))
        exchange(stage + 1, [Message(FORWARD, stage, index)], [])
    exchange(stage - 1, [], arrival(warm_up))
    for index in range(count):
        ahead = index + warm_up
        if ahead < count:
            program.append(Work(FORWARD, stage, ahead))
        exchange(
            stage + 1,
            [Message(FORWARD, stage, ahead)] if ahead < count else [],
            [Message(BACKWARD, stage + 1, index)],
        )
        program.append(Work(BACKWARD, stage, index))
        exchange(stage - 1, [Message(BACKWARD, stage, index)], arrival(ahead + 1))
        weight(index + 1)
    while debt and weights < count:
        program.append(Work(WEIGHT, stage, weights))
        weights += 1
    return program


def interleaved(num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Program]:
    """1F1B over `num_chunks` virtual stages per stage, micro-batches in groups of `num_stages`.

    num_micro_batches: a multiple of num_stages. Source: as `one_forward_one_backward`, section
    2.2. After every step, which is a forward and a backward pass in the steady state, one operation
    sends its results and receives the inputs of the next step, as in Megatron-LM.
    """
    total, last = num_micro_batches * num_chunks, num_stages * num_chunks - 1

    def item(stage: int, step: int, chunk_of: Callable[[int], int]) -> tuple[int, int]:
        group, place = divmod(step, num_stages * num_chunks)
        chunk, offset = divmod(place, num_stages)
        return chunk_of(chunk) * num_stages + stage, group * num_stages + offset

    def forward(stage: int, step: int) -> Work:
        return Work(FORWARD, *item(stage, step, lambda chunk: chunk))

    def backward(stage: int, step: int) -> Work:
        return Work(BACKWARD, *item(stage, step, lambda chunk: num_chunks - 1 - chunk))

    def results(group: list[Work]) -> tuple[Message, ...]:
        ends = {FORWARD: last, BACKWARD: 0}
        return tuple(Message(*work) for work in group if work.virtual_stage != ends[work.kind])

    def inputs(group: list[Work]) -> tuple[Message, ...]:
        return tuple(message for work in group if (message := needed(work, last + 1)))

    def program(stage: int) -> Program:
        warm_up = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)
        groups = [[forward(stage, step)] for step in range(warm_up)]
        groups += [
            [forward(stage, step + warm_up), backward(stage, step)]
            for step in range(total - warm_up)
        ]
        groups += [[backward(stage, step)] for step in range(total - warm_up, total)]
        ordered: Program = []
        _exchange(ordered, (), inputs(groups[0]))
        for index, group in enumerate(groups):
            ordered += group
            following = inputs(groups[index + 1]) if index + 1 < len(groups) else ()
            _exchange(ordered, results(group), following)
        return ordered

    return [program(stage) for stage in range(num_stages)]


def _exchange(program: Program, sends: tuple[Message, ...], receives: tuple[Message, ...]) -> None:
    if sends or receives:
        program.append(Exchange(sends, receives))


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A schedule with what follows from it.

    build: (num_stages, num_micro_batches, num_chunks, one_thread) -> the programs of every phase,
    by stage. has_turn: there are two phases, forward and backward, and all ranks meet at a barrier
    after each. splits_backward: gradients of weights are computed apart. live_passes: (stage,
    num_stages, num_chunks) -> forward passes of chunks whose activations a stage keeps at the peak;
    None = all.
    """

    build: Callable[[int, int, int, bool], tuple[list[Program], ...]]
    live_passes: Callable[[int, int, int], int] | None
    has_turn: bool = False
    splits_backward: bool = False


SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule(
        build=lambda stages, count, _, one_thread: gpipe(stages, count, one_thread=one_thread),
        live_passes=None,
        has_turn=True,
    ),
    "1f1b": Schedule(
        build=lambda stages, count, *_: (one_forward_one_backward(stages, count),),
        live_passes=lambda stage, stages, _: stages - stage,
    ),
    "1f1b-serial": Schedule(
        build=lambda stages, count, *_: (one_message_at_a_time(stages, count),),
        live_passes=lambda stage, stages, _: stages - stage,
    ),
    "zero-bubble": Schedule(
        build=lambda stages, count, *_: (zero_bubble(stages, count),),
        # As 1F1B's first stage, in every stage (Qi et al. 2023, ZB-H1).
        live_passes=lambda stage, stages, _: stages,
        splits_backward=True,
    ),
    "interleaved": Schedule(
        build=lambda stages, count, chunks, _: (interleaved(stages, count, chunks),),
        # The warm-up: L (1 + (p - 1) / (p v)) layers in the first stage (Korthikanti et al. 2022,
        # section 4.2.3).
        live_passes=lambda stage, stages, chunks: (
            2 * (stages - stage - 1) + (chunks - 1) * stages + 1
        ),
    ),
}
"""By name (`Plan.schedule`). A plan without pipelines has the schedule `none`."""


def activation_layers(
    schedule: str,
    *,
    stage: int,
    num_stages: int,
    num_layers: int,
    num_micro_batches: int,
    num_chunks: int = 1,
) -> int:
    """Layers times micro-batches whose activations stage `stage` keeps at the peak.

    num_layers: of the stage. schedule: `none` too, which keeps one micro-batch.
    """
    total = num_micro_batches * num_chunks
    live_passes = SCHEDULES[schedule].live_passes if schedule in SCHEDULES else lambda *_: 1
    passes = live_passes(stage, num_stages, num_chunks) if live_passes else total
    return min(passes, total) * num_layers // num_chunks


def build_programs(
    schedule: str,
    num_stages: int,
    num_micro_batches: int,
    num_chunks: int = 1,
    *,
    one_thread: bool = False,
) -> tuple[list[Program], ...]:
    """The phases of a schedule (`Plan.schedule`), in order: of each, the programs by stage.

    one_thread: see `gpipe`. Raises PlanError for an unknown schedule.
    """
    if schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise PlanError(f"{schedule!r} is not a pipeline schedule; expected one of {known}")
    return SCHEDULES[schedule].build(num_stages, num_micro_batches, num_chunks, one_thread)
