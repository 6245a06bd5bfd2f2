"""Annealing of stage groups under DT-FM's cost, compiled: a swap is judged by what it changes.

A class is units that the cost cannot tell apart. The state is the class at every slot: slot
s < pp * dp is of group s // dp, those above are idle. With it goes an order of the groups, so a
swap changes two groups' DP and the up to four hops beside them, and no path is searched.

A hop is the bottleneck matching of two groups' classes, as a flow: the threshold starts at what
every class needs at least, and rises to the next link that leads out of what is reached, until the
flow takes all. Most swaps that cost too much do so with what is needed at least, without any flow.

What runs for every move allocates nothing and is compiled without counts of references to arrays:
numba counts atomically whenever one is looked up, which took longer than all the rest. Without
counts a generator that comes from Python is never let go, so `anneal` itself is compiled with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numba import njit

from netbench.placement.problem import Floats, Grid

_Function = TypeVar("_Function", bound=Callable[..., object])


def _uncounted(function: _Function) -> _Function:
    """Compiled for what neither allocates nor returns arrays, nor has a generator from Python."""
    # `_nrt` is numba's name for it (numba/core/options.py), which its stubs leave out.
    return njit(cache=True, error_model="numpy", _nrt=False)(function)  # type: ignore[call-overload, no-any-return]


REVERSALS = 0.1
"""Share of moves that reverse a part of the path; the others swap two units."""

NONE, START = -1, -2
"""Where the search for a matching did not come, and where it began."""


class Tables(NamedTuple):
    """Seconds of links between two units, by their classes: (num_classes, num_classes), symmetric.

    group_s: of members of a group; hop_s: of neighbours in a pipeline. What a class has with itself
    is of two of its units, 0 if it has only one.
    """

    group_s: Floats
    hop_s: Floats


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


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
def by_class(group_s: Floats, hop_s: Floats, classes: Grid) -> Tables:
    """Times between units, (num_units, num_units), by their classes."""
    num_classes = classes.max() + 1
    firsts = np.full(num_classes, NONE)
    tables = Tables(np.zeros((num_classes, num_classes)), np.zeros((num_classes, num_classes)))
    for unit, one in enumerate(classes):
        if firsts[one] != NONE:
            tables.group_s[one, one] = group_s[unit, firsts[one]]
            tables.hop_s[one, one] = hop_s[unit, firsts[one]]
            continue
        firsts[one] = unit
        for other in range(one):
            first = firsts[other]
            tables.group_s[one, other] = tables.group_s[other, one] = group_s[unit, first]
            tables.hop_s[one, other] = tables.hop_s[other, one] = hop_s[unit, first]
    return tables


class State(NamedTuple):
    """slots: (num_units,), classes. order: (pp,), groups along the path; place: (pp,), its inverse.
    loads_s: (pp * dp,), of every slot towards the rest of its group; group_s: (pp,), the largest.
    hops_s: (pp + 1,), before every place of the path; 0 before the first and after the last.
    tried_s: (4,), hops that a swap touches. best_slots, best_order: of the least cost met; best_s,
    (1,).
    """

    slots: Grid
    order: Grid
    place: Grid
    loads_s: Floats
    group_s: Floats
    hops_s: Floats
    tried_s: Floats
    best_slots: Grid
    best_order: Grid
    best_s: Floats


def new_state(slots: Grid, order: Grid, dp: int) -> State:
    """Groups of these slots along this order; `settle` fills in the rest."""
    pp = len(order)
    return State(
        slots=slots.copy(),
        order=order.copy(),
        place=np.empty(pp, np.int64),
        loads_s=np.empty(pp * dp),
        group_s=np.empty(pp),
        hops_s=np.zeros(pp + 1),
        tried_s=np.empty(4),
        best_slots=slots.copy(),
        best_order=order.copy(),
        best_s=np.empty(1),
    )


@njit(cache=True, error_model="numpy")
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
    _move(tables, work, state, temperature_s, cooling, num_moves, rng)


@_uncounted
def _move(
    tables: Tables,
    work: Scratch,
    state: State,
    temperature_s: float,
    cooling: float,
    num_moves: int,
    rng: np.random.Generator,
) -> None:
    """`anneal`, but for the reference that numba counts of a generator from Python: uncounted, it
    would never be given back."""
    pp, num_slots, num_taken = len(state.order), len(state.slots), len(state.loads_s)
    cost_s = _cost(state)
    for _ in range(num_moves):
        temperature_s *= cooling
        allowed_s = cost_s - temperature_s * math.log(1 - rng.random())
        if pp > 2 and rng.random() < REVERSALS:
            one, other = int(rng.random() * pp), int(rng.random() * pp)
            first, last = min(one, other), max(one, other)
            moved = _reverse(tables.hop_s, work, state, first, last, allowed_s - cost_s)
        else:
            here, there = int(rng.random() * num_taken), int(rng.random() * num_slots)
            moved = _swap(tables, work, state, here, there, allowed_s)
        if moved:
            cost_s = _cost(state)
            if cost_s < state.best_s[0]:
                _keep(state, cost_s)


@_uncounted
def settle(tables: Tables, work: Scratch, state: State) -> float:
    """Fill in what follows from slots and order, as the best so far; the cost, seconds."""
    pp, dp = len(state.order), len(state.loads_s) // len(state.order)
    for place, group in enumerate(state.order):
        state.place[group] = place
        _load(tables.group_s, state, dp, group)
    for place in range(1, pp):
        one, other = state.order[place - 1], state.order[place]
        state.hops_s[place] = hop(tables.hop_s, work, state.slots, dp, one, other)
    cost_s = _cost(state)
    _keep(state, cost_s)
    return cost_s


@njit(cache=True, error_model="numpy")
def all_hops(tables: Tables, work: Scratch, slots: Grid, pp: int, dp: int) -> Floats:
    """Between every two groups: (pp, pp), seconds."""
    hops_s = np.zeros((pp, pp))
    for one in range(pp):
        for other in range(one):
            hops_s[one, other] = hop(tables.hop_s, work, slots, dp, one, other)
            hops_s[other, one] = hops_s[one, other]
    return hops_s


@_uncounted
def _cost(state: State) -> float:
    """Added up from the start each time, so that no rounding accumulates."""
    slowest_s = path_s = 0.0
    for group_s in state.group_s:
        slowest_s = max(slowest_s, group_s)
    for hop_s in state.hops_s:
        path_s += hop_s
    return slowest_s + 2 * path_s


@_uncounted
def _keep(state: State, cost_s: float) -> None:
    """As the best; entry by entry, since a copy of arrays may allocate."""
    state.best_s[0] = cost_s
    for slot in range(len(state.slots)):
        state.best_slots[slot] = state.slots[slot]
    for place in range(len(state.order)):
        state.best_order[place] = state.order[place]


@_uncounted
def _load(group_s: Floats, state: State, dp: int, group: int) -> None:
    """Fill in loads and their largest of one group."""
    slots, first = state.slots, group * dp
    state.group_s[group] = 0.0
    for slot in range(first, first + dp):
        load_s = -group_s[slots[slot], slots[slot]]
        for other in range(first, first + dp):
            load_s += group_s[slots[slot], slots[other]]
        state.loads_s[slot] = load_s
        state.group_s[group] = max(state.group_s[group], load_s)


@_uncounted
def _load_after(group_s: Floats, state: State, dp: int, here: int, joining: int) -> float:
    """The largest load of the group of slot `here` when class `joining` takes that slot."""
    slots, first = state.slots, here // dp * dp
    leaving = slots[here]
    new_s = worst_s = 0.0
    for slot in range(first, first + dp):
        if slot != here:
            to_new_s = group_s[joining, slots[slot]]
            new_s += to_new_s
            load_s = state.loads_s[slot] + to_new_s - group_s[leaving, slots[slot]]
            worst_s = max(worst_s, load_s)
    return max(worst_s, new_s)


@_uncounted
def _swap(
    tables: Tables, work: Scratch, state: State, here: int, there: int, allowed_s: float
) -> bool:
    """Swap the units at two slots, the second maybe idle, unless it costs more than is allowed."""
    slots, place = state.slots, state.place
    pp, dp = len(place), len(state.loads_s) // len(place)
    one, other = here // dp, min(there // dp, pp)
    if one == other or slots[here] == slots[there]:
        return False
    bound_s = _load_after(tables.group_s, state, dp, here, slots[there])
    if other < pp:
        bound_s = max(bound_s, _load_after(tables.group_s, state, dp, there, slots[here]))
    for group in range(pp):
        if group != one and group != other:
            bound_s = max(bound_s, state.group_s[group])
    # The hops before and after both groups, each once: 0 is before the first place, where none is.
    before, after = place[one], place[one] + 1
    before_other, after_other = (place[other], place[other] + 1) if other < pp else (0, 0)
    touched = (
        before,
        after,
        before_other if before_other != after else 0,
        after_other if after_other != before else 0,
    )
    for hop_s in state.hops_s:
        bound_s += 2 * hop_s
    for at in touched:
        bound_s -= 2 * state.hops_s[at]
    slots[here], slots[there] = slots[there], slots[here]
    if not _try_hops(tables.hop_s, work, state, touched, bound_s, allowed_s):
        slots[here], slots[there] = slots[there], slots[here]
        return False
    for index, at in enumerate(touched):
        if 0 < at < pp:
            state.hops_s[at] = state.tried_s[index]
    _load(tables.group_s, state, dp, one)
    if other < pp:
        _load(tables.group_s, state, dp, other)
    return True


@_uncounted
def _try_hops(
    hop_s: Floats,
    work: Scratch,
    state: State,
    touched: tuple[int, int, int, int],
    others_s: float,
    allowed_s: float,
) -> bool:
    """Fill in tried_s, hops at these places; whether, with the others, they are allowed.

    All at their least come first: mostly that says no.
    """
    slots, order, tried_s = state.slots, state.order, state.tried_s
    pp, dp = len(order), len(state.loads_s) // len(order)
    bound_s = others_s
    for exact in (False, True):
        for index, at in enumerate(touched):
            if bound_s > allowed_s:
                return False
            if 0 < at < pp:
                one, other = order[at - 1], order[at]
                if exact:
                    bound_s -= 2 * tried_s[index]
                    tried_s[index] = hop(hop_s, work, slots, dp, one, other)
                else:
                    tried_s[index] = _tally_both(hop_s, work, slots, dp, one, other)[2]
                bound_s += 2 * tried_s[index]
    return bound_s <= allowed_s


@_uncounted
def _reverse(
    hop_s: Floats, work: Scratch, state: State, first: int, last: int, allowed_s: float
) -> bool:
    """Reverse the path between two places, unless that adds more than is allowed."""
    order, hops_s, slots = state.order, state.hops_s, state.slots
    pp, dp = len(order), len(state.loads_s) // len(order)
    before_s = after_s = 0.0
    if first > 0:
        before_s = hop(hop_s, work, slots, dp, order[first - 1], order[last])
    if last < pp - 1:
        after_s = hop(hop_s, work, slots, dp, order[first], order[last + 1])
    if 2 * (before_s + after_s - hops_s[first] - hops_s[last + 1]) > allowed_s:
        return False
    hops_s[first], hops_s[last + 1] = before_s, after_s
    for step in range((last + 1 - first) // 2):
        one, other = first + step, last - step
        order[one], order[other] = order[other], order[one]
    for step in range((last - first) // 2):
        one, other = first + 1 + step, last - step
        hops_s[one], hops_s[other] = hops_s[other], hops_s[one]
    for place in range(first, last + 1):
        state.place[order[place]] = place
    return True


@_uncounted
def hop(hop_s: Floats, work: Scratch, slots: Grid, dp: int, one: int, other: int) -> float:
    """The bottleneck matching of two groups, seconds."""
    num_rows, num_columns, threshold_s = _tally_both(hop_s, work, slots, dp, one, other)
    left = dp
    for row in range(num_rows):
        for column in range(num_columns):
            units = 0
            if hop_s[work.rows[row], work.columns[column]] <= threshold_s:
                units = min(work.row_units[row], work.column_units[column])
                work.row_units[row] -= units
                work.column_units[column] -= units
                left -= units
            work.flow[row, column] = units
    while left > 0:
        reached = _search(hop_s, work, num_rows, num_columns, threshold_s)
        if reached >= 0:
            left -= _augment(work, reached)
        else:
            threshold_s = _next_threshold(hop_s, work, num_rows, num_columns)
    return threshold_s


@_uncounted
def _tally_both(
    hop_s: Floats, work: Scratch, slots: Grid, dp: int, one: int, other: int
) -> tuple[int, int, float]:
    """Classes of both groups, how many they are, and the seconds that every one needs at least."""
    num_rows = _tally(slots, one * dp, dp, work.seen, work.rows, work.row_units)
    num_columns = _tally(slots, other * dp, dp, work.seen, work.columns, work.column_units)
    needed_s = 0.0
    for row in range(num_rows):
        least_s = np.inf
        for column in range(num_columns):
            least_s = min(least_s, hop_s[work.rows[row], work.columns[column]])
        needed_s = max(needed_s, least_s)
    for column in range(num_columns):
        least_s = np.inf
        for row in range(num_rows):
            least_s = min(least_s, hop_s[work.rows[row], work.columns[column]])
        needed_s = max(needed_s, least_s)
    return num_rows, num_columns, needed_s


@_uncounted
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


@_uncounted
def _search(
    hop_s: Floats, work: Scratch, num_rows: int, num_columns: int, threshold_s: float
) -> int:
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
            if (
                from_row[column] != NONE
                or hop_s[work.rows[row], work.columns[column]] > threshold_s
            ):
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


@_uncounted
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


@_uncounted
def _next_threshold(hop_s: Floats, work: Scratch, num_rows: int, num_columns: int) -> float:
    """The least time of a link that leads from what the search reached to what it did not."""
    least_s = np.inf
    for row in range(num_rows):
        if work.from_column[row] != NONE:
            for column in range(num_columns):
                if work.from_row[column] == NONE:
                    least_s = min(least_s, hop_s[work.rows[row], work.columns[column]])
    return least_s
