"""What each stage of a pipeline does, in order, as plain lists: a schedule is its programs.

A virtual stage is a chunk of layers: `chunk * num_stages + stage` (interleaving gives a stage
several). A message carries activations forward from a virtual stage to the next one, or gradients
back; it is named after the virtual stage that makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"
"""Work on one micro-batch. weight: gradients of weights, where they are computed apart."""


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
    """Messages sent and received as one operation, over when all of them are."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


Program = list[Work | Exchange]


def gpipe(num_stages: int, num_micro_batches: int) -> tuple[list[Program], list[Program]]:
    """All forward, then all backward: the programs of both phases, by stage."""

    def phase(kind: str, stage: int) -> Program:
        step = 1 if kind == FORWARD else -1
        program: Program = []
        for index in range(num_micro_batches):
            if 0 <= stage - step < num_stages:
                program.append(Exchange((), (Message(kind, stage - step, index),)))
            program.append(Work(kind, stage, index))
            if 0 <= stage + step < num_stages:
                program.append(Exchange((Message(kind, stage, index),), ()))
        return program

    return (
        [phase(FORWARD, stage) for stage in range(num_stages)],
        [phase(BACKWARD, stage) for stage in range(num_stages)],
    )


def one_forward_one_backward(num_stages: int, num_micro_batches: int) -> list[Program]:
    """Synchronous 1F1B: neighbours exchange activations and gradients in one operation.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM" (2021); the order of operations is Megatron-LM's.
    """
    return [_one_f_one_b(stage, num_stages, num_micro_batches, ()) for stage in range(num_stages)]


def zero_bubble(num_stages: int, num_micro_batches: int) -> list[Program]:
    """1F1B with gradients of weights computed apart, as in ZB-H1: stage s may owe s of them.

    The order is fixed, not solved for: on a free network the bubble is (p - 1) (F + B - W), where
    hand-made ZB-H1 reaches (p - 1) (F + B - 2 W) and 1F1B has (p - 1) (F + B).
    Source: Qi et al., "Zero Bubble Pipeline Parallelism" (2023), schedule H1.
    """
    return [
        _one_f_one_b(stage, num_stages, num_micro_batches, (stage,)) for stage in range(num_stages)
    ]


def _one_f_one_b(stage: int, depth: int, count: int, debt: tuple[int, ...]) -> Program:
    """debt: how many gradients of weights may be owed; empty = they are part of the backward."""
    warm_up = min(depth - stage - 1, count)
    program: Program = []
    weights = 0

    def exchange(peer: int, sends: list[Message], receives: list[Message]) -> None:
        if 0 <= peer < depth and (sends or receives):
            program.append(Exchange(tuple(sends), tuple(receives)))

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
    2.2. After every step (in between: a forward and a backward) one operation sends its results and
    receives what the next step needs, as in Megatron-LM.
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

    def needed(group: list[Work]) -> tuple[Message, ...]:
        sources = ((w, w.virtual_stage + (-1 if w.kind == FORWARD else 1)) for w in group)
        return tuple(
            Message(work.kind, source, work.micro_batch)
            for work, source in sources
            if 0 <= source <= last
        )

    def exchange(
        sends: tuple[Message, ...], receives: tuple[Message, ...], program: Program
    ) -> None:
        if sends or receives:
            program.append(Exchange(sends, receives))

    def program(stage: int) -> Program:
        warm_up = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)
        groups = [[forward(stage, step)] for step in range(warm_up)]
        groups += [
            [forward(stage, step + warm_up), backward(stage, step)]
            for step in range(total - warm_up)
        ]
        groups += [[backward(stage, step)] for step in range(total - warm_up, total)]
        ordered: Program = []
        exchange((), needed(groups[0]), ordered)
        for index, group in enumerate(groups):
            ordered += group
            following = needed(groups[index + 1]) if index + 1 < len(groups) else ()
            exchange(results(group), following, ordered)
        return ordered

    return [program(stage) for stage in range(num_stages)]
