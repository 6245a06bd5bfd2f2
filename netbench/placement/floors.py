"""What no grid can go below: the least that compute, messages and collectives take, by site.

A site is where devices are alike: one region, kind, NIC, and nodes with as many devices. Between
two sites stands the best link that two of their devices have, alone on it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from netbench.placement.problem import Floats, Grid

CHAIN, RING, SHARDED = "reduce-broadcast", "ring", "sharded-ps"
"""`Floors.data_parallel`: a chain to the first member and back; a ring; shards to their owners,
then a ring."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links:
    """The least between two devices of any two sites, (S, S), seconds; inf = there are no two.

    delay_s: one way. message_s: a message's bytes; first_s, all_s: those of the first, and of all
    of a round, over a connection that is new. give_s, take_s: what the sender's and the receiver's
    operation takes at least, where compute overlaps with messages. byte_s: of a collective; slow_s:
    and what a new connection adds to a large one.
    """

    delay_s: Floats
    message_s: Floats
    first_s: Floats
    all_s: Floats
    give_s: Floats
    take_s: Floats
    byte_s: Floats
    slow_s: Floats

    def between(self, cluster: Grid) -> Links:
        """The least of two clusters of sites; cluster: (S,), numbers from 0."""
        figures = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Links(**{name: least_between(each, cluster) for name, each in figures.items()})


def least_between(of_sites: Floats, cluster: Grid) -> Floats:
    """Figures of two sites, (S, S, ...), as the least of two clusters of them, (C, C, ...)."""
    num = int(cluster.max()) + 1
    least = np.full((num, num, *of_sites.shape[2:]), np.inf)
    np.minimum.at(least, (cluster[:, None], cluster[None]), of_sites)
    return least


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Floors:
    """The least seconds of a plan's parts, on any grid. S = num_sites.

    site: (num_devices,). kind: (S,), as in `Problem`. width: (S,), devices of a node there, at
    most. links: of all devices; apart: of those on different nodes. may_idle: there are more
    devices than cells.
    forward_s, backward_s, weight_s: (num_kinds, pp), of a micro-batch: its passes, and what of the
    backward pass nobody waits for. num_chunks: that each is cut into.
    num_rounds, num_micro_batches: of a round. gpipe: all forward passes come before the backward
    ones, and a barrier ends the iteration. blocking: a rank waits until what it sent has arrived.
    in_turn: and sends to the next stage and to the one before at different times.
    barrier_steps: of a barrier, each a round trip.
    gradient_bytes, update_s: (pp,), update_s on the fastest kind. shared_updates: n updates of a
    node take n times as long each: with a chain, those of the first members that it has.
    slice_bytes: (pp,), of a chain, the most that may go before a late member is there. ring_passes:
    (pp,), times that a ring goes round; ring_steps: that are simulated apart, (all-reduce,
    all-gather).
    """

    site: Grid
    kind: Grid
    width: Grid
    links: Links
    apart: Links
    may_idle: bool
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    num_chunks: int
    num_rounds: int
    num_micro_batches: int
    gpipe: bool
    blocking: bool
    in_turn: bool
    barrier_steps: int
    data_parallel: str
    gradient_bytes: Floats
    update_s: Floats
    shared_updates: bool
    slice_bytes: Floats
    ring_passes: Floats
    ring_steps: tuple[int, int]

    @property
    def num_sites(self) -> int:
        return len(self.kind)

    def twins(self, sites: Grid) -> Floors:
        """Some sites, n of them, and then each again: the other nodes that it has."""

        def blocks(here: Floats, there: Floats) -> Floats:
            inner, outer = here[np.ix_(sites, sites)], there[np.ix_(sites, sites)]
            return np.block([[inner, outer], [outer, inner]])

        both = {
            field.name: blocks(getattr(self.links, field.name), getattr(self.apart, field.name))
            for field in dataclasses.fields(Links)
        }
        kind, width = np.tile(self.kind[sites], 2), np.tile(self.width[sites], 2)
        return dataclasses.replace(self, kind=kind, width=width, links=Links(**both))

    def merged(self, cluster: Grid) -> Floors:
        """For groups, with sites taken together; cluster: (S,), numbers from 0. Kinds are told
        apart no more."""
        width = np.zeros(int(cluster.max()) + 1, np.int64)
        np.maximum.at(width, cluster, self.width)
        return dataclasses.replace(
            self,
            site=cluster[self.site],
            kind=np.zeros_like(width),
            width=width,
            links=self.links.between(cluster),
            apart=self.apart.between(cluster),
        )
