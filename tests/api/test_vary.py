"""Parsing of `netbench sweep --vary`."""

from __future__ import annotations

import pytest

from netbench.api.vary import parse_vary


def test_values_have_units() -> None:
    """They become SI numbers; their texts stay as written."""
    found = parse_vary("bandwidth=500Mbit,1Gbit,unlimited")
    assert found.values == (5e8, 1e9, float("inf"))
    assert found.texts == ("500Mbit", "1Gbit", "unlimited")
    assert not found.relative


def test_a_range_is_geometric_and_keeps_its_ends() -> None:
    """Nine factors from 0.1 to 10 are four per decade, with 1 in the middle."""
    found = parse_vary("bandwidth=0.1x..10x:9")
    assert found.relative
    assert found.geometric
    assert found.values[0] == 0.1
    assert found.values[-1] == 10.0
    assert found.values[4] == pytest.approx(1.0)
    ratios = [b / a for a, b in zip(found.values, found.values[1:], strict=False)]
    assert ratios == [pytest.approx(10**0.25)] * 8
    assert found.texts[:3] == ("0.1x", "0.178x", "0.316x")


def test_values_and_ranges_can_be_listed() -> None:
    """Zero cannot end a geometric range, but can precede one."""
    found = parse_vary("delay=0ms,1ms..100ms:3")
    assert found.values == pytest.approx((0.0, 0.001, 0.01, 0.1))
    assert found.texts == ("0s", "1ms", "10ms", "100ms")


def test_counts_are_whole_and_unique() -> None:
    """1, 1.26, 1.59 and 2 become 1 and 2."""
    assert parse_vary("layers=8..64:4").values == (8, 16, 32, 64)
    assert parse_vary("micro-batch=1..2:4").values == (1, 2)


def test_few_values_close_together_are_not_geometric() -> None:
    """Their picture has linear axes."""
    assert not parse_vary("bandwidth=1Gbit,2Gbit,5Gbit").geometric
    assert parse_vary("batch=64,512,4096").geometric


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bandwith=1Gbit", "did you mean bandwidth"),
        ("delay", "has no values; write e.g. delay=1ms,10ms"),
        ("delay=", "has no values"),
        ("delay=10", 'has no unit; write e.g. "10ms"'),
        ("bandwidth=0Gbit", "must be positive"),
        ("bandwidth=0x", "is not a factor up to 1000000"),
        ("bandwidth=1Gbit,2x", "mixes factors with values"),
        ("bandwidth=1Gbit..2x:3", "write either"),
        ("delay=0ms..10ms:3", "cannot end at 0"),
        ("delay=1ms..10ms:1", "expected 2 to 100000"),
        ("delay=1x..2x:1000000000", "has 1000000000 points; expected 2 to 100000"),
        ("layers=1e308", "is too large"),
        ("delay=1ms,2ms,1ms", '"1ms" is given twice'),
        ("delay=1ms..10ms", 'has no number of values; write e.g. "1ms..10ms:5"'),
        ("batch=0.5x", "takes whole numbers"),
        ("batch=1.5", "not a whole number"),
        ("layers=0", "expected a positive whole number"),
    ],
)
def test_a_wrong_value_is_an_error(text: str, says: str) -> None:
    """The message says what is wrong, or what to write."""
    with pytest.raises(ValueError, match=says):
        parse_vary(text)
