"""The compiled annealing of stage groups."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.placement.cost_kernel import (
    REVERSALS,
    Scratch,
    State,
    Tables,
    all_hops,
    anneal,
    by_class,
    new_scratch,
    new_state,
    same_class,
    settle,
)
from netbench.placement.dtfm_cost import LinkTimes, bottleneck_s, data_parallel_s
from netbench.placement.problem import Grid


def geographic_links(num_units: int, num_regions: int, seed: int) -> LinkTimes:
    """Units of a region are interchangeable; a few of all times are the same."""
    rng = np.random.default_rng(seed)
    region = rng.integers(0, num_regions, num_units)
    both_s = rng.integers(2, 9, (2, num_regions, num_regions)) / 4
    both_s += both_s.transpose(0, 2, 1)
    group_s, hop_s = (times_s[np.ix_(region, region)] for times_s in both_s)
    np.fill_diagonal(group_s, 0.0)
    np.fill_diagonal(hop_s, 0.0)
    return LinkTimes(group_s=group_s, hop_s=hop_s)


def parts_of(links: LinkTimes, pp: int, dp: int, seed: int) -> tuple[Grid, Tables, Scratch, State]:
    """Classes of the units, and random groups of them."""
    classes = same_class(links.group_s, links.hop_s)
    tables = by_class(links.group_s, links.hop_s, classes)
    rng = np.random.default_rng(seed)
    state = new_state(rng.permutation(classes), rng.permutation(pp), dp)
    return classes, tables, new_scratch(len(tables.hop_s), dp), state


def units_at(slots: Grid, classes: Grid, pp: int, dp: int) -> Grid:
    """Any units of these classes: (pp, dp)."""
    left = [np.flatnonzero(classes == one).tolist() for one in range(classes.max() + 1)]
    return np.array([left[one].pop() for one in slots[: pp * dp]]).reshape(pp, dp)


def along_s(links: LinkTimes, groups: Grid) -> float:
    """DT-FM's cost of groups along the order they are in, matching by matching of `dtfm_cost`."""
    hops_s = [bottleneck_s(links.hop_s[np.ix_(a, b)]) for a, b in itertools.pairwise(groups)]
    return data_parallel_s(links, groups) + 2 * sum(hops_s)


SIZES = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 4), st.integers(1, 30))
"""Groups, their size, idle units, regions: up to one for every unit."""


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 10**6))
def test_annealing_keeps_the_cost_of_the_groups_it_holds(
    sizes: tuple[int, int, int, int], seed: int
) -> None:
    """Now and of the best, after moves of which many are allowed; no unit is lost."""
    pp, dp, num_idle, num_regions = sizes
    links = geographic_links(pp * dp + num_idle, num_regions, seed)
    classes, tables, work, state = parts_of(links, pp, dp, seed)
    begun_s = settle(tables, work, state)
    assert begun_s == pytest.approx(
        along_s(links, units_at(state.slots, classes, pp, dp)[state.order])
    )
    hot_s = 0.2 * begun_s + 1e-3
    anneal(tables, work, state, hot_s, 0.999, 300, np.random.default_rng(seed))
    best_s = float(state.best_s[0])
    now_s = float(state.group_s.max() + 2 * state.hops_s.sum())
    for slots, order, cost_s in (
        (state.slots, state.order, now_s),
        (state.best_slots, state.best_order, best_s),
    ):
        assert sorted(slots) == sorted(classes)
        assert sorted(order) == list(range(pp))
        groups = units_at(slots, classes, pp, dp)[order]
        assert cost_s == pytest.approx(along_s(links, groups))
    assert best_s <= min(begun_s, now_s) + 1e-12


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(0, 10**6))
def test_a_move_is_made_if_the_whole_cost_after_it_is_allowed(
    sizes: tuple[int, int, int, int], seed: int
) -> None:
    """Move by move, each drawn a second time and judged by the cost of all groups."""
    pp, dp, num_idle, num_regions = sizes
    links = geographic_links(pp * dp + num_idle, num_regions, seed)
    classes, tables, work, state = parts_of(links, pp, dp, seed)
    cost_s = settle(tables, work, state)
    temperature_s = 0.1 * cost_s + 1e-3
    drawn, again = (np.random.default_rng(seed) for _ in range(2))
    for _ in range(60):
        slots, order = state.slots.copy(), state.order.copy()
        moved, turned = slots.copy(), order.copy()
        allowed_s = cost_s - temperature_s * math.log(1 - again.random())
        if pp > 2 and again.random() < REVERSALS:
            first, last = sorted(int(again.random() * pp) for _ in range(2))
            turned[first : last + 1] = order[first : last + 1][::-1]
        else:
            here, there = int(again.random() * pp * dp), int(again.random() * len(slots))
            moved[[here, there]] = slots[[there, here]]
        moved_s = along_s(links, units_at(moved, classes, pp, dp)[turned])
        if moved_s <= allowed_s:
            slots, order, cost_s = moved, turned, moved_s
        anneal(tables, work, state, temperature_s, 1.0, 1, drawn)
        assert by_group(state.slots, pp, dp) == by_group(slots, pp, dp)
        assert state.order.tolist() == order.tolist()


def by_group(slots: Grid, pp: int, dp: int) -> list[list[int]]:
    """The classes of every group, in no order within it."""
    return [sorted(group) for group in slots[: pp * dp].reshape(pp, dp).tolist()]


def test_an_annealing_lets_its_generator_go() -> None:
    """Compiled code without counts of references would keep one for every call."""
    _, tables, work, state = parts_of(geographic_links(8, 2, seed=0), 2, 4, seed=0)
    cost_s, rng = settle(tables, work, state), np.random.default_rng(0)
    before = sys.getrefcount(rng)
    for _ in range(5):
        anneal(tables, work, state, cost_s, 0.9, 10, rng)
    assert sys.getrefcount(rng) == before


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 10**6))
def test_a_hop_of_classes_is_the_bottleneck_matching_of_their_units(
    dp: int, num_regions: int, seed: int
) -> None:
    """Of every two groups, against the thresholds and assignments of `dtfm_cost`."""
    links = geographic_links(3 * dp, num_regions, seed)
    classes, tables, work, state = parts_of(links, 3, dp, seed)
    hops_s = all_hops(tables, work, state.slots, 3, dp)
    groups = units_at(state.slots, classes, 3, dp)
    for one in range(3):
        for other in range(one):
            expected_s = bottleneck_s(links.hop_s[np.ix_(groups[one], groups[other])])
            assert hops_s[one, other] == hops_s[other, one] == expected_s


def test_tables_have_the_times_between_classes() -> None:
    """Within a class those of two of its units; a class of one unit has none with itself."""
    links = geographic_links(9, 3, seed=2)
    links.hop_s[8, :8] = links.hop_s[:8, 8] = np.arange(8) // 4 + 7.0
    classes = same_class(links.group_s, links.hop_s)
    tables = by_class(links.group_s, links.hop_s, classes)
    assert np.bincount(classes).tolist().count(1) > 0
    for one in range(9):
        for other in range(9):
            pair = classes[one], classes[other]
            if one != other:
                assert tables.group_s[pair] == links.group_s[one, other]
                assert tables.hop_s[pair] == links.hop_s[one, other]
    assert tables.hop_s[classes[8], classes[8]] == 0


def test_interchangeable_devices_are_of_one_class() -> None:
    """Four in one region, two in another, one whose delay differs to a single other."""
    region = np.array([0, 1, 0, 0, 1, 0, 0])
    apart = region[:, None] != region
    hop_s = np.where(apart, 2.0, 1.0)
    hop_s[6, 1] = hop_s[1, 6] = 2.5
    # Device 1 is told apart by its link to 6, as 6 is.
    assert same_class(np.zeros((7, 7)), hop_s).tolist() == [0, 1, 0, 0, 2, 0, 3]
