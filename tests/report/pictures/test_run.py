"""Pictures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from netbench.errors import UsageError
from netbench.records import read_run
from netbench.report.pictures.run import run_figure
from netbench.report.pictures.style import save_picture
from tests import runs

PNG = b"\x89PNG"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure saved, in order."""
    saved: list[Figure] = []
    save = Figure.savefig

    def spy(figure: Figure, *args: Any, **options: Any) -> None:
        saved.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", spy)
    return saved


def bars(figure: Figure) -> list[float]:
    patches = [patch for axis in figure.axes for patch in axis.patches]
    return [round(patch.get_width(), 2) for patch in patches if isinstance(patch, Rectangle)]


def test_a_picture_has_both_bars_of_every_variant(tmp_path: Path, figures: list[Figure]) -> None:
    """Published means first, emulated after; the error is written at the bar."""
    path = tmp_path / "case3.png"
    save_picture(run_figure(read_run(runs.write_run(tmp_path, runs.CASE3_TIMES))), path)
    assert path.read_bytes().startswith(PNG)
    assert bars(figures[0]) == [18.87, 27.82, 21.27, 16.05, 26.25, 23.0, 163.43, 168.0]
    labels = [text.get_text() for text in figures[0].axes[0].texts]
    assert "16.05 ±0.05 s  (-14.9%)" in labels


def test_a_much_slower_system_has_its_own_axis(tmp_path: Path, figures: list[Figure]) -> None:
    """zero3 takes ten times as long as dtfm-scheduled; on one axis it would hide the others."""
    save_picture(
        run_figure(read_run(runs.write_run(tmp_path, runs.CASE3_TIMES))), tmp_path / "x.svg"
    )
    fast, slow = figures[0].axes
    assert [text.get_text() for text in slow.get_yticklabels()] == ["zero3"]
    assert fast.get_xlim()[1] < 50 < 168 < slow.get_xlim()[1]
    assert slow.get_xlabel() == "seconds per iteration"


def test_each_setting_has_a_panel(tmp_path: Path, figures: list[Figure]) -> None:
    """Four settings: a second row with one panel, the rest of it empty."""
    times: runs.Times = {
        ("zero3", layers, 1024, 2022): [1.0, layers] for layers in (24, 32, 40, 48)
    }
    save_picture(run_figure(read_run(runs.write_run(tmp_path, times))), tmp_path / "x.svg")
    titles = [axis.get_title() for axis in figures[0].axes if axis.axison]
    assert titles == ["L24 B1024", "L32 B1024", "L40 B1024", "L48 B1024"]


def test_each_network_has_a_panel(tmp_path: Path, figures: list[Figure]) -> None:
    """Two networks with equal layers and batch are not drawn in the same panel."""
    times: runs.Times = {("dtfm-random", 24, 1024, seed): [1.0, float(seed)] for seed in (1, 2)}
    path = runs.write_run(tmp_path, times, scenario="mine")
    plan = f'"plan_hash":"{[*read_run(path).plans][1]}","plan":{{'
    assert plan in path.read_text()
    path.write_text(path.read_text().replace(plan, plan + '"network_name":"slow",'))
    save_picture(run_figure(read_run(path)), tmp_path / "run.png")
    titles = [axis.get_title() for axis in figures[0].axes if axis.get_title()]
    assert titles == ["L24 B1024 own", "L24 B1024 slow"]


def test_a_scenario_of_ones_own_has_one_bar_per_variant(
    tmp_path: Path, figures: list[Figure]
) -> None:
    """No published bar, no legend entry for it."""
    times: runs.Times = {("dtfm-random", 6, 64, 1): [0.6, 0.5]}
    save_picture(
        run_figure(read_run(runs.write_run(tmp_path, times, scenario="mine"))), tmp_path / "x.png"
    )
    assert bars(figures[0]) == [0.5]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["emulated"]


@pytest.mark.parametrize("name", ["x.banana", "missing/x.png"])
def test_a_picture_that_cannot_be_written_is_one_message(tmp_path: Path, name: str) -> None:
    """An unknown suffix and a missing folder both name the path."""
    run = read_run(runs.write_run(tmp_path, runs.CASE3_TIMES))
    with pytest.raises(UsageError, match=f"{name}: the picture cannot be written"):
        save_picture(run_figure(run), tmp_path / name)


def test_a_run_with_warm_ups_only_has_no_picture(tmp_path: Path) -> None:
    """The message says that there is nothing to draw."""
    run = read_run(runs.write_run(tmp_path, {("zero3", 24, 1024, 2022): [170.0]}))
    with pytest.raises(UsageError, match="no iteration but warm-ups"):
        save_picture(run_figure(run), tmp_path / "x.png")
