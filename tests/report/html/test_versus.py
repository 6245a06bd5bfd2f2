"""Runs compared: ratios, Welch's test by its closed form, Holm's adjustment by hand."""

from __future__ import annotations

import dataclasses
import math
from datetime import datetime
from pathlib import Path

import pytest

from netbench.report.html.sections.versus import holm, ratios, welch
from netbench.report.tables.comparison import compare
from tests.report.html.recorded import small_plans, write_small_run

LATER = datetime(2026, 1, 3)


def test_welch_agrees_with_the_closed_form_for_two_degrees_of_freedom() -> None:
    """Two samples of two with equal variances have 2 degrees of freedom.

    Student's t then has p = 1 - t / sqrt(2 + t^2), and its 97.5% point at 4.3027.
    """
    low, high, p = welch([0.0, 2.0], [10.0, 12.0])
    t = 10 / math.sqrt(2)
    assert p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert low == pytest.approx(10 - 4.3027 * math.sqrt(2), abs=1e-3)
    assert high == pytest.approx(10 + 4.3027 * math.sqrt(2), abs=1e-3)


def test_nothing_is_tested_without_an_estimate_of_chance() -> None:
    """One sample has no variance, and equal samples have none either."""
    assert welch([1.0], [2.0, 2.1]) == (None, None, None)
    assert welch([1.0, 1.0], [2.0, 2.0]) == (None, None, None)


def test_holm_multiplies_the_smallest_by_all_and_keeps_the_order() -> None:
    """For 0.01, 0.04 and 0.03: 3 x 0.01, 2 x 0.03, and at least the latter for 0.04."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_rows_of_both_runs_are_compared(tmp_path: Path) -> None:
    """One system is 10% slower in the second run, one varies more than it differs, one is new."""
    plan, other, larger = small_plans()
    first = write_small_run(tmp_path, {plan: [1.0, 1.001, 0.999, 1.0], other: [2.0, 2.4, 1.7, 2.1]})
    second = write_small_run(
        tmp_path,
        {plan: [1.1, 1.101, 1.099, 1.1], other: [2.1, 2.3, 1.8, 2.2], larger: [3.0]},
        created=LATER,
    )
    slower, same = ratios(compare(first), compare(second))
    assert slower.ratio == pytest.approx(1.1, rel=1e-3)
    assert slower.result == "slower"
    assert slower.p is not None
    assert slower.p < 0.001
    assert slower.low is not None
    assert slower.high is not None
    assert slower.low < 1.1 < slower.high
    assert same.result == "not significant"
    assert same.nums == (4, 4)


def test_several_seeds_are_one_sample_each(tmp_path: Path) -> None:
    """Iterations of a placement are not independent, so their mean counts once."""
    plans = [dataclasses.replace(small_plans()[0], seed=seed) for seed in (1, 2)]
    runs = [
        write_small_run(tmp_path, {plan: [1.0, 1.0, 1.0] for plan in plans}),
        write_small_run(
            tmp_path, {plans[0]: [2.0, 2.0, 2.0], plans[1]: [3.0, 3.0, 3.0]}, created=LATER
        ),
    ]
    (found,) = ratios(*map(compare, runs))
    assert found.nums == (2, 2)
    assert found.ratio == pytest.approx(math.sqrt(6))
