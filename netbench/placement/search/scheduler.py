"""netbench's scheduler: minimise the simulated time of an iteration.

Estimates guide the search and the simulator decides. The estimate (`surrogate`) is fitted to
pipelines and groups that were simulated. Each round anneals (`annealing`) to the placement with the
least estimated time, simulates it and its parts, and fits the estimate to them again, which
corrects it where it was too optimistic. If the placement is close to the best so far, a descent
follows in which the simulator confirms every step. Rounds start in turn from the best placement, a
random one, and one of the best few, until the budget ends or many rounds bring no improvement.

The first placements are the greedy ones of `aligned`, the devices as listed, and the best of these
with its nodes laid as rectangles (`tiled`), so the answer is never slower than any of them. Where
few placements exist, all are simulated: very few before the first round; a larger number, also with
other layers of stages, after the last.
"""

import numpy as np

from netbench.placement.problem import Answer, Budget, Floats, Grid, Problem
from netbench.placement.search import annealing
from netbench.placement.search.aligned import aligned_starts, fit, unfit
from netbench.placement.search.annealing import SMOOTH, State, anneal, estimated_s, neighbours
from netbench.placement.search.exhaustive import MAX_GRIDS, few_grids
from netbench.placement.search.incumbent import Incumbent
from netbench.placement.search.layers import Layers, balanced, find_layers
from netbench.placement.search.sites import Sites, find_sites
from netbench.placement.search.surrogate import Model, fitted, make_model
from netbench.placement.search.tiled import tilings

MOVES_PER_BLOCK = 1000
"""Length of one annealing: 64,000 moves for 64 devices, a quarter of a second."""

MOVES_AT_ONCE = 50_000
"""Moves between two checks of the budget."""

HOT, WARM, COLD = 0.05, 0.006, 0.0001
"""Temperatures as fractions of the estimated time: at the start from a random placement, at the
start from a good one, and at the end."""

NEIGHBOURS, TRIED = 4000, 32
"""Moves that are estimated in a step of a descent, and the best of them that are simulated."""

WORTH = 1.002
"""Placements whose composed time is below this multiple of the best are simulated as a whole."""

CLOSE = 1.03
"""Placements within this multiple of the best are worth a descent."""

PATIENCE, LONG_PATIENCE = 20, 100
"""Rounds without an improvement after which a search ends: by default, and with a time budget."""

MAX_LISTED, LISTED_AT_ONCE = 2000, 64
"""Largest number of placements that are all simulated before the first round, which takes seconds;
and the number between two checks of the budget."""

MAX_SAMPLES = 4000
"""Number of the latest pipelines, and of the latest groups, that the estimate is fitted to."""


def netbench(problem: Problem, seed: int, budget: Budget) -> Answer:
    """Return the fastest placement found, and layers of the stages where they are free.

    Improvements have simulated seconds. Raises PlanError where nothing fits.
    """
    search = _PlacementSearch(problem, seed, budget)
    search.begin()
    search.list_all(MAX_LISTED)
    while not search.over:
        search.round()
    search.list_all(MAX_GRIDS)
    search.list_layers(MAX_GRIDS)
    return search.incumbent.answer()


class _PlacementSearch:
    def __init__(self, problem: Problem, seed: int, budget: Budget) -> None:
        self.incumbent = Incumbent(budget)
        self._problem = problem
        self._random = np.random.default_rng(seed)
        self._sites: Sites = find_sites(problem)
        self._layers: Layers = find_layers(problem)
        self._kinds = self._sites.kind[self._sites.site]
        self._model: Model = make_model(
            problem, self._sites, self._layers.compute_s, self._layers.gradient_bytes
        )
        # Simulated parts to fit the estimate to, as in `surrogate.fitted`.
        self._pipelines: list[tuple[Grid, Grid, Floats]] = []
        self._groups: list[tuple[int, int, Grid, float]] = []
        self._elite: list[tuple[float, Grid, Grid]] = []  # seconds, blocks, layers
        self._seen: dict[bytes, float] = {}
        self._num_rounds = self._num_idle_rounds = 0
        self._listed = self._all_known = False
        self._patience = LONG_PATIENCE if budget.seconds < np.inf else PATIENCE

    @property
    def over(self) -> bool:
        return self.incumbent.over or self._all_known or self._num_idle_rounds >= self._patience

    def begin(self) -> None:
        """Simulate the starting placements and the first samples."""
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
        """Simulate every placement with the given layers, if there are at most `max_grids`."""
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
        """Simulate every placement with all possible layers, if there are at most `max_grids`; skip
        those whose compute alone takes as long as the best."""
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
        """Anneal, simulate the result, refit the estimate, and descend if the result is good."""
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
        """Return blocks and layers to anneal from, and the first temperature."""
        turn = self._num_rounds % 3
        if turn == 1:
            _, _, choice = self._elite[0]
            return self._shuffled(), choice, HOT
        which = 0 if turn == 0 else int(self._random.integers(0, len(self._elite)))
        _, blocks, choice = self._elite[which]
        return blocks, choice, WARM

    def _anneal(self, state: State, best: State, heat: float) -> None:
        num_moves = MOVES_PER_BLOCK * state.blocks.size
        scale_s = estimated_s(best.rows, best.columns)
        parts = max(1, num_moves // MOVES_AT_ONCE)
        heats = scale_s * heat * (COLD / heat) ** np.linspace(0, 1, parts + 1)
        for hot, cold in zip(heats[:-1].tolist(), heats[1:].tolist(), strict=True):
            moves = -(-num_moves // parts)
            anneal(state, best, self._model, self._random, moves, (hot, cold))
            if self.incumbent.over:
                break

    def _try(self, blocks: Grid, choice: Grid) -> float:
        """Simulate a placement unless its time is known; return its seconds, inf if unfit."""
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
        """Add the parts of a placement, each simulated alone, to the samples."""
        placed = self._layers.problem(choice)
        if placed is None or not placed.objective.divisible:
            return
        devices = self._sites.expanded(blocks)
        rows, columns = self._parts_s(placed, devices)
        self._pipelines += [
            (row, choice.copy(), each) for row, each in zip(blocks.copy(), rows.T, strict=True)
        ]
        self._groups += [
            (stage, int(choice[stage]), blocks[:, stage].copy(), float(group_s))
            for stage, group_s in enumerate(columns)
        ]

    def _fit(self) -> None:
        if not self._pipelines:
            return
        rows, choices, seconds = zip(*self._pipelines[-MAX_SAMPLES:], strict=True)
        stages, numbers, members, group_s = zip(*self._groups[-MAX_SAMPLES:], strict=True)
        self._model = fitted(
            self._model,
            (np.array(rows), np.array(choices), np.array(seconds)),
            (np.array(stages), np.array(numbers), np.array(members), np.array(group_s)),
        )

    def _descend(self, blocks: Grid, choice: Grid) -> None:
        """Make those of the moves with the best estimates that the simulator confirms, as long as
        there are any."""
        state = annealing.start(blocks, choice, self._model)
        energy, improved = self._energy(state), True
        while improved and not self.incumbent.over:
            improved = False
            factors = self._factors(state)
            moves, values = neighbours(state, factors, self._model, self._random, NEIGHBOURS)
            _, first = np.unique(values, return_index=True)
            for move in map(tuple, moves[first[:TRIED]].tolist()):
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
        """Return simulated seconds plus the weighted means of the parts, as in `annealing`.

        Where parts are independent the time is composed of them, which is accurate enough to
        decide which placements are worth simulating as a whole.
        """
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
        """Return simulated over estimated seconds of a placement's parts."""
        placed = self._layers.problem(state.layers)
        if placed is None or not placed.objective.divisible:
            return np.ones_like(state.rows), np.ones_like(state.columns)
        rows, columns = self._parts_s(placed, self._sites.expanded(state.blocks))
        return _ratio(rows[-len(state.rows) :], state.rows), _ratio(columns, state.columns)

    def _parts_s(self, placed: Problem, devices: Grid) -> tuple[Floats, Floats]:
        """Return simulated seconds of pipelines alone, (2, dp), and of groups, (pp,)."""
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


def _ratio(simulated: Floats, estimated: Floats) -> Floats:
    """Return the ratio; 1 where 0 s are estimated, as for a group of one."""
    return np.divide(simulated, estimated, out=np.ones_like(estimated), where=estimated > 0)
