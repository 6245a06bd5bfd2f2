"""The picture of simulated against published times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from netbench.errors import UsageError
from netbench.report.scatter import plot_scatter, scatter_figure
from netbench.report.simulated import simulated_settings
from tests.report.simulations import off_by, write


def test_every_setting_is_a_point_where_its_times_are(tmp_path: Path) -> None:
    """225 of them: on the diagonal, but for those that are 1.5 times too slow."""
    settings = simulated_settings(write(tmp_path, off_by(1.5, variant="zero3")))
    assert settings is not None
    (axes,) = scatter_figure(settings).axes
    collections = [c for c in axes.collections if isinstance(c, PathCollection)]
    points = np.concatenate([np.asarray(c.get_offsets()) for c in collections])
    ratio = points[:, 1] / points[:, 0]
    assert len(points) == 225
    assert np.isclose(ratio, 1.5, rtol=1e-4).sum() == 45
    assert np.isclose(ratio, 1.0, rtol=1e-4).sum() == 180
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim() == axes.get_ylim()


def test_the_legend_names_systems_cases_and_the_band(tmp_path: Path) -> None:
    """Colours, markers, and how far out the band goes."""
    settings = simulated_settings(write(tmp_path))
    assert settings is not None
    legend = scatter_figure(settings).axes[0].get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert set(settings["system"]) < set(names)
    assert "case5: World-wide Distributed" in names
    assert names[-1] == "±15%"


def test_a_picture_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    """Naming it."""
    settings = simulated_settings(write(tmp_path))
    assert settings is not None
    with pytest.raises(UsageError, match="the picture cannot be written"):
        plot_scatter(settings, tmp_path / "no" / "such.png")
