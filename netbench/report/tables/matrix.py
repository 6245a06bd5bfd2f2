"""Measured and expected properties of a verified network: a table, CSV, and heat maps.

A place is a node. It is a region if not every pair of nodes was measured, or if there are too many
to read. Of several pairs of nodes in a pair of regions, the one with the largest error is shown.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from netbench.errors import UsageError
from netbench.network.probing.verify import LinkCheck, Measurement
from netbench.report.pictures.style import INK, MUTED, PAPER, new_figure, without_frame
from netbench.report.tables.grid import Grid
from netbench.scenario.measured.matrices import Matrix, Reading

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PLACES = 32
"""Maximum nodes along one side of a heat map; for more, regions are shown."""

MAX_ROWS = 80
"""Maximum pairs of nodes in a table; for more, pairs of regions are shown."""

MAX_WRITTEN = 12
"""Maximum places along one side of a heat map with figures in its cells."""

EMPTY, WRONG = "#dde2e7", "#b3261e"

SPAN = 1.5
"""Error at the end of the colour scale, in units of the allowed error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkQuantity:
    """Presentation of a quantity. factor: from SI to `unit`."""

    title: str
    unit: str
    factor: float


KINDS: Mapping[str, LinkQuantity] = {
    "one_way_s": LinkQuantity(title="one way", unit="ms", factor=1e3),
    "rtt_s": LinkQuantity(title="round trip", unit="ms", factor=1e3),
    "jitter_s": LinkQuantity(title="jitter", unit="ms", factor=1e3),
    "loss": LinkQuantity(title="loss", unit="%", factor=1e2),
    "duplication": LinkQuantity(title="duplication", unit="%", factor=1e2),
    "reordering": LinkQuantity(title="reordering", unit="%", factor=1e2),
    "goodput_bps": LinkQuantity(title="goodput", unit="Mbit/s", factor=1e-6),
}

RARE = ("duplication", "reordering")

Place = TypeVar("Place")

Key = tuple[str, int]
"""A quantity, and the number of connections that measured it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The checks of a network with names to show. node_regions: index into regions, per node."""

    title: str
    checks: tuple[LinkCheck, ...]
    nodes: tuple[str, ...]
    regions: tuple[str, ...]
    node_regions: tuple[int, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """Quantities measured on links, in the order of `KINDS`; `RARE` ones only if expected or
        failed."""
        found = {
            (check.quantity, check.streams)
            for check in self.checks
            if check.kind == "link"
            and (check.quantity not in RARE or check.expected or not check.passed)
        }
        return tuple(sorted(found, key=lambda key: (list(KINDS).index(key[0]), key[1])))


def matrix_grid(found: Verification) -> Grid:
    """A row per measured link and per shared rate: measured / expected, with a cross if outside the
    tolerance; the last column is the verdict."""
    keys = found.keys
    rows = _rows(found, by_region=len({_ends(c) for c in found.checks}) > MAX_ROWS)
    head = ("from", "to", *(_head(key) for key in keys), "")
    texts = []
    for (src, dst), checks in rows.items():
        cells = [_cell(checks[key]) if key in checks else "-" for key in keys]
        good = all(check.passed for check in checks.values())
        texts.append((src, dst, *cells, "good" if good else "OUTSIDE"))
    return Grid(head=head, rows=tuple(texts), num_labels=2)


def _head(key: Key) -> str:
    kind, streams = KINDS[key[0]], key[1]
    by = f" by {streams}" if streams > 1 else ""
    return f"{kind.title}{by}, {kind.unit}"


def _cell(check: LinkCheck) -> str:
    kind = KINDS[check.quantity]
    measured = "none" if check.measured is None else _number(check.measured * kind.factor)
    cross = "" if check.passed else " ✗"
    return f"{measured} / {_number(check.expected * kind.factor)}{cross}"


def _number(value: float) -> str:
    """Four significant digits, at most four decimals."""
    text = f"{value:.{max(0, min(4, 3 - math.floor(math.log10(abs(value)))))}f}" if value else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ends(check: LinkCheck) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return check.srcs or (check.src,), check.dsts


def _rows(found: Verification, *, by_region: bool) -> dict[tuple[str, str], dict[Key, LinkCheck]]:
    """Checks by (from, to); the worst of each key if there are several."""
    names = _regions if by_region else _nodes

    def place(check: LinkCheck) -> tuple[str, str, Key]:
        srcs, dsts = _ends(check)
        kind = "" if check.kind == "link" else f" ({check.kind})"
        return names(found, srcs), names(found, dsts) + kind, (check.quantity, check.streams)

    shown = (c for c in found.checks if c.kind == "link" or c.quantity == "goodput_bps")
    rows: dict[tuple[str, str], dict[Key, LinkCheck]] = {}
    for (src, dst, key), check in _worst(shown, place).items():
        rows.setdefault((src, dst), {})[key] = check
    return rows


def _worst(
    checks: Iterable[LinkCheck], place: Callable[[LinkCheck], Place]
) -> dict[Place, LinkCheck]:
    """The worst check of each place, the first of equals."""
    worst: dict[Place, LinkCheck] = {}
    for check in checks:
        at = place(check)
        worst[at] = max(worst.get(at, check), check, key=_badness)
    return worst


def _nodes(found: Verification, nodes: Sequence[int]) -> str:
    return " ".join(dict.fromkeys(found.nodes[node] for node in nodes))


def _regions(found: Verification, nodes: Sequence[int]) -> str:
    return " ".join(dict.fromkeys(found.regions[found.node_regions[node]] for node in nodes))


def _badness(check: LinkCheck) -> float:
    """Absolute error in units of the allowed error."""
    return math.inf if check.measured is None else abs(_deviation(check))


def _deviation(check: LinkCheck) -> float:
    assert check.measured is not None
    off = check.measured - check.expected
    return off / check.allowed if check.allowed else math.copysign(math.inf, off) if off else 0.0


def matrix_frame(found: Verification) -> "pd.DataFrame":
    """A row per figure, unrounded, in SI units; the nodes of a sample are separated by blanks."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "source": _nodes(found, _ends(check)[0]),
                "destination": _nodes(found, _ends(check)[1]),
                "source_region": _regions(found, _ends(check)[0]),
                "destination_region": _regions(found, _ends(check)[1]),
                "kind": check.kind,
                "quantity": check.quantity,
                "streams": check.streams,
                "packets": check.num_packets or None,
                "expected": check.expected,
                "measured": check.measured,
                "allowed": check.allowed,
                "passed": check.passed,
            }
            for check in found.checks
        ]
    ).astype({"packets": "Int64"})


def matrix_figure(found: Verification) -> "Figure":
    """A heat map per quantity, a row per source, with the measured and the expected figure.

    The colour is the error over the allowed error. Failed checks have a frame and a cross; pairs
    that were not measured are grey.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    links = [check for check in found.checks if check.kind == "link"]
    if not links:
        raise UsageError("no link was measured; there is nothing to draw")
    num_nodes = len(found.nodes)
    all_pairs = len({(c.src, c.dsts) for c in links}) == num_nodes * (num_nodes - 1)
    by_region = not all_pairs or num_nodes > MAX_PLACES
    places = found.regions if by_region else found.nodes
    place: Callable[[int], int] = (lambda node: found.node_regions[node]) if by_region else int
    keys = found.keys
    columns = min(len(keys), 3)
    num_rows = math.ceil(len(keys) / columns)
    side = max(2.6, (0.68 if len(places) <= MAX_WRITTEN else 0.22) * len(places))
    width, height = columns * (side + 1.2) + 0.9, num_rows * (side + 1.3) + 0.9
    num_wrong = sum(not check.passed for check in found.checks)
    verdict = f"{num_wrong} of {len(found.checks)} figures outside" if num_wrong else "all good"
    figure = new_figure(width, height, f"{found.title}: {verdict}")
    panels = figure.subplots(num_rows, columns, squeeze=False)
    for number, axes in enumerate(panels.flat):
        if number >= len(keys):
            axes.set_axis_off()
            continue
        of_key = [check for check in links if (check.quantity, check.streams) == keys[number]]
        cells = _worst(of_key, lambda check: (place(check.src), place(check.dsts[0])))
        _draw(axes, keys[number], cells, places)
    scale = ScalarMappable(norm=Normalize(-SPAN, SPAN), cmap="RdBu_r")
    bar = figure.colorbar(
        scale, ax=list(panels.flat), fraction=0.03, shrink=0.7, ticks=[-1, 0, 1], aspect=30
    )
    bar.ax.set_yticklabels(["least allowed", "as expected", "most allowed"], color=MUTED, size=8)
    bar.outline.set_visible(False)
    return figure


def _draw(
    axes: "Axes", key: Key, cells: Mapping[tuple[int, int], LinkCheck], places: Sequence[str]
) -> None:
    """One heat map."""
    import numpy as np
    from matplotlib.patches import Rectangle

    size = len(places)
    shades = np.full((size, size), np.nan)
    for at, check in cells.items():
        if check.measured is not None:
            shades[at] = max(-SPAN, min(SPAN, _deviation(check)))
    axes.set_facecolor(EMPTY)
    axes.imshow(shades, cmap="RdBu_r", vmin=-SPAN, vmax=SPAN)
    for (src, dst), check in cells.items():
        dark = abs(shades[src, dst]) > 0.65 * SPAN
        if size <= MAX_WRITTEN:
            text = _cell(check).replace(" / ", "\n/ ")
            axes.text(
                dst, src, text, ha="center", va="center", size=7.5, color=PAPER if dark else INK
            )
        elif not check.passed:
            axes.text(dst, src, "✗", ha="center", va="center", size=7, color=PAPER)
        if not check.passed:
            frame = Rectangle((dst - 0.46, src - 0.46), 0.92, 0.92, fill=False, lw=1.6)
            frame.set_edgecolor(WRONG)
            axes.add_patch(frame)
    small = 8.5 if size <= MAX_WRITTEN else 6.5
    axes.set_xticks(range(size), places, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), places)
    without_frame(axes, labelsize=small)
    axes.set_xlabel("to", color=MUTED, size=9)
    axes.set_ylabel("from", color=MUTED, size=9)
    axes.set_title(_head(key), loc="left", size=10.5, color=INK)


def measured_grid(names: Sequence[str], found: Sequence[Measurement]) -> Grid:
    """A row per pair of machines, measured without an expectation."""
    streams = max((measurement.sample.streams for measurement in found), default=1)
    head = ("from", "to", "round trip, ms", "jitter, ms", "loss, %", "goodput, Mbit/s")
    rows = []
    for measurement in found:
        (rtt_s,) = measurement.rtt_s or (None,)
        train = next(iter(measurement.train_results), None)
        figures = (
            (rtt_s, 1e3),
            (train.jitter_s if train else None, 1e3),
            (train.loss if train else None, 1e2),
            (measurement.goodput_bps, 1e-6),
            (measurement.streams_goodput_bps, 1e-6),
        )
        cells = ["-" if value is None else _number(value * factor) for value, factor in figures]
        ((src, dst),) = measurement.sample.flows
        rows.append((names[src], names[dst], *(cells if streams > 1 else cells[:-1])))
    by_several = (f"goodput by {streams}, Mbit/s",) if streams > 1 else ()
    return Grid(head=(*head, *by_several), rows=tuple(rows), num_labels=2)


def measured_csv(names: Sequence[str], found: Sequence[Measurement], matrix: Matrix) -> str:
    """A row per pair, in the format of `netbench net import`; empty if not measured."""
    import pandas as pd

    rows = []
    for measurement in found:
        ((src, dst),) = measurement.sample.flows
        reading = matrix.readings.get((names[src], names[dst]), Reading())
        figures = {
            "rtt_ms": (reading.one_way_delay_s, 2e3),
            "jitter_ms": (reading.jitter_s, 1e3),
            "loss_percent": (reading.loss, 1e2),
            "single_stream_gbps": (measurement.goodput_bps, 1e-9),
            "multi_stream_gbps": (measurement.streams_goodput_bps, 1e-9),
            "bandwidth_gbps": (reading.bandwidth_bps, 1e-9),
        }
        cells = {
            name: "" if value is None else f"{value * factor:.6g}"
            for name, (value, factor) in figures.items()
        }
        rows.append({"source": names[src], "destination": names[dst], **cells})
    return str(pd.DataFrame(rows).to_csv(index=False))
