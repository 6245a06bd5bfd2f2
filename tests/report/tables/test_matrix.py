"""Verification as a table, as CSV and as heat maps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from netbench.errors import UsageError
from netbench.report.pictures.style import save_picture
from netbench.report.tables.grid import csv_text, markdown
from netbench.report.tables.matrix import matrix_figure, matrix_frame, matrix_grid
from netbench.scenario import load_scenario
from tests.networks import ROUGH, two_regions
from tests.report.verifications import verification

ROUGH_CASE = two_regions(across=ROUGH)


def test_a_row_per_class_has_measured_and_expected_figures() -> None:
    """Goodput only if it was measured; the verdict is good."""
    grid = matrix_grid(verification(ROUGH_CASE))
    assert grid.head[:4] == ("from", "to", "one way, ms", "round trip, ms")
    assert grid.head[4:] == ("jitter, ms", "loss, %", "goodput, Mbit/s", "")
    assert len(grid.rows) == 4
    assert {row[-1] for row in grid.rows} == {"good"}
    across = [row for row in grid.rows if row[4] != "-"]
    assert {row[0] < "node2" for row in across} == {True, False}
    assert len(across) == 2
    for row in across:
        assert row[2].endswith(" / 40.51")
        assert row[4].endswith(" / 2")
        assert row[5].endswith(" / 1.23")
        assert row[6] == "-"
    assert "✗" not in markdown(grid)


def test_a_failed_check_has_a_cross_in_its_row_only() -> None:
    """The second sample is off by a fifth."""
    grid = matrix_grid(verification(two_regions(), wrong=(1,)))
    verdicts = [row[-1] for row in grid.rows]
    assert verdicts == ["good", "OUTSIDE", "good", "good"]
    assert all(cell.endswith("✗") for cell in grid.rows[1][2:-1])
    assert csv_text(grid).count("✗") == 3


def test_shared_rates_have_separate_rows() -> None:
    """All sources and destinations are named."""
    grid = matrix_grid(verification(two_regions(sharing="trunk", num_nodes=4)))
    assert [row[:2] for row in grid.rows if "trunk" in row[1]] == [
        ("node0 node1", "node2 node3 (trunk)"),
        ("node2 node3", "node0 node1 (trunk)"),
    ]


def test_many_pairs_become_regions_with_their_worst_pair() -> None:
    """132 pairs of 12 nodes are four rows; one wrong pair makes its row wrong."""
    found = verification(two_regions(num_nodes=12), everything=True, streams=4, wrong=(5,))
    grid = matrix_grid(found)
    assert len(grid.rows) == 4
    assert "goodput by 4, Mbit/s" in grid.head
    wrong = [row[:2] for row in grid.rows if row[-1] == "OUTSIDE"]
    worst = [c for c in found.checks if not c.passed]
    regions = {(found.node_regions[c.src], found.node_regions[c.dsts[0]]) for c in worst}
    assert [tuple(found.regions[r] for r in pair) for pair in regions] == wrong


def test_the_csv_has_every_figure_unrounded(tmp_path: Path) -> None:
    """pandas reads the checks back."""
    found = verification(ROUGH_CASE, wrong=(0,))
    matrix_frame(found).to_csv(tmp_path / "m.csv", index=False)
    rows = pd.read_csv(tmp_path / "m.csv")
    assert len(rows) == len(found.checks)
    assert list(rows["measured"]) == [check.measured for check in found.checks]
    assert list(rows["passed"]) == [check.passed for check in found.checks]
    loss = rows[rows["quantity"] == "loss"]
    assert set(loss["packets"]) == {20_000}
    assert set(matrix_frame(found)["source_region"]) == {"ohio", "virginia"}


def test_a_heat_map_per_quantity_with_figures_in_its_cells() -> None:
    """Every cell has the figures of the table, and failed checks have a frame."""
    found = verification(two_regions(), everything=True, streams=8, wrong=(2,))
    figure = matrix_figure(found)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.images}
    assert list(panels) == [
        "one way, ms", "round trip, ms", "jitter, ms", "loss, %", "goodput, Mbit/s",
        "goodput by 8, Mbit/s",
    ]  # fmt: skip
    goodput = panels["goodput, Mbit/s"]
    written = [text.get_text().replace("\n", " ") for text in goodput.texts]
    cells = [row[6] for row in matrix_grid(found).rows]
    assert sorted(written) == sorted(cells)
    assert len(goodput.patches) == 1
    num_bad = sum(not check.passed for check in found.checks)
    assert f"{num_bad} of {len(found.checks)} figures outside" in figure.get_suptitle()


def test_no_texts_overlap() -> None:
    """Ten regions, in the first of the heat maps."""
    figure = matrix_figure(verification(load_scenario("worldwide-10").network))
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 100
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_many_nodes_are_drawn_without_figures() -> None:
    """Crosses only; beyond 32 nodes regions."""
    found = verification(two_regions(num_nodes=14), everything=True, wrong=(3,))
    panel = next(axes for axes in matrix_figure(found).axes if axes.images)
    assert {text.get_text() for text in panel.texts} == {"✗"}
    assert len(panel.get_yticklabels()) == 14


def test_a_missing_figure_is_framed_and_left_blank() -> None:
    """A missing measurement does not count as good."""
    found = verification(two_regions())
    first = replace(found.checks[0], measured=None, passed=False)
    broken = replace(found, checks=(first, *found.checks[1:]))
    panel = next(axes for axes in matrix_figure(broken).axes if axes.images)
    assert len(panel.patches) == 1
    shades = panel.images[0].get_array()
    assert isinstance(shades, np.ma.MaskedArray)
    assert np.ma.getmaskarray(shades)[0, 0]
    assert "none / " in matrix_grid(broken).rows[0][2]


def test_pictures_are_written_or_refused(tmp_path: Path) -> None:
    """The suffix selects the format; without measurements there is nothing to draw."""
    found = verification(two_regions())
    save_picture(matrix_figure(found), tmp_path / "m.png")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="cannot be written"):
        save_picture(matrix_figure(found), tmp_path / "m.xyz")
    with pytest.raises(UsageError, match="nothing to draw"):
        save_picture(matrix_figure(replace(found, checks=())), tmp_path / "n.png")
