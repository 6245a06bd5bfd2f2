"""The network that the probes of a run measured. Pure.

A run measures one link of every class, from each region to each other and inside each. A delay is
the one asked for, plus what was measured beyond the expected figure, which contains the echo's
frame at the rate; of a round trip, each direction takes half. A bandwidth is the rate that carries
the measured goodput, headers included.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from netbench.errors import RecordError
from netbench.network.shaping.segments import goodput_ratio
from netbench.scenario.model import Link, Network
from netbench.units import counted, format_bandwidth, format_time

LINK = "link"
"""Kind of a check of one link; others are of what links share."""

Pair = tuple[int, int]
"""Source and destination: indices of regions, or of nodes where it says so."""

DIGITS = 4
"""Significant digits of figures in notes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredNetwork:
    """network: with measured links in place of those asked for. notes: by class of links, what was
    measured, or why the values are those asked for."""

    network: Network
    notes: Mapping[Pair, str]


def measured_network(
    network: Network, probes: Iterable[Mapping[str, Any]], names: Sequence[str], scale: float
) -> MeasuredNetwork:
    """Return a network as its probes found it: `NetworkVerdict`s as JSON data, of one network.

    names: of the nodes, for notes. scale: divisor of its bandwidths. Of several figures for a class
    the mean counts. Raises RecordError if no link was measured.
    """
    found: dict[Pair, dict[str, list[_Figure]]] = defaultdict(lambda: defaultdict(list))
    for probe in probes:
        for check in probe.get("checks", ()):
            if check.get("kind") == LINK and check.get("measured") is not None:
                figure = _Figure.of(check)
                regions = (network.node_regions[figure.src], network.node_regions[figure.dst])
                found[regions][str(check.get("quantity"))].append(figure)
    if not found:
        raise RecordError("no probe measured a link")
    size = range(len(network.regions))
    classes = {(a, b): _Class(network, scale, found.get((a, b), {})) for a in size for b in size}
    links = tuple(tuple(classes[a, b].link(network.links[a][b]) for b in size) for a in size)
    return MeasuredNetwork(
        network=replace(network, links=links),
        notes={pair: some.note(names) for pair, some in classes.items()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figure:
    """A measured figure of the link between two nodes, and the expected one."""

    src: int
    dst: int
    expected: float
    measured: float
    streams: int

    @classmethod
    def of(cls, check: Mapping[str, Any]) -> "_Figure":
        try:
            return cls(
                src=check["src"],
                dst=check["dsts"][0],
                expected=check["expected"],
                measured=check["measured"],
                streams=check.get("streams", 1),
            )
        except (KeyError, IndexError) as error:
            raise RecordError(f"a probe has a check without {error}") from error


class _Class:
    """The figures of one class of links, by quantity."""

    def __init__(
        self, network: Network, scale: float, figures: Mapping[str, list[_Figure]]
    ) -> None:
        self._figures = figures
        self._scale = scale / goodput_ratio(network.mtu_bytes)

    def link(self, asked: Link) -> Link:
        """Return the link as measured, as asked for where it was not."""
        values: dict[str, Any] = {}
        if "one_way_s" in self._figures:
            beyond_s = fmean(f.measured - f.expected for f in self._figures["one_way_s"])
            values["one_way_delay_s"] = max(0.0, asked.one_way_delay_s + beyond_s)
        elif "rtt_s" in self._figures:
            beyond_s = fmean((f.measured - f.expected) / 2 for f in self._figures["rtt_s"])
            values["one_way_delay_s"] = max(0.0, asked.one_way_delay_s + beyond_s)
        if goodputs := [f for f in self._figures.get("goodput_bps", ()) if f.streams == 1]:
            values["bandwidth_bps"] = fmean(f.measured for f in goodputs) * self._scale
        if asked.jitter_s and (jitters := self._figures.get("jitter_s")):
            values["jitter_s"] = fmean(f.measured for f in jitters)
        if asked.loss and (losses := self._figures.get("loss")):
            values["loss"] = fmean(f.measured for f in losses)
        return replace(asked, **values)

    def note(self, names: Sequence[str]) -> str:
        if not self._figures:
            return "not probed: as asked for"
        pairs = dict.fromkeys((f.src, f.dst) for some in self._figures.values() for f in some)
        links = ", ".join(f"{names[src]} to {names[dst]}" for src, dst in pairs)
        texts = [
            f"{NAMES[quantity][0]} {NAMES[quantity][1](fmean(values))}"
            for quantity, values in self._measured().items()
        ]
        more = f", means of {self._num()}" if self._num() > 1 else ""
        rate = "" if "goodput_bps" in self._figures else "; no goodput: its rate is as asked for"
        return f"measured from {links}: {', '.join(texts)}{more}{rate}"

    def _num(self) -> int:
        return max(map(len, self._measured().values()))

    def _measured(self) -> dict[str, list[float]]:
        return {
            quantity: [f.measured * self._unscaled(quantity) for f in figures if f.streams == 1]
            for quantity, figures in self._figures.items()
            if quantity in NAMES
        }

    def _unscaled(self, quantity: str) -> float:
        return self._scale if quantity == "goodput_bps" else 1.0


NAMES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "rtt_s": ("an echo there and back", lambda s: format_time(s, DIGITS)),
    "one_way_s": ("an echo one way", lambda s: format_time(s, DIGITS)),
    "goodput_bps": ("rate", lambda bps: format_bandwidth(bps, DIGITS)),
    "jitter_s": ("jitter", lambda s: format_time(s, DIGITS)),
    "loss": ("loss", lambda fraction: f"{fraction:.3%}"),
}
"""Quantity of a check -> its name and text in a note."""


def unprobed(measured: MeasuredNetwork) -> str:
    """Say how many classes of links were measured, and which value the other links have."""
    num = sum(note.startswith("measured") for note in measured.notes.values())
    return (
        f"{counted(num, 'class', 'classes')} of links measured. Every link of a class has the "
        "value of the link that was probed."
    )
