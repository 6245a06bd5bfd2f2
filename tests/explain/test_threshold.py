"""Limits on curves with known crossings."""

from __future__ import annotations

import math

import pytest

from netbench.explain.threshold import Dip, find_limit

BANDWIDTHS = (*(10.0**i for i in range(6)), math.inf)
DELAYS = (*(10.0**-i for i in range(6)), 0.0)


def saturating(bandwidth: float) -> float:
    """Reaches 0.8 at 400."""
    return 1 / (1 + 100 / bandwidth)


def fading(delay: float) -> float:
    """Falls to 0.8 at 0.025."""
    return 1 / (1 + 10 * delay)


def test_the_crossing_is_found_from_the_side_that_holds() -> None:
    """To a tenth of a percent, for rising and falling curves."""
    limit = find_limit(BANDWIDTHS, list(map(saturating, BANDWIDTHS)), 0.8, saturating)
    assert limit.value is not None
    assert limit.value == pytest.approx(400, rel=0.001)
    assert saturating(limit.value) >= 0.8
    limit = find_limit(DELAYS, list(map(fading, DELAYS)), 0.8, fading)
    assert limit.value is not None
    assert limit.value == pytest.approx(0.025, rel=0.001)
    assert fading(limit.value) >= 0.8
    assert (limit.unbounded, limit.lasting, limit.dips) == (False, True, ())
    assert limit.best_fraction == 1.0


def test_a_crossing_beside_zero_is_found_to_the_nanosecond() -> None:
    """A geometric mean would never reach zero."""
    fractions = [0.9 if delay <= 5e-8 else 0.1 for delay in DELAYS]
    limit = find_limit(DELAYS, fractions, 0.8, lambda delay: 0.9 if delay <= 5e-8 else 0.1)
    assert limit.value == pytest.approx(5e-8, abs=1e-9)


def test_what_the_best_cannot_keep_has_no_limit() -> None:
    """The best fraction is reported instead."""
    fractions = [saturating(x) / 2 for x in BANDWIDTHS]
    limit = find_limit(BANDWIDTHS, fractions, 0.8, saturating)
    assert (limit.value, limit.lasting, limit.best_fraction) == (None, False, 0.5)


def test_what_the_worst_keeps_has_no_bound() -> None:
    """No search is made."""
    limit = find_limit(BANDWIDTHS, [0.9] * 7, 0.8, lambda _: math.nan)
    assert (limit.value, limit.unbounded) == (1.0, True)


def test_of_several_crossings_the_first_is_taken_and_the_fall_told() -> None:
    """The limit does not last: a better point falls below it again. A long fall is one dip."""
    fractions = [0.1, 0.85, 0.7, 0.6, 0.82, 0.9, 0.9]
    limit = find_limit(BANDWIDTHS, fractions, 0.8, lambda x: 0.85 if x >= 5 else 0.1)
    assert limit.value == pytest.approx(5, rel=0.001)
    assert not limit.lasting
    assert limit.dips == (Dip(worse=10, worse_fraction=0.85, better=1000, better_fraction=0.6),)


def test_a_fall_above_what_is_wanted_changes_nothing() -> None:
    """It is reported, and the limit lasts."""
    fractions = [0.1, 0.7, 0.9, 0.85, 0.95, 0.96, 0.97]
    limit = find_limit(BANDWIDTHS, fractions, 0.8, lambda x: 0.8 if x >= 50 else 0.7)
    assert limit.value == pytest.approx(50, rel=0.001)
    assert limit.lasting
    assert len(limit.dips) == 1


def test_a_fall_that_nobody_would_notice_is_not_told() -> None:
    """Less than half a percent."""
    fractions = [0.1, 0.5, 0.85, 0.849, 0.86, 0.9, 0.9]
    assert find_limit(BANDWIDTHS, fractions, 0.8, lambda _: 0.8).dips == ()
