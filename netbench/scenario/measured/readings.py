"""Parse measurements into a `Matrix`: iperf3's JSON, ping's summary, tables in CSV. Pure.

Delays are one-way: half of a round trip is taken, and the notes of the matrix say so. iperf3
measures payload; the rate of the link is (segment + 66) / segment times as much (40 bytes of
headers, 12 of timestamps, 14 of Ethernet).
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netbench.errors import ScenarioError
from netbench.scenario.measured.matrices import Matrix, Pair, Reading
from netbench.units import counted, parse_bandwidth, parse_bytes, parse_delay, parse_percent

FRAME_OVERHEAD_BYTES = 66
SEGMENT_BYTES = 1448
"""Payload of a full TCP segment at an MTU of 1500; used where iperf3 does not report it."""

HALVED = "Delays are half of a measured round trip: one way = RTT / 2."
LOADED = "Delays by iperf3 are half of the smallest round trip of TCP under load."
WIRE = "Bandwidths by iperf3 are rates on the wire: the measured payload plus headers."
PING_JITTER = "Jitter by ping is its mdev (of round trips) / sqrt(2)."
PING_LOSS = "Loss by ping is one-way, assuming equal loss in both directions."

DIGITS = 4
"""Significant digits of computed values; those of a table are not rounded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """Information that a file lacks.

    pair: places of the measurement; ping does not print its source. delay_unit, bandwidth_unit: of
    bare numbers. round_trip: delays in tables are round trips, whatever their headers say.
    """

    pair: Pair | None = None
    delay_unit: str = ""
    bandwidth_unit: str = ""
    round_trip: bool = False


PLAIN_READER = Reader()


def read_matrix(name: str, text: str, reader: Reader = PLAIN_READER) -> Matrix:
    """Parse one file, whose format is detected. name: of the file, for messages.

    Raises ScenarioError with what was found and what was expected.
    """
    if text.lstrip().startswith("{"):
        return _read_iperf3(name, text, reader)
    if "ping statistics" in text:
        return _read_ping(name, text, reader)
    return _read_table(name, text, reader)


# -- iperf3 --------------------------------------------------------------------------------------


def _read_iperf3(name: str, text: str, reader: Reader) -> Matrix:
    """Parse `iperf3 -J`, TCP or UDP, in either direction."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ScenarioError(f"{name}: not JSON: {error}") from None
    if "error" in data:
        raise ScenarioError(f"{name}: iperf3 failed: {data['error']}; measure again")
    try:
        start, end = data["start"], data["end"]
        test, connected = start["test_start"], start["connected"][0]
        ends = reader.pair or (str(connected["local_host"]), str(connected["remote_host"]))
        pair = (ends[1], ends[0]) if test.get("reverse") else (ends[0], ends[1])
        udp = test["protocol"] == "UDP"
        reading = _udp_reading(end) if udp else _tcp_reading(start, end)
        bidir = test.get("bidir")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        missing = " is missing" if isinstance(error, KeyError) else ""
        raise ScenarioError(
            f"{name}: not a finished run of `iperf3 -J`: {error}{missing}"
        ) from None
    if bidir:
        raise ScenarioError(f"{name}: --bidir loads both directions at once; measure them in turn")
    parsed = Reading(**reading, source=f"iperf3, {name}")
    notes = [WIRE] if parsed.bandwidth_bps is not None else []
    notes += [LOADED] if parsed.one_way_delay_s is not None else []
    return Matrix(places=(ends[0], ends[1]), readings={pair: parsed}, notes=tuple(notes))


def _tcp_reading(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rate of the received payload, and the smallest round trip of any stream."""
    segment = parse_bytes(f"{start.get('tcp_mss_default') or SEGMENT_BYTES}B")
    payload_bps = parse_bandwidth(f"{end['sum_received']['bits_per_second']}bit")
    rtts_s = [
        parse_delay(f"{rtt_us}us")
        for stream in end["streams"]
        if (rtt_us := stream["sender"].get("min_rtt") or stream["sender"].get("mean_rtt"))
    ]
    reading: dict[str, Any] = {
        "bandwidth_bps": _rounded(payload_bps * (segment + FRAME_OVERHEAD_BYTES) / segment)
    }
    if rtts_s:
        half_s = _rounded(min(rtts_s) / 2)
        reading |= {"one_way_delay_s": half_s, "halved": True, "loaded": True}
    return reading


def _udp_reading(end: Mapping[str, Any]) -> dict[str, Any]:
    """Return jitter and loss; the rate of UDP is only what the sender was told to send."""
    total = end["sum"]
    return {
        "jitter_s": _rounded(parse_delay(f"{total['jitter_ms']}ms")),
        "loss": _rounded(parse_percent(f"{total['lost_percent']}%")),
    }


# -- ping ----------------------------------------------------------------------------------------

PING_TARGET = re.compile(r"^(?:PING6?|---) (\S+)", re.MULTILINE)
PING_TIMES = re.compile(
    r"(?:rtt|round-trip) min/avg/max(?:/(?:mdev|std-?dev))? = "
    r"(?P<min>[\d.]+)/(?P<avg>[\d.]+)/(?P<max>[\d.]+)(?:/(?P<dev>[\d.]+))?\s*ms"
)
PING_LOST = re.compile(r"([\d.]+)% packet loss")


def _read_ping(name: str, text: str, reader: Reader) -> Matrix:
    """Parse the summary of ping on Linux (iputils, BusyBox), macOS or BSD; half of its minimum."""
    target = PING_TARGET.search(text)
    if reader.pair is None:
        to = target[1] if target else "DESTINATION"
        raise ScenarioError(
            f"{name}: ping does not print its source; write SOURCE,DESTINATION={name}, "
            f"e.g. here,{to}={name}"
        )
    times, lost = PING_TIMES.search(text), PING_LOST.search(text)
    if times is None or lost is None:
        raise ScenarioError(f"{name}: ping's summary has no times: no packet was answered")
    try:
        lost_fraction = parse_percent(f"{lost[1]}%")
        rtt_s, deviation_s = (parse_delay(f"{times[key] or 0}ms") for key in ("min", "dev"))
    except ValueError as error:
        raise ScenarioError(f"{name}: ping's summary: {error}") from None
    reading = Reading(
        one_way_delay_s=_rounded(rtt_s / 2, 6),
        halved=True,
        jitter_s=None if times["dev"] is None else _rounded(deviation_s / 2**0.5),
        loss=_rounded(1 - math.sqrt(1 - lost_fraction)),
        source=f"ping, {name}",
    )
    notes = (
        [HALVED] + ([PING_JITTER] if times["dev"] else []) + ([PING_LOSS] if lost_fraction else [])
    )
    return Matrix(places=reader.pair, readings={reader.pair: reading}, notes=tuple(notes))


# -- CSV -----------------------------------------------------------------------------------------

SOURCE_HEADS = ("source", "src", "from", "sender", "client")
DESTINATION_HEADS = ("destination", "dst", "dest", "to", "target", "receiver", "server")

KINDS: Mapping[str, tuple[str, ...]] = {
    "rtt": ("rtt", "ping", "round_trip", "roundtrip"),
    "jitter": ("jitter", "mdev", "stddev"),
    "delay": ("one_way", "oneway", "delay", "latency"),
    "loss": ("loss", "lost"),
    "bandwidth": ("bandwidth", "throughput", "goodput", "rate", "speed", "bw"),
}
"""Kind of a value -> words in the header of its column, tried in this order."""

TIME_UNITS = ("ns", "us", "ms", "s")
RATE_UNITS = {
    f"{prefix.lower()}{form}": f"{prefix}bit"
    for prefix in ("", "K", "M", "G", "T")
    for form in ("bps", "bit", "bit/s", "bits", "bits/s", "b/s")
}
"""Units in headers and cells, lower case -> units of `netbench.units`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """The values of a column. unit: of bare numbers, "" = each has a unit. named: the header names
    the kind; otherwise only its unit implies it."""

    kind: str
    unit: str
    named: bool = True


def _read_table(name: str, text: str, reader: Reader) -> Matrix:
    """Parse a square table with places along two sides, or a table with a row per pair."""
    text = text.lstrip("\ufeff")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=None), delimiter=delimiter))
    except csv.Error as error:
        raise ScenarioError(f"{name}: not CSV: {error}") from None
    lines = [
        (number, [cell.strip() for cell in row])
        for number, row in enumerate(rows, 1)
        if any(cell.strip() for cell in row) and not row[0].lstrip().startswith("#")
    ]
    if len(lines) < 2:
        raise ScenarioError(
            f"{name}: not a table: expected CSV with a header row and rows of values, the JSON of "
            "`iperf3 -J`, or the output of ping"
        )
    head = [cell.lower() for cell in lines[0][1]]
    source, destination = _find(head, SOURCE_HEADS), _find(head, DESTINATION_HEADS)
    if source is not None and destination is not None:
        return _read_long(name, lines, (source, destination), reader)
    return _read_wide(name, lines, reader)


Line = tuple[int, list[str]]
"""Line number in the file, and cells."""


def _find(head: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the column with one of these headers, earlier names first."""
    return next((head.index(name) for name in names if name in head), None)


def _read_long(name: str, lines: list[Line], ends: tuple[int, int], reader: Reader) -> Matrix:
    heads = lines[0][1]
    columns = _columns(name, lines[0], ends, reader)
    if not columns:
        raise ScenarioError(
            f"{name}:{lines[0][0]}: no column of values among {', '.join(heads)}; expected headers "
            "such as rtt_ms, one_way_delay_ms, bandwidth_gbps, jitter_ms, loss_percent"
        )
    readings: dict[Pair, Reading] = {}
    for number, cells in lines[1:]:
        if len(cells) != len(heads):
            raise ScenarioError(
                f"{name}:{number}: {counted(len(cells), 'cell')}; expected {len(heads)}"
            )
        pair = (cells[ends[0]], cells[ends[1]])
        if not all(pair):
            raise ScenarioError(f"{name}:{number}: a place has no name")
        if pair in readings:
            raise ScenarioError(f"{name}:{number}: gives {pair[0]} -> {pair[1]} again; keep one")
        values: dict[str, Any] = {}
        for i, column in columns.items():
            values |= _value(f"{name}:{number}", cells[i], column)
        readings[pair] = Reading(**values, source=name)
    first, second = sorted(ends)
    places = dict.fromkeys(cells[i] for _, cells in lines[1:] for i in (first, second))
    return Matrix(places=tuple(places), readings=readings, notes=_notes(readings))


def _columns(name: str, head: Line, ends: tuple[int, int], reader: Reader) -> dict[int, Column]:
    """Return the columns of values. A named column replaces one that only its unit identifies."""
    candidates = {
        i: column
        for i, text in enumerate(head[1])
        if i not in ends and (column := _column(text, reader)) is not None
    }
    named = {PARSERS[column.kind][0] for column in candidates.values() if column.named}
    kept = {i: c for i, c in candidates.items() if c.named or PARSERS[c.kind][0] not in named}
    for field in sorted({PARSERS[column.kind][0] for column in kept.values()}):
        same = [head[1][i] for i, column in kept.items() if PARSERS[column.kind][0] == field]
        if len(same) > 1:
            raise ScenarioError(
                f"{name}:{head[0]}: {' and '.join(same)} have the same meaning; keep one column"
            )
    return kept


def _read_wide(name: str, lines: list[Line], reader: Reader) -> Matrix:
    """Parse rows of sources and columns of destinations; the diagonal is inside, or empty."""
    (corner, *places), rows = lines[0][1], lines[1:]
    sides = [cells[0] for _, cells in rows]
    if sorted(sides) != sorted(places) or len(set(places)) < len(places):
        raise ScenarioError(
            f"{name}:{lines[0][0]}: neither columns for source and destination (found "
            f"{', '.join(lines[0][1])}) nor a square table: its header has {', '.join(places)}, "
            f"its first column {', '.join(sides)}"
        )
    cells = [cell for _, row in rows for cell in row[1:]]
    column = (
        _column(corner, reader)
        or _column(name.rsplit("/", 1)[-1], reader)
        or _column_from_units(cells)
    )
    if column is None:
        raise ScenarioError(
            f"{name}:{lines[0][0]}: are these delays or bandwidths? Name them in the first cell, "
            "e.g. rtt_ms or bandwidth_gbps, or write units in the cells: 11ms, 1.12Gbit"
        )
    column = _with_unit(column, reader)
    readings: dict[Pair, Reading] = {}
    for number, (src, *values) in rows:
        if len(values) != len(places):
            raise ScenarioError(
                f"{name}:{number}: {counted(len(values), 'value')}; expected {len(places)}"
            )
        for dst, cell in zip(places, values, strict=True):
            inside = src == dst and re.fullmatch(r"0*\.?0*\s*\D*", cell)
            value = {} if inside else _value(f"{name}:{number}", cell, column)
            if value:
                readings[src, dst] = Reading(**value, source=name)
    return Matrix(places=tuple(places), readings=readings, notes=_notes(readings))


def _column(head: str, reader: Reader) -> Column | None:
    """Interpret a header, e.g. `rtt_ms`, `Bandwidth (Gbit/s)`, `nccl_gbps`, `loss %`."""
    words = head.lower().replace("%", " percent ")
    parts = [part for part in re.split(r"[\s_()\[\],.-]+", words) if part]
    unit = next((part for part in reversed(parts) if part in (*TIME_UNITS, *RATE_UNITS)), "")
    joined = "_".join(parts)
    kind = next((k for k, names in KINDS.items() if any(name in joined for name in names)), "")
    if unit in RATE_UNITS and kind in ("", "bandwidth"):
        return Column(kind="bandwidth", unit=RATE_UNITS[unit], named=bool(kind))
    if not kind:
        return None
    if kind == "loss":
        return Column(kind=kind, unit="%" if {"percent", "pct"} & {*parts} else "")
    if kind == "delay" and reader.round_trip:
        kind = "rtt"
    return _with_unit(Column(kind=kind, unit=unit if unit in TIME_UNITS else ""), reader)


def _with_unit(column: Column, reader: Reader) -> Column:
    """Return the column with the reader's unit for bare numbers if it has none."""
    kind = "rtt" if column.kind == "delay" and reader.round_trip else column.kind
    given = {"bandwidth": reader.bandwidth_unit, "loss": ""}.get(kind, reader.delay_unit)
    unit = column.unit or RATE_UNITS.get(given.lower(), given)
    return Column(kind=kind, unit=unit, named=column.named)


def _column_from_units(cells: Sequence[str]) -> Column | None:
    """Identify delays or bandwidths by the units in the cells."""
    units = {re.sub(r"^[\d.eE+-]*\d\.?\s*", "", cell).lower() for cell in cells if cell}
    units -= {"", "-"}
    if units and units <= {*TIME_UNITS, "µs"}:
        return Column(kind="delay", unit="")
    if units and units <= {*RATE_UNITS, "inf", "unlimited"}:
        return Column(kind="bandwidth", unit="")
    return None


PARSERS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "delay": ("one_way_delay_s", parse_delay),
    "rtt": ("one_way_delay_s", parse_delay),
    "jitter": ("jitter_s", parse_delay),
    "loss": ("loss", parse_percent),
    "bandwidth": ("bandwidth_bps", parse_bandwidth),
}


def _value(where: str, cell: str, column: Column) -> dict[str, Any]:
    """Return the field of a reading in a cell; nothing for an empty cell."""
    if cell.lower() in ("", "-", "nan", "n/a"):
        return {}
    name, parse = PARSERS[column.kind]
    bare = re.fullmatch(r"[\d.eE+-]+", cell) is not None
    text = cell + column.unit if bare else cell
    if column.kind == "bandwidth":
        number, unit = re.match(r"([\d.eE+-]*)\s*(.*)", text).groups()  # type: ignore[union-attr]
        text = number + RATE_UNITS.get(unit.lower(), unit)
    try:
        value = parse(text)
    except ValueError as error:
        hint = "" if column.unit or not bare else "; or name the unit in the header: rtt_ms"
        raise ScenarioError(f"{where}: {column.kind} {error}{hint}") from None
    return {name: value / 2, "halved": True} if column.kind == "rtt" else {name: value}


def _notes(readings: Mapping[Pair, Reading]) -> tuple[str, ...]:
    return (HALVED,) if any(reading.halved for reading in readings.values()) else ()


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
