"""Numbers as text."""

from __future__ import annotations

import pytest

from netbench.report.numbers import TimeSummary, percent_text, spread_text


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((18.87, 18.63, 19.06, 3), "18.87 ±0.21"),
        ((163.43, 162.89, 163.86, 3), "163.4 ±0.5"),
        ((0.5, 0.499, 0.501, 2), "0.5000 ±0.0010"),
        ((21.27, 21.27, 21.27, 1), "21.27"),
    ],
)
def test_spread_is_half_the_range(times: tuple[float, float, float, int], text: str) -> None:
    """Digits follow the size of the mean; one value has no spread."""
    mean_s, min_s, max_s, num = times
    assert spread_text(TimeSummary(mean_s=mean_s, min_s=min_s, max_s=max_s, num=num)) == text


def test_each_group_of_times_has_the_same_weight_in_the_mean() -> None:
    """Three times of one seed count as much as one of another."""
    assert TimeSummary.pool([1.0, 2.0, 3.0], [6.0]) == TimeSummary(
        mean_s=4.0, min_s=1.0, max_s=6.0, num=4
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.123, "+12.3%"), (-0.003, "-0.3%"), (-0.0004, "0.0%"), (0.0004, "0.0%"), (0.0, "0.0%")],
)
def test_a_change_has_a_sign_unless_it_rounds_to_nothing(change: float, text: str) -> None:
    assert percent_text(change) == text
