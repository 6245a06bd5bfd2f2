"""Pictures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from netbench.errors import UsageError
from netbench.records import RunStore, read_run
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


def test_networks_are_rows_of_one_panel(tmp_path: Path, figures: list[Figure]) -> None:
    """A reader compares networks, so that they share a panel and an axis."""
    times: runs.Times = {("dtfm-random", 24, 1024, seed): [1.0, float(seed)] for seed in (1, 2)}
    path = runs.write_run(tmp_path, times, scenario="mine")
    plan = f'"plan_hash":"{[*read_run(path).plans][1]}","plan":{{'
    assert plan in path.read_text()
    path.write_text(path.read_text().replace(plan, plan + '"network_name":"slow",'))
    save_picture(run_figure(read_run(path)), tmp_path / "run.png")
    (axis,) = figures[0].axes
    assert axis.get_title() == "dtfm-random, L24 B1024"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["own", "slow"]


def test_panels_share_an_axis(tmp_path: Path, figures: list[Figure]) -> None:
    """Bars of two panels can be compared by their lengths."""
    times: runs.Times = {("zero3", layers, 1024, 2022): [1.0, layers] for layers in (24, 48)}
    run = read_run(runs.write_run(tmp_path, times, scenario="mine"))
    save_picture(run_figure(run), tmp_path / "x.svg")
    limits = {axis.get_xlim() for axis in figures[0].axes}
    assert len(limits) == 1
    assert limits.pop()[1] > 48


def test_simulated_times_are_beside_the_others(tmp_path: Path, figures: list[Figure]) -> None:
    """Published, simulated, emulated, from the top down."""
    path = runs.write_run(tmp_path, {("zero3", 24, 1024, 2022): [170.0, 168.0]})
    with RunStore.open(path) as store:
        store.append_prediction(next(iter(read_run(path).plans)), 165.9)
    save_picture(run_figure(read_run(path)), tmp_path / "x.svg")
    assert bars(figures[0]) == [163.43, 165.9, 168.0]
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert names == ["published", "simulated", "emulated"]


def test_equal_times_have_no_whisker(tmp_path: Path, figures: list[Figure]) -> None:
    """A range of nothing would be drawn as a tick at the end of the bar."""
    times: runs.Times = {
        ("zero3", 24, 1024, 2022): [1.0, 5.0, 5.0],
        ("ddp", 24, 1024, 2022): [1.0, 4.0, 5.0],
    }
    run = read_run(runs.write_run(tmp_path, times, scenario="mine"))
    save_picture(run_figure(run), tmp_path / "x.svg")
    (axis,) = figures[0].axes
    (whiskers,) = [c for c in axis.containers if isinstance(c, ErrorbarContainer)]
    segments = whiskers.lines[2][0].get_segments()
    assert [[x for x, _ in segment] for segment in segments] == [[4.0, 5.0]]


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
