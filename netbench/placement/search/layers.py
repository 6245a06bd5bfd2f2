"""Cost of each stage by its number of layers, for searches that also choose the layers."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError
from netbench.placement.problem import Floats, Grid, Problem

MAX_DEVICES = 1024
"""Up to this number of devices, layers are chosen although all devices are of one kind. Above, the
gain is not worth the time that making problems with other layers takes."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layers:
    """Cost of every stage by choice, and the problems of the choices used so far.

    A choice is a stage's number of layers if `free`; otherwise the only choice is 0.
    compute_s: (num_kinds, pp, num_choices), as `Problem.stage_s`; inf where such a stage does not
    fit or does not exist. gradient_bytes: (pp, num_choices). start: (pp,), the choices that stand
    for `Problem.stage_layers`.
    """

    compute_s: Floats
    gradient_bytes: Floats
    start: Grid
    free: bool
    problems: dict[tuple[int, ...], Problem]

    @property
    def num_choices(self) -> int:
        """Number of ways to give layers to stages; 1 where they are fixed."""
        return math.comb(int(self.start.sum()) - 1, len(self.start) - 1) if self.free else 1

    def choices(self, near: Grid) -> Iterator[Grid]:
        """Yield all choices, (pp,) each, those closest to `near` first."""
        total, pp = int(self.start.sum()), len(self.start)
        ends = np.array(list(itertools.combinations(range(1, total), pp - 1)), np.int64)
        every = np.diff(ends.reshape(-1, pp - 1), prepend=0, append=total, axis=1)
        yield from every[np.argsort(np.abs(every - near).sum(axis=1), kind="stable")]

    def problem(self, choice: Grid) -> Problem | None:
        """Return the problem with these layers; None where there is no such plan."""
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
    """Return the layers that a search may choose: any, if `problem.with_layers` is given."""
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
    for layers in _covering(problem.pp, total):
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


def _covering(depth: int, total: int) -> list[Grid]:
    """Return layers, each (depth,) with sum `total`; every stage has every number at least once."""
    covering = [np.array(_even(depth, total))]
    for number in range(1, total - depth + 2):
        for stage in range(depth):
            rest = _even(depth - 1, total - number)
            covering.append(np.array([*rest[:stage], number, *rest[stage:]]))
    return covering


def _even(depth: int, total: int) -> list[int]:
    return [(total + index) // depth for index in range(depth)]


def balanced(layers: Layers, kinds: Grid) -> Grid | None:
    """Return the layers that minimise the slowest stage, where stage s has devices of
    kinds[:, s], (dp, pp); None where none fit. Layers go one by one to the stage that is fastest
    with one more, which is optimal because more layers never take less time."""
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
