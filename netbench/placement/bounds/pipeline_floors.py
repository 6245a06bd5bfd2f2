"""Least times of a pipeline that goes from one site to another at a certain stage.

A pipeline takes at least as long as its most expensive part: a stage computes all micro-batches and
a hop carries all messages, one after another. Before that the first micro-batch has to arrive, and
afterwards the last one has to leave, both over the best sites. `docs/placement.md` explains the
formulas.
"""

from dataclasses import dataclass

import numpy as np

from netbench.placement.bounds.floors import Floors, least_between
from netbench.placement.problem import Floats, Grid


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Hops:
    """Least seconds since the start of the iteration of a pipeline with a hop [t, q, r]: from stage
    t at site q to stage t + 1 at site r. With one stage, [0, q, q] is that stage at site q.

    ready_s: (pp, pp - 1, S, S), until stage s may synchronise, [s, t, q, r]. whole_s:
    (pp - 1, S, S), until all stages may. across_s, across_whole_s: the same if the hop is between
    nodes. least_s: (pp,), `ready_s` of any pipeline.
    """

    ready_s: Floats
    whole_s: Floats
    across_s: Floats
    across_whole_s: Floats
    least_s: Floats

    def between(self, cluster: Grid) -> "Hops":
        """Return the least times between clusters of sites; cluster: (S,), numbers from 0."""

        def least(of_sites: Floats) -> Floats:
            sites_first = np.moveaxis(of_sites, (-2, -1), (0, 1))
            return np.moveaxis(least_between(sites_first, cluster), (0, 1), (-2, -1))

        return Hops(
            ready_s=least(self.ready_s),
            whole_s=least(self.whole_s),
            across_s=least(self.across_s),
            across_whole_s=least(self.across_whole_s),
            least_s=self.least_s,
        )


def hop_floors(floors: Floors) -> Hops:
    """Return the floors of a plan's hops.

    Every site appears twice, as some nodes and as others; hops from the first to the second are
    between nodes. A pipeline longer than a node is wide has such a hop.
    """
    num_sites = floors.num_sites
    ready_s = _ready_s(floors.twins(np.arange(num_sites)))[:, :, :num_sites]
    ready_s, across_s = ready_s[..., :num_sites], ready_s[..., num_sites:]
    least_s = ready_s.min(axis=(2, 3)).max(axis=1)
    if len(least_s) > floors.width.max():
        least_s = np.maximum(least_s, across_s.min(axis=(1, 2, 3)))
    ready_s, across_s = (
        np.maximum(each, least_s[:, None, None, None]) for each in (ready_s, across_s)
    )
    return Hops(
        ready_s=ready_s,
        whole_s=ready_s.max(axis=0),
        across_s=across_s,
        across_whole_s=across_s.max(axis=0),
        least_s=least_s,
    )


def _ready_s(floors: Floors) -> Floats:
    """Return `Hops.ready_s`, of each hop by itself."""
    work = _Work(floors)
    if floors.gpipe:
        forward_s, backward_s = work.forward_phase(), work.backward_phase()
        rounds = floors.num_rounds
        turn_s = floors.barrier_steps * round_trip_s(floors)
        before_s = rounds * (forward_s + turn_s)
        if rounds > 1:
            before_s = before_s + (rounds - 1) * backward_s[0]
        return np.asarray(before_s + backward_s)
    phase_s = work.blocking() if floors.blocking else work.overlapping()
    return np.asarray(floors.num_rounds * phase_s)


def round_trip_s(floors: Floors) -> float:
    """Return the least round trip between two devices; 0 s for a single device."""
    return float(_finite((floors.links.delay_s + floors.links.delay_s.T).min()))


class _Work:
    """A plan's compute by stage and site, and paths through its stages. Arrays are (pp, S)."""

    def __init__(self, floors: Floors) -> None:
        self.floors = floors
        self.forward_s = floors.forward_s[floors.kind].T
        self.backward_s = floors.backward_s[floors.kind].T
        self.weight_s = floors.weight_s[floors.kind].T
        self.depth, self.count = len(self.forward_s), floors.num_micro_batches
        chunk_forward_s = self.forward_s / floors.num_chunks
        chunk_backward_s = self.backward_s / floors.num_chunks
        links = floors.links
        first_s, next_s = links.first_s + links.delay_s, links.message_s + links.delay_s
        one = np.zeros(floors.num_sites)
        self.arriving_s = _through(chunk_forward_s, first_s, one)
        self.leaving_s = _through(chunk_forward_s[::-1], next_s.T, one)[::-1]
        self.returning_s = _through(chunk_backward_s[::-1], first_s, one)[::-1]
        self._chunk_backward_s, self._next_s = chunk_backward_s, next_s
        # An inner stage of GPipe receives, computes and sends in turn; one end of a hop is known.
        stage = np.arange(self.depth)[:, None, None]
        again = np.where((stage > 0) & (stage < self.depth - 1), self.count - 1.0, 0.0)
        give_s, take_s = _finite(links.give_s), _finite(links.take_s)
        give_out_s, take_in_s = _finite(links.give_s.min(axis=1)), _finite(links.take_s.min(axis=0))
        self.relay_s = again[..., 0] * (give_out_s + take_in_s)
        self.sender_s = again * (give_s + take_in_s[:, None])  # of a stage: [its site, the next]
        self.receiver_s = again * (take_s + give_out_s)  # [the site before, its own]

    def homing_s(self, until: int) -> Floats:
        """Return the time of a micro-batch's last backward passes, from the start at each stage to
        the end at stage `until`; 0 s for the stages below it."""
        here = _through(self._chunk_backward_s[until:], self._next_s.T, 0.0)
        return np.concatenate([np.zeros((until, here.shape[1])), here])

    def forward_phase(self) -> Floats:
        """Return the floors of a GPipe round's forward passes, (pp - 1, S, S)."""
        stage_s = self.arriving_s + (self.count - 2) * self.forward_s + self.leaving_s
        sent_s = self._carried(self.arriving_s, self.floors.links.all_s, self.leaving_s)
        ends_s = np.maximum(
            stage_s[:-1, :, None] + self.sender_s[:-1], stage_s[1:, None, :] + self.receiver_s[1:]
        )
        return self._least(np.maximum(sent_s, ends_s), stage_s + self.relay_s)

    def backward_phase(self) -> Floats:
        """Return those of its backward passes until each stage is done, (pp, pp - 1, S, S)."""
        phases = []
        for until in range(self.depth):
            homing_s = self.homing_s(until)
            stage_s = self.returning_s + (self.count - 2) * self.backward_s + homing_s
            sender_s = stage_s[1:, None, :] + self.sender_s[1:].transpose(0, 2, 1)
            receiver_s = stage_s[:-1, :, None] + self.receiver_s[:-1].transpose(0, 2, 1)
            stage_s = stage_s + self.relay_s
            sent_s = self._carried_back(homing_s)
            for each_s in (stage_s, sent_s, receiver_s):
                each_s[:until] = 0.0
            sender_s[: max(0, until - 1)] = 0.0
            phases.append(
                self._least(np.maximum(sent_s, np.maximum(sender_s, receiver_s)), stage_s)
            )
        return np.stack(phases)

    def overlapping(self) -> Floats:
        """Return the floors of forward and backward passes in one phase that overlaps messages."""
        phases = []
        there_s = self.arriving_s[-1].min()
        for until in range(self.depth):
            homing_s = self.homing_s(until)
            each_s = self.forward_s + self.backward_s + self.weight_s
            stage_s = self.arriving_s - self.forward_s / self.floors.num_chunks
            stage_s = stage_s + self.count * each_s + self._behind(homing_s)
            stage_s[:until] = 0.0
            sent_s = self._carried(self.arriving_s, self.floors.links.all_s, self.leaving_s)
            sent_s = sent_s + homing_s[-1].min()
            back_s = there_s + self._carried_back(homing_s)
            back_s[:until] = 0.0
            phases.append(self._least(np.maximum(sent_s, back_s), stage_s))
        return np.stack(phases)

    def blocking(self) -> Floats:
        """Return the same as `overlapping`, for ranks that do nothing while they send."""
        floors, chunks = self.floors, self.floors.num_chunks
        sends_s = chunks * self._next_s
        least_s = sends_s.min(axis=1)  # from a site to any
        each_s = self.forward_s + self.backward_s + self.weight_s
        before_s = self.arriving_s - self.forward_s / chunks
        join = np.add if floors.in_turn else np.maximum
        inner = np.arange(self.depth)[:, None] > 0, np.arange(self.depth)[:, None] < self.depth - 1
        back_s = np.where(inner[0], least_s, 0.0)  # to the stage before, whatever its site
        out_s = np.where(inner[1], least_s, 0.0)
        stage_s = self.count * (each_s + join(back_s, out_s)) + before_s
        phases = []
        for until in range(self.depth):
            behind_s = self._below(until)
            own_s = np.where(np.arange(self.depth)[:, None] < until, 0.0, stage_s + behind_s)
            if self.depth == 1:
                phases.append(self._least(np.zeros((0, *floors.links.delay_s.shape)), own_s))
                continue
            sender_s = (before_s + self.count * each_s + behind_s)[:-1, :, None] + (
                self.count * join(back_s[:-1, :, None], sends_s)
            )
            receiver_s = (before_s + self.count * each_s + behind_s)[1:, None, :] + (
                self.count * join(sends_s.T, out_s[1:, None, :])
            )
            sender_s[:until] = 0.0
            receiver_s[: max(0, until - 1)] = 0.0
            phases.append(self._least(np.maximum(sender_s, receiver_s), own_s))
        return np.stack(phases)

    def _below(self, until: int) -> Floats:
        """Return the time after a stage has sent its last message back, (pp, 1): the passes of the
        stages below down to `until`, less the weight gradients that it may still owe."""
        behind_s = np.zeros((self.depth, 1))
        lower_s = self.homing_s(until)[until:-1].min(axis=1)
        owed_s = np.arange(self.depth) * self.weight_s.max(axis=1)
        behind_s[until + 1 :, 0] = lower_s - owed_s[until + 1 :]
        return behind_s

    def _behind(self, homing_s: Floats) -> Floats:
        """Return the time after a stage's last backward pass, not counting weight gradients, of
        which stage s may owe s."""
        own_s = self._chunk_backward_s + np.arange(self.depth)[:, None] * self.weight_s
        return np.asarray(homing_s - own_s)

    def _carried(self, before_s: Floats, all_s: Floats, after_s: Floats) -> Floats:
        """Return the time of all messages over every hop, with what precedes and follows them."""
        carried_s = all_s + self.floors.links.delay_s
        return before_s[:-1, :, None] + carried_s + after_s[1:, None, :]

    def _carried_back(self, homing_s: Floats) -> Floats:
        carried_s = (self.floors.links.all_s + self.floors.links.delay_s).T
        return self.returning_s[1:, None, :] + carried_s + homing_s[:-1, :, None]

    def _least(self, hops_s: Floats, stages_s: Floats) -> Floats:
        """Combine hops with the stages at their ends; every pipeline has at least the least hop."""
        if self.depth == 1:
            alone = np.full((1, *self.floors.links.delay_s.shape), np.inf)
            alone[0][np.diag_indices(self.floors.num_sites)] = stages_s[0]
            return alone
        ends_s = np.maximum(stages_s[:-1, :, None], stages_s[1:, None, :])
        both_s = np.maximum(hops_s, ends_s)
        both_s[:, ~np.isfinite(self.floors.links.message_s)] = np.inf
        return np.asarray(np.maximum(both_s, both_s.min(axis=(1, 2)).max()))


def _finite(of_sites: Floats) -> Floats:
    return np.where(np.isfinite(of_sites), of_sites, 0.0)


def _through(work_s: Floats, hop_s: Floats, start_s: Floats | float) -> Floats:
    """Return the least seconds until each stage's work ends at each site, (pp, S). hop_s: [previous
    site, next site]."""
    ends = [start_s + work_s[0]]
    for each_s in work_s[1:]:
        ends.append((ends[-1][:, None] + hop_s).min(axis=0) + each_s)
    return np.stack(ends)
