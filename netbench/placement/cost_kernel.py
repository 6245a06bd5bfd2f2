"""Annealing of stage groups under DT-FM's cost, compiled: a swap is judged by what it changes.

A class is units that the cost cannot tell apart. The state is the class at every slot: slot
s < pp * dp is of group s // dp, those above are idle. With it goes an order of the groups, so a
swap changes two groups' DP and the up to four hops beside them, and no path is searched.

A hop is the bottleneck matching of two groups' classes, as a flow: the threshold starts at what
every unit needs at least, and rises to the next link that leads out of what is reached, until the
flow takes all. Hops are integers, indices into `levels_s`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from netbench.placement.problem import Floats, Grid

REVERSALS = 0.1
"""Share of moves that reverse a part of the path; the others swap two units."""


NONE, START = -1, -2
"""Where the search for a matching did not come, and where it began."""


class Tables(NamedTuple):
    """Of classes: group_s, (num_classes, num_classes), two members of a group; level, likewise,
    index into levels_s of a hop between two units."""

    group_s: Floats
    level: Grid
    levels_s: Floats


class Scratch(NamedTuple):
    """What a matching works on: classes and units of both groups, the flow between, and the search.

    seen: (num_classes,), all -1 between matchings.
    """

    seen: Grid
    rows: Grid
    columns: Grid
    row_units: Grid
    column_units: Grid
    flow: Grid
    from_row: Grid
    from_column: Grid
    queue: Grid


def new_scratch(num_classes: int, dp: int) -> Scratch:
    size = min(num_classes, dp)
    rows, columns, row_units, column_units, from_row, from_column, queue = np.zeros(
        (7, size), np.int64
    )
    return Scratch(
        seen=np.full(num_classes, -1),
        rows=rows,
        columns=columns,
        row_units=row_units,
        column_units=column_units,
        flow=np.zeros((size, size), np.int64),
        from_row=from_row,
        from_column=from_column,
        queue=queue,
    )


@njit(cache=True)
def same_class(group_s: Floats, hop_s: Floats) -> Grid:
    """The class of every unit, (num_units,), counted from 0 in the order of their first units."""
    num_units = len(group_s)
    classes = np.empty(num_units, np.int64)
    firsts = np.empty(num_units, np.int64)
    num_classes = 0
    for unit in range(num_units):
        classes[unit] = num_classes
        for known in range(num_classes):
            first = firsts[known]
            alike = True
            for other in range(num_units):
                if other != unit and other != first:
                    alike = (
                        group_s[unit, other] == group_s[first, other]
                        and hop_s[unit, other] == hop_s[first, other]
                    )
                    if not alike:
                        break
            if alike:
                classes[unit] = known
                break
        if classes[unit] == num_classes:
            firsts[num_classes] = unit
            num_classes += 1
    return classes


class State(NamedTuple):
    """slots: (num_units,), classes. order: (pp,), groups along the path.
    loads_s: (pp * dp,), of every slot towards the rest of its group; group_s: (pp,), the largest.
    hops: (pp - 1,), levels between places; tried: likewise, those of a move, -1 = unchanged.
    best_slots, best_order: of the least cost met, best_s, (1,).
    """

    slots: Grid
    order: Grid
    loads_s: Floats
    group_s: Floats
    hops: Grid
    tried: Grid
    best_slots: Grid
    best_order: Grid
    best_s: Floats


def new_state(slots: Grid, pp: int, dp: int) -> State:
    """The groups of `slots` along the path in their order; `settle` fills in the rest."""
    return State(
        slots.copy(),
        np.arange(pp),
        np.empty(pp * dp),
        np.empty(pp),
        np.empty(pp - 1, np.int64),
        np.full(pp - 1, -1),
        slots.copy(),
        np.arange(pp),
        np.array([np.inf]),
    )


@njit(cache=True)
def anneal(
    tables: Tables,
    work: Scratch,
    state: State,
    temperature_s: float,
    cooling: float,
    num_moves: int,
    rng: np.random.Generator,
) -> None:
    """Change a settled state by moves, and keep the best. cooling: factor of the temperature."""
    pp, num_slots, num_taken = len(state.order), len(state.slots), len(state.loads_s)
    cost_s = _cost(tables.levels_s, state.hops, state.group_s)
    for _ in range(num_moves):
        temperature_s *= cooling
        allowed_s = cost_s - temperature_s * math.log(1 - rng.random())
        if pp > 2 and rng.random() < REVERSALS:
            one, other = int(rng.random() * pp), int(rng.random() * pp)
            first, last = min(one, other), max(one, other)
            moved = _reverse(tables, work, state, first, last, allowed_s)
        else:
            here, there = int(rng.random() * num_taken), int(rng.random() * num_slots)
            moved = _swap(tables, work, state, here, there, allowed_s)
        if moved:
            cost_s = _cost(tables.levels_s, state.hops, state.group_s)
            if cost_s < state.best_s[0]:
                state.best_s[0] = cost_s
                state.best_slots[:] = state.slots
                state.best_order[:] = state.order


@njit(cache=True)
def settle(tables: Tables, work: Scratch, state: State) -> float:
    """Fill in what follows from slots and order, as the best so far; the cost, seconds."""
    order, hops, dp = state.order, state.hops, len(state.loads_s) // len(state.order)
    for group in order:
        _load(tables.group_s, state.slots, state.loads_s, state.group_s, dp, group)
    for place in range(len(hops)):
        hops[place] = hop(tables.level, work, state.slots, dp, order[place], order[place + 1])
    state.best_s[0] = _cost(tables.levels_s, hops, state.group_s)
    state.best_slots[:] = state.slots
    state.best_order[:] = order
    return float(state.best_s[0])


@njit(cache=True)
def all_hops(tables: Tables, work: Scratch, state: State) -> Grid:
    """Between every two groups: (pp, pp), levels."""
    pp, dp = len(state.order), len(state.loads_s) // len(state.order)
    hops = np.zeros((pp, pp), np.int64)
    for one in range(pp):
        for other in range(one):
            hops[one, other] = hop(tables.level, work, state.slots, dp, one, other)
            hops[other, one] = hops[one, other]
    return hops


@njit(cache=True)
def _cost(levels_s: Floats, hops: Grid, group_s: Floats) -> float:
    path_s = 0.0
    for level in hops:
        path_s += levels_s[level]
    return float(group_s.max() + 2 * path_s)


@njit(cache=True)
def _load(
    group_s: Floats, slots: Grid, loads_s: Floats, worst_s: Floats, dp: int, group: int
) -> None:
    """Fill in loads and their largest of one group."""
    first = group * dp
    worst_s[group] = 0.0
    for slot in range(first, first + dp):
        load_s = -group_s[slots[slot], slots[slot]]
        for other in range(first, first + dp):
            load_s += group_s[slots[slot], slots[other]]
        loads_s[slot] = load_s
        worst_s[group] = max(worst_s[group], load_s)


@njit(cache=True)
def _load_after(
    group_s: Floats, slots: Grid, loads_s: Floats, dp: int, here: int, joining: int
) -> float:
    """The largest load of the group of slot `here` when class `joining` takes that slot."""
    first = here // dp * dp
    leaving = slots[here]
    new_s = worst_s = 0.0
    for slot in range(first, first + dp):
        if slot != here:
            to_new_s = group_s[slots[slot], joining]
            new_s += to_new_s
            worst_s = max(worst_s, loads_s[slot] + to_new_s - group_s[slots[slot], leaving])
    return max(worst_s, new_s)


@njit(cache=True)
def _swap(
    tables: Tables, work: Scratch, state: State, here: int, there: int, allowed_s: float
) -> bool:
    """Swap the units at two slots, the second maybe idle, unless it costs more than is allowed."""
    slots, order, hops, tried = state.slots, state.order, state.hops, state.tried
    pp, dp = len(order), len(state.loads_s) // len(order)
    one, other = here // dp, min(there // dp, pp)
    if one == other or slots[here] == slots[there]:
        return False
    worst_s = _load_after(tables.group_s, slots, state.loads_s, dp, here, slots[there])
    if other < pp:
        there_s = _load_after(tables.group_s, slots, state.loads_s, dp, there, slots[here])
        worst_s = max(worst_s, there_s)
    for group in range(pp):
        if group != one and group != other:
            worst_s = max(worst_s, state.group_s[group])
    bound_s = worst_s
    for place in range(pp - 1):
        touched = _touches(order, place, one, other)
        bound_s += 2 * tables.levels_s[0 if touched else hops[place]]
    slots[here], slots[there] = slots[there], slots[here]
    for place in range(pp - 1):
        if bound_s > allowed_s:
            break
        if _touches(order, place, one, other):
            tried[place] = hop(tables.level, work, slots, dp, order[place], order[place + 1])
            bound_s += 2 * (tables.levels_s[tried[place]] - tables.levels_s[0])
    moved = bound_s <= allowed_s
    for place in range(pp - 1):
        if moved and tried[place] >= 0:
            hops[place] = tried[place]
        tried[place] = -1
    if not moved:
        slots[here], slots[there] = slots[there], slots[here]
        return False
    for group in (one, other):
        if group < pp:
            _load(tables.group_s, slots, state.loads_s, state.group_s, dp, group)
    return True


@njit(cache=True)
def _touches(order: Grid, place: int, one: int, other: int) -> bool:
    """Whether the hop behind a place is of one of two groups."""
    return order[place] in (one, other) or order[place + 1] in (one, other)


@njit(cache=True)
def _reverse(
    tables: Tables, work: Scratch, state: State, first: int, last: int, allowed_s: float
) -> bool:
    """Reverse the path between two places, unless it costs more than is allowed."""
    order, hops, slots = state.order, state.hops, state.slots
    dp = len(state.loads_s) // len(order)
    cost_s = _cost(tables.levels_s, hops, state.group_s)
    before = after = -1
    if first > 0:
        before = hop(tables.level, work, slots, dp, order[first - 1], order[last])
        cost_s += 2 * (tables.levels_s[before] - tables.levels_s[hops[first - 1]])
    if last < len(hops):
        after = hop(tables.level, work, slots, dp, order[first], order[last + 1])
        cost_s += 2 * (tables.levels_s[after] - tables.levels_s[hops[last]])
    if cost_s > allowed_s:
        return False
    if before >= 0:
        hops[first - 1] = before
    if after >= 0:
        hops[last] = after
    order[first : last + 1] = order[first : last + 1][::-1].copy()
    hops[first:last] = hops[first:last][::-1].copy()
    return True


@njit(cache=True)
def hop(level: Grid, work: Scratch, slots: Grid, dp: int, one: int, other: int) -> int:
    """The bottleneck matching of two groups, as a level."""
    rows, columns = work.rows, work.columns
    num_rows = _tally(slots, one * dp, dp, work.seen, rows, work.row_units)
    num_columns = _tally(slots, other * dp, dp, work.seen, columns, work.column_units)
    threshold = 0
    for row in range(num_rows):
        least = level[rows[row], columns[0]]
        for column in range(1, num_columns):
            least = min(least, level[rows[row], columns[column]])
        threshold = max(threshold, least)
    work.flow[:num_rows, :num_columns] = 0
    left = dp
    while left > 0:
        reached = _search(level, work, num_rows, num_columns, threshold)
        if reached >= 0:
            left -= _augment(work, reached)
        else:
            threshold = _next_threshold(level, work, num_rows, num_columns)
    return threshold


@njit(cache=True)
def _tally(slots: Grid, first: int, dp: int, seen: Grid, found: Grid, units: Grid) -> int:
    """Classes of a group, and how many units of each; returns the number of classes."""
    num_found = 0
    for slot in range(first, first + dp):
        one = slots[slot]
        if seen[one] < 0:
            seen[one] = num_found
            found[num_found] = one
            units[num_found] = 0
            num_found += 1
        units[seen[one]] += 1
    for index in range(num_found):
        seen[found[index]] = -1
    return num_found


@njit(cache=True)
def _search(level: Grid, work: Scratch, num_rows: int, num_columns: int, threshold: int) -> int:
    """Breadth first from rows with units left to a column with units left; NONE if out of reach.

    from_row: of a column, the row it was reached from; from_column: of a row, START if it has
    units left itself; NONE where the search did not come.
    """
    from_row, from_column, queue, flow = work.from_row, work.from_column, work.queue, work.flow
    from_row[:num_columns] = NONE
    end = 0
    for row in range(num_rows):
        from_column[row] = START if work.row_units[row] > 0 else NONE
        if work.row_units[row] > 0:
            queue[end] = row
            end += 1
    done = 0
    while done < end:
        row = queue[done]
        done += 1
        for column in range(num_columns):
            if from_row[column] != NONE or level[work.rows[row], work.columns[column]] > threshold:
                continue
            from_row[column] = row
            if work.column_units[column] > 0:
                return column
            for back in range(num_rows):
                if flow[back, column] > 0 and from_column[back] == NONE:
                    from_column[back] = column
                    queue[end] = back
                    end += 1
    return NONE


@njit(cache=True)
def _augment(work: Scratch, reached: int) -> int:
    """Send along the path that was found what fits; returns how many units."""
    row = work.from_row[reached]
    units = work.column_units[reached]
    while work.from_column[row] != START:
        column = work.from_column[row]
        units = min(units, work.flow[row, column])
        row = work.from_row[column]
    units = min(units, work.row_units[row])
    work.row_units[row] -= units
    work.column_units[reached] -= units
    row = work.from_row[reached]
    work.flow[row, reached] += units
    while work.from_column[row] != START:
        column = work.from_column[row]
        work.flow[row, column] -= units
        row = work.from_row[column]
        work.flow[row, column] += units
    return int(units)


@njit(cache=True)
def _next_threshold(level: Grid, work: Scratch, num_rows: int, num_columns: int) -> int:
    """The least level that leads from what the search reached to what it did not."""
    least = len(level) ** 2  # more than there are
    for row in range(num_rows):
        if work.from_column[row] != NONE:
            for column in range(num_columns):
                if work.from_row[column] == NONE:
                    least = min(least, level[work.rows[row], work.columns[column]])
    return int(least)
