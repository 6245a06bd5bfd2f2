"""What a pipeline takes at least that goes from one site to another at a certain stage.

A pipeline is done no sooner than its dearest part: a stage has all micro-batches to compute, a hop
all messages to carry, one after another; before it goes what the first micro-batch needs to get
there, behind it what the last one needs to get out. What is before and behind is that of the best
sites there are. `docs/placement.md` has the formulas in words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netbench.placement.floors import Floors, least_between
from netbench.placement.problem import Floats, Grid


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Hops:
    """Of the hop of stage t at site q to stage t + 1 at site r, [t, q, r], seconds of an iteration
    until a pipeline that has it ends, at least; with one stage, [0, q, q] is that stage at site q.

    ready_s: (pp, pp - 1, S, S), until its stage s may synchronise, [s, t, q, r]. whole_s:
    (pp - 1, S, S), until all of them may. across_s, across_whole_s: the same where the hop is from
    one node to another. least_s: (pp,), `ready_s` of any pipeline.
    """

    ready_s: Floats
    whole_s: Floats
    across_s: Floats
    across_whole_s: Floats
    least_s: Floats

    def between(self, cluster: Grid) -> Hops:
        """The least of two clusters of sites; cluster: (S,), numbers from 0."""

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
    """Of a plan's pipelines. Every site is there twice, as some nodes and as others: what is from
    the first to the second is between nodes. A pipeline longer than a node is wide has such a hop.
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
    """`Hops.ready_s`, of each hop by itself."""
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
    """The least between two devices; 0 s where there is one."""
    return float(_finite((floors.links.delay_s + floors.links.delay_s.T).min()))


class _Work:
    """A plan's compute by stage and site, and ways through its stages. Arrays are (pp, S)."""

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
        # An inner stage of GPipe receives, computes, sends, and again: of a hop one end is known.
        stage = np.arange(self.depth)[:, None, None]
        again = np.where((stage > 0) & (stage < self.depth - 1), self.count - 1.0, 0.0)
        give_s, take_s = _finite(links.give_s), _finite(links.take_s)
        give_out_s, take_in_s = _finite(links.give_s.min(axis=1)), _finite(links.take_s.min(axis=0))
        self.relay_s = again[..., 0] * (give_out_s + take_in_s)
        self.sender_s = again * (give_s + take_in_s[:, None])  # of a stage: [its site, the next]
        self.receiver_s = again * (take_s + give_out_s)  # [the site before, its own]

    def homing_s(self, until: int) -> Floats:
        """Of the last backward pass of a micro-batch, from its start at each stage to its end at
        stage `until`; 0 s for the stages below it."""
        here = _through(self._chunk_backward_s[until:], self._next_s.T, 0.0)
        return np.concatenate([np.zeros((until, here.shape[1])), here])

    def forward_phase(self) -> Floats:
        """Of a GPipe round, (pp - 1, S, S)."""
        stage_s = self.arriving_s + (self.count - 2) * self.forward_s + self.leaving_s
        sent_s = self._carried(self.arriving_s, self.floors.links.all_s, self.leaving_s)
        ends_s = np.maximum(
            stage_s[:-1, :, None] + self.sender_s[:-1], stage_s[1:, None, :] + self.receiver_s[1:]
        )
        return self._least(np.maximum(sent_s, ends_s), stage_s + self.relay_s)

    def backward_phase(self) -> Floats:
        """Of a GPipe round, until each stage is done, (pp, pp - 1, S, S)."""
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
        """Of forward and backward passes in one phase, messages beside compute."""
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
        """As `overlapping`, where a rank does nothing while it sends."""
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
        """What follows when a stage has sent all back, in the stages from the one below to `until`,
        (pp, 1), less what it may still owe."""
        behind_s = np.zeros((self.depth, 1))
        lower_s = self.homing_s(until)[until:-1].min(axis=1)
        owed_s = np.arange(self.depth) * self.weight_s.max(axis=1)
        behind_s[until + 1 :, 0] = lower_s - owed_s[until + 1 :]
        return behind_s

    def _behind(self, homing_s: Floats) -> Floats:
        """What follows a stage's last backward pass, without what only computes weights; it may owe
        as many of those as its number says."""
        own_s = self._chunk_backward_s + np.arange(self.depth)[:, None] * self.weight_s
        return np.asarray(homing_s - own_s)

    def _carried(self, before_s: Floats, all_s: Floats, after_s: Floats) -> Floats:
        """All messages over every hop, and what is before and behind them."""
        carried_s = all_s + self.floors.links.delay_s
        total_s: Floats = before_s[:-1, :, None] + carried_s + after_s[1:, None, :]
        return total_s

    def _carried_back(self, homing_s: Floats) -> Floats:
        carried_s = (self.floors.links.all_s + self.floors.links.delay_s).T
        total_s: Floats = self.returning_s[1:, None, :] + carried_s + homing_s[:-1, :, None]
        return total_s

    def _least(self, hops_s: Floats, stages_s: Floats) -> Floats:
        """Hops with the stages at their ends, none below what every pipeline has somewhere."""
        if self.depth == 1:
            alone = np.full((1, *self.floors.links.delay_s.shape), np.inf)
            alone[0][np.diag_indices(self.floors.num_sites)] = stages_s[0]
            return alone
        ends_s = np.maximum(stages_s[:-1, :, None], stages_s[1:, None, :])
        both_s = np.maximum(hops_s, ends_s)
        both_s[:, ~np.isfinite(self.floors.links.message_s)] = np.inf
        least_s: Floats = np.maximum(both_s, both_s.min(axis=(1, 2)).max())
        return least_s


def _finite(of_sites: Floats) -> Floats:
    """With 0 s for what there is not."""
    return np.where(np.isfinite(of_sites), of_sites, 0.0)


def _through(work_s: Floats, hop_s: Floats, start_s: Floats | float) -> Floats:
    """The least seconds until work of each stage is over at each site, (pp, S). hop_s: [of the
    stage before, of the next]."""
    ends = [start_s + work_s[0]]
    for each_s in work_s[1:]:
        ends.append((ends[-1][:, None] + hop_s).min(axis=0) + each_s)
    return np.stack(ends)
