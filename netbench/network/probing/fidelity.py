"""Accuracy of each local testbed, and the region in which it may be trusted.

`make fidelity` measures the cells and keeps them in `results/fidelity/cells.csv`;
`results/fidelity.md` summarises them. Pure, except for reading the file.
"""

import csv
import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from netbench.errors import RecordError
from netbench.units import counted, format_bandwidth, format_time

TOLERANCE = {"guest-virtual": 0.02, "guest-real": 0.05, "native": 0.05, "cluster": 0.05}
"""Largest relative deviation of a trusted cell, or of a probed link in a run, by testbed."""

COLUMNS = {"testbed": "backend"}
"""Field -> column, where the file keeps an older name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FidelityCell:
    """Measurement of flows that send at once, each between its own two nodes, over equal links.

    testbed: one of `records.TESTBEDS`. busy: other work kept every core of the machine busy.
    goodput_ratio: goodput of the slowest flow over rate x 1448/1514; fastest_ratio: of the fastest.
    one_way_error_s, rtt_error_s: error of the worst delay on an idle link, against the delay plus
    the time of an echo's frame at the rate. cores: number of cores of the machine.
    """

    testbed: str
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
    def deviation(self) -> float:
        """Largest relative deviation of any flow's goodput, or of an echo's round trip if any."""
        rtt_s = 2 * self.one_way_delay_s
        rtt_ratio = 1 + self.rtt_error_s / rtt_s if rtt_s else 1.0
        return max(abs(x - 1) for x in (self.goodput_ratio, self.fastest_ratio, rtt_ratio))

    @property
    def trusted(self) -> bool:
        return self.deviation <= TOLERANCE[self.testbed]


def cells_path() -> Path:
    """Return the file of measured cells, in the wheel or in the checkout."""
    package = Path(__file__).parents[2]
    packaged = package / "_data" / "fidelity"
    folder = packaged if packaged.is_dir() else package.parent / "results" / "fidelity"
    return folder / "cells.csv"


@functools.cache
def read_cells(path: Path) -> tuple[FidelityCell, ...]:
    """Read the cells of a file. Raises RecordError naming file and line."""
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="ascii"))))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}; run: make fidelity") from error
    cell, names = TypeAdapter(FidelityCell), {column: name for name, column in COLUMNS.items()}
    cells = []
    for line, row in enumerate(rows, 2):
        values = {names.get(column, column): text for column, text in row.items()}
        try:
            cells.append(cell.validate_python(values))
        except ValidationError as error:
            problem = error.errors()[0]
            raise RecordError(
                f"{path}:{line}: {problem['loc'][0]}: {problem['msg']}, found "
                f"{problem['input']!r}; expected a row of `make fidelity`"
            ) from None
    return tuple(cells)


def fidelity_warning(
    cells: Sequence[FidelityCell],
    *,
    testbed: str,
    num_flows: int,
    bandwidth_bps: float,
    one_way_delay_s: float,
) -> str:
    """Say why `testbed` may not deliver this many flows at this rate and delay; else "".

    It may if a trusted cell has no fewer flows, no lower rate and no shorter delay.
    Cells of a busy machine do not count.
    """
    mine = [cell for cell in cells if cell.testbed == testbed and not cell.busy]
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
        return f"{asked}: more than was ever measured on {testbed} (results/fidelity.md)"
    nearest = min(covering, key=lambda cell: (cell.num_flows, cell.bandwidth_bps))
    return (
        f"{asked}: {testbed} on {counted(nearest.cores, 'core')} gave "
        f"{nearest.goodput_ratio:.2f} of {format_bandwidth(nearest.bandwidth_bps, 3)} to the "
        f"slowest of {counted(nearest.num_flows, 'flow')} (results/fidelity.md)"
    )
