"""Compiled simulated annealing of a placement by its estimated seconds.

A move swaps two blocks, or a block and an idle one; swaps the same stretch of two pipelines;
reverses a stretch of one; reverses a stretch of the order of pipelines, which is the order of the
members of every group; swaps two stages everywhere; or gives a layer to another stage. Every move
can be undone.

Half of the moves start at the slowest pipeline or group, since it alone decides the time. The means
have a small weight too (`SMOOTH`); otherwise most moves would change nothing.

Source: Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from netbench.placement.problem import Floats, Grid
from netbench.placement.search.surrogate import NUM_BOUNDS, Model, column_s, estimate, row_s

SMOOTH = 0.05
"""Weight of the mean over pipelines and over groups, relative to the slowest."""

SWAP, IDLE, STRETCH, REVERSE, ORDER, STAGES, LAYER = range(7)

CHANCES = (0.50, 0.10, 0.12, 0.08, 0.12, 0.04, 0.04)
"""Probability of each move, in the order above; an impossible move becomes a SWAP."""


Move = tuple[int, int, int, int, int]
"""Kind, pipeline, stage, other pipeline (or idle block) and other stage."""


class State(NamedTuple):
    """Current state of an annealing.

    blocks: (dp, pp). idle: (num_idle,), blocks. layers: (pp,), of the stages. rows: (num_phases,
    dp), estimated seconds of pipelines; columns: (pp,), of groups.
    """

    blocks: Grid
    idle: Grid
    layers: Grid
    rows: Floats
    columns: Floats


def start(blocks: Grid, layers: Grid, model: Model) -> State:
    """Return the state of these blocks, (dp, pp), and layers of the stages, (pp,)."""
    dp, pp = blocks.shape
    state = State(
        blocks=np.ascontiguousarray(blocks, np.int64).copy(),
        idle=np.setdiff1d(np.arange(len(model.where)), blocks),
        layers=np.asarray(layers, np.int64).copy(),
        rows=np.zeros((len(model.phases), dp)),
        columns=np.zeros(pp),
    )
    estimate(state.blocks, state.layers, model, state.rows, state.columns)
    return state


@njit(cache=True, error_model="numpy")
def estimated_s(rows: Floats, columns: Floats) -> float:
    """Return the seconds of an iteration: the slowest pipeline of each phase, and group."""
    return _energy(rows, columns)[0]


@njit(cache=True, error_model="numpy")
def _energy(rows: Floats, columns: Floats) -> tuple[float, float]:
    """Return the seconds of an iteration, and those plus the weighted means."""
    total_s = mean_s = 0.0
    for phase in range(rows.shape[0]):
        slowest_s = sum_s = 0.0
        for row in range(rows.shape[1]):
            slowest_s = max(slowest_s, rows[phase, row])
            sum_s += rows[phase, row]
        total_s += slowest_s
        mean_s += sum_s / rows.shape[1]
    slowest_s = sum_s = 0.0
    for column in range(len(columns)):
        slowest_s = max(slowest_s, columns[column])
        sum_s += columns[column]
    total_s += slowest_s
    return total_s, total_s + SMOOTH * (mean_s + sum_s / len(columns))


@njit(cache=True, error_model="numpy")
def anneal(
    state: State,
    best: State,
    model: Model,
    random: np.random.Generator,
    num_moves: int,
    temperatures_s: tuple[float, float],
) -> None:
    """Make `num_moves` moves while cooling geometrically from the first temperature to the second.

    Changes `state`; leaves in `best` the state of the least estimated time so far.
    """
    blocks = state.blocks
    old_rows, old_columns = state.rows.copy(), state.columns.copy()
    bounds = np.zeros(NUM_BOUNDS)
    energy, least_s = _energy(state.rows, state.columns)[1], estimated_s(best.rows, best.columns)
    cooling = (temperatures_s[1] / temperatures_s[0]) ** (1.0 / max(1, num_moves))
    temperature_s = temperatures_s[0]
    limits = np.cumsum(np.array(CHANCES))
    for _ in range(num_moves):
        temperature_s *= cooling
        move = _draw(limits, state, model, random)
        if not _changes(move, state, model):
            continue
        make(move, state)
        old_rows[:], old_columns[:] = state.rows, state.columns
        if model.keys[0] > 0:
            estimate(blocks, state.layers, model, state.rows, state.columns)
        else:
            _update(move, state, model, bounds)
        new_s, new = _energy(state.rows, state.columns)
        if new <= energy or random.random() < np.exp((energy - new) / temperature_s):
            energy = new
            if new_s < least_s:
                least_s = new_s
                best.blocks[:], best.layers[:], best.idle[:] = blocks, state.layers, state.idle
                best.rows[:], best.columns[:] = state.rows, state.columns
        else:
            undo(move, state)
            state.rows[:], state.columns[:] = old_rows, old_columns


@njit(cache=True, error_model="numpy")
def _draw(limits: Floats, state: State, model: Model, random: np.random.Generator) -> Move:
    """Draw a move; half of the time it starts at the slowest pipeline or group."""
    kind = int(np.searchsorted(limits, random.random() * limits[-1], side="right"))
    dp, pp = state.blocks.shape
    row, column = int(random.integers(0, dp)), int(random.integers(0, pp))
    draw = random.random()
    if draw < 0.35:
        row = int(np.argmax(state.rows[int(random.integers(0, len(state.rows)))]))
    elif draw < 0.5:
        column = int(np.argmax(state.columns))
    other, stage = int(random.integers(0, dp)), int(random.integers(0, pp))
    if (kind == IDLE and len(state.idle) == 0) or (kind == LAYER and model.compute_s.shape[2] == 1):
        kind = SWAP
    if kind == IDLE:
        other = int(random.integers(0, len(state.idle)))
    return kind, row, column, other, stage


@njit(cache=True, error_model="numpy")
def _alike(a: int, b: int, model: Model) -> bool:
    alone = model.keys[0] == 0
    same_site = model.where[a, 1] == model.where[b, 1]
    return bool(same_site and (alone or model.where[a, 0] == model.where[b, 0]))


@njit(cache=True, error_model="numpy")
def _changes(move: Move, state: State, model: Model) -> bool:
    """Return whether a move is possible and changes anything."""
    kind, row, column, other, stage = move
    blocks = state.blocks
    if kind == SWAP:
        return not _alike(blocks[row, column], blocks[other, stage], model)
    if kind == IDLE:
        return not _alike(blocks[row, column], state.idle[other], model)
    if kind in (STRETCH, ORDER):
        return row != other
    if kind == LAYER:
        most = model.compute_s.shape[2] - 1
        return column != stage and state.layers[column] > 1 and state.layers[stage] < most
    return column != stage


@njit(cache=True, error_model="numpy")
def make(move: Move, state: State) -> None:
    """Make a move; the estimates of `state` are not updated."""
    kind, row, column, other, stage = move
    blocks = state.blocks
    low, high = min(column, stage), max(column, stage)
    if kind == SWAP:
        blocks[row, column], blocks[other, stage] = blocks[other, stage], blocks[row, column]
    elif kind == IDLE:
        blocks[row, column], state.idle[other] = state.idle[other], blocks[row, column]
    elif kind == STRETCH:
        for index in range(low, high + 1):
            blocks[row, index], blocks[other, index] = blocks[other, index], blocks[row, index]
    elif kind == REVERSE:
        while low < high:
            blocks[row, low], blocks[row, high] = blocks[row, high], blocks[row, low]
            low, high = low + 1, high - 1
    elif kind == ORDER:
        first, last = min(row, other), max(row, other)
        while first < last:
            for index in range(blocks.shape[1]):
                here = blocks[first, index]
                blocks[first, index], blocks[last, index] = blocks[last, index], here
            first, last = first + 1, last - 1
    elif kind == STAGES:
        for index in range(len(blocks)):
            here = blocks[index, column]
            blocks[index, column], blocks[index, stage] = blocks[index, stage], here
    else:
        state.layers[column] -= 1
        state.layers[stage] += 1


@njit(cache=True, error_model="numpy")
def undo(move: Move, state: State) -> None:
    """Undo a move."""
    kind, row, column, other, stage = move
    make((kind, row, stage, other, column) if kind == LAYER else move, state)


@njit(cache=True, error_model="numpy")
def _update(move: Move, state: State, model: Model, bounds: Floats) -> None:
    """Re-estimate the parts that a move has changed, where flows share nothing."""
    kind, row, column, other, stage = move
    low, high = min(column, stage), max(column, stage)
    if kind == ORDER:
        first, last = min(row, other), max(row, other)
        for phase in range(len(state.rows)):
            state.rows[phase, first : last + 1] = state.rows[phase, first : last + 1][::-1].copy()
        low, high = 0, len(state.columns) - 1
    elif kind in (STAGES, LAYER):
        for index in range(len(state.blocks)):
            _update_row(index, state, model, bounds)
    else:
        _update_row(row, state, model, bounds)
        if kind in (SWAP, STRETCH):
            _update_row(other, state, model, bounds)
    ends = kind in (SWAP, STAGES, LAYER, IDLE)
    for index in range(low, high + 1):
        if not ends or index in (low, high):
            size = model.gradient_bytes[index, state.layers[index]]
            state.columns[index] = column_s(state.blocks, index, size, model, bounds)


@njit(cache=True, error_model="numpy")
def _update_row(row: int, state: State, model: Model, bounds: Floats) -> None:
    for index in range(len(model.phases)):
        phase = model.phases[index]
        state.rows[index, row] = row_s(state.blocks, row, state.layers, phase, model, bounds)


@njit(cache=True, error_model="numpy")
def neighbours(
    state: State,
    factors: tuple[Floats, Floats],
    model: Model,
    random: np.random.Generator,
    num_moves: int,
) -> tuple[Grid, Floats]:
    """Return moves that `anneal` could make, (num_moves, 5), and the seconds estimated after each.

    factors: (num_phases, dp) and (pp,), simulated over estimated seconds of the parts of `state`;
    assumed to hold after a move too. A move that changes nothing has inf seconds.
    """
    moves, values = np.zeros((num_moves, 5), np.int64), np.full(num_moves, np.inf)
    old_rows, old_columns = state.rows.copy(), state.columns.copy()
    bounds = np.zeros(NUM_BOUNDS)
    limits = np.cumsum(np.array(CHANCES))
    for index in range(num_moves):
        move = _draw(limits, state, model, random)
        if not _changes(move, state, model):
            continue
        make(move, state)
        if model.keys[0] > 0:
            estimate(state.blocks, state.layers, model, state.rows, state.columns)
        else:
            _update(move, state, model, bounds)
        kind, row, _, other, _ = move
        first, last = (min(row, other), max(row, other)) if kind == ORDER else (0, -1)
        values[index] = _corrected_s(state, factors, first, last)
        moves[index] = move
        undo(move, state)
        state.rows[:], state.columns[:] = old_rows, old_columns
    return moves, values


@njit(cache=True, error_model="numpy")
def _corrected_s(state: State, factors: tuple[Floats, Floats], first: int, last: int) -> float:
    """Return the estimated seconds times `factors`, whose entries first..last are reversed with
    the order of pipelines."""
    row_factors, column_factors = factors
    num_phases, dp = state.rows.shape
    total_s = 0.0
    for phase in range(num_phases):
        slowest_s = 0.0
        for place in range(dp):
            was = first + last - place if first <= place <= last else place
            slowest_s = max(slowest_s, state.rows[phase, place] * row_factors[phase, was])
        total_s += slowest_s
    slowest_s = 0.0
    for place in range(len(state.columns)):
        slowest_s = max(slowest_s, state.columns[place] * column_factors[place])
    return total_s + slowest_s
