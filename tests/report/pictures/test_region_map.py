"""Pictures of scenarios: their texts, and where these are."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from netbench.errors import UsageError
from netbench.report.pictures.region_map import region_figure
from netbench.report.pictures.style import save_picture
from netbench.scenario import Scenario, list_scenarios, load_scenario
from netbench.scenario.model import BurstLoss, Link


def texts(figure: Figure) -> list[str]:
    """All texts of the figure."""
    return [text.get_text() for axes in figure.axes for text in axes.texts] + [
        text.get_text() for text in figure.texts
    ]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts in the axes that overlap."""
    figure.canvas.draw()
    boxes = [
        (text.get_text(), text.get_window_extent()) for axes in figure.axes for text in axes.texts
    ]
    return [
        (a, b)
        for i, (a, box_a) in enumerate(boxes)
        for b, box_b in boxes[:i]
        if box_a.overlaps(box_b)
    ]


def subset(scenario: Scenario, num_regions: int) -> Scenario:
    """The scenario with its first regions only."""
    network = scenario.network
    keep = [i for i, region in enumerate(network.node_regions) if region < num_regions]
    smaller = dataclasses.replace(
        network,
        regions=network.regions[:num_regions],
        links=tuple(row[:num_regions] for row in network.links[:num_regions]),
        node_regions=tuple(network.node_regions[i] for i in keep),
        nic_bps=tuple(network.nic_bps[i] for i in keep),
    )
    return dataclasses.replace(
        scenario, network=smaller, nodes=tuple(scenario.nodes[i] for i in keep)
    )


@pytest.mark.parametrize("name", list_scenarios())
def test_no_labels_overlap(name: str) -> None:
    """In the picture of every scenario that comes with netbench."""
    assert overlaps(region_figure(load_scenario(name))) == []


def test_three_regions_fit_too() -> None:
    """They form a triangle."""
    assert overlaps(region_figure(subset(load_scenario("case5"), 3))) == []


def test_an_edge_shows_delay_and_bandwidth() -> None:
    """Once if both directions are equal; nodes are in the circles, the inner link beside them."""
    written = texts(region_figure(load_scenario("case3")))
    assert written.count("11 ms\n1.12 Gbit/s") == 1
    assert written.count("inside: 1 ms, 5 Gbit/s") == 2
    assert written.count("32 × V100") == 2
    assert "Ohio" in written


def test_four_regions_have_six_edges() -> None:
    """Every published pair of case 4."""
    written = texts(region_figure(load_scenario("case4")))
    delays = {text.split("\n")[0] for text in written if "\n" in text}
    assert delays == {"67 ms", "59 ms", "11 ms", "12 ms", "49 ms", "52 ms"}


def test_directions_that_differ_are_two_arrows() -> None:
    """Each has a label."""
    written = texts(region_figure(load_scenario("example-two-labs")))
    assert "8 ms\n200 Mbit/s" in written
    assert "8 ms\n50 Mbit/s" in written
    assert "2 × RTX4090\nNIC 1 Gbit/s" in written


def test_many_regions_are_two_matrices() -> None:
    """8 x 8 delays and bandwidths."""
    figure = region_figure(load_scenario("case5"))
    delays, rates = figure.axes
    assert (len(delays.texts), len(rates.texts)) == (64, 64)
    assert delays.texts[1].get_text() == "67"
    assert rates.texts[1].get_text() == "0.79"


def test_unlimited_values_are_labelled() -> None:
    """Zero delay and unlimited bandwidth are not on the colour scale."""
    scenario = load_scenario("case5")
    free = Link(one_way_delay_s=0.0, bandwidth_bps=math.inf)
    links = ((free,) * 8,) * 8
    network = dataclasses.replace(scenario.network, links=links)
    delays, rates = region_figure(dataclasses.replace(scenario, network=network)).axes
    assert {text.get_text() for text in delays.texts} == {"0"}
    assert {text.get_text() for text in rates.texts} == {"∞"}


def test_nodes_of_several_kinds_are_counted_separately() -> None:
    """Case 2, with the NIC that all nodes have."""
    written = texts(region_figure(load_scenario("case2")))
    assert "32 × V100\n8 × 4 V100\nNIC 10 Gbit/s" in written


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_suffix_selects_the_format(tmp_path: Path, suffix: str, start: bytes) -> None:
    """PNG, SVG and PDF."""
    path = tmp_path / f"map{suffix}"
    save_picture(region_figure(load_scenario("case3")), path)
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["map.foo", "no/such/folder/map.png"])
def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path, name: str) -> None:
    """The message names the file."""
    with pytest.raises(UsageError, match="the picture cannot be written"):
        save_picture(region_figure(load_scenario("case3")), tmp_path / name)


def test_a_map_is_as_high_as_its_contents() -> None:
    """A triangle has its corners at the top and at the bottom of its axes, not a margin lower."""
    (axes,) = region_figure(load_scenario("fluidstack3")).axes
    circles = [patch for patch in axes.patches if isinstance(patch, Circle)]
    centres = [np.asarray(circle.get_center())[1] for circle in circles]
    bottom, top = axes.get_ylim()
    assert len(circles) == 3
    assert min(centres) - bottom == pytest.approx(top - max(centres))


def test_a_map_shows_the_other_impairments_of_a_link() -> None:
    """They are beneath delay and bandwidth; the header says that a trunk is shared."""
    scenario = load_scenario("example-two-labs")
    link = Link(
        one_way_delay_s=0.011,
        bandwidth_bps=1e9,
        jitter_s=0.002,
        bursts=BurstLoss(to_bad=0.01, to_good=0.24),
        corruption=0.001,
    )
    network = dataclasses.replace(scenario.network.with_links(link), sharing="trunk")
    figure = region_figure(dataclasses.replace(scenario, network=network))
    written = texts(figure)
    assert "11 ms ±2ms\n1 Gbit/s\n4% loss in bursts\n0.1% corrupted" in written
    assert any("all traffic between two regions shares one rate" in text for text in written)
    assert overlaps(figure) == []
