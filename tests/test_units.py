"""Quantities with units: parsing, errors and formatting."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench import units

speeds = st.floats(min_value=1e6, max_value=1e15)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bandwidth, "1.12Gbit", 1.12e9),
        (units.parse_bandwidth, "100 Mbit/s", 1e8),
        (units.parse_bandwidth, "64kbit", 64e3),
        (units.parse_bandwidth, "inf", math.inf),
        (units.parse_bandwidth, "unlimited", math.inf),
        (units.parse_time, "11ms", 0.011),
        (units.parse_time, "0.05ms", 0.00005),
        (units.parse_time, "250us", 0.00025),
        (units.parse_time, "0s", 0.0),
        (units.parse_bytes, "8MiB", 8 * 2**20),
        (units.parse_bytes, "16GB", 16 * 10**9),
        (units.parse_count, "64M", 64_000_000),
        (units.parse_count, "1.3B", 1_300_000_000),
        (units.parse_count, "24", 24),
        (units.parse_flops, "55TFLOPS", 55e12),
        (units.parse_percent, "0.1%", 0.001),
        (units.parse_percent, "100%", 1.0),
    ],
)
def test_a_value_with_its_unit_is_read_exactly(
    parse: Callable[[str], float], text: str, value: float
) -> None:
    """It is the float nearest to the text; multiplying floats could give a neighbour."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (units.parse_bandwidth, "1.1", '"1.1" has no unit; write e.g. "1.1Gbit"'),
        (units.parse_time, "11", '"11" has no unit; write e.g. "11ms"'),
        (units.parse_percent, "0.1", '"0.1" has no unit; write e.g. "0.1%"'),
        (units.parse_bandwidth, "-1Gbit", '"-1Gbit" is negative; write e.g. "1.12Gbit"'),
        (units.parse_time, "-1ms", '"-1ms" is negative; write e.g. "11ms"'),
        (units.parse_bandwidth, "0Gbit", '"0Gbit" is zero'),
        (units.parse_flops, "0TFLOPS", '"0TFLOPS" is zero'),
        (units.parse_bandwidth, "nan", '"nan" is not a bandwidth; write e.g. "1.12Gbit"'),
        (units.parse_bandwidth, "infinite", 'write e.g. "1.12Gbit" or "unlimited"'),
        (units.parse_bandwidth, "nanGbit", '"nanGbit" is not a bandwidth'),
        (units.parse_time, "inf", '"inf" is not a time; write e.g. "11ms"'),
        (units.parse_time, "", '"" is not a time; write e.g. "11ms"'),
        (units.parse_bandwidth, "1Gbps", 'unknown unit "Gbps"; expected one of bit, Kbit'),
        (units.parse_bytes, "1.5B", '"1.5B" is not a whole number'),
        (units.parse_count, "8.5", '"8.5" is not a whole number; write e.g. "24"'),
        (units.parse_percent, "101%", '"101%" is too large; at most 100%'),
        (units.parse_bandwidth, "1e400Gbit", '"1e400Gbit" is too large; at most 1000Tbit'),
        (units.parse_bandwidth, "1e999999999999bit", "is too large; at most 1000Tbit"),
        (units.parse_bandwidth, "1e-999999999bit", "is too small; at least 1Kbit"),
        (units.parse_bandwidth, "1bit", '"1bit" is too small; at least 1Kbit'),
        (units.parse_time, "1e308ms", "is too large; at most 8784h"),
        (units.parse_time, "1e-400ms", "is too small; at least 0.000001ns"),
        (units.parse_delay, "99999999h", '"99999999h" is too large; at most 60s'),
        (units.parse_count, "1e30", '"1e30" is too large; at most 1000T'),
        (units.parse_percent, "1e-999999999%", "is too small; at least 0.0000000001%"),
    ],
)
def test_a_bad_value_is_refused_with_an_example(
    parse: Callable[[str], float], text: str, message: str
) -> None:
    """The message has the text found and an example."""
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.format_bandwidth, 1.12e9, "1.12Gbit"),
        (units.format_bandwidth, math.inf, "unlimited"),
        (units.format_time, 0.011, "11ms"),
        (units.format_time, 65.0, "65s"),
        (units.format_time, 120.0, "2min"),
        (units.format_time, 0.0, "0s"),
        (units.format_bytes, 8 * 2**20, "8MiB"),
        (units.format_bytes, 16 * 10**9, "16GB"),
        (units.format_count, 64_000_000, "64M"),
        (units.format_flops, 55e12, "55TFLOPS"),
        (units.format_percent, 0.001, "0.1%"),
    ],
)
def test_a_value_is_written_as_people_write_it(
    write: Callable[[float], str], value: float, text: str
) -> None:
    """It has a suitable unit and no trailing zeros."""
    assert write(value) == text


def test_digits_round_what_is_shown() -> None:
    """Digits are significant ones, also if rounding carries into the next unit."""
    assert units.format_time(0.0174137, 3) == "17.4ms"
    assert units.format_bandwidth(999_960_000.0, 4) == "1Gbit"
    assert units.format_bytes(123_456_789, 2) == "120MB"


@pytest.mark.parametrize(("number", "text"), [(0, "0 devices"), (1, "1 device"), (2, "2 devices")])
def test_one_thing_is_singular(number: int, text: str) -> None:
    """An irregular plural is an argument."""
    assert units.counted(number, "device") == text
    assert (
        units.counted(number, "city", "cities") == f"{number} {'city' if number == 1 else 'cities'}"
    )


@given(speeds)
def test_every_bandwidth_survives_being_written(bandwidth_bps: float) -> None:
    """Parsing inverts formatting exactly."""
    assert units.parse_bandwidth(units.format_bandwidth(bandwidth_bps)) == bandwidth_bps


@given(st.just(0.0) | st.floats(min_value=1e-15, max_value=3e7))
def test_every_time_survives_being_written(seconds: float) -> None:
    """The range goes from zero and femtoseconds to almost a year."""
    assert units.parse_time(units.format_time(seconds)) == seconds


@given(st.integers(min_value=0, max_value=10**15))
def test_every_size_and_count_survives_being_written(number: int) -> None:
    """The range includes powers of 1024."""
    assert units.parse_bytes(units.format_bytes(number)) == number
    assert units.parse_count(units.format_count(number)) == number


@given(speeds)
def test_every_speed_survives_being_written(flops: float) -> None:
    """The range goes from mega to peta."""
    assert units.parse_flops(units.format_flops(flops)) == flops


@given(st.just(0.0) | st.floats(min_value=1e-12, max_value=1.0))
def test_every_percentage_survives_being_written(fraction: float) -> None:
    """The range includes 0 and 1."""
    assert units.parse_percent(units.format_percent(fraction)) == fraction


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    """Parsers raise no other exception, and return no negative value."""
    for parse in (units.parse_bandwidth, units.parse_time, units.parse_bytes, units.parse_percent):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert value >= 0
