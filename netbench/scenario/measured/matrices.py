"""Matrices of measured delays and bandwidths between places. Pure.

A matrix consists of readings, which `scenario.measured.readings` parses. Missing values are never
invented: an error lists them.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from netbench.errors import ScenarioError

Pair = tuple[str, str]
"""Source and destination; the same place twice means the network inside it."""

MISSING_SHOWN = 12
"""Number of pairs named in an error; the others are only counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Measurements of one direction. None: not measured.

    loaded: the delay was measured while data was sent, so any other is better. halved: the delay is
    half of a round trip, so it applies to the reverse direction too. source: origin, a few words.
    """

    one_way_delay_s: float | None = None
    bandwidth_bps: float | None = None
    jitter_s: float | None = None
    loss: float | None = None
    loaded: bool = False
    halved: bool = False
    source: str = ""


FIGURES = ("one_way_delay_s", "bandwidth_bps", "jitter_s", "loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Readings between places. notes: how they were obtained, a line each."""

    places: tuple[str, ...]
    readings: Mapping[Pair, Reading]
    notes: tuple[str, ...] = ()


def merge(matrices: Sequence[Matrix]) -> Matrix:
    """Combine the readings of all matrices. Raises ScenarioError where two differ."""
    merged: dict[Pair, Reading] = {}
    for matrix in matrices:
        for pair, reading in matrix.readings.items():
            merged[pair] = _joined(pair, merged[pair], reading) if pair in merged else reading
    places = dict.fromkeys(place for matrix in matrices for place in matrix.places)
    notes = dict.fromkeys(note for matrix in matrices for note in matrix.notes)
    return Matrix(places=tuple(places), readings=merged, notes=tuple(notes))


def _joined(pair: Pair, first: Reading, second: Reading) -> Reading:
    """Join two readings of one pair. A delay measured under load yields to another."""
    if first.loaded != second.loaded:
        loaded, idle = (first, second) if first.loaded else (second, first)
        if idle.one_way_delay_s is None:
            idle = replace(idle, one_way_delay_s=loaded.one_way_delay_s, halved=loaded.halved)
        first, second = idle, replace(loaded, one_way_delay_s=None, jitter_s=None, loaded=False)
    for name in FIGURES:
        values = {getattr(first, name), getattr(second, name)} - {None}
        if len(values) > 1:
            raise ScenarioError(
                f"{name} from {pair[0]} to {pair[1]} is given twice: {getattr(first, name):g} "
                f"({first.source}) and {getattr(second, name):g} ({second.source}); keep one"
            )
    known = {
        name: value
        for name in FIGURES
        if (value := getattr(second, name)) is not None and getattr(first, name) is None
    }
    sources = dict.fromkeys(filter(None, (first.source, second.source)))
    halved = second.halved if "one_way_delay_s" in known else first.halved
    return replace(first, **known, halved=halved, source=", ".join(sources))


def renamed(matrix: Matrix, names: Mapping[str, str]) -> Matrix:
    """Return the matrix with some places renamed. Raises ScenarioError for unknown places."""
    unknown = [name for name in names if name not in matrix.places]
    if unknown:
        raise ScenarioError(
            f"there is no {' nor '.join(unknown)} to rename; places are {', '.join(matrix.places)}"
        )
    new = {place: names.get(place, place) for place in matrix.places}
    readings = {(new[a], new[b]): reading for (a, b), reading in matrix.readings.items()}
    return replace(matrix, places=tuple(dict.fromkeys(new.values())), readings=readings)


def completed(matrix: Matrix, *, symmetric: bool = False) -> Matrix:
    """Return the matrix with a delay for every pair of different places, and with bandwidths for
    all pairs or none.

    Half a round trip applies to both directions; with `symmetric`, everything else does too.
    Raises ScenarioError with a list of missing values.
    """
    with_rates = any(r.bandwidth_bps is not None for r in matrix.readings.values())
    full = {pair: reading for pair, reading in matrix.readings.items() if pair[0] == pair[1]}
    missing: list[str] = []
    for pair in itertools.permutations(matrix.places, 2):
        reading = matrix.readings.get(pair, Reading())
        back = matrix.readings.get((pair[1], pair[0]), Reading())
        if reading.loaded and back.halved and not back.loaded:
            reading = replace(reading, one_way_delay_s=None, loaded=False)
        filled = {
            name: getattr(back, name)
            for name in FIGURES
            if getattr(reading, name) is None
            and getattr(back, name) is not None
            and (symmetric or (back.halved and name != "bandwidth_bps"))
        }
        sources = [reading.source] + ([f"{back.source}, the way back"] if filled else [])
        full[pair] = replace(reading, **filled, source="; ".join(filter(None, sources)))
        wanted = ("one_way_delay_s", "bandwidth_bps") if with_rates else ("one_way_delay_s",)
        lacking = [WORDS[name] for name in wanted if getattr(full[pair], name) is None]
        if lacking:
            missing.append(f"  {pair[0]} -> {pair[1]}: no {' and no '.join(lacking)}")
    if missing:
        more = len(missing) - MISSING_SHOWN
        rest = [f"  and {more} more"] if more > 0 else []
        hint = (
            "" if symmetric else "; measure them too, or take the way back for them (--symmetric)"
        )
        head = f"{len(missing)} of {len(matrix.places) * (len(matrix.places) - 1)} directed pairs"
        lines = [f"{head} are not known{hint}:", *missing[:MISSING_SHOWN], *rest]
        raise ScenarioError("\n".join(lines))
    return replace(matrix, readings=full)


WORDS = {"one_way_delay_s": "delay", "bandwidth_bps": "bandwidth"}
