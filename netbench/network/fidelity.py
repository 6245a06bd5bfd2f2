"""How near each local testbed comes to the network it is asked for.

Measured cells, and from them the region in which a testbed may be trusted. Pure, but for reading
the file. The cells are measured by `make fidelity` and kept in `results/fidelity/cells.csv`; what
they come to is written in `results/fidelity.md`.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path

from netbench.errors import RecordError
from netbench.units import counted, format_bandwidth, format_time

TOLERANCE = {"guest-virtual": 0.02, "guest-real": 0.05, "native": 0.05}
"""Relative deviation of delay and goodput up to which a cell is trusted, by backend."""


ORDER = attrgetter("backend", "busy", "num_flows", "bandwidth_bps", "one_way_delay_s")
"""Of cells in a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Flows that send at once, each between two nodes of its own, over links of one kind.

    backend: as `records.MODES`. busy: every core of the machine had something else to do as well.
    goodput_ratio: of the slowest flow, over rate x 1448/1514; fastest_ratio: of the fastest.
    one_way_error_s, rtt_error_s: of the worst delay, taken while nothing is sent, against delay
    and the time of an echo's frame at the rate. cores: of the machine.
    """

    backend: str
    busy: bool
    cores: int
    num_flows: int
    bandwidth_bps: float
    one_way_delay_s: float
    goodput_ratio: float
    fastest_ratio: float
    one_way_error_s: float
    rtt_error_s: float

    @property
    def rtt_ratio(self) -> float:
        """Round trip of an echo measured over expected; 1 where there is no delay to compare."""
        rtt_s = 2 * self.one_way_delay_s
        return 1 + self.rtt_error_s / rtt_s if rtt_s else 1.0

    @property
    def deviation(self) -> float:
        """The largest relative deviation, of any flow's goodput and round trip."""
        ratios = (self.goodput_ratio, self.fastest_ratio, self.rtt_ratio)
        return max(abs(ratio - 1) for ratio in ratios)

    @property
    def trusted(self) -> bool:
        return self.deviation <= TOLERANCE[self.backend]


def cells_path() -> Path:
    """Where the measured cells are: in the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent.parent
    packaged = package / "_data" / "fidelity"
    folder = packaged if packaged.is_dir() else package.parent / "results" / "fidelity"
    return folder / "cells.csv"


@functools.cache
def read_cells(path: Path) -> tuple[Cell, ...]:
    """The cells of a file. Raises RecordError naming file and line."""
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="ascii"))))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}; run: make fidelity") from error
    return tuple(_cell(row, f"{path}:{line}") for line, row in enumerate(rows, 2))


def _cell(row: dict[str, str], where: str) -> Cell:
    readers = {"str": str, "bool": lambda text: text == "True", "int": int, "float": float}
    try:
        return Cell(**{f.name: readers[str(f.type)](row[f.name]) for f in fields(Cell)})  # type: ignore[operator]
    except (KeyError, ValueError, TypeError) as error:
        raise RecordError(f"{where}: {error!r}; expected a row of `make fidelity`") from error


def write_cells(cells: Iterable[Cell]) -> str:
    """The text of a file of cells, sorted."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(cell) for cell in sorted(cells, key=ORDER))
    return out.getvalue()


def doubt(
    cells: Sequence[Cell],
    *,
    backend: str,
    num_flows: int,
    bandwidth_bps: float,
    one_way_delay_s: float,
) -> str:
    """Why `backend` may not deliver that many flows at once at that rate and delay; "" if it may.

    It may where a measured cell that asks for at least as much in all three was trusted. Cells of
    an otherwise busy machine do not count.
    """
    mine = [cell for cell in cells if cell.backend == backend and not cell.busy]
    covering = [
        cell
        for cell in mine
        if cell.num_flows >= num_flows
        and cell.bandwidth_bps >= bandwidth_bps
        and cell.one_way_delay_s >= one_way_delay_s
    ]
    if any(cell.trusted for cell in covering):
        return ""
    asked = (
        f"{counted(num_flows, 'node')} sending at once at {format_bandwidth(bandwidth_bps, 3)}, "
        f"{format_time(one_way_delay_s, 3)} one way"
    )
    if not covering:
        return f"{asked}: more than was ever measured of {backend} (results/fidelity.md)"
    nearest = min(covering, key=lambda cell: (cell.num_flows, cell.bandwidth_bps))
    return (
        f"{asked}: {backend} on {counted(nearest.cores, 'core')} gave "
        f"{nearest.goodput_ratio:.2f} of {format_bandwidth(nearest.bandwidth_bps, 3)} to the "
        f"slowest of {counted(nearest.num_flows, 'flow')} (results/fidelity.md)"
    )
