"""Simulated annealing of a placement by guessed seconds, compiled.

A move swaps two blocks, or one with an idle one; swaps the same stretch of two pipelines; reverses
a stretch of one; reverses a stretch of the order of pipelines, which is that of the members of
every group; swaps two stages everywhere; or gives a layer to another stage. Each undoes itself.

Half of the moves begin with what is slowest, since only that decides. What is not slowest counts a
little too (`SMOOTH`), else nothing would tell most moves apart.

Source: Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from netbench.placement.problem import Floats, Grid
from netbench.placement.surrogate import NUM_BOUNDS, Model, column_s, guess, row_s

SMOOTH = 0.05
"""Weight of the mean of pipelines and of groups, beside that of the slowest."""

SWAP, IDLE, STRETCH, REVERSE, ORDER, STAGES, LAYER = range(7)

CHANCES = (0.50, 0.10, 0.12, 0.08, 0.12, 0.04, 0.04)
"""Of each move, in the order above; what a problem does not have is a SWAP."""


class State(NamedTuple):
    """Where an annealing is. blocks: (dp, pp). idle: (num_idle,), blocks. layers: (pp,), choices of
    layers. rows: (num_phases, dp) and columns: (pp,), guessed seconds."""

    blocks: Grid
    idle: Grid
    layers: Grid
    rows: Floats
    columns: Floats


def start(blocks: Grid, layers: Grid, model: Model) -> State:
    """The state of these blocks, (dp, pp), and choices of layers, (pp,)."""
    dp, pp = blocks.shape
    state = State(
        blocks=np.ascontiguousarray(blocks, np.int64).copy(),
        idle=np.setdiff1d(np.arange(len(model.where)), blocks),
        layers=np.asarray(layers, np.int64).copy(),
        rows=np.zeros((len(model.phases), dp)),
        columns=np.zeros(pp),
    )
    guess(state.blocks, state.layers, model, state.rows, state.columns)
    return state


@njit(cache=True, error_model="numpy")
def guessed_s(rows: Floats, columns: Floats) -> float:
    """Seconds of an iteration: of the slowest pipeline in each phase, and of the slowest group."""
    return _guessed(rows, columns)[0]


@njit(cache=True, error_model="numpy")
def _guessed(rows: Floats, columns: Floats) -> tuple[float, float]:
    """Seconds of an iteration, and with a little of the mean."""
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
    """`num_moves` moves, cooling geometrically; `state` is left where it is, `best` (blocks and
    layers) at the best guess that it or the state has had."""
    blocks = state.blocks
    dp, pp = blocks.shape
    old_rows, old_columns = state.rows.copy(), state.columns.copy()
    bounds = np.zeros(NUM_BOUNDS)
    energy, least_s = _guessed(state.rows, state.columns)[1], guessed_s(best.rows, best.columns)
    cooling = (temperatures_s[1] / temperatures_s[0]) ** (1.0 / max(1, num_moves))
    temperature_s = temperatures_s[0]
    limits = np.cumsum(np.array(CHANCES))
    for _ in range(num_moves):
        temperature_s *= cooling
        kind = np.searchsorted(limits, random.random() * limits[-1], side="right")
        row, column = _first(state, random)
        other, stage = int(random.integers(0, dp)), int(random.integers(0, pp))
        kind = _possible(kind, state, model)
        if kind == IDLE:
            other = int(random.integers(0, len(state.idle)))
        low, high = min(column, stage), max(column, stage)
        if not _changes(kind, row, column, other, stage, state, model):
            continue
        _move(kind, row, column, other, stage, state)
        old_rows[:], old_columns[:] = state.rows, state.columns
        if model.keys[0] > 0:
            guess(blocks, state.layers, model, state.rows, state.columns)
        else:
            _update(kind, row, other, low, high, state, model, bounds)
        new_s, new = _guessed(state.rows, state.columns)
        if new <= energy or random.random() < np.exp((energy - new) / temperature_s):
            energy = new
            if new_s < least_s:
                least_s = new_s
                best.blocks[:], best.layers[:], best.idle[:] = blocks, state.layers, state.idle
                best.rows[:], best.columns[:] = state.rows, state.columns
        else:
            _move_back(kind, row, column, other, stage, state)
            state.rows[:], state.columns[:] = old_rows, old_columns


@njit(cache=True, error_model="numpy")
def _first(state: State, random: np.random.Generator) -> tuple[int, int]:
    """A pipeline and a stage: half of the time those that are slowest."""
    dp, pp = state.blocks.shape
    row, column = int(random.integers(0, dp)), int(random.integers(0, pp))
    draw = random.random()
    if draw < 0.35:
        row = int(np.argmax(state.rows[int(random.integers(0, len(state.rows)))]))
    elif draw < 0.5:
        column = int(np.argmax(state.columns))
    return row, column


@njit(cache=True, error_model="numpy")
def _possible(kind: int, state: State, model: Model) -> int:
    if (kind == IDLE and len(state.idle) == 0) or (kind == LAYER and model.compute_s.shape[2] == 1):
        return SWAP
    return kind


@njit(cache=True, error_model="numpy")
def _alike(a: int, b: int, model: Model) -> bool:
    alone = model.keys[0] == 0
    same_site = model.where[a, 1] == model.where[b, 1]
    return bool(same_site and (alone or model.where[a, 0] == model.where[b, 0]))


@njit(cache=True, error_model="numpy")
def _changes(
    kind: int, row: int, column: int, other: int, stage: int, state: State, model: Model
) -> bool:
    """Whether a move can be made and changes anything."""
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
def _move(kind: int, row: int, column: int, other: int, stage: int, state: State) -> None:
    """Make a move."""
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
def _move_back(kind: int, row: int, column: int, other: int, stage: int, state: State) -> None:
    """Undo a move."""
    if kind == LAYER:
        _move(kind, row, stage, other, column, state)
    else:
        _move(kind, row, column, other, stage, state)


@njit(cache=True, error_model="numpy")
def _update(
    kind: int,
    row: int,
    other: int,
    low: int,
    high: int,
    state: State,
    model: Model,
    bounds: Floats,
) -> None:
    """Guess again what a move has changed, where no two flows share anything."""
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
    for column in range(low, high + 1):
        if not ends or column in (low, high):
            size = model.gradient_bytes[column, state.layers[column]]
            state.columns[column] = column_s(state.blocks, column, size, model, bounds)


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
    """Moves that `anneal` could make, (num_moves, 5), and the seconds guessed after each.

    factors: (num_phases, dp) and (pp,), by which each guess of `state` is wrong, which is taken to
    hold after a move, too. Moves that change nothing have inf.
    """
    moves, values = np.zeros((num_moves, 5), np.int64), np.full(num_moves, np.inf)
    dp, pp = state.blocks.shape
    old_rows, old_columns = state.rows.copy(), state.columns.copy()
    bounds = np.zeros(NUM_BOUNDS)
    limits = np.cumsum(np.array(CHANCES))
    for index in range(num_moves):
        # As in `anneal`, which takes a tenth longer where this is a function.
        kind = np.searchsorted(limits, random.random() * limits[-1], side="right")
        row, column = _first(state, random)
        other, stage = int(random.integers(0, dp)), int(random.integers(0, pp))
        kind = _possible(kind, state, model)
        if kind == IDLE:
            other = int(random.integers(0, len(state.idle)))
        if not _changes(kind, row, column, other, stage, state, model):
            continue
        _move(kind, row, column, other, stage, state)
        if model.keys[0] > 0:
            guess(state.blocks, state.layers, model, state.rows, state.columns)
        else:
            low, high = min(column, stage), max(column, stage)
            _update(kind, row, other, low, high, state, model, bounds)
        first, last = (min(row, other), max(row, other)) if kind == ORDER else (0, -1)
        values[index] = _corrected_s(state, factors, first, last)
        moves[index] = kind, row, column, other, stage
        undo(moves[index], state)
        state.rows[:], state.columns[:] = old_rows, old_columns
    return moves, values


@njit(cache=True, error_model="numpy")
def _corrected_s(state: State, factors: tuple[Floats, Floats], first: int, last: int) -> float:
    """Guessed seconds times `factors`, which go with pipelines first..last where their order is
    reversed."""
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


@njit(cache=True, error_model="numpy")
def make(move: Grid, state: State) -> None:
    """Make a move of `neighbours`; the guesses of `state` are left as they were."""
    _move(move[0], move[1], move[2], move[3], move[4], state)


@njit(cache=True, error_model="numpy")
def undo(move: Grid, state: State) -> None:
    """Undo it."""
    _move_back(move[0], move[1], move[2], move[3], move[4], state)
