"""The simulator's peers in `make bench`."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.__main__ import render
from benchmarks.simpy_model import end_times, never_slow
from benchmarks.simulator import TOLERANCE, plan_of, stretch
from netbench.errors import PlanError
from netbench.plan.benchmark import uniform_network
from netbench.scenario.load import load_scenario
from netbench.simulator import load_transport, simulate
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind

NCCL = never_slow(load_transport("nccl"))


def test_simpy_flows_share_a_link_evenly() -> None:
    """1 s and 2 s of bytes alone end after 2 s and 3 s together, then comes 1 s of work."""
    network = uniform_network(2, one_way_delay_s=0.5, bandwidth_bps=1e9)
    graph = Graph(Fabric(network, [0, 1], NCCL))
    path = graph.fabric.paths(np.array([0]), np.array([1]))
    rate = float(graph.fabric.rate[path][0])
    sent = graph.flow(TaskKind.TRANSFER, 0, 1, np.array([rate, 2 * rate]))
    work = graph.work(TaskKind.FORWARD, 1, 1.0)
    graph.edge(sent, work, 0.5)
    ends = end_times(graph.run(), graph.fabric)
    assert [ends[task] for task in (*sent, work)] == pytest.approx([2.0, 3.0, 4.5])


@pytest.mark.parametrize("variant", ["dtfm-scheduled", "dtfm-random", "megatron-p8"])
def test_simpy_times_every_task_as_the_simulator_does(variant: str) -> None:
    """Two implementations of the same graph, on 16 GPUs in 8 regions."""
    plan = plan_of(stretch(load_scenario("case5"), 16, 8), variant, batch=32)
    simulation = simulate(plan, NCCL)
    timeline = simulation.parts[-1].timeline
    ends = np.array(end_times(timeline, simulation.fabric))
    assert len(ends) > 1000
    assert ends == pytest.approx(timeline.end_s, rel=TOLERANCE)


def test_a_stretched_scenario_repeats_its_regions() -> None:
    """Twice case 5: copies of a pair have its link, copies of a region that to its neighbour."""
    base = load_scenario("case5")
    wide = stretch(base, 256, 16)
    links, known = wide.network.links, base.network.links
    assert (wide.num_devices, len(wide.network.regions)) == (256, 16)
    assert np.bincount(wide.network.node_regions).tolist() == [16] * 16
    assert (links[0][0], links[9][9]) == (known[0][0], known[1][1])
    assert (links[1][10], links[9][2]) == (known[1][2], known[1][2])
    assert links[0][8] == known[0][1]


def test_regions_that_do_not_fill_evenly_are_refused() -> None:
    with pytest.raises(PlanError, match="100 GPUs do not divide into 8 regions"):
        stretch(load_scenario("case5"), 100, 8)


def test_a_row_without_another_way_claims_no_ratio() -> None:
    """Beside one that does."""
    assert render("a", "b", 0.01234, None, None) == "| a | b | 0.0123 | | | |"
    assert render("a", "b", 0.5, "c", 10.0) == "| a | b | 0.5 | c | 10 | 20.0 |"
