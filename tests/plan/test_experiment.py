"""Plans of either kind: how they travel, and the records of their iterations."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from netbench.errors import PlanError
from netbench.plan.benchmark import OPS, uniform_network
from netbench.plan.build import build_plan
from netbench.plan.experiment import (
    experiment_from_json,
    experiment_hash,
    experiment_record,
    experiment_to_json,
)
from netbench.plan.model import Execution
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from tests.plan.all_reduce import plan_of


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
    plan = build_plan(
        scenario,
        "dtfm-random",
        Setting(layers=8, batch=16, seed=1),
        Execution(iterations=2, warmup_iterations=1),
    )
    text = experiment_to_json(plan)
    assert text == plan_to_json(plan)
    assert experiment_hash(plan) == plan_hash(plan)
    assert experiment_from_json(text) == plan


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 99}, "schema_version is 99; this netbench reads 1"),
        ({"op": 5}, "plan.op: found 5, expected str"),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_a_damaged_plan_names_its_field(change: dict[str, Any], says: str) -> None:
    """Like training plans."""
    data = json.loads(experiment_to_json(plan_of())) | change
    with pytest.raises(PlanError, match=says):
        experiment_from_json(json.dumps(data))


def test_a_record_is_of_its_plan() -> None:
    """A setting is that of training; a collective has none."""
    plan = build_plan(
        load_scenario("example-two-labs"),
        "dtfm-random",
        Setting(layers=8, batch=16, seed=7),
        Execution(iterations=2, warmup_iterations=1),
    )
    record = experiment_record(plan, "run-1", 0.5, "emulated", iteration=1, loss=2.5)
    assert (record.run_id, record.plan_hash, record.iteration) == ("run-1", plan_hash(plan), 1)
    assert (record.variant, record.system, record.scenario) == (
        "dtfm-random",
        "dtfm",
        plan.scenario,
    )
    assert (record.layers, record.batch, record.seed) == (8, 16, 7)
    assert (record.iteration_s, record.source, record.loss) == (0.5, "emulated", 2.5)
    alone = experiment_record(plan_of(), "run-1", 0.5, "simulated")
    assert (alone.variant, alone.system) == ("all-reduce", "collective")
    assert (alone.layers, alone.batch, alone.seed, alone.iteration) == (0, 0, 0, 0)
