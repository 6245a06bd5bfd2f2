"""What a pipeline takes at least that goes from one site to another at a certain stage.

A pipeline is done no sooner than its dearest part: a stage has all micro-batches to compute, a hop
all messages to carry, one after another; before it goes what the first micro-batch needs to get
there, behind it what the last one needs to get out. What is before and behind is that of the best
sites there are. `docs/placement.md` has the formulas in words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netbench.placement.floors import Floors
from netbench.placement.problem import Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Hops:
    """Of the hop of stage t at site q to stage t + 1 at site r, [t, q, r], seconds of an iteration
    until a pipeline that has it ends, at least; with one stage, [0, q, q] is that stage at site q.

    ready_s: (pp, pp - 1, S, S), until its stage s may synchronise, [s, t, q, r]. whole_s:
    (pp - 1, S, S), until all of them may. least_s: (pp,), of any pipeline.
    """

    ready_s: Floats
    whole_s: Floats
    least_s: Floats


def hop_floors(floors: Floors) -> Hops:
    """Of a plan's pipelines."""
    work = _Work(floors)
    if floors.gpipe:
        forward_s, backward_s = work.forward_phase(), work.backward_phase()
        rounds = floors.num_rounds
        turn_s = floors.barrier_steps * round_trip_s(floors)
        before_s = rounds * (forward_s + turn_s)
        if rounds > 1:
            before_s = before_s + (rounds - 1) * backward_s[0]
        ready_s = before_s + backward_s
    elif floors.blocking:
        ready_s = floors.num_rounds * work.blocking()
    else:
        ready_s = floors.num_rounds * work.overlapping()
    least_s = ready_s.min(axis=(2, 3)).max(axis=1)
    ready_s = np.maximum(ready_s, least_s[:, None, None, None])
    return Hops(ready_s=ready_s, whole_s=ready_s.max(axis=0), least_s=least_s)


def round_trip_s(floors: Floors) -> float:
    """The least between two devices."""
    return float((floors.delay_s + floors.delay_s.T).min())


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
        first_s, next_s = floors.first_s + floors.delay_s, floors.message_s + floors.delay_s
        one = np.zeros(floors.num_sites)
        self.arriving_s = _through(chunk_forward_s, first_s, one)
        self.leaving_s = _through(chunk_forward_s[::-1], next_s.T, one)[::-1]
        self.returning_s = _through(chunk_backward_s[::-1], first_s, one)[::-1]
        give_s, take_s = floors.give_s.min(axis=1), floors.take_s.min(axis=0)
        stage = np.arange(self.depth)[:, None]
        inner = (stage > 0) & (stage < self.depth - 1)  # receives, computes, sends, and again
        self.relay_s = np.where(inner, give_s + take_s, 0.0)
        self._chunk_backward_s, self._next_s = chunk_backward_s, next_s

    def homing_s(self, until: int) -> Floats:
        """Of the last backward pass of a micro-batch, from its start at each stage to its end at
        stage `until`; 0 s for the stages below it."""
        here = _through(self._chunk_backward_s[until:], self._next_s.T, 0.0)
        return np.concatenate([np.zeros((until, here.shape[1])), here])

    def forward_phase(self) -> Floats:
        """Of a GPipe round, (pp - 1, S, S)."""
        work_s = self.arriving_s + (self.count - 1) * (self.forward_s + self.relay_s)
        stage_s = work_s + self.leaving_s - self.forward_s
        sent_s = self._carried(self.arriving_s, self.floors.all_s, self.leaving_s)
        return self._least(sent_s, stage_s)

    def backward_phase(self) -> Floats:
        """Of a GPipe round, until each stage is done, (pp, pp - 1, S, S)."""
        phases = []
        for until in range(self.depth):
            homing_s = self.homing_s(until)
            work_s = self.returning_s + (self.count - 1) * (self.backward_s + self.relay_s)
            stage_s = work_s + homing_s - self.backward_s
            stage_s[:until] = 0.0
            sent_s = self._carried_back(homing_s)
            sent_s[:until] = 0.0
            phases.append(self._least(sent_s, stage_s))
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
            sent_s = self._carried(self.arriving_s, self.floors.all_s, self.leaving_s)
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
                phases.append(self._least(np.zeros((0, *floors.delay_s.shape)), own_s))
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
        carried_s = all_s + self.floors.delay_s
        total_s: Floats = before_s[:-1, :, None] + carried_s + after_s[1:, None, :]
        return total_s

    def _carried_back(self, homing_s: Floats) -> Floats:
        carried_s = (self.floors.all_s + self.floors.delay_s).T
        total_s: Floats = self.returning_s[1:, None, :] + carried_s + homing_s[:-1, :, None]
        return total_s

    def _least(self, hops_s: Floats, stages_s: Floats) -> Floats:
        """Hops with the stages at their ends, none below what every pipeline has somewhere."""
        if self.depth == 1:
            alone = np.full((1, *self.floors.delay_s.shape), np.inf)
            alone[0][np.diag_indices(self.floors.num_sites)] = stages_s[0]
            return alone
        ends_s = np.maximum(stages_s[:-1, :, None], stages_s[1:, None, :])
        both_s = np.maximum(hops_s, ends_s)
        both_s[:, ~np.isfinite(self.floors.message_s)] = np.inf
        least_s: Floats = np.maximum(both_s, both_s.min(axis=(1, 2)).max())
        return least_s


def _through(work_s: Floats, hop_s: Floats, start_s: Floats | float) -> Floats:
    """The least seconds until work of each stage is over at each site, (pp, S). hop_s: [of the
    stage before, of the next]."""
    ends = [start_s + work_s[0]]
    for each_s in work_s[1:]:
        ends.append((ends[-1][:, None] + hop_s).min(axis=0) + each_s)
    return np.stack(ends)
