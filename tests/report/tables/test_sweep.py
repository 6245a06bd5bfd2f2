"""Tables and pictures of a sweep."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import numpy as np
import pytest

from netbench.errors import UsageError
from netbench.report.pictures.style import save_picture
from netbench.report.tables.grid import csv_text
from netbench.report.tables.sweep import (
    LABEL_GAP,
    Axis,
    SweepPoint,
    SweepResult,
    _apart,
    sweep_csv_grid,
    sweep_figure,
    sweep_grids,
)

BANDWIDTH = Axis(
    title="bandwidth",
    key="bandwidth_bps",
    values=(1e8, 1e9, 1e10),
    texts=("100Mbit", "1Gbit", "10Gbit"),
    geometric=True,
)
DELAY = Axis(
    title="one-way delay",
    key="one_way_delay_s",
    values=(0.0, 0.01),
    texts=("0s", "10ms"),
    geometric=False,
)
BATCH = Axis(title="batch", key="batch", values=(64.0, 128.0), texts=("64", "128"), geometric=False)


def made_up(axes: tuple[Axis, ...], systems: tuple[str, ...] = ("dtfm-scheduled",)) -> SweepResult:
    """Seconds count up from 1, the bound is half a second, the work 3 PFLOP."""
    places = itertools.product(*(range(len(axis.values)) for axis in axes))
    points = [
        SweepPoint(at=at, system=system, iteration_s=float(i), bound_s=0.5, pflop=3.0)
        for i, (at, system) in enumerate(itertools.product(places, systems), start=1)
    ]
    return SweepResult(
        title="Made up", setting="L24 B1024", axes=axes, systems=systems, points=tuple(points)
    )


def test_one_variable_and_one_system_is_one_table() -> None:
    """All figures beside each value: 3 PFLOP in 2 s are 1.5 PFLOPS, half a second in 2 is 25%."""
    ((title, grid),) = sweep_grids(made_up((BANDWIDTH,)))
    assert (title, grid.num_labels) == ("", 1)
    assert grid.head == ("bandwidth", "seconds", "PFLOPS", "efficiency")
    assert grid.rows[1] == ("1Gbit", "2.000", "1.500", "25.0%")


def test_the_values_of_the_last_variable_are_columns() -> None:
    """A table per figure, in the order of the grid."""
    titles, grids = zip(*sweep_grids(made_up((BANDWIDTH, DELAY))), strict=True)
    assert titles[0] == "seconds, by one-way delay"
    assert grids[0].head == ("bandwidth", "0s", "10ms")
    assert grids[0].rows == (
        ("100Mbit", "1.000", "2.000"),
        ("1Gbit", "3.000", "4.000"),
        ("10Gbit", "5.000", "6.000"),
    )
    assert grids[2].rows[0] == ("100Mbit", "50.0%", "25.0%")


def test_several_systems_are_columns_and_variables_rows() -> None:
    """Two columns label the row."""
    _, grid = sweep_grids(made_up((BANDWIDTH, DELAY), ("dtfm-scheduled", "zero3")))[0]
    assert grid.head == ("bandwidth", "one-way delay", "dtfm-scheduled", "zero3")
    assert grid.rows[3] == ("1Gbit", "10ms", "7.000", "8.000")
    assert grid.num_labels == 2


def test_more_values_than_fit_a_terminal_are_rows() -> None:
    """9 columns would not fit."""
    many = Axis(
        title="layers",
        key="layers",
        values=tuple(range(9)),
        texts=tuple("abcdefghi"),
        geometric=False,
    )
    ((_, grid),) = sweep_grids(made_up((DELAY, many)))
    assert len(grid.rows) == 18
    assert grid.rows[10][:3] == ("10ms", "b", "11.00")


def test_csv_has_unrounded_si_units_and_problems() -> None:
    """A point without a time has its reason instead."""
    sweep = made_up((DELAY,))
    lost = SweepPoint(at=(1,), system="zero3", problem="batch 5 does not divide, alas")
    sweep = SweepResult(
        title="", setting="", axes=sweep.axes, systems=("zero3",), points=(sweep.points[0], lost)
    )
    first, second = csv.DictReader(io.StringIO(csv_text(sweep_csv_grid(sweep))))
    assert (first["one_way_delay_s"], first["iteration_s"]) == ("0.0", "1.0")
    assert (first["pflops"], first["efficiency"], first["problem"]) == ("3.0", "0.5", "")
    assert second["problem"] == "batch 5 does not divide, alas"
    assert (second["iteration_s"], second["pflops"]) == ("", "")
    assert sweep_grids(sweep)[0][1].rows[1] == ("10ms", "-", "-", "-")


def test_a_geometric_variable_has_logarithmic_axes() -> None:
    """Both axes; with a linear variable none, and times start at zero."""
    (axis,) = sweep_figure(made_up((BANDWIDTH,))).axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    (axis,) = sweep_figure(made_up((BATCH,))).axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("linear", "linear")
    assert axis.get_ylim()[0] == 0


def test_lines_go_through_the_points_and_have_names_at_their_ends() -> None:
    """A line per value of the other variable; a value without a unit follows its variable."""
    (axis,) = sweep_figure(made_up((BANDWIDTH, BATCH))).axes
    solid = [line for line in axis.get_lines() if line.get_marker() == "o"]
    assert [np.asarray(line.get_ydata()).tolist() for line in solid] == [[1, 3, 5], [2, 4, 6]]
    assert [text.get_text() for text in axis.texts] == ["batch 64", "batch 128"]


def test_labels_that_would_overlap_are_moved_apart_around_their_mean() -> None:
    """Other labels stay at the ends of their lines."""
    heights = _apart([0.1, 0.5, 0.5, 0.51])
    assert heights[0] == pytest.approx(0.1)
    assert sum(heights[1:]) / 3 == pytest.approx(1.51 / 3)
    gaps = [b - a for a, b in itertools.pairwise(heights)]
    assert min(gaps) >= LABEL_GAP - 1e-12


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_suffix_selects_the_format(suffix: str, tmp_path: Path) -> None:
    """A file is written."""
    save_picture(sweep_figure(made_up((BANDWIDTH, DELAY))), tmp_path / f"sweep.{suffix}")
    assert (tmp_path / f"sweep.{suffix}").stat().st_size > 1000


def test_a_picture_that_cannot_be_drawn_is_one_message(tmp_path: Path) -> None:
    """An unknown format, and too many lines."""
    with pytest.raises(UsageError, match="cannot be written"):
        save_picture(sweep_figure(made_up((BANDWIDTH,))), tmp_path / "sweep.odd")
    with pytest.raises(UsageError, match="9 lines"):
        save_picture(
            sweep_figure(made_up((BANDWIDTH,), tuple("abcdefghi"))), tmp_path / "sweep.png"
        )
