"""Collective plans: what they refuse, and where their networks come from."""

from __future__ import annotations

import math
from typing import Any

import pytest

from netbench.errors import PlanError
from netbench.plan.benchmark import first_nodes, held_bytes, uniform_network
from netbench.scenario import load_scenario
from tests.plan.all_reduce import plan_of


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"op": "allreduce"}, 'op "allreduce" is unknown; did you mean all-reduce'),
        ({"backend": "mpi"}, 'backend "mpi" is unknown; expected one of gloo, nccl'),
        ({"num_nodes": 1}, "1 node: expected at least 2"),
        ({"num_nodes": 3}, "3 nodes on a network of 4"),
        ({"payload_bytes": 0}, "payload is 0 bytes"),
        ({"warmup_iterations": 3}, "3 of 3 iterations are warm-up"),
        ({"scale": 0.0}, "scale is 0"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, Any], says: str) -> None:
    """With what was found and what was expected."""
    with pytest.raises(PlanError, match=says):
        plan_of(**change)


def test_the_rate_belongs_to_what_sharing_says() -> None:
    """A NIC's rate caps the node, not the pair."""
    pair = uniform_network(3, one_way_delay_s=0.01, bandwidth_bps=1e9)
    nic = uniform_network(3, one_way_delay_s=0.01, bandwidth_bps=1e9, sharing="nic")
    assert (pair.link(0, 2).bandwidth_bps, pair.nic_bps) == (1e9, (math.inf,) * 3)
    assert (nic.link(0, 2).bandwidth_bps, nic.nic_bps) == (math.inf, (1e9,) * 3)


def test_a_network_that_takes_no_time_is_refused() -> None:
    """Zero delay and no limit: there is nothing to measure."""
    with pytest.raises(PlanError, match="nothing would take any time"):
        uniform_network(2, one_way_delay_s=0.0, bandwidth_bps=math.inf)


def test_the_first_nodes_of_a_scenario_keep_their_links() -> None:
    """Three of two regions' nodes: link by link as in the scenario; one region when two do."""
    scenario = load_scenario("example-two-labs")
    network = first_nodes(scenario, 3)
    assert network.num_nodes == 3
    for src, dst in ((0, 1), (1, 0), (0, 2), (2, 0)):
        assert network.link(src, dst) == scenario.network.link(src, dst)
    assert first_nodes(scenario, 2).regions == scenario.network.regions[:1]


def test_more_nodes_than_the_scenario_has_are_refused() -> None:
    """Saying how many there are."""
    with pytest.raises(PlanError, match="has 4 nodes, 5 were asked for"):
        first_nodes(load_scenario("example-two-labs"), 5)


def test_what_a_rank_holds_counts_the_copies() -> None:
    """A payload that divides: all-reduce holds it once; a reduce-scatter also its copy and part."""
    assert held_bytes(plan_of()) == 1 << 20
    assert held_bytes(plan_of(op="reduce-scatter")) == 2 * (1 << 20) + (1 << 18)


def test_a_payload_is_rounded_up_to_whole_elements_per_rank() -> None:
    """17 bytes are 5 elements, so 4 ranks have 2 each."""
    assert plan_of(payload_bytes=17).shard_elements == 2
