"""Search the poorest network on which a plan keeps a given fraction of its throughput."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PRECISION = 1e-3
"""Relative width of the interval at which a search ends: three digits."""

FINEST = 1e-9
"""Absolute width at which a search next to zero ends: a nanosecond."""

DIP = 0.005
"""Relative fall of the fraction on a better network that is reported. Smaller falls come from small
irregularities of schedules and do not move a limit noticeably."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dip:
    """An interval of improving networks, from `worse` to `better`, in which the fraction falls."""

    worse: float
    worse_fraction: float
    better: float
    better_fraction: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Result of a search.

    value: the worst point that keeps the wanted fraction; None if no point tried does. unbounded:
    the worst point tried keeps it. lasting: all better points tried keep it too. best_fraction: at
    the best point. dips: intervals where the fraction is not monotone.
    """

    value: float | None
    unbounded: bool
    lasting: bool
    best_fraction: float
    dips: tuple[Dip, ...]


def find_limit(
    points: Sequence[float],
    fractions: Sequence[float],
    wanted: float,
    fraction_at: Callable[[float], float],
) -> Limit:
    """Narrow down the first crossing of `wanted` among `points`, sorted from worst to best.

    fractions: at `points`. fraction_at: computes the fraction at any point.
    """
    kept = [fraction >= wanted for fraction in fractions]
    value = None
    if any(kept):
        first = kept.index(True)
        value = points[first]
        if first > 0:
            value = _bisect(points[first - 1], value, wanted, fraction_at)
    return Limit(
        value=value,
        unbounded=kept[0],
        lasting=value is not None and all(kept[kept.index(True) :]),
        best_fraction=fractions[-1],
        dips=_dips(points, fractions),
    )


def _bisect(
    fails: float, holds: float, wanted: float, fraction_at: Callable[[float], float]
) -> float:
    """Return a point that holds within `PRECISION` of one that fails."""
    while math.isfinite(holds) and abs(holds - fails) > max(
        FINEST if holds == 0 else 0.0, PRECISION * min(holds, fails)
    ):
        middle = (holds + fails) / 2 if holds == 0 else math.sqrt(holds * fails)
        if fraction_at(middle) < wanted:
            fails = middle
        else:
            holds = middle
    return holds


def _dips(points: Sequence[float], fractions: Sequence[float]) -> tuple[Dip, ...]:
    """Return the intervals in which fractions fall from point to point."""
    dips: list[Dip] = []
    first = 0
    for i in range(1, len(points) + 1):
        if i < len(points) and fractions[i] < fractions[i - 1]:
            continue
        if fractions[i - 1] < fractions[first] * (1 - DIP):
            dips.append(
                Dip(
                    worse=points[first],
                    worse_fraction=fractions[first],
                    better=points[i - 1],
                    better_fraction=fractions[i - 1],
                )
            )
        first = i
    return tuple(dips)
