"""Numbers as text, for all tables, pages and pictures; quantities with units are in `units`."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Known = TypeVar("Known")

FEW_PFLOPS = 0.1
"""Figures below are written in TFLOPS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSummary:
    """Summary of `num` iteration times, in seconds."""

    mean_s: float
    min_s: float
    max_s: float
    num: int

    @staticmethod
    def pool(*groups: Sequence[float]) -> "TimeSummary":
        """Pool groups of times, e.g. of several seeds; each has the same weight in the mean."""
        times_s = [time_s for group in groups for time_s in group]
        return TimeSummary(
            mean_s=statistics.fmean(map(statistics.fmean, groups)),
            min_s=min(times_s),
            max_s=max(times_s),
            num=len(times_s),
        )


def or_dash(text: Callable[[Known], str], value: Known | None) -> str:
    """Text of a value, or a dash if there is none."""
    return "-" if value is None else text(value)


def seconds_text(seconds: float) -> str:
    """Four significant digits: `0.8951`, `9.105`, `18.87`, `163.4`, `1325`."""
    return f"{seconds:.{_digits(seconds)}f}"


def spread_text(sample: TimeSummary) -> str:
    """`18.87 ±0.22`: mean and half the range, in seconds; a single value has no spread."""
    mean, digits = seconds_text(sample.mean_s), _digits(sample.mean_s)
    half_s = (sample.max_s - sample.min_s) / 2
    return mean if sample.num == 1 else f"{mean} ±{half_s:.{digits}f}"


def _digits(seconds: float) -> int:
    return sum(seconds < limit for limit in (1000, 100, 10, 1))


def pflops_text(pflops: float) -> str:
    """Three decimals, as published; three significant digits below 0.01."""
    return f"{pflops:.3f}" if pflops >= 0.01 else f"{pflops:.3g}"


def flops_text(pflops: float) -> str:
    """A value with its unit: `0.564 PFLOPS`, below 0.1 `26.9 TFLOPS`."""
    unit, factor = flops_unit([pflops])
    return f"{pflops * factor:.3g} {unit}"


def flops_unit(pflops: Iterable[float | None]) -> tuple[str, float]:
    """Unit of a column and the factor from PFLOPS to it: TFLOPS if all values are below 0.1."""
    known = [value for value in pflops if value is not None and not math.isnan(value)]
    return ("TFLOPS", 1e3) if known and max(known) < FEW_PFLOPS else ("PFLOPS", 1.0)


def percent_text(change: float) -> str:
    """`+12.3%`: a relative error or change with its sign; `0.0%` if it rounds to nothing."""
    text = f"{change:+.1%}"
    return text[1:] if text[1:] == "0.0%" else text


def throughput_text(value: float) -> str:
    """Two decimals; one from 10,000 on, where simulated figures have no more (`exact_text`)."""
    return f"{value:.{1 if value >= 10_000 else 2}f}"


def scaling_text(value: float) -> str:
    """`10.15x`, as printed."""
    return f"{value:.2f}x"


def exact_text(value: float) -> str:
    """Six digits: more than any compared figure has, fewer than differ between processors."""
    return f"{value:.6g}"
