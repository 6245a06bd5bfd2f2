"""`results/fidelity.md` and its picture: what each local testbed delivers of what it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.errors import RecordError
from netbench.network.fidelity import TOLERANCE, Cell
from netbench.report.picture import INK, MUTED, PAPER
from netbench.units import counted, format_bandwidth, format_percent, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "fidelity.png"
PAGE = "fidelity.md"

BACKENDS = {
    "guest-virtual": "Guest kernel in virtual time",
    "guest-real": "Guest kernel in real time",
    "native": "This machine's own kernel",
}

INTRO = """\
<!-- Written by `make fidelity`; edit netbench/report/fidelity.py instead. -->

# What each testbed delivers

Flows that send at once, each between two nodes of its own over a link of the given rate and delay,
measured by the probe that every run uses. *Goodput* is TCP payload of the slowest flow over
rate x 1448/1514; delays are of echoes while nothing is sent, one way (by the clock that all nodes
of a machine share) and there and back (`ping`). *Busy* is a machine on which a process of somebody
else wants every core. The cells are in [fidelity/cells.csv](fidelity/cells.csv).

![Goodput over what was asked for](fidelity/{picture})
"""

READING = """\
A run warns where it asks for more than the measured region: more nodes that send at once, a higher
rate or a longer delay than a cell that was trusted. Trusted is what is, in goodput and round trip,
within {tolerances}.
Cells of several flows that would have taken minutes each were left out.

What limits the guest in virtual time is its clock. Computing takes no time, but every look at the
clock takes 256 ns: User-Mode Linux has it so, or programs that wait for a while to pass would wait
for ever. The kernel looks several times for every packet of up to 64 KiB. Together the flows get
about 200 Gbit/s, however many they are; 32 x 10 Gbit/s is more than that, 32 x 1 Gbit/s is not.
Beside that, TCP's buffers end at 1 GiB: one flow of 10 Gbit/s over a round trip of 0.6 s, 0.75 GB
on the way, is a little short of them.

In real time it is the processor that limits, which also has to compute for the ranks.
"""


def write_fidelity(results: Path, cells: Sequence[Cell]) -> None:
    """Write page and picture into the folder `results`. Raises RecordError."""
    try:
        (results / "fidelity").mkdir(parents=True, exist_ok=True)
        (results / PAGE).write_text(fidelity_markdown(cells), encoding="utf-8")
        fidelity_figure(cells).savefig(
            results / "fidelity" / PICTURE, dpi=130, metadata={"Software": None}
        )
    except OSError as error:
        raise RecordError(f"{results}: the fidelity report cannot be written: {error}") from error


LONG_S = 0.01
"""A delay beside which what a busy processor adds is small."""


def fidelity_markdown(cells: Sequence[Cell]) -> str:
    """The page."""
    tolerances = ", ".join(
        f"{format_percent(share)} ({BACKENDS[backend].lower()})"
        for backend, share in TOLERANCE.items()
    )
    parts = [INTRO.format(picture=PICTURE), READING.format(tolerances=tolerances)]
    for backend, title in BACKENDS.items():
        mine = [cell for cell in cells if cell.backend == backend]
        if mine:
            parts.append(_section(title, mine))
        else:
            parts.append(
                f"## {title}\n\nNot measured: the machine this was written on cannot.\n"
                if backend == "native"
                else f"## {title}\n\nNot measured.\n"
            )
    return "\n".join(parts)


def _section(title: str, cells: Sequence[Cell]) -> str:
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


def _row(num_flows: int, busy: bool, cells: Sequence[Cell]) -> str:
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


def trusted_rate_bps(cells: Iterable[Cell]) -> float:
    """The highest rate up to which every cell is trusted, bit/s; 0 if even the lowest is not."""
    by_rate: dict[float, bool] = {}
    for cell in cells:
        by_rate[cell.bandwidth_bps] = by_rate.get(cell.bandwidth_bps, True) and cell.trusted
    highest = 0.0
    for rate_bps in sorted(by_rate):
        if not by_rate[rate_bps]:
            break
        highest = rate_bps
    return highest


def fidelity_figure(cells: Sequence[Cell]) -> Figure:
    """A panel per number of flows (across) and backend (down): rate over delay, coloured by the
    goodput of the slowest flow, with its figure."""
    from matplotlib.figure import Figure

    rows = [
        (backend, busy)
        for backend in BACKENDS
        for busy in (False, True)
        if any((cell.backend, cell.busy) == (backend, busy) for cell in cells)
    ]
    columns = max(len({c.num_flows for c in cells if c.backend == b}) for b, _ in rows)
    figure = Figure(figsize=(3.1 * columns + 1.6, 2.5 * len(rows) + 0.9), facecolor=PAPER)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (backend, busy) in zip(grid, rows, strict=True):
        mine = [cell for cell in cells if (cell.backend, cell.busy) == (backend, busy)]
        flows = sorted({cell.num_flows for cell in mine})
        for axes, num_flows in zip(line, flows, strict=False):
            _panel(axes, [cell for cell in mine if cell.num_flows == num_flows])
            plural = "flow" if num_flows == 1 else "flows at once"
            state = ", machine busy" if busy else ""
            axes.set_title(f"{num_flows} {plural}{state}", fontsize=9, color=INK, loc="left")
        line[0].set_ylabel(BACKENDS[backend], fontsize=9, color=INK)
        for axes in line[len(flows) :]:
            axes.set_visible(False)
    figure.suptitle("Goodput of the slowest flow over rate x 1448/1514", fontsize=11, color=INK)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    return figure


def _panel(axes: Axes, cells: Sequence[Cell]) -> None:
    from matplotlib.patches import Rectangle

    rates = sorted({cell.bandwidth_bps for cell in cells})
    delays = sorted({cell.one_way_delay_s for cell in cells})
    for cell in cells:
        x, y = delays.index(cell.one_way_delay_s), rates.index(cell.bandwidth_bps)
        off = min(abs(cell.goodput_ratio - 1) / 0.2, 1.0)
        color = (0.25 + 0.7 * off, 0.66 - 0.35 * off, 0.4 - 0.2 * off)
        axes.add_patch(Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, color=color))
        text = f"{cell.goodput_ratio:.3f}" if cell.goodput_ratio < 10 else ">10"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white")
    axes.set_xlim(-0.5, len(delays) - 0.5)
    axes.set_ylim(-0.5, len(rates) - 0.5)
    axes.set_xticks(range(len(delays)), [format_time(delay_s) for delay_s in delays])
    axes.set_yticks(range(len(rates)), [format_bandwidth(rate_bps) for rate_bps in rates])
    axes.tick_params(labelsize=7, colors=MUTED, length=0)
    axes.spines[:].set_visible(False)
    axes.set_facecolor(PAPER)
