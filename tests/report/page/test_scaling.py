"""Data parallel scaling, simulated beside published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.collections import PathCollection

from netbench.report.page.scaling import odd_speedups, scaling, scaling_markdown
from netbench.report.page.simulated import SCALING, read_table
from netbench.report.pictures.scaling import scaling_figure
from netbench.report.tables.throughput import TESTBEDS
from tests.simulations import write

RESULTS = Path("results")


def test_printed_speed_ups_that_do_not_follow_are_named() -> None:
    """Speed-ups of ResNet101 and Bert: by hand, 20479.66 / 2269.57 = 9.02. ResNet18's do follow."""
    lines = list(odd_speedups())
    assert [line.split(":")[0] for line in lines] == ["AWS, ResNet101", "AWS, Bert-base (len 128)"]
    assert "9.08x for 12 replicas, where 9.02x follows" in lines[1]


def test_simulated_figures_stand_beside_published_ones() -> None:
    """The committed ones: of the errors none is left out, and one replica is as published."""
    table = read_table(RESULTS, SCALING)
    assert table is not None
    grid = scaling(table[table["scenario"] == "dp-scaling"])
    assert grid.head == (
        "Model", "Replicas", "published", "ddp", "ddp-central-ps", "ddp-sharded-ps",
    )  # fmt: skip
    assert len(grid.rows) == 9
    for model, replicas, published, *found in grid.rows:
        assert "x)" in published, model
        assert all(text.endswith("%") for text in found) == (replicas != "1")
        if replicas == "1":
            assert set(found) == {published}
    errors = table["simulated_throughput"] / table["published_throughput"] - 1
    assert np.allclose(errors.dropna(), table["error"].dropna(), atol=6e-5)
    text = scaling_markdown(RESULTS)
    assert all(f"### {scenario}\n" in text for scenario in TESTBEDS)
    assert f"+{several_errors(text):.1f}%" in text


def several_errors(text: str) -> float:
    """The largest error of ddp, computed from the committed table."""
    table = read_table(RESULTS, SCALING)
    assert table is not None
    rows = table[(table["system"] == "ddp") & (table["replicas"] > 1)]
    assert f"+{rows['error'].min() * 100:.1f}% to +{rows['error'].max() * 100:.1f}% (ddp)" in text
    return float(rows["error"].max() * 100)


def test_without_simulations_there_is_no_section(tmp_path: Path) -> None:
    """And no figure is made up."""
    assert scaling_markdown(tmp_path) == ""


def test_the_picture_has_a_panel_per_scenario_with_the_ideal_line(tmp_path: Path) -> None:
    """A line per model and system, and a point where something was published."""
    table = read_table(write(tmp_path), SCALING)
    assert table is not None
    panels = scaling_figure(table).axes
    assert [panel.get_title() for panel in panels] == list(TESTBEDS)
    for panel, (scenario, rows) in zip(panels, table.groupby("scenario", sort=False), strict=True):
        ideal, *lines = panel.get_lines()
        assert np.asarray(ideal.get_data()).tolist() == [[0, rows["replicas"].max()]] * 2
        assert len(lines) == 9
        points = [c for c in panel.collections if isinstance(c, PathCollection)]
        shown = np.concatenate([np.asarray(c.get_offsets()) for c in points])
        known = rows.drop_duplicates(["model", "replicas"])["published_throughput"].notna().sum()
        assert np.isfinite(shown[:, 1]).sum() == known, scenario
