"""The picture of a placement: its contents, and that nothing overlaps."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Wedge

from netbench.placement.plan_problem import grid_of
from netbench.plan.build import build_plan
from netbench.plan.maps import random
from netbench.plan.model import Execution, Plan
from netbench.report.pictures.placement_map import DOT, placement_figure
from netbench.report.pictures.style import save_picture
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting


def planned(scenario: str, variant: str = "dtfm-random", seed: int = 1) -> Plan:
    loaded = load_scenario(scenario)
    sweep = loaded.sweep
    return build_plan(
        loaded,
        variant,
        Setting(layers=sweep.layers[0], batch=sweep.batch[0], seed=seed),
        Execution(iterations=2, warmup_iterations=1),
    )


def parts(axes: Axes) -> tuple[list[Circle], list[Circle], list[FancyArrowPatch]]:
    """Regions, dots, and arrows."""
    circles = [patch for patch in axes.patches if isinstance(patch, Circle)]
    dots = [circle for circle in circles if circle.radius == DOT]
    regions = [circle for circle in circles if circle.radius != DOT]
    return regions, dots, [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.parametrize("scenario", ["case1", "case3", "case5", "worldwide-10", "uneven-regions"])
def test_every_device_is_a_dot_in_its_region_and_every_hop_an_arrow(scenario: str) -> None:
    """Dots and regions do not touch each other; every dot lies within one region."""
    plan = planned(scenario)
    grid = grid_of(plan)
    regions, dots, arrows = parts(placement_figure(plan, grid).axes[0])
    assert len(dots) == len(plan.device_nodes)
    assert len(arrows) == grid.shape[0] * (grid.shape[1] - 1)
    for one, other in combinations(regions, 2):
        apart = np.hypot(*np.subtract(one.center, other.center))
        assert apart > one.radius + other.radius
    for one, other in combinations(dots, 2):
        assert np.hypot(*np.subtract(one.center, other.center)) > 2 * DOT
    for dot in dots:
        inside = [
            np.hypot(*np.subtract(dot.center, region.center)) < region.radius - DOT
            for region in regions
        ]
        assert sum(inside) == 1


def test_each_group_has_its_own_colour() -> None:
    """A dot has the colour and the number of its stage."""
    plan = planned("case3")
    grid = grid_of(plan)
    axes = placement_figure(plan, grid).axes[0]
    _, dots, _ = parts(axes)
    colors = {
        stage: {dots[device].get_facecolor() for device in grid[:, stage]}
        for stage in range(grid.shape[1])
    }
    assert all(len(found) == 1 for found in colors.values())
    assert len(set.union(*colors.values())) == grid.shape[1]
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("0") == grid.shape[0]
    assert {"Ohio (32)", "Virginia (32)"} <= set(texts)


def test_idle_devices_belong_to_no_group() -> None:
    """They are grey, and named in the legend."""
    plan = planned("case3")
    grid = grid_of(plan)[:6]
    figure = placement_figure(plan, grid)
    _, dots, _ = parts(figure.axes[0])
    used = {dots[device].get_facecolor() for device in grid.ravel()}
    idle = [dot for device, dot in enumerate(dots) if device not in grid]
    assert len(idle) == 16
    assert all(dot.get_facecolor() not in used for dot in idle)
    assert "idle" in {text.get_text() for text in figure.legends[0].get_texts()}


def test_thousands_of_devices_are_fractions_and_counts(tmp_path: Path) -> None:
    """The wedges of a disc are the fractions of its groups; arrows have the hops between them."""
    path = tmp_path / "large.yaml"
    path.write_text(LARGE)
    plan = planned(str(path))
    grid = grid_of(plan)
    axes = placement_figure(plan, grid).axes[0]
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    region = np.asarray(plan.network.node_regions)[np.asarray(plan.device_nodes)]
    shares = [
        (wedge.theta2 - wedge.theta1) / 360 for wedge in wedges if wedge.theta2 > wedge.theta1
    ]
    expected = [
        (region[grid[:, stage]] == index).sum() / (region == index).sum()
        for index in range(3)
        for stage in range(4)
    ]
    assert shares == pytest.approx(expected)
    hops = [(int(a), int(b)) for lane in region[grid] for a, b in pairwise(lane)]
    _, dots, arrows = parts(axes)
    assert dots == []
    assert len(arrows) == len({hop for hop in hops if hop[0] != hop[1]})
    texts = {text.get_text() for text in axes.texts}
    assert {f"{hops.count((i, i))} within" for i in range(3)} <= texts
    between = Counter(hop for hop in hops if hop[0] != hop[1])
    most = max(between.values())
    assert {str(number) for number in between.values() if number >= most / 3} <= texts


def test_an_arrow_with_few_hops_is_thin(tmp_path: Path) -> None:
    """If all arrows have few hops, none is wide: width is relative to all pipelines."""
    path = tmp_path / "large.yaml"
    path.write_text(LARGE)
    plan = planned(str(path))
    region = np.asarray(plan.network.node_regions)[np.asarray(plan.device_nodes)]
    grid = grid_of(plan)
    inside = np.concatenate([np.flatnonzero(region == index) for index in range(3)])
    inside = inside[: grid.size].reshape(grid.shape)
    inside[[0, -1], 0] = inside[[-1, 0], 0]  # two hops between the first region and the last
    _, _, arrows = parts(placement_figure(plan, inside).axes[0])
    assert len(arrows) == 2
    assert max(arrow.get_linewidth() for arrow in arrows) < 2.0


LARGE = """\
name: large
regions: [A, B, C]
nodes:
  - {region: A, count: 300, device: V100}
  - {region: B, count: 100, device: V100}
  - {region: C, count: 112, device: V100}
network:
  links:
    - {between: [A, B], one_way_delay: 5ms, bandwidth: 1Gbit}
    - {between: [A, C], one_way_delay: 9ms, bandwidth: 1Gbit}
    - {between: [B, C], one_way_delay: 7ms, bandwidth: 1Gbit}
  inside:
    A: {one_way_delay: 1ms, bandwidth: 2Gbit}
    B: {one_way_delay: 1ms, bandwidth: 2Gbit}
    C: {one_way_delay: 1ms, bandwidth: 2Gbit}
workload: {layers: 8, hidden: 1024, heads: 8, sequence: 1024, batch: 1024}
sweep: {pipeline: 4, variants: [dtfm-random]}
"""


def test_the_same_placement_is_the_same_picture(tmp_path: Path) -> None:
    """The files are equal to the byte."""
    plan = planned("case5", seed=3)
    assert plan.placement == random(range(64), 3)
    for name in ("a.png", "b.png"):
        save_picture(placement_figure(plan, grid_of(plan), note="random"), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
