"""What no grid can go below: the least that compute, messages and collectives take, by site.

A site is where devices are alike: one region, kind, NIC, and nodes with as many devices. Between
two sites stands the best link that two of their devices have, alone on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from netbench.placement.problem import Floats, Grid

CHAIN, RING, SHARDED = "reduce-broadcast", "ring", "sharded-ps"
"""`Floors.data_parallel`: a chain to the first member and back; a ring; shards to their owners,
then a ring."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Floors:
    """The least seconds of a plan's parts, on any grid. S = num_sites.

    site: (num_devices,). kind: (S,), as in `Problem`. may_idle: there are more devices than cells.
    forward_s, backward_s, weight_s: (num_kinds, pp), of a micro-batch: its passes, and what of the
    backward pass nobody waits for. num_chunks: that each is cut into.
    delay_s: (S, S), one way. message_s: (S, S), a message's bytes; first_s, all_s: those of the
    first, and of all of a round, over a connection that is new. give_s, take_s: (S, S), what the
    sender's and the receiver's operation takes at least, where compute overlaps with messages.
    num_rounds, num_micro_batches: of a round. gpipe: all forward passes come before the backward
    ones, and a barrier ends the iteration. blocking: a rank waits until what it sent has arrived.
    in_turn: and sends to the next stage and to the one before at different times.
    barrier_steps: of a barrier, each a round trip.
    gradient_bytes, update_s: (pp,), update_s on the fastest kind. byte_s: (S, S), of a collective;
    slow_s: and what a new connection adds to a large one.
    slice_bytes: (pp,), of a chain, the most that may go before a late member is there. ring_passes:
    (pp,), times that a ring goes round; ring_steps: that are simulated apart, (all-reduce,
    all-gather).
    """

    site: Grid
    kind: Grid
    may_idle: bool
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    num_chunks: int
    delay_s: Floats
    message_s: Floats
    first_s: Floats
    all_s: Floats
    give_s: Floats
    take_s: Floats
    num_rounds: int
    num_micro_batches: int
    gpipe: bool
    blocking: bool
    in_turn: bool
    barrier_steps: int
    data_parallel: str
    gradient_bytes: Floats
    update_s: Floats
    byte_s: Floats
    slow_s: Floats
    slice_bytes: Floats
    ring_passes: Floats
    ring_steps: tuple[int, int]

    @property
    def num_sites(self) -> int:
        return len(self.kind)
