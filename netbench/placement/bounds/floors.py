"""Floors: the least times of compute, messages and collectives by site, on any grid.

The devices of a site share region, kind, NIC rate and number of devices per node. The link between
two sites is the best between any two of their devices, without contention.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from netbench.placement.problem import Floats, Grid

CHAIN, RING, SHARDED, SCATTERED = "reduce-broadcast", "ring", "sharded-ps", "zero1"
"""Values of `Floors.data_parallel`: a chain to the first member and back; a ring; shards to their
owners, then a ring; a ring that reduces, then one that gathers."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links:
    """Least times between two devices of any two sites, (S, S), seconds; inf without two devices.

    delay_s: one way. message_s: of a message's bytes. first_s, all_s: of the first message, and of
    all of a round, over a new connection. give_s, take_s: of the sender's and the receiver's
    operation, where compute overlaps with messages. byte_s: of a byte of a collective. slow_s:
    added by a new connection to a large collective.
    """

    delay_s: Floats
    message_s: Floats
    first_s: Floats
    all_s: Floats
    give_s: Floats
    take_s: Floats
    byte_s: Floats
    slow_s: Floats

    def between(self, cluster: Grid) -> "Links":
        """Return the least times between clusters of sites; cluster: (S,), numbers from 0."""
        times = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Links(**{name: least_between(each, cluster) for name, each in times.items()})


def least_between(of_sites: Floats, cluster: Grid) -> Floats:
    """Return the least of values between sites, (S, S, ...), between clusters, (C, C, ...)."""
    num = int(cluster.max()) + 1
    least = np.full((num, num, *of_sites.shape[2:]), np.inf)
    np.minimum.at(least, (cluster[:, None], cluster[None]), of_sites)
    return least


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Floors:
    """Least times of a plan's parts on any grid, seconds. S = num_sites.

    site: (num_devices,). kind: (S,), as in `Problem`. width: (S,), most devices of a node.
    links: between all devices; apart: between devices on different nodes.
    may_idle: there are more devices than cells.
    forward_s, backward_s, weight_s: (num_kinds, pp), of a micro-batch; weight_s is the part of the
        backward pass that no other stage waits for. num_chunks: chunks per pass.
    num_rounds; num_micro_batches: of a round.
    gpipe: all forward passes precede the backward passes, and a barrier ends the iteration.
    blocking: a rank waits until its message has arrived. in_turn: it also sends to the next and the
        previous stage at different times.
    barrier_steps: steps of a barrier, each a round trip.
    gradient_bytes, update_s: (pp,); update_s on the fastest kind.
    shared_updates: n simultaneous updates on a node take n times as long each; with a chain, those
        of the first members on the node.
    slice_bytes: (pp,), the most that a chain can send before a late member is ready.
    ring_passes: (pp,), times that a ring is traversed. ring_steps: steps that are simulated
        separately, (all-reduce, all-gather).
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

    def twins(self, sites: Grid) -> "Floors":
        """Return floors of n sites twice: each site, then the same site as other nodes of it."""

        def blocks(here: Floats, there: Floats) -> Floats:
            inner, outer = here[np.ix_(sites, sites)], there[np.ix_(sites, sites)]
            return np.block([[inner, outer], [outer, inner]])

        both = {
            field.name: blocks(getattr(self.links, field.name), getattr(self.apart, field.name))
            for field in dataclasses.fields(Links)
        }
        kind, width = np.tile(self.kind[sites], 2), np.tile(self.width[sites], 2)
        return dataclasses.replace(self, kind=kind, width=width, links=Links(**both))

    def merged(self, cluster: Grid) -> "Floors":
        """Return floors for groups with sites merged, without their kinds; cluster: (S,)."""
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
