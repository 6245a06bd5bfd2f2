"""What a stage costs by its number of layers, so that a search can choose how many each has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError
from netbench.placement.problem import Floats, Grid, Problem

MAX_DEVICES = 1024
"""Up to so many devices of one kind, layers are chosen; above, a problem with others takes long to
make, and only kinds that differ are worth it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layers:
    """The costs of every stage by `choice`, and the problem of each choice that was asked for.

    compute_s: (num_kinds, pp, num_choices), as `Problem.stage_s`; inf where a stage of so many
    layers does not fit, or there is none. gradient_bytes: (pp, num_choices). start: (pp,), the
    choice that `Problem.stage_layers` is. free: a choice is a number of layers; else there is one.
    """

    compute_s: Floats
    gradient_bytes: Floats
    start: Grid
    free: bool
    problems: dict[tuple[int, ...], Problem]

    @property
    def num_choices(self) -> int:
        """How many there are; 1 where they are not free."""
        return math.comb(int(self.start.sum()) - 1, len(self.start) - 1) if self.free else 1

    def choices(self, near: Grid) -> Iterator[Grid]:
        """All of those that are free, (pp,) each; those that differ less from `near` first."""
        total, pp = int(self.start.sum()), len(self.start)
        ends = np.array(list(itertools.combinations(range(1, total), pp - 1)), np.int64)
        every = np.diff(ends.reshape(-1, pp - 1), prepend=0, append=total, axis=1)
        yield from every[np.argsort(np.abs(every - near).sum(axis=1), kind="stable")]

    def problem(self, choice: Grid) -> Problem | None:
        """The problem of a choice of layers; None where there is no such plan."""
        key = tuple(choice.tolist())
        if key not in self.problems:
            with_layers = self.problems[tuple(self.start.tolist())].with_layers
            if with_layers is None:
                return None
            try:
                self.problems[key] = with_layers(key)
            except PlanError:
                return None
        return self.problems[key]


def find_layers(problem: Problem) -> Layers:
    """The layers that a search may choose: any where the problem can be made with others."""
    total = sum(problem.stage_layers)
    several = len(problem.stage_s) > 1
    worth = several or problem.num_devices <= MAX_DEVICES
    if problem.with_layers is None or problem.pp == 1 or total <= problem.pp or not worth:
        start = np.zeros(problem.pp, np.int64)
        return Layers(
            compute_s=problem.stage_s[:, :, None],
            gradient_bytes=problem.gradient_bytes[:, None],
            start=start,
            free=False,
            problems={tuple(start.tolist()): problem},
        )
    most = total - problem.pp + 1
    start = np.array(problem.stage_layers)
    compute_s = np.full((len(problem.stage_s), problem.pp, most + 1), np.inf)
    gradient_bytes = np.full((problem.pp, most + 1), np.nan)
    stages = np.arange(problem.pp)
    for layers in _asked(problem.pp, total):
        missing = np.isnan(gradient_bytes[stages, layers])
        if not missing.any():
            continue
        try:
            other = problem.with_layers(tuple(layers.tolist()))
        except PlanError:
            continue
        compute_s[:, stages, layers] = other.stage_s
        gradient_bytes[stages, layers] = other.gradient_bytes
    compute_s[:, np.isnan(gradient_bytes)] = np.inf
    return Layers(
        compute_s=compute_s,
        gradient_bytes=np.nan_to_num(gradient_bytes),
        start=start,
        free=True,
        problems={tuple(start.tolist()): problem},
    )


def _asked(depth: int, total: int) -> list[Grid]:
    """Layers of stages, each (depth,), together `total`, so that every stage has every number."""
    asked = [np.array(_even(depth, total))]
    for number in range(1, total - depth + 2):
        for stage in range(depth):
            rest = _even(depth - 1, total - number)
            asked.append(np.array([*rest[:stage], number, *rest[stage:]]))
    return asked


def _even(depth: int, total: int) -> list[int]:
    return [(total + index) // depth for index in range(depth)]


def balanced(layers: Layers, kinds: Grid) -> Grid | None:
    """The choice of layers with the least time of the slowest stage, where stage s has devices of
    kinds[:, s], (dp, pp); None where none fits. A layer goes to the stage that is fastest with it,
    one after the other, which is optimal since more layers never take less time."""
    if not layers.free:
        return layers.start
    pp = kinds.shape[1]
    slowest_s = np.array(
        [layers.compute_s[np.unique(kinds[:, stage]), stage].max(axis=0) for stage in range(pp)]
    )
    choice, stages = np.ones(pp, np.int64), np.arange(pp)
    for _ in range(int(layers.start.sum()) - pp):
        more = np.minimum(choice + 1, slowest_s.shape[1] - 1)
        next_s = np.where(choice + 1 < slowest_s.shape[1], slowest_s[stages, more], np.inf)
        stage = int(np.argmin(next_s))
        choice[stage] += 1
    return choice if np.isfinite(slowest_s[stages, choice]).all() else None
