"""The picture of simulated and emulated against published times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from netbench.errors import UsageError
from netbench.records import read_run
from netbench.report.page.published import CASES
from netbench.report.page.simulated import simulated_settings
from netbench.report.pictures.residuals import STYLES, residual_figure
from netbench.report.pictures.style import save_picture
from tests import runs
from tests.simulations import Seconds, off_by, published_mean, write


def settings_of(results: Path, seconds: Seconds = published_mean) -> pd.DataFrame:
    settings = simulated_settings(write(results, seconds))
    assert settings is not None
    return settings


def points(axes: Axes) -> np.ndarray:
    """(n, 2): the markers of a panel."""
    lines = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    return np.concatenate([np.asarray(line.get_xydata()) for line in lines])


def test_every_setting_is_a_point_with_its_error_beneath(tmp_path: Path) -> None:
    """252 settings; those of zero3, 1.5 times too slow, are in the last panel alone."""
    axes = residual_figure(settings_of(tmp_path, off_by(1.5, variant="zero3")), []).axes
    upper, lower = axes[0::2], axes[1::2]
    assert len(upper) == len(CASES) + 1
    assert sum(len(points(panel)) for panel in upper) == 252
    for above, below in zip(upper, lower, strict=True):
        times, errors = points(above), points(below)
        assert np.allclose(times[:, 0], errors[:, 0])
        assert np.allclose(times[:, 1] / times[:, 0] - 1, errors[:, 1] / 100, atol=1e-4)
    assert np.allclose(points(lower[-1])[:, 1], 50, atol=0.01)
    assert all(np.allclose(points(panel)[:, 1], 0, atol=0.01) for panel in lower[:-1])


def test_all_panels_show_errors_at_the_same_scale_with_units(tmp_path: Path) -> None:
    """No point is outside; both axes are labelled."""
    axes = residual_figure(settings_of(tmp_path, off_by(0.3, scenario="case1")), []).axes
    lower = axes[1::2]
    assert len({panel.get_ylim() for panel in lower}) == 1
    assert lower[0].get_ylim()[0] < -70
    assert lower[0].get_ylabel() == "relative error, %"
    assert all(panel.get_xlabel() == "published, seconds per iteration" for panel in lower)


def test_emulated_times_are_hollow_points_beside_the_simulated_ones(tmp_path: Path) -> None:
    """Case 3: three emulated systems, 16.05 s of dtfm-scheduled where 18.87 s were published."""
    run = read_run(runs.write_run(tmp_path / "recorded", runs.CASE3_TIMES))
    settings = settings_of(tmp_path)
    before, after = (residual_figure(settings, some).axes[4] for some in ([], [run]))
    assert len(points(after)) == len(points(before)) + 3
    hollow = [line for line in after.get_lines() if line.get_markerfacecolor() == "none"]
    found = {tuple(np.round(np.asarray(line.get_xydata())[0], 2).tolist()) for line in hollow}
    assert (18.87, 16.05) in found


def test_every_system_has_its_own_colour_and_marker(tmp_path: Path) -> None:
    """Readers who cannot tell colours from each other have the markers."""
    settings = settings_of(tmp_path)
    assert set(settings["system"]) == {*STYLES, "zero3"}
    assert len({color for color, _ in STYLES.values()}) == len(STYLES)
    assert len({marker for _, marker in STYLES.values()}) == len(STYLES)
    (legend,) = residual_figure(settings, []).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert {*STYLES, "simulated", "emulated", "within ±15%"} < set(names)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    """No date and no random ids in the file."""
    settings = settings_of(tmp_path)
    paths = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for path in paths:
        save_picture(residual_figure(settings, []), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert b"<dc:date>" not in first


def test_a_picture_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no/such\.png: the picture cannot be written"):
        save_picture(residual_figure(settings_of(tmp_path), []), tmp_path / "no" / "such.png")
