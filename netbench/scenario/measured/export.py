"""Write a matrix of measurements as CSV, or as a scenario file."""

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from netbench.errors import ScenarioError
from netbench.scenario.measured.matrices import FIGURES, Matrix, Reading
from netbench.scenario.model import Link
from netbench.units import format_bandwidth, format_percent, format_time

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ._/-]*(?<! )")
RESERVED = {"true", "false", "null", "yes", "no", "on", "off"}
"""Words that some YAML readers do not take as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The parts of a scenario other than its links.

    inside: link inside regions that have no reading of it. jitter: include the readings' jitter.
    comments: lines at the head of the file.
    """

    name: str
    title: str = ""
    nodes_per_region: int = 1
    device: str = "V100"
    inside: Link | None = None
    inside_note: str = ""
    jitter: bool = False
    comments: tuple[str, ...] = ()


COLUMNS: Mapping[str, tuple[str, float]] = {
    "one_way_delay_ms": ("one_way_delay_s", 1e3),
    "jitter_ms": ("jitter_s", 1e3),
    "loss_percent": ("loss", 1e2),
    "bandwidth_gbps": ("bandwidth_bps", 1e-9),
}


def matrix_csv(matrix: Matrix) -> str:
    """Return a row per reading: source, destination and `COLUMNS`; empty if not measured."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("source", "destination", *COLUMNS))
    for pair, reading in matrix.readings.items():
        values = ((getattr(reading, name), factor) for name, factor in COLUMNS.values())
        cells = ("" if value is None else f"{value * factor:.12g}" for value, factor in values)
        table.writerow((*pair, *cells))
    return text.getvalue()


WORKLOAD = """\
workload: # GPT-XL; what would be trained, shaping and measuring do not look at it
  layers: 24
  hidden: 2048
  heads: 16
  sequence: 2048
  batch: {batch}
"""

BATCH = 1024
"""Batch of the workload; rounded up to a multiple of the number of nodes."""


def scenario_yaml(matrix: Matrix, frame: Frame) -> str:
    """Return a scenario file with the links of a complete matrix and comments on their origin.

    Reading the file gives exactly the same values. Raises ScenarioError where a region of several
    nodes has no link inside it.
    """
    lines = [f"# {line}".rstrip() for line in (*frame.comments, *matrix.notes)]
    lines.append(f"name: {frame.name}")
    if frame.title:
        lines.append(f"title: {json.dumps(frame.title, ensure_ascii=False)}")
    lines += ["", f"regions: [{', '.join(map(yaml_text, matrix.places))}]", "", "nodes:"]
    count = f", count: {frame.nodes_per_region}" if frame.nodes_per_region > 1 else ""
    for place in matrix.places:
        lines.append(
            f"  - {{region: {yaml_text(place)}{count}, device: {yaml_text(frame.device)}}}"
        )
    lines += ["", "network:", *_inside_lines(matrix, frame), *_link_lines(matrix, frame)]
    num_nodes = len(matrix.places) * frame.nodes_per_region
    batch = math.ceil(BATCH / num_nodes) * num_nodes
    return "\n".join([*lines, "", WORKLOAD.format(batch=batch)])


def _inside_lines(matrix: Matrix, frame: Frame) -> Iterator[str]:
    """Yield the links inside regions: one per region that has a reading, or one for all."""
    measured = [place for place in matrix.places if (place, place) in matrix.readings]
    if frame.inside is not None:
        given = Reading(**{name: getattr(frame.inside, name) for name in FIGURES})
    elif frame.nodes_per_region > 1 and len(measured) < len(matrix.places):
        without = [place for place in matrix.places if place not in measured]
        raise ScenarioError(
            f"there are {frame.nodes_per_region} nodes in each region, but no measurements of the "
            f"network inside {', '.join(without)}; give --inside-delay and --inside-bandwidth"
        )
    note = f" # {frame.inside_note}" if frame.inside_note else ""
    if not measured and frame.inside is not None:
        yield f"  inside: {{{_values(given, frame)}}}{note}"
    elif measured:
        yield "  inside:"
        for place in matrix.places:
            if place in measured:
                reading = matrix.readings[place, place]
                yield f"    {yaml_text(place)}: {{{_values(reading, frame)}}}{_source(reading)}"
            elif frame.inside is not None:
                yield f"    {yaml_text(place)}: {{{_values(given, frame)}}}{note}"


def _link_lines(matrix: Matrix, frame: Frame) -> Iterator[str]:
    """Yield one line per pair of regions, or two if its directions differ."""
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
            yield f"    - {{between: [{yaml_text(a)}, {yaml_text(b)}], {values}}}{note}"
        else:
            yield f"    - {{from: {yaml_text(a)}, to: {yaml_text(b)}, {values}}}{note}"
            note = "" if common else _source(back)
            values = _values(back, frame)
            yield f"    - {{from: {yaml_text(b)}, to: {yaml_text(a)}, {values}}}{note}"


def _source(reading: Reading) -> str:
    return f" # {reading.source}" if reading.source else ""


KEYS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("one_way_delay", "one_way_delay_s", format_time),
    ("bandwidth", "bandwidth_bps", format_bandwidth),
    ("jitter", "jitter_s", format_time),
    ("loss", "loss", format_percent),
)
"""Key of a link in a scenario file, field of a reading, and the format of its value."""


def _values(reading: Reading, frame: Frame) -> str:
    """Return the values of a link's line, without an unlimited bandwidth, no jitter and no loss."""
    entries = []
    for key, name, write in KEYS:
        value = getattr(reading, name)
        silent = {"bandwidth": float("inf"), "jitter": 0.0, "loss": 0.0}.get(key)
        if value is not None and value != silent and (key != "jitter" or frame.jitter):
            entries.append(f"{key}: {write(value)}")
    return ", ".join(entries)


def yaml_text(text: str) -> str:
    """Return text as YAML, quoted where it would not be read as text."""
    if PLAIN.fullmatch(text) and text.lower() not in RESERVED:
        return text
    return json.dumps(text, ensure_ascii=False)
