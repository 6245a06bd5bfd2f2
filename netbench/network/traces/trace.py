"""Links that change over time: the trace file, and the steps of each node. Pure.

A trace is CSV with a row per change. Empty values stay as they are:

    time,link,delay,rate,loss
    0s,Ohio -> Virginia,11ms,1.12Gbit,
    90s,Ohio <-> Virginia,,300Mbit,0.1%
    120s,Ohio <-> Virginia,,,100%

Links are between regions (`A -> B`, both ways `A <-> B`) or inside one (`A`). A link with 100% loss
is down. Changes at the same time are one step. Queued packets stay queued, and none is unshaped.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

from netbench.errors import ScenarioError, nearest
from netbench.files import read_text
from netbench.limits import POINTER_BYTES, check_memory
from netbench.network.shaping.program import Program, compile_program, sysctls
from netbench.network.shaping.tc import Leaf, class_line, leaf_line
from netbench.scenario.model import NO_BURSTS, Link, Network
from netbench.scenario.sharing import destination_groups, num_routers
from netbench.units import (
    format_bandwidth,
    format_percent,
    format_time,
    parse_bandwidth,
    parse_delay,
    parse_percent,
    parse_time,
)

VALUES = {
    "delay": ("one_way_delay_s", parse_delay, format_time),
    "rate": ("bandwidth_bps", parse_bandwidth, format_bandwidth),
    "loss": ("loss", parse_percent, format_percent),
}
"""Column -> field of `Change` and of `Link`, how to parse it and how to format it."""

COLUMNS = ("time", "link", *VALUES)

_ENDS = re.compile(r"(.+?)\s*(<->|->)\s*(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """New values of the link from region `src` to region `dst` (indices); None = unchanged.

    time_s: seconds after the start. loss: 0..1, independent per packet; 1 = down.
    """

    time_s: float
    src: int
    dst: int
    one_way_delay_s: float | None = None
    bandwidth_bps: float | None = None
    loss: float | None = None

    def of(self, link: Link) -> Link:
        """Return the link after the change."""
        changed = {name: getattr(self, name) for name, _, _ in VALUES.values()}
        given = {name: value for name, value in changed.items() if value is not None}
        bursts = NO_BURSTS if "loss" in given else link.bursts
        return replace(link, **given, bursts=bursts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayStep:
    """`tc -batch` text that a node loads at `time_s`, seconds after the start."""

    time_s: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A node's part of a trace. program: its tc configuration before the first step."""

    program: Program
    steps: tuple[ReplayStep, ...]


def read_trace(path: Path, regions: Sequence[str]) -> tuple[Change, ...]:
    """Read the changes of a file, in order of time. Raises ScenarioError with file and line."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    return parse_trace(text, regions, str(path))


def parse_trace(text: str, regions: Sequence[str], where: str = "trace") -> tuple[Change, ...]:
    """Parse the text of a trace file. Raises ScenarioError, which names the file by `where`."""
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
    """Format changes as a trace file; `parse_trace` is the inverse."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for change in changes:
        src, dst = regions[change.src], regions[change.dst]
        link = src if change.src == change.dst else f"{src} -> {dst}"
        values = [(write, getattr(change, name)) for name, _, write in VALUES.values()]
        written = ["" if value is None else write(value) for write, value in values]
        writer.writerow([format_time(change.time_s), link, *written])
    return out.getvalue()


def networks(network: Network, changes: Iterable[Change]) -> tuple[tuple[float, Network], ...]:
    """Return (time_s, network from then on) for every time of a change."""
    changes = tuple(changes)
    check_memory(POINTER_BYTES * len(changes) * len(network.regions) ** 2, "networks of the trace")
    steps: list[tuple[float, Network]] = []
    for time_s, group in groupby(changes, key=lambda change: change.time_s):
        links = [list(row) for row in network.links]
        for change in group:
            links[change.src][change.dst] = change.of(links[change.src][change.dst])
        network = replace(network, links=tuple(map(tuple, links)))
        steps.append((time_s, network))
    return tuple(steps)


def _states(network: Network, changes: Iterable[Change]) -> list[Network]:
    return [network, *(state for _, state in networks(network, changes))]


def compile_replays(
    network: Network, changes: Sequence[Change], addresses: Sequence[Sequence[str]], interface: str
) -> tuple[Replay, ...]:
    """Compile for every node and router; see `compile_replay`."""
    nodes = range(network.num_nodes + num_routers(network))
    return tuple(compile_replay(network, changes, node, addresses, interface) for node in nodes)


def compile_replay(
    network: Network,
    changes: Sequence[Change],
    node: int,
    addresses: Sequence[Sequence[str]],
    interface: str,
    exempt_ports: tuple[int, ...] = (),
) -> Replay:
    """Compile the steps of a node or router. addresses: see `compile_programs`.

    Destinations share a queue if they do at all times. Raises NetworkError.
    """
    changed = networks(network, changes)
    states = [network, *(state for _, state in changed)]
    groups = _lasting_groups(states, node)
    compiled = {
        state: compile_program(state, node, addresses, interface, 1.0, groups, exempt_ports)
        for state in dict.fromkeys(states)  # states repeat, e.g. every day
    }
    programs = _with_longest_queues([compiled[state] for state in states])
    steps = (
        ReplayStep(time_s=time_s, text=_difference(before, after))
        for (time_s, _), (before, after) in zip(changed, pairwise(programs), strict=True)
    )
    # Every link has its highest loss while it is up.
    lossiest = _merged(
        states,
        lambda links: replace(
            links[0], loss=max((x.loss for x in links if x.loss < 1), default=0.0)
        ),
    )
    segments = compile_program(lossiest, node, addresses, interface, groups=groups)
    return Replay(
        program=replace(programs[0], max_segments=segments.max_segments),
        steps=tuple(step for step in steps if step.text),
    )


def _merged(states: Sequence[Network], merge: Callable[[Sequence[Link]], Link]) -> Network:
    """Return the first state with every link merged from those of all states."""
    links = tuple(
        tuple(merge([state.links[src][dst] for state in states]) for dst in range(len(row)))
        for src, row in enumerate(states[0].links)
    )
    return replace(states[0], links=links)


def fastest(network: Network, changes: Iterable[Change]) -> Network:
    """Return the network in which every link has its highest rate, which nodes must carry."""
    return _merged(
        _states(network, changes),
        lambda links: replace(links[0], bandwidth_bps=max(x.bandwidth_bps for x in links)),
    )


def replay_sysctls(
    network: Network, changes: Iterable[Change], scale: float = 1.0
) -> dict[str, str]:
    """Return the sysctls for all times: those of the largest buffers."""
    every = [sysctls(state, scale) for state in _states(network, changes)]
    largest = max(every, key=lambda found: int(found["net.ipv4.tcp_rmem"].split()[-1]))
    # Settings that require a network without loss must hold at all times.
    return {name: value for name, value in largest.items() if all(name in found for found in every)}


def _lasting_groups(states: Sequence[Network], node: int) -> list[tuple[int, ...]]:
    """Return groups of destinations that share a queue in all states."""
    memberships = [
        {dst: group for group in destination_groups(state, node) for dst in group}
        for state in states
    ]
    found: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for dst in memberships[0]:
        found.setdefault(tuple(member[dst] for member in memberships), []).append(dst)
    return [tuple(group) for group in found.values()]


def _with_longest_queues(programs: Sequence[Program]) -> list[Program]:
    """Give every leaf its longest queue: TCP always has the buffers of the largest network."""
    limits = [
        max(leaf.limit_packets for leaf in leaves)
        for leaves in zip(*(program.leaves for program in programs), strict=True)
    ]

    def longest(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        pairs = zip(leaves, limits, strict=True)
        return tuple(replace(leaf, limit_packets=limit) for leaf, limit in pairs)

    return [replace(program, leaves=longest(program.leaves)) for program in programs]


def _difference(before: Program, after: Program) -> str:
    """Return `tc -batch` text for classes and leaves that differ; both have the same ones."""
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
        raise ScenarioError(f"{where}: does not have one value per column; write e.g. 1s,A,,,")
    values = {name: (row.get(name) or "").strip() for name in COLUMNS}

    def read(name: str, parse: Callable[[str], float]) -> float | None:
        try:
            return parse(values[name]) if values[name] else None
        except ValueError as error:
            raise ScenarioError(f"{where}: {name} {error}") from None

    time_s = read("time", parse_time)
    if time_s is None:
        raise ScenarioError(f'{where}: time is empty; write e.g. "90s"')
    given = {field: read(column, parse) for column, (field, parse, _) in VALUES.items()}
    if all(value is None for value in given.values()):
        raise ScenarioError(f"{where}: changes nothing; give delay, rate or loss")
    ends = parse_link(values["link"], regions, where)
    return [Change(time_s=time_s, src=src, dst=dst, **given) for src, dst in ends]


def parse_link(text: str, regions: Sequence[str], where: str) -> list[tuple[int, int]]:
    """Parse `A -> B`, `A <-> B`, or `A` (inside) to region indices. Raises ScenarioError."""
    match = _ENDS.fullmatch(text.strip())
    names = (match[1], match[3]) if match else (text.strip(),) * 2
    for name in names:
        if name not in regions:
            raise ScenarioError(f'{where}: link "{text}": {nearest(name, regions)}')
    src, dst = (regions.index(name) for name in names)
    return [(src, dst), (dst, src)] if match and match[2] == "<->" and src != dst else [(src, dst)]
