"""What one stage of a pipeline does, in order. Pure: no torch, no clock.

A schedule is a list of actions. `Compute` waits for its own input and nothing else.
`Communicate` puts transfers on the stage's communicator, which carries them out in this order;
with `wait` the stage goes on only when they are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Forward: activations, towards the last stage. Backward: gradients, towards the first."""

    FORWARD = 1
    BACKWARD = -1


@dataclass(frozen=True, slots=True)
class Compute:
    """One micro-batch through the stage's layers."""

    phase: Phase
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """One micro-batch's boundary tensor: received from, or sent to, the neighbour of `phase`."""

    phase: Phase
    micro_batch: int
    is_send: bool


@dataclass(frozen=True, slots=True)
class Communicate:
    """Transfers that start together (`ncclGroupStart`)."""

    transfers: tuple[Transfer, ...]
    wait: bool


Action = Compute | Communicate


def gpipe_phase(phase: Phase, stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """All micro-batches through `stage` in one direction.

    DT-FM enqueues receive 0, send 0, receive 1, send 1, ... on one communicator: the next receive
    starts with the send of what is computed. A stage that only receives takes the next
    micro-batch in while it computes; one that only sends computes the next while it sends.
    """
    receives = 0 <= stage - phase.value < num_stages
    sends = 0 <= stage + phase.value < num_stages
    actions: list[Action] = []
    if receives:
        actions.append(_start(Transfer(phase, 0, False)))
    for i in range(num_micro_batches):
        next_input = []
        if receives and i + 1 < num_micro_batches:
            next_input = [Transfer(phase, i + 1, False)]
        if not sends:
            actions += [_start(*next_input)] if next_input else []
            actions.append(Compute(phase, i))
        else:
            actions += [Compute(phase, i), _start(*next_input, Transfer(phase, i, True))]
    return actions


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Megatron-LM's synchronous 1F1B (`forward_backward_pipelining_without_interleaving`).

    At most `num_stages - stage` micro-batches are between their forward and backward.
    """
    warmup = min(num_stages - stage - 1, num_micro_batches)
    steady = num_micro_batches - warmup
    first, last = stage == 0, stage == num_stages - 1

    def input_of(i: int) -> list[Transfer]:
        return [] if first else [Transfer(Phase.FORWARD, i, False)]

    def output_of(i: int) -> list[Transfer]:
        return [] if last else [Transfer(Phase.FORWARD, i, True)]

    def gradient_in(i: int) -> list[Transfer]:
        return [] if last else [Transfer(Phase.BACKWARD, i, False)]

    def gradient_out(i: int) -> list[Transfer]:
        return [] if first else [Transfer(Phase.BACKWARD, i, True)]

    actions: list[Action] = []
    for i in range(warmup):
        actions += _wait(input_of(i))
        actions.append(Compute(Phase.FORWARD, i))
        actions += _wait(output_of(i))
    if steady:
        actions += _wait(input_of(warmup))
    for k in range(steady):
        i = warmup + k
        actions.append(Compute(Phase.FORWARD, i))
        actions += _wait(output_of(i) + gradient_in(k))
        actions.append(Compute(Phase.BACKWARD, k))
        actions += _wait(gradient_out(k) + (input_of(i + 1) if k + 1 < steady else []))
    for k in range(steady, num_micro_batches):
        actions += _wait(gradient_in(k))
        actions.append(Compute(Phase.BACKWARD, k))
        actions += _wait(gradient_out(k))
    return actions


def _start(*transfers: Transfer) -> Communicate:
    return Communicate(transfers, wait=False)


def _wait(transfers: list[Transfer]) -> list[Action]:
    return [Communicate(tuple(transfers), wait=True)] if transfers else []
