"""The fidelity report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.fidelity_page import (
    PAGE,
    fidelity_figure,
    fidelity_markdown,
    trusted_rate_bps,
    write_fidelity,
)
from netbench.network.probing.fidelity import FidelityCell, cells_path, read_cells

CELL = FidelityCell(
    testbed="guest-real", busy=False, cores=2, num_flows=4, bandwidth_bps=1e8, one_way_delay_s=0.05,
    goodput_ratio=0.97, fastest_ratio=1.01, one_way_error_s=0.0002, rtt_error_s=-0.0003,
)  # fmt: skip
FAST = replace(CELL, bandwidth_bps=1e9, goodput_ratio=0.4)
CELLS = (CELL, FAST, replace(CELL, busy=True, goodput_ratio=0.5))


def test_the_highest_trusted_rate_is_below_the_first_that_is_not() -> None:
    assert trusted_rate_bps([CELL, FAST]) == 1e8
    assert trusted_rate_bps([replace(FAST, bandwidth_bps=1e7), CELL]) == 0
    assert trusted_rate_bps([CELL, replace(CELL, one_way_delay_s=0.1, goodput_ratio=0.9)]) == 0


def test_a_row_per_number_of_flows_and_state() -> None:
    page = fidelity_markdown(CELLS)
    assert "| 4 | idle | 2 | 1 | 0.4000 | 1.0100 | 200us | 300us | none | 100Mbit |" in page
    assert "| 4 | busy | 1 | 0 | 0.5000 | 1.0100 | 200us | 300us | none | none |" in page
    assert "## This machine's own kernel\n\nNot measured" in page


def test_a_panel_per_number_of_flows_with_every_figure() -> None:
    figure = fidelity_figure(CELLS)
    idle, busy = figure.axes
    assert idle.get_title(loc="left") == "4 flows at once"
    assert busy.get_title(loc="left") == "4 flows at once, machine busy"
    assert [text.get_text() for text in idle.texts] == ["0.970", "0.400"]


def test_page_and_picture_are_written(tmp_path: Path) -> None:
    write_fidelity(tmp_path, CELLS)
    for suffix in ("png", "svg"):
        assert (tmp_path / "fidelity" / f"fidelity.{suffix}").stat().st_size > 10_000
    assert (tmp_path / PAGE).read_text() == fidelity_markdown(CELLS)


def test_the_committed_page_agrees_with_the_committed_cells() -> None:
    path = cells_path()
    assert (path.parent.parent / PAGE).read_text() == fidelity_markdown(read_cells(path))
