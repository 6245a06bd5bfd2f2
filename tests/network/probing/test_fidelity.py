"""Measured cells, and where a testbed may be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fidelity_page import write_cells
from netbench.errors import RecordError
from netbench.network.probing.fidelity import FidelityCell, cells_path, fidelity_warning, read_cells

GOOD = FidelityCell(
    testbed="guest-real", busy=False, cores=2, num_flows=4, bandwidth_bps=1e9, one_way_delay_s=0.05,
    goodput_ratio=0.97, fastest_ratio=1.01, one_way_error_s=0.0002, rtt_error_s=0.0003,
)  # fmt: skip
BAD = replace(GOOD, num_flows=16, goodput_ratio=0.4)
ASKED = {"testbed": "guest-real", "num_flows": 4, "bandwidth_bps": 1e9, "one_way_delay_s": 0.05}


def test_what_is_written_reads_back_sorted(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(write_cells([BAD, replace(GOOD, busy=True), GOOD]))
    assert read_cells(path) == (GOOD, BAD, replace(GOOD, busy=True))


def test_a_file_that_is_not_of_cells_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(write_cells([GOOD, BAD]).replace(",0.4,", ",much,"))
    with pytest.raises(RecordError, match=r"cells.csv:3: .*much"):
        read_cells(path)
    with pytest.raises(RecordError, match="run: make fidelity"):
        read_cells(tmp_path / "none.csv")


def test_deviation_is_of_any_flow_and_of_the_round_trip() -> None:
    assert GOOD.deviation == pytest.approx(0.03)
    assert replace(GOOD, fastest_ratio=1.2).deviation == pytest.approx(0.2)
    assert replace(GOOD, rtt_error_s=0.01).deviation == pytest.approx(0.1)
    assert GOOD.trusted
    assert not BAD.trusted


@pytest.mark.parametrize(
    "less", [{}, {"num_flows": 1}, {"bandwidth_bps": 1e6}, {"one_way_delay_s": 0.0}]
)
def test_a_trusted_cell_covers_all_that_asks_for_less(less: dict[str, float]) -> None:
    assert fidelity_warning([GOOD, BAD], **(ASKED | less)) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"num_flows": 5}, "guest-real on 2 cores gave 0.40 of 1Gbit to the slowest of 16 flows"),
        ({"num_flows": 17}, "17 nodes sending at once at 1Gbit, 50ms one way: more than was ever"),
        ({"bandwidth_bps": 2e9}, "more than was ever measured on guest-real"),
        ({"one_way_delay_s": 0.06}, "more than was ever measured on guest-real"),
        ({"testbed": "native"}, "more than was ever measured on native"),
    ],
)
def test_what_asks_for_more_is_doubted(more: dict[str, float], reason: str) -> None:
    assert reason in fidelity_warning([GOOD, BAD], **(ASKED | more))  # type: ignore[arg-type]


def test_cells_of_a_busy_machine_do_not_count() -> None:
    assert fidelity_warning([replace(GOOD, busy=True)], **ASKED) != ""  # type: ignore[arg-type]


def test_the_kept_cells_hold_what_is_said_of_virtual_time() -> None:
    """Single flows: goodput within 0.5% and delay within 0.1% (or 2 us: a look at the clock takes
    0.256 us) up to 10 Gbit/s and 150 ms; 32 and more at once within 2%, up to 100 Gbit/s together.
    """
    cells = [cell for cell in read_cells(cells_path()) if cell.testbed == "guest-virtual"]
    assert {cell.bandwidth_bps for cell in cells} >= {1e7, 1e8, 1e9, 1e10}
    for cell in cells:
        assert abs(cell.rtt_error_s) <= max(0.001 * 2 * cell.one_way_delay_s, 2e-6), cell
        if cell.num_flows * cell.bandwidth_bps > 100e9:
            continue
        limit = 0.005 if cell.num_flows == 1 and cell.one_way_delay_s <= 0.15 else 0.02
        assert abs(cell.goodput_ratio - 1) <= limit, cell
        assert abs(cell.fastest_ratio - 1) <= limit, cell
