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
    """ZB-H1: as 1F1B, but a stage owes `stage` gradients of weights, which it computes when its
    gradients of activations are under way.

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
    2.2; after every step one operation sends its result and receives the next step's input.
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

    def result(work: Work) -> tuple[Message, ...]:
        end = last if work.kind == FORWARD else 0
        return () if work.virtual_stage == end else (Message(*work),)

    def needed(work: Work) -> tuple[Message, ...]:
        step = -1 if work.kind == FORWARD else 1
        source = work.virtual_stage + step
        return (Message(work.kind, source, work.micro_batch),) if 0 <= source <= last else ()

    def program(stage: int) -> Program:
        warm_up = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)
        steps: list[Work] = [forward(stage, step) for step in range(warm_up)]
        for step in range(total):
            if step + warm_up < total:
                steps.append(forward(stage, step + warm_up))
            steps.append(backward(stage, step))
        ordered: Program = []
        for index, work in enumerate(steps):
            receives = needed(work) if index == 0 else ()
            if receives:
                ordered.append(Exchange((), receives))
            ordered.append(work)
            sends = result(work)
            receives = needed(steps[index + 1]) if index + 1 < len(steps) else ()
            if sends or receives:
                ordered.append(Exchange(sends, receives))
        return ordered

    return [program(stage) for stage in range(num_stages)]
