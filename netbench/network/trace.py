"""Links that change over time: a trace file, and what each node has to do when. Pure.

A trace is CSV with a row per change; what a row leaves empty stays as it is:

    time,link,delay,rate,loss
    0s,Ohio -> Virginia,11ms,1.12Gbit,
    90s,Ohio <-> Virginia,,300Mbit,0.1%
    120s,Ohio <-> Virginia,,,100%

Links are between regions (`A -> B`, both ways `A <-> B`) or inside one (`A`). 100% loss is a link
that is down. Changes of one time are one step. A change is made in place (`tc qdisc change`): what
waits in a queue stays there, and no packet goes unshaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

from netbench.errors import ScenarioError, nearest
from netbench.network.program import Program, compile_program, sysctls
from netbench.network.queues import destination_groups, num_routers
from netbench.network.tc import class_line, leaf_line
from netbench.scenario.model import NO_BURSTS, Link, Network
from netbench.units import (
    format_bandwidth,
    format_percent,
    format_time,
    parse_bandwidth,
    parse_percent,
    parse_time,
)

COLUMNS = ("time", "link", "delay", "rate", "loss")

_ENDS = re.compile(r"(.+?)\s*(<->|->)\s*(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """From `time_s` on (seconds after the start) the link from region `src` to region `dst`
    (indices) has these values; None = as before. loss: 0..1, independent per packet; 1 = down.
    """

    time_s: float
    src: int
    dst: int
    one_way_delay_s: float | None = None
    bandwidth_bps: float | None = None
    loss: float | None = None

    def of(self, link: Link) -> Link:
        """The link after the change."""
        given: dict[str, float] = {
            name: value
            for name in ("one_way_delay_s", "bandwidth_bps", "loss")
            if (value := getattr(self, name)) is not None
        }
        bursts = NO_BURSTS if "loss" in given else link.bursts
        return replace(link, **given, bursts=bursts)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What a node loads at `time_s`, seconds after the start: `tc -batch` text."""

    time_s: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A node's part of a trace. program: what it holds before the first step."""

    program: Program
    steps: tuple[Step, ...]


def read_trace(path: Path, regions: Sequence[str]) -> tuple[Change, ...]:
    """The changes of a file, in order of time. Raises ScenarioError with file, line and column."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    return parse_trace(text, regions, str(path))


def parse_trace(text: str, regions: Sequence[str], where: str = "trace") -> tuple[Change, ...]:
    """The changes of a trace file's text. Raises ScenarioError; `where` names the file in it."""
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    found = tuple(reader.fieldnames or ())
    unknown = [name for name in found if name not in COLUMNS]
    if unknown or not {"time", "link"} <= set(found):
        raise ScenarioError(
            f"{where}:1: columns are {', '.join(found) or 'missing'}; expected {','.join(COLUMNS)} "
            "(delay, rate and loss may be left out)"
        )
    changes = [
        change for row in reader for change in _changes(row, regions, f"{where}:{reader.line_num}")
    ]
    if not changes:
        raise ScenarioError(f"{where}: has no changes; add rows of {','.join(COLUMNS)}")
    return tuple(sorted(changes, key=lambda change: change.time_s))


def write_trace(changes: Iterable[Change], regions: Sequence[str]) -> str:
    """The text of a trace file; `parse_trace` gives the same changes back."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    formats: tuple[tuple[str, Callable[[float], str]], ...] = (
        ("one_way_delay_s", format_time),
        ("bandwidth_bps", format_bandwidth),
        ("loss", format_percent),
    )
    for change in changes:
        src, dst = regions[change.src], regions[change.dst]
        link = src if change.src == change.dst else f"{src} -> {dst}"
        values = [(write, getattr(change, name)) for name, write in formats]
        written = ["" if value is None else write(value) for write, value in values]
        writer.writerow([format_time(change.time_s), link, *written])
    return out.getvalue()


def networks(network: Network, changes: Iterable[Change]) -> tuple[tuple[float, Network], ...]:
    """(time_s, the network from then on) for every time at which something changes."""
    steps: list[tuple[float, Network]] = []
    for time_s, group in groupby(changes, key=lambda change: change.time_s):
        links = [list(row) for row in network.links]
        for change in group:
            links[change.src][change.dst] = change.of(links[change.src][change.dst])
        network = replace(network, links=tuple(map(tuple, links)))
        steps.append((time_s, network))
    return tuple(steps)


def compile_replays(
    network: Network,
    changes: Sequence[Change],
    addresses: Sequence[Sequence[str]],
    interface: str,
    scale: float = 1.0,
) -> tuple[Replay, ...]:
    """What every node and router does, see `compile_replay`."""
    nodes = range(network.num_nodes + num_routers(network))
    return tuple(
        compile_replay(network, changes, node, addresses, interface, scale) for node in nodes
    )


def compile_replay(
    network: Network,
    changes: Sequence[Change],
    node: int,
    addresses: Sequence[Sequence[str]],
    interface: str,
    scale: float = 1.0,
    exempt_ports: tuple[int, ...] = (),
) -> Replay:
    """What a node or router does. addresses: as of `compile_programs`.

    With `class` sharing, destinations share a queue where their links are equal all the time.
    Raises NetworkError.
    """
    changed = networks(network, changes)
    states = [network, *(state for _, state in changed)]
    groups = _lasting_groups(states, node)
    compiled = {
        state: replace(
            compile_program(state, node, addresses, interface, scale, groups),
            exempt_ports=exempt_ports,
        )
        for state in dict.fromkeys(states)  # those of later days are those of the first
    }
    programs = _with_longest_queues([compiled[state] for state in states])
    steps = (
        Step(time_s=time_s, text=_difference(before, after))
        for (time_s, _), (before, after) in zip(changed, pairwise(programs), strict=True)
    )
    segments = compile_program(_lossiest(states), node, addresses, interface, scale, groups)
    return Replay(
        program=replace(programs[0], max_segments=segments.max_segments),
        steps=tuple(step for step in steps if step.text),
    )


def _lossiest(states: Sequence[Network]) -> Network:
    """Every link with the most loss it ever has while it is up: a setting that suits them all."""
    links = tuple(
        tuple(
            replace(link, loss=max((x for x in _losses(states, src, dst) if x < 1), default=0.0))
            for dst, link in enumerate(row)
        )
        for src, row in enumerate(states[0].links)
    )
    return replace(states[0], links=links)


def _losses(states: Sequence[Network], src: int, dst: int) -> list[float]:
    return [state.links[src][dst].loss for state in states]


def fastest(network: Network, changes: Iterable[Change]) -> Network:
    """Every link with the highest rate it ever has: what a node must be able to carry."""
    states = [network, *(state for _, state in networks(network, changes))]
    links = tuple(
        tuple(
            replace(link, bandwidth_bps=max(s.links[src][dst].bandwidth_bps for s in states))
            for dst, link in enumerate(row)
        )
        for src, row in enumerate(network.links)
    )
    return replace(network, links=links)


def replay_sysctls(
    network: Network, changes: Iterable[Change], scale: float = 1.0
) -> dict[str, str]:
    """Settings that suit the network at all times: those of the largest buffers."""
    every = [
        sysctls(state, scale) for state in (network, *(n for _, n in networks(network, changes)))
    ]
    largest = max(every, key=lambda found: int(found["net.ipv4.tcp_rmem"].split()[-1]))
    # What is set only where nothing is ever lost must be right at all times.
    return {name: value for name, value in largest.items() if all(name in found for found in every)}


def _lasting_groups(states: Sequence[Network], node: int) -> list[tuple[int, ...]]:
    """Destinations that are in one group in all states."""
    memberships = [
        {dst: group for group in destination_groups(state, node) for dst in group}
        for state in states
    ]
    found: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for dst in memberships[0]:
        found.setdefault(tuple(member[dst] for member in memberships), []).append(dst)
    return [tuple(group) for group in found.values()]


def _with_longest_queues(programs: Sequence[Program]) -> list[Program]:
    """Every leaf with the longest queue it has in any of the programs: TCP's buffers are those of
    the largest network all the time."""
    limits = [
        max(leaf.limit_packets for leaf in leaves)
        for leaves in zip(*(program.leaves for program in programs), strict=True)
    ]
    return [
        replace(
            program,
            leaves=tuple(
                replace(leaf, limit_packets=limit)
                for leaf, limit in zip(program.leaves, limits, strict=True)
            ),
        )
        for program in programs
    ]


def _difference(before: Program, after: Program) -> str:
    """`tc -batch` text for the classes and leaves that differ; both have the same ones."""
    dev = f"dev {before.interface}"
    lines = [
        class_line("change", dev, new)
        for old, new in zip(before.classes, after.classes, strict=True)
        if old != new
    ]
    lines += [
        leaf_line("change", dev, new)
        for old, new in zip(before.leaves, after.leaves, strict=True)
        if old != new
    ]
    return "".join(f"{line}\n" for line in lines)


def _changes(row: dict[str, str], regions: Sequence[str], where: str) -> list[Change]:
    if None in row or None in row.values():
        raise ScenarioError(f"{where}: has not one value per column; leave a value empty: 1s,A,,,")
    values = {name: (row.get(name) or "").strip() for name in COLUMNS}

    def read(name: str, parse: Callable[[str], float]) -> float | None:
        try:
            return parse(values[name]) if values[name] else None
        except ValueError as error:
            raise ScenarioError(f"{where}: {name} {error}") from None

    time_s = read("time", parse_time)
    if time_s is None:
        raise ScenarioError(f'{where}: time is empty; write e.g. "90s"')
    given = {
        "one_way_delay_s": read("delay", parse_time),
        "bandwidth_bps": read("rate", parse_bandwidth),
        "loss": read("loss", parse_percent),
    }
    if all(value is None for value in given.values()):
        raise ScenarioError(f"{where}: changes nothing; give delay, rate or loss")
    ends = parse_link(values["link"], regions, where)
    return [Change(time_s=time_s, src=src, dst=dst, **given) for src, dst in ends]


def parse_link(text: str, regions: Sequence[str], where: str) -> list[tuple[int, int]]:
    """(src, dst) region indices of `A -> B`, `A <-> B`, or `A` (inside). Raises ScenarioError."""
    match = _ENDS.fullmatch(text.strip())
    names = (match[1], match[3]) if match else (text.strip(),) * 2
    for name in names:
        if name not in regions:
            raise ScenarioError(f'{where}: link "{text}": {nearest(name, regions)}')
    src, dst = (regions.index(name) for name in names)
    return [(src, dst), (dst, src)] if match and match[2] == "<->" and src != dst else [(src, dst)]
