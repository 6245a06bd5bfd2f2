"""`results/fidelity.md` and its picture: how closely each local testbed delivers its network."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.errors import RecordError, UsageError
from netbench.network.probing.fidelity import COLUMNS, TOLERANCE, FidelityCell
from netbench.report.pictures.style import INK, MUTED, PAPER, save_picture
from netbench.units import counted, format_bandwidth, format_percent, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = ("fidelity.svg", "fidelity.png")
PAGE = "fidelity.md"

TESTBEDS = {
    "guest-virtual": "Guest kernel in virtual time",
    "guest-real": "Guest kernel in real time",
    "native": "This machine's own kernel",
}

GOOD, BAD = (0.13, 0.44, 0.71), (0.80, 0.36, 0.0)
"""Colours of a cell that delivers what it was asked for, and of one that is 20% off."""

INTRO = """\
<!-- Written by `make fidelity`; edit benchmarks/fidelity_page.py instead. -->

# Fidelity of the local testbeds

How closely each local testbed delivers the network it is asked for. In every cell of the tables and
of the picture, several flows send at once. Each flow has its own pair of nodes and a link with the
given rate and delay. The probe that every run uses measures it:

- *goodput* is the TCP payload rate of the slowest flow over rate x 1448/1514;
- *one way* is the delay of echoes while nothing is sent, by the clock that all nodes of a machine
  share; *round trip* is that of `ping`;
- *busy*: another process keeps every core of the machine busy.

All cells are in [fidelity/cells.csv](fidelity/cells.csv).

![Goodput by rate, delay and number of flows](fidelity/{picture})
"""

READING = """\
A cell is *trusted* if its goodput and round trip are within {tolerances}.
A run warns if it exceeds what was trusted: more nodes that send at once, a higher rate or a longer
delay. Cells of several flows that would have taken minutes each were not measured.

In virtual time, the clock of the guest is the limit. Computing takes no time, but every reading of
the clock takes 256 ns: otherwise programs that poll the clock would wait for ever in User-Mode
Linux. The kernel reads the clock several times per packet of up to 64 KiB. So all flows together
get about 200 Gbit/s: 32 x 10 Gbit/s is more than that, 32 x 1 Gbit/s is less. TCP buffers are
limited to 1 GiB, which is slightly too little for one flow of 10 Gbit/s over a round trip of 0.6 s
(0.75 GB in flight).

In real time, the processor is the limit. It also computes for the ranks.
"""


def write_cells(cells: Iterable[FidelityCell]) -> str:
    """Format cells as CSV, sorted."""
    order = attrgetter("testbed", "busy", "num_flows", "bandwidth_bps", "one_way_delay_s")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS.get(field.name, field.name) for field in fields(FidelityCell))
    writer.writerows(asdict(cell).values() for cell in sorted(cells, key=order))
    return out.getvalue()


def write_fidelity(results: Path, cells: Sequence[FidelityCell]) -> None:
    """Write page and picture into the folder `results`. Raises RecordError."""
    try:
        (results / "fidelity").mkdir(parents=True, exist_ok=True)
        (results / PAGE).write_text(fidelity_markdown(cells), encoding="utf-8")
        figure = fidelity_figure(cells)
        for name in PICTURES:
            save_picture(figure, results / "fidelity" / name)
    except (OSError, UsageError) as error:
        raise RecordError(f"{results}: the fidelity report cannot be written: {error}") from error


LONG_S = 0.01
"""One-way delay beside which the delay added by a busy processor is small, seconds."""


def fidelity_markdown(cells: Sequence[FidelityCell]) -> str:
    """The page."""
    tolerances = ", ".join(
        f"{format_percent(tolerance)} ({TESTBEDS[testbed].lower()})"
        for testbed, tolerance in TOLERANCE.items()
        if testbed in TESTBEDS
    )
    parts = [INTRO.format(picture=PICTURES[0]), READING.format(tolerances=tolerances)]
    for testbed, title in TESTBEDS.items():
        mine = [cell for cell in cells if cell.testbed == testbed]
        if mine:
            parts.append(_section(title, mine))
        else:
            parts.append(
                f"## {title}\n\nNot measured: the machine this was written on cannot.\n"
                if testbed == "native"
                else f"## {title}\n\nNot measured.\n"
            )
    return "\n".join(parts)


def _section(title: str, cells: Sequence[FidelityCell]) -> str:
    lines = [f"## {title}", "", f"{counted(cells[0].cores, 'core')}.", ""]
    lines += [
        "| flows | machine | cells | trusted | slowest flow | fastest flow | one way, worst "
        "| round trip, worst | trusted without delay up to | trusted from 10 ms on up to |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for num_flows in sorted({cell.num_flows for cell in cells}):
        for busy in (False, True):
            group = [cell for cell in cells if (cell.num_flows, cell.busy) == (num_flows, busy)]
            if group:
                lines.append(_row(num_flows, busy, group))
    return "\n".join([*lines, ""])


def _row(num_flows: int, busy: bool, cells: Sequence[FidelityCell]) -> str:
    slowest = min(cell.goodput_ratio for cell in cells)
    fastest = max(cell.fastest_ratio for cell in cells)
    ways = max(abs(cell.one_way_error_s) for cell in cells)
    trips = max(abs(cell.rtt_error_s) for cell in cells)
    undelayed = [cell for cell in cells if not cell.one_way_delay_s]
    rates_bps = map(
        trusted_rate_bps, (undelayed, [c for c in cells if c.one_way_delay_s >= LONG_S])
    )
    words = (
        str(num_flows),
        "busy" if busy else "idle",
        str(len(cells)),
        str(sum(cell.trusted for cell in cells)),
        f"{slowest:.4f}",
        f"{fastest:.4f}",
        format_time(ways, 2),
        format_time(trips, 2),
        *(format_bandwidth(rate_bps) if rate_bps else "none" for rate_bps in rates_bps),
    )
    return f"| {' | '.join(words)} |"


def trusted_rate_bps(cells: Iterable[FidelityCell]) -> float:
    """The highest rate up to which every cell is trusted, bit/s; 0 if there is none."""
    by_rate: dict[float, bool] = {}
    for cell in cells:
        by_rate[cell.bandwidth_bps] = by_rate.get(cell.bandwidth_bps, True) and cell.trusted
    highest = 0.0
    for rate_bps in sorted(by_rate):
        if not by_rate[rate_bps]:
            break
        highest = rate_bps
    return highest


def fidelity_figure(cells: Sequence[FidelityCell]) -> Figure:
    """A panel per number of flows (columns) and testbed (rows): rate over delay; the colour and the
    number of a cell are the goodput of its slowest flow."""
    from matplotlib.figure import Figure

    rows = [
        (testbed, busy)
        for testbed in TESTBEDS
        for busy in (False, True)
        if any((cell.testbed, cell.busy) == (testbed, busy) for cell in cells)
    ]
    columns = max(len({c.num_flows for c in cells if c.testbed == b}) for b, _ in rows)
    figure = Figure(figsize=(3.1 * columns + 1.6, 2.5 * len(rows) + 0.9), facecolor=PAPER)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (testbed, busy) in zip(grid, rows, strict=True):
        mine = [cell for cell in cells if (cell.testbed, cell.busy) == (testbed, busy)]
        flows = sorted({cell.num_flows for cell in mine})
        for axes, num_flows in zip(line, flows, strict=False):
            _panel(axes, [cell for cell in mine if cell.num_flows == num_flows])
            plural = "flow" if num_flows == 1 else "flows at once"
            state = ", machine busy" if busy else ""
            axes.set_title(f"{num_flows} {plural}{state}", fontsize=9, color=INK, loc="left")
        line[0].set_ylabel(f"{TESTBEDS[testbed]}\nrate of a flow", fontsize=9, color=INK)
        for axes in line[len(flows) :]:
            axes.set_visible(False)
    figure.suptitle(
        "Goodput of the slowest flow over rate x 1448/1514 (blue: 1, orange: 20% off or more)",
        fontsize=11,
        color=INK,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    return figure


def _panel(axes: Axes, cells: Sequence[FidelityCell]) -> None:
    from matplotlib.patches import Rectangle

    rates = sorted({cell.bandwidth_bps for cell in cells})
    delays = sorted({cell.one_way_delay_s for cell in cells})
    for cell in cells:
        x, y = delays.index(cell.one_way_delay_s), rates.index(cell.bandwidth_bps)
        off = min(abs(cell.goodput_ratio - 1) / 0.2, 1.0)
        color = tuple(a + (b - a) * off for a, b in zip(GOOD, BAD, strict=True))
        axes.add_patch(Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, color=color))
        text = f"{cell.goodput_ratio:.3f}" if cell.goodput_ratio < 10 else ">10"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white")
    axes.set_xlim(-0.5, len(delays) - 0.5)
    axes.set_ylim(-0.5, len(rates) - 0.5)
    axes.set_xticks(range(len(delays)), [format_time(delay_s) for delay_s in delays])
    axes.set_yticks(range(len(rates)), [format_bandwidth(rate_bps) for rate_bps in rates])
    axes.set_xlabel("one-way delay", fontsize=8, color=MUTED)
    axes.tick_params(labelsize=7, colors=MUTED, length=0)
    axes.spines[:].set_visible(False)
    axes.set_facecolor(PAPER)
