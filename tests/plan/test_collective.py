"""Collective plans: what they refuse, how they are written, where their networks come from."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest

from netbench.errors import PlanError
from netbench.plan import build_plan, plan_hash, plan_to_json
from netbench.plan.collective import OPS, CollectivePlan, first_nodes, held_bytes, uniform_network
from netbench.plan.experiment import experiment_from_json, experiment_hash, experiment_to_json
from netbench.scenario import load_scenario


def plan_of(**changes: Any) -> CollectivePlan:
    """All-reduce of 1 MiB over 4 nodes, unless told otherwise."""
    fields: dict[str, Any] = {
        "op": "all-reduce",
        "num_nodes": 4,
        "payload_bytes": 1 << 20,
        "backend": "gloo",
        "network": uniform_network(4, one_way_delay_s=0.005, bandwidth_bps=1e9),
        "iterations": 3,
        "warmup_iterations": 1,
    }
    return CollectivePlan(**fields | changes)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("sharing", ["pair", "class", "nic"])
def test_what_is_written_reads_back(op: str, sharing: str) -> None:
    """Infinite rates included: equal plans, equal text, a hash that anyone can compute."""
    network = uniform_network(4, one_way_delay_s=0.0, bandwidth_bps=5e9, sharing=sharing)
    plan = plan_of(op=op, network=network)
    text = experiment_to_json(plan)
    copy = experiment_from_json(text)
    assert copy == plan
    assert experiment_to_json(copy) == text
    assert experiment_hash(plan) == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_every_field_counts_for_the_hash() -> None:
    """No two of these are the same experiment."""
    slower = uniform_network(4, one_way_delay_s=0.005, bandwidth_bps=1e8)
    plans = [
        plan_of(),
        plan_of(op="reduce"),
        plan_of(payload_bytes=1 << 21),
        plan_of(backend="nccl"),
        plan_of(network=slower),
        plan_of(scenario="case3"),
    ]
    assert len({experiment_hash(plan) for plan in plans}) == len(plans)


def test_a_training_plan_travels_unchanged() -> None:
    """Same text and hash as `plan_to_json` and `plan_hash` give."""
    scenario = load_scenario("example-two-labs")
    plan = build_plan(scenario, "dtfm-random", 8, 16, 1, 2, 1)
    text = experiment_to_json(plan)
    assert text == plan_to_json(plan)
    assert experiment_hash(plan) == plan_hash(plan)
    assert experiment_from_json(text) == plan


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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 99}, "schema_version is 99; this netbench reads 1"),
        ({"op": 5}, "plan.op: found 5, expected str"),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_a_damaged_plan_names_its_field(change: dict[str, Any], says: str) -> None:
    """As for training plans."""
    data = json.loads(experiment_to_json(plan_of())) | change
    with pytest.raises(PlanError, match=says):
        experiment_from_json(json.dumps(data))


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
