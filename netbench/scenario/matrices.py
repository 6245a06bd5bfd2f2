"""Measured delays and bandwidths between places, as a matrix, and the scenario made of them. Pure.

A matrix is made of readings, `netbench.scenario.readings` has what they are read from. What is
missing is never made up: it is an error that lists it.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from netbench.errors import ScenarioError
from netbench.scenario.model import Link
from netbench.units import format_bandwidth, format_percent, format_time

Pair = tuple[str, str]
"""Source and destination; the same place twice is the network inside it."""

MISSING_SHOWN = 12
"""Pairs named in an error; the rest are counted."""

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ._/-]*(?<! )")
RESERVED = {"true", "false", "null", "yes", "no", "on", "off"}
"""Words that some YAML readers take for something else than text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What is known of one direction. None: not measured.

    loaded: the delay was taken while data was sent, so any other is better. halved: it is half of a
    round trip, so it holds for the way back as well. source: where it is from, in a few words.
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
    """Readings between places. notes: how they were come by, a line each."""

    places: tuple[str, ...]
    readings: Mapping[Pair, Reading]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What a scenario has beside its links. inside: of every region whose readings have none.

    jitter: take the readings' jitter as well. comments: lines at the head of the file.
    """

    name: str
    title: str = ""
    nodes_per_region: int = 1
    device: str = "V100"
    inside: Link | None = None
    inside_note: str = ""
    jitter: bool = False
    comments: tuple[str, ...] = ()


def merge(matrices: Sequence[Matrix]) -> Matrix:
    """All readings of all matrices. Raises ScenarioError where two say something different."""
    found: dict[Pair, Reading] = {}
    for matrix in matrices:
        for pair, reading in matrix.readings.items():
            found[pair] = _joined(pair, found[pair], reading) if pair in found else reading
    places = dict.fromkeys(place for matrix in matrices for place in matrix.places)
    notes = dict.fromkeys(note for matrix in matrices for note in matrix.notes)
    return Matrix(places=tuple(places), readings=found, notes=tuple(notes))


def _joined(pair: Pair, first: Reading, second: Reading) -> Reading:
    """Both readings of one pair. A delay that was taken under load gives way to another."""
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
    """The same matrix with other names for some places. Raises ScenarioError for unknown ones."""
    unknown = [name for name in names if name not in matrix.places]
    if unknown:
        raise ScenarioError(
            f"there is no {' nor '.join(unknown)} to rename; places are {', '.join(matrix.places)}"
        )
    new = {place: names.get(place, place) for place in matrix.places}
    readings = {(new[a], new[b]): reading for (a, b), reading in matrix.readings.items()}
    return replace(matrix, places=tuple(dict.fromkeys(new.values())), readings=readings)


def completed(matrix: Matrix, *, symmetric: bool = False) -> Matrix:
    """The matrix with a delay for every pair of different places, and a bandwidth for every one or
    for none. Half a round trip holds for both ways; symmetric: so does everything else.

    Raises ScenarioError that lists what is missing.
    """
    with_rates = any(r.bandwidth_bps is not None for r in matrix.readings.values())
    found = {pair: reading for pair, reading in matrix.readings.items() if pair[0] == pair[1]}
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
        found[pair] = replace(reading, **filled, source="; ".join(filter(None, sources)))
        wanted = ("one_way_delay_s", "bandwidth_bps") if with_rates else ("one_way_delay_s",)
        lacking = [WORDS[name] for name in wanted if getattr(found[pair], name) is None]
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
    return replace(matrix, readings=found)


WORDS = {"one_way_delay_s": "delay", "bandwidth_bps": "bandwidth"}


# -- CSV -----------------------------------------------------------------------------------------

COLUMNS: Mapping[str, tuple[str, float]] = {
    "one_way_delay_ms": ("one_way_delay_s", 1e3),
    "jitter_ms": ("jitter_s", 1e3),
    "loss_percent": ("loss", 1e2),
    "bandwidth_gbps": ("bandwidth_bps", 1e-9),
}


def matrix_csv(matrix: Matrix) -> str:
    """A row per reading: source, destination and `COLUMNS`; empty where nothing was measured."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("source", "destination", *COLUMNS))
    for pair, reading in matrix.readings.items():
        cells = (_cell(getattr(reading, name), factor) for name, factor in COLUMNS.values())
        table.writerow((*pair, *cells))
    return text.getvalue()


def _cell(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:.12g}"


# -- YAML ----------------------------------------------------------------------------------------

WORKLOAD = """\
workload: # GPT-XL; what would be trained, shaping and measuring do not look at it
  layers: 24
  hidden: 2048
  heads: 16
  sequence: 2048
  batch: {batch}
"""

BATCH = 1024
"""Of the workload, or the next number up that every division of the nodes into pipelines takes."""


def scenario_yaml(matrix: Matrix, frame: Frame) -> str:
    """A scenario file with the links of a complete matrix, and comments that say where each is
    from. Reading it gives the very same figures.

    Raises ScenarioError where a region of several nodes has no link inside it.
    """
    lines = [f"# {line}".rstrip() for line in (*frame.comments, *matrix.notes)]
    lines.append(f"name: {frame.name}")
    if frame.title:
        lines.append(f"title: {json.dumps(frame.title, ensure_ascii=False)}")
    lines += ["", f"regions: [{', '.join(map(plain, matrix.places))}]", "", "nodes:"]
    count = f", count: {frame.nodes_per_region}" if frame.nodes_per_region > 1 else ""
    for place in matrix.places:
        lines.append(f"  - {{region: {plain(place)}{count}, device: {plain(frame.device)}}}")
    lines += ["", "network:", *_inside_lines(matrix, frame), *_link_lines(matrix, frame)]
    num_nodes = len(matrix.places) * frame.nodes_per_region
    batch = math.ceil(BATCH / num_nodes) * num_nodes
    return "\n".join([*lines, "", WORKLOAD.format(batch=batch)])


def _inside_lines(matrix: Matrix, frame: Frame) -> Iterator[str]:
    """The link inside every region that has one of its own, or one for all."""
    own = [place for place in matrix.places if (place, place) in matrix.readings]
    if frame.inside is not None:
        given = Reading(**{name: getattr(frame.inside, name) for name in FIGURES})
    elif frame.nodes_per_region > 1 and len(own) < len(matrix.places):
        without = [place for place in matrix.places if place not in own]
        raise ScenarioError(
            f"there are {frame.nodes_per_region} nodes in each region, but no figures for the "
            f"network inside {', '.join(without)}; give --inside-delay and --inside-bandwidth"
        )
    note = f" # {frame.inside_note}" if frame.inside_note else ""
    if not own and frame.inside is not None:
        yield f"  inside: {{{_values(given, frame)}}}{note}"
    elif own:
        yield "  inside:"
        for place in matrix.places:
            if place in own:
                reading = matrix.readings[place, place]
                yield f"    {plain(place)}: {{{_values(reading, frame)}}}{_source(reading)}"
            elif frame.inside is not None:
                yield f"    {plain(place)}: {{{_values(given, frame)}}}{note}"


def _link_lines(matrix: Matrix, frame: Frame) -> Iterator[str]:
    """A line per pair of regions that is alike both ways, two where it is not."""
    if len(matrix.places) < 2:
        return
    used = [matrix.readings[pair] for pair in itertools.permutations(matrix.places, 2)]
    sources = {reading.source for reading in used}
    common = f" # {sources.pop()}" if len(sources) == 1 and "" not in sources else ""
    yield f"  links:{common}"
    for a, b in itertools.combinations(matrix.places, 2):
        there, back = matrix.readings[a, b], matrix.readings[b, a]
        values = _values(there, frame)
        note = "" if common else _source(there)
        if values == _values(back, frame):
            yield f"    - {{between: [{plain(a)}, {plain(b)}], {values}}}{note}"
        else:
            yield f"    - {{from: {plain(a)}, to: {plain(b)}, {values}}}{note}"
            note = "" if common else _source(back)
            yield f"    - {{from: {plain(b)}, to: {plain(a)}, {_values(back, frame)}}}{note}"


def _source(reading: Reading) -> str:
    return f" # {reading.source}" if reading.source else ""


KEYS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("one_way_delay", "one_way_delay_s", format_time),
    ("bandwidth", "bandwidth_bps", format_bandwidth),
    ("jitter", "jitter_s", format_time),
    ("loss", "loss", format_percent),
)
"""Key of a link in a scenario file, field of a reading, how its value is written."""


def _values(reading: Reading, frame: Frame) -> str:
    """What a link's line says of it. An unlimited bandwidth, and no loss, go without saying."""
    words = []
    for key, name, write in KEYS:
        value = getattr(reading, name)
        silent = {"bandwidth": float("inf"), "jitter": 0.0, "loss": 0.0}.get(key)
        if value is not None and value != silent and (key != "jitter" or frame.jitter):
            words.append(f"{key}: {write(value)}")
    return ", ".join(words)


def plain(text: str) -> str:
    """Text as YAML has it, quoted where it would be taken for something else."""
    if PLAIN.fullmatch(text) and text.lower() not in RESERVED:
        return text
    return json.dumps(text, ensure_ascii=False)
