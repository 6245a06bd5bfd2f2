"""How poor a network may get before a plan loses more than it is allowed to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PRECISION = 1e-3
"""Relative width of the interval in which a search ends: three digits."""

FINEST = 1e-9
"""Absolute width in which a search beside zero ends: a nanosecond."""

DIP = 0.005
"""A share that falls by more of itself on a better network is told. Schedules of the same work are
a little uneven; what is smaller moves no limit that anybody would notice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dip:
    """Better and better networks on which the share falls, from `worse` to `better`."""

    worse: float
    worse_share: float
    better: float
    better_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """value: the worst point that keeps the wanted share; None if none that was tried does.
    unbounded: the worst point tried keeps it. lasting: so do all better ones that were tried.
    best_share: at the best point. dips: where the share is not monotone.
    """

    value: float | None
    unbounded: bool
    lasting: bool
    best_share: float
    dips: tuple[Dip, ...]


def find_limit(
    points: Sequence[float],
    shares: Sequence[float],
    wanted: float,
    share_of: Callable[[float], float],
) -> Limit:
    """Narrow the first crossing of `wanted` among `points`, which go from worst to best.

    shares: at `points`. share_of: the share at a point between two of them.
    """
    kept = [share >= wanted for share in shares]
    value = None
    if any(kept):
        first = kept.index(True)
        value = points[first]
        if first > 0:
            value = _bisect(points[first - 1], value, wanted, share_of)
    return Limit(
        value=value,
        unbounded=kept[0],
        lasting=value is not None and all(kept[kept.index(True) :]),
        best_share=shares[-1],
        dips=_dips(points, shares),
    )


def _bisect(fails: float, holds: float, wanted: float, share_of: Callable[[float], float]) -> float:
    """A point that holds, as near as `PRECISION` to one that does not."""
    while math.isfinite(holds) and abs(holds - fails) > max(
        FINEST if holds == 0 else 0.0, PRECISION * min(holds, fails)
    ):
        middle = (holds + fails) / 2 if holds == 0 else math.sqrt(holds * fails)
        if share_of(middle) < wanted:
            fails = middle
        else:
            holds = middle
    return holds


def _dips(points: Sequence[float], shares: Sequence[float]) -> tuple[Dip, ...]:
    """Where shares fall from point to point, as long as they do."""
    found: list[Dip] = []
    first = 0
    for i in range(1, len(points) + 1):
        if i < len(points) and shares[i] < shares[i - 1]:
            continue
        if shares[i - 1] < shares[first] * (1 - DIP):
            found.append(
                Dip(
                    worse=points[first],
                    worse_share=shares[first],
                    better=points[i - 1],
                    better_share=shares[i - 1],
                )
            )
        first = i
    return tuple(found)
