"""netbench's scheduler: the least simulated time of an iteration.

Guesses lead, the simulator decides. A guess (`surrogate`) is fitted to pipelines and groups that
were simulated; annealing (`annealing`) finds a placement that the guess takes for the best; it is
simulated, and so are its parts, to which the guess is fitted again: where it was too hopeful, it is
no longer. From a placement that is close to the best so far, a descent follows whose every step the
simulator has confirmed. So it goes on, in turn from the best, from a random placement, and from
one that was good, until the budget ends or nothing better comes for long.

The first placements are the greedy ones of `aligned`, the order in which devices are listed, and
the best of these with its nodes laid as rectangles (`tiled`): what is answered is never slower than
these. Where there are few placements, all are simulated: very few at once, others, and those with
other layers of stages, when nothing better has come for long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from netbench.placement import annealing
from netbench.placement.aligned import aligned_starts, fit, unfit
from netbench.placement.annealing import SMOOTH, State, anneal, guessed_s, neighbours
from netbench.placement.exhaustive import MAX_GRIDS, few_grids
from netbench.placement.incumbent import Incumbent
from netbench.placement.layers import Layers, balanced, find_layers
from netbench.placement.problem import Answer, Budget, Floats, Grid, Problem
from netbench.placement.sites import Sites, find_sites
from netbench.placement.surrogate import Model, fitted, make_model
from netbench.placement.tiled import tilings

MOVES_PER_BLOCK = 1000
"""Of one annealing: 64,000 for 64 devices, a quarter of a second."""

MOVES_AT_ONCE = 50_000
"""Moves between two looks at the clock."""

HOT, WARM, COLD = 0.05, 0.006, 0.0001
"""Temperatures as shares of the guessed time: at the start from a random placement and from a good
one, and at the end."""

NEIGHBOURS, TRIED = 4000, 32
"""Of a descent's step: moves that are guessed, and the best of them that are simulated."""

WORTH = 1.002
"""Times the best so far: what is composed to less is simulated as a whole."""

CLOSE = 1.03
"""Times the best so far: what is not slower is worth a descent."""

PATIENCE, LONG_PATIENCE = 20, 100
"""Rounds without anything better, after which a search ends; and one that has been given a time."""

MAX_LISTED, LISTED_AT_ONCE = 2000, 64
"""Placements of which all are simulated at once, seconds of them; and how many between two looks at
the clock."""

MAX_SAMPLES = 4000
"""Parts that a guess is fitted to, the latest; and as many groups."""


def netbench(problem: Problem, seed: int, budget: Budget) -> Answer:
    """The placement, and where they are free the layers of stages, of the least simulated time
    found. Step values are simulated seconds. Raises PlanError where nothing fits."""
    search = _Search(problem, seed, budget)
    search.begin()
    search.list_all(MAX_LISTED)
    while not search.over:
        search.round()
    search.list_all(MAX_GRIDS)
    search.list_layers(MAX_GRIDS)
    return search.incumbent.answer()


@dataclass(slots=True)
class _Samples:
    """Simulated parts: blocks, choices of layers, seconds."""

    pipelines: list[tuple[Grid, Grid, Floats]] = field(default_factory=list)
    groups: list[tuple[int, int, Grid, float]] = field(default_factory=list)


class _Search:
    def __init__(self, problem: Problem, seed: int, budget: Budget) -> None:
        self.incumbent = Incumbent(problem, budget)
        self._problem = problem
        self._random = np.random.default_rng(seed)
        self._sites: Sites = find_sites(problem)
        self._layers: Layers = find_layers(problem)
        self._kinds = self._sites.kind[self._sites.site]
        self._model: Model = make_model(
            problem, self._sites, self._layers.compute_s, self._layers.gradient_bytes
        )
        self._samples = _Samples()
        self._elite: list[tuple[float, Grid, Grid]] = []  # seconds, blocks, layers
        self._seen: dict[bytes, float] = {}
        self._num_rounds = self._num_idle_rounds = 0
        self._listed = self._all_known = False
        self._patience = LONG_PATIENCE if budget.seconds < np.inf else PATIENCE

    @property
    def over(self) -> bool:
        return self.incumbent.over or self._all_known or self._num_idle_rounds >= self._patience

    def begin(self) -> None:
        """The placements to beat, and first samples."""
        for blocks, choice in self._starts():
            self._try(blocks, choice)
            if self.incumbent.over:
                return
        if not self._elite:
            raise unfit(self._problem)
        _, blocks, choice = self._elite[0]
        for each in tilings(self._sites, blocks):
            self._try(each, choice)
            if self.incumbent.over:
                return
        _, blocks, choice = self._elite[0]
        self._learn(blocks, choice)
        for _ in range(4):
            self._learn(self._shuffled(), choice)
        self._fit()

    def list_all(self, max_grids: int) -> None:
        """Simulate every placement where they are no more, with the layers as they are given."""
        if self.incumbent.over or self._listed:
            return
        grids = few_grids(self._problem, max_grids)
        fitting = [grid for grid in grids if self._problem.fits(grid).all()]
        for begin in range(0, len(fitting), LISTED_AT_ONCE):
            if self.incumbent.over:
                return
            some = np.stack(fitting[begin : begin + LISTED_AT_ONCE])
            self.incumbent.offer(self._problem, some[: self.incumbent.room(LISTED_AT_ONCE)])
        self._listed = bool(fitting)
        self._all_known = self._listed and not self._layers.free

    def list_layers(self, max_grids: int) -> None:
        """Simulate every placement with all layers that stages can have, where they are no more;
        but for those whose computation alone takes as long as the best."""
        if self.incumbent.over or self._all_known or not self._layers.free:
            return
        num_choices = self._layers.num_choices
        grids = few_grids(self._problem, max_grids // num_choices) if num_choices else []
        for choice in self._layers.choices(self._elite[0][2]) if grids else ():
            placed = self._layers.problem(choice)
            known = self._listed and np.array_equal(choice, self._layers.start)
            if placed is None or known:
                continue
            for begin in range(0, len(grids), LISTED_AT_ONCE):
                if self.incumbent.over:
                    return
                some = np.stack(grids[begin : begin + LISTED_AT_ONCE])
                some = some[placed.compute_s(some) < self.incumbent.value]
                if len(some):
                    self.incumbent.offer(placed, some[: self.incumbent.room(LISTED_AT_ONCE)])

    def round(self) -> None:
        """Anneal from somewhere, simulate what comes of it, learn, and descend if it is good."""
        before = self.incumbent.value
        blocks, choice, heat = self._from()
        state = annealing.start(blocks, choice, self._model)
        best = annealing.start(blocks, choice, self._model)
        self._anneal(state, best, heat)
        value = self._try(best.blocks, best.layers)
        if not self.incumbent.over:
            self._learn(best.blocks, best.layers)
            self._fit()
            if value <= CLOSE * self.incumbent.value:
                self._descend(best.blocks, best.layers)
        self._num_rounds += 1
        better = self.incumbent.value < before
        self._num_idle_rounds = 0 if better else self._num_idle_rounds + 1

    def _starts(self) -> list[tuple[Grid, Grid]]:
        starts = aligned_starts(self._problem, self._sites, self._layers)
        listed = self._sites.blocks_of(np.arange(self._problem.ranks.size)[self._problem.ranks])
        blocks = [listed] if listed is not None else []
        by_speed = np.argsort(self._layers.compute_s[self._kinds, 0, self._layers.start[0]])
        shape = self._problem.pp, self._problem.dp
        blocks.append(by_speed[: shape[0] * shape[1]].reshape(shape).T)
        for each in blocks:
            for choice in (self._layers.start, balanced(self._layers, self._kinds[each])):
                fitting = None
                if choice is not None:
                    fitting = fit(self._layers, self._kinds, each, choice)
                if choice is not None and fitting is not None:
                    starts.append((fitting, choice))
        return starts

    def _shuffled(self) -> Grid:
        problem = self._problem
        order = self._random.permutation(len(self._sites.site))
        return order[: problem.dp * problem.pp].reshape(problem.dp, problem.pp)

    def _from(self) -> tuple[Grid, Grid, float]:
        """Blocks and layers to anneal from, and how hot."""
        turn = self._num_rounds % 3
        if turn == 1:
            _, _, choice = self._elite[0]
            return self._shuffled(), choice, HOT
        which = 0 if turn == 0 else int(self._random.integers(0, len(self._elite)))
        _, blocks, choice = self._elite[which]
        return blocks, choice, WARM

    def _anneal(self, state: State, best: State, heat: float) -> None:
        num_moves = MOVES_PER_BLOCK * state.blocks.size
        scale_s = guessed_s(best.rows, best.columns)
        parts = max(1, num_moves // MOVES_AT_ONCE)
        heats = scale_s * heat * (COLD / heat) ** np.linspace(0, 1, parts + 1)
        for hot, cold in zip(heats[:-1].tolist(), heats[1:].tolist(), strict=True):
            moves = -(-num_moves // parts)
            anneal(state, best, self._model, self._random, moves, (hot, cold))
            if self.incumbent.over:
                break

    def _try(self, blocks: Grid, choice: Grid) -> float:
        """Simulate a placement, if it is new and fits; its seconds, else inf."""
        key = blocks.tobytes() + choice.tobytes()
        if key in self._seen:
            return self._seen[key]
        placed = self._layers.problem(choice) if self._fits(blocks, choice) else None
        if placed is None:
            return float("inf")
        value = float(self.incumbent.offer(placed, self._sites.expanded(blocks)[None])[0])
        self._seen[key] = value
        self._elite.append((value, blocks.copy(), choice.copy()))
        self._elite.sort(key=lambda entry: entry[0])
        del self._elite[8:]
        return value

    def _learn(self, blocks: Grid, choice: Grid) -> None:
        """Simulate the parts of a placement alone."""
        placed = self._layers.problem(choice)
        if placed is None or not placed.objective.divisible:
            return
        devices = self._sites.expanded(blocks)
        rows, columns = self._parts_s(placed, devices)
        self._samples.pipelines += [
            (row, choice.copy(), each) for row, each in zip(blocks.copy(), rows.T, strict=True)
        ]
        self._samples.groups += [
            (stage, int(choice[stage]), blocks[:, stage].copy(), float(group_s))
            for stage, group_s in enumerate(columns)
        ]

    def _fit(self) -> None:
        if not self._samples.pipelines:
            return
        rows, choices, seconds = zip(*self._samples.pipelines[-MAX_SAMPLES:], strict=True)
        stages, numbers, members, group_s = zip(*self._samples.groups[-MAX_SAMPLES:], strict=True)
        self._model = fitted(
            self._model,
            (np.array(rows), np.array(choices), np.array(seconds)),
            (np.array(stages), np.array(numbers), np.array(members), np.array(group_s)),
        )

    def _descend(self, blocks: Grid, choice: Grid) -> None:
        """Of the moves that are guessed to be best, make those that the simulator finds better, as
        long as there are any."""
        state = annealing.start(blocks, choice, self._model)
        energy, improved = self._energy(state), True
        while improved and not self.incumbent.over:
            improved = False
            factors = self._factors(state)
            moves, values = neighbours(state, factors, self._model, self._random, NEIGHBOURS)
            _, first = np.unique(values, return_index=True)
            for move in moves[first[:TRIED]]:
                annealing.make(move, state)
                new = self._energy(state)
                if new < energy:
                    energy, improved = new, True
                else:
                    annealing.undo(move, state)
                if self.incumbent.over:
                    return
            state = annealing.start(state.blocks, state.layers, self._model)

    def _energy(self, state: State) -> float:
        """Simulated seconds, and a little of the mean of the parts, as in `annealing`. Where parts
        do not disturb each other they are composed, which is near enough to tell which placements
        are worth the simulation of the whole."""
        if not self._fits(state.blocks, state.layers):
            return float("inf")
        placed = self._layers.problem(state.layers)
        if placed is None:
            return float("inf")
        if not placed.objective.independent:
            return self._try(state.blocks, state.layers)
        devices = self._sites.expanded(state.blocks)
        composed_s = float(placed.objective.composed_s(devices[None])[0])
        if composed_s < WORTH * self.incumbent.value:
            self._try(state.blocks, state.layers)
        rows, columns = self._parts_s(placed, devices)
        return composed_s + SMOOTH * float(rows.mean(axis=1).sum() + columns.mean())

    def _factors(self, state: State) -> tuple[Floats, Floats]:
        """Simulated over guessed seconds of a placement's parts."""
        placed = self._layers.problem(state.layers)
        if placed is None or not placed.objective.divisible:
            return np.ones_like(state.rows), np.ones_like(state.columns)
        rows, columns = self._parts_s(placed, self._sites.expanded(state.blocks))
        return _ratio(rows[-len(state.rows) :], state.rows), _ratio(columns, state.columns)

    def _parts_s(self, placed: Problem, devices: Grid) -> tuple[Floats, Floats]:
        """Simulated seconds of pipelines alone, (2, dp), and of groups, (pp,)."""
        rows = placed.objective.pipelines_s(devices).T
        columns = [
            placed.objective.groups_s(stage, devices[:, stage][None])[0]
            for stage in range(devices.shape[1])
        ]
        return rows, np.array(columns)

    def _fits(self, blocks: Grid, choice: Grid) -> bool:
        stages = np.arange(blocks.shape[1])
        stage_s = self._layers.compute_s[self._kinds[blocks], stages, choice]
        return bool(np.isfinite(stage_s).all())


def _ratio(simulated: Floats, guessed: Floats) -> Floats:
    """1 where nothing is guessed: a group of one has nothing to move."""
    return np.divide(simulated, guessed, out=np.ones_like(guessed), where=guessed > 0)
