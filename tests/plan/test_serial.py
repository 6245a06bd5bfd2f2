"""Plans as JSON, and their hash."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from netbench.errors import PlanError
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.scenario.model import LATER, BurstLoss, Link, Setting
from netbench.systems import examples, find_variant

GOLDEN = Path(__file__).parents[1] / "golden" / "plan" / "example-two-labs-dtfm-random.json"
EXAMPLE = load_scenario("example-two-labs")
PLAN = build_plan(
    EXAMPLE,
    "dtfm-random",
    Setting(layers=8, batch=16, seed=2022),
    Execution(iterations=3, warmup_iterations=1),
)


def test_the_plan_of_the_example_is_the_golden_one() -> None:
    """A change here changes the hash of recorded runs: raise PLAN_SCHEMA_VERSION or think again."""
    assert json.loads(plan_to_json(PLAN)) == json.loads(GOLDEN.read_text())


FITTING = [
    name
    for name in examples()
    if (find_variant(name).pipeline or 1) * find_variant(name).tensor <= 4
]
"""Variants for the four devices of the example."""


@pytest.mark.parametrize("variant", [*FITTING, "megatron-p2t2", "megatron-p2-interleaved2"])
def test_a_plan_survives_being_written(variant: str) -> None:
    """Equal, with the same hash; inf included (the example has nodes without a NIC cap)."""
    plan = build_plan(
        EXAMPLE,
        variant,
        Setting(layers=8, batch=16, seed=2022),
        Execution(iterations=3, warmup_iterations=1),
    )
    copy = plan_from_json(plan_to_json(plan))
    assert copy == plan
    assert plan_hash(copy) == plan_hash(plan)
    assert float("inf") in copy.network.nic_bps


def test_canonical_json_is_one_line_of_standard_json() -> None:
    """Sorted keys, no spaces, nothing that other languages' parsers refuse."""
    text = plan_to_json(PLAN)
    data = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert text == json.dumps(data, sort_keys=True, separators=(",", ":"))


def test_a_number_given_as_int_hashes_as_the_float_it_is() -> None:
    """Else a plan read back would have another hash."""
    whole = dataclasses.replace(PLAN, scale=1)
    assert plan_hash(whole) == plan_hash(dataclasses.replace(PLAN, scale=1.0))


def test_the_hash_tells_plans_apart() -> None:
    """By any field; 12 hexadecimal digits."""
    hashes = {
        plan_hash(PLAN),
        plan_hash(dataclasses.replace(PLAN, seed=1)),
        plan_hash(dataclasses.replace(PLAN, iterations=4)),
        plan_hash(dataclasses.replace(PLAN, scale=2.0)),
    }
    assert len(hashes) == 4
    assert all(len(digits) == 12 and int(digits, 16) >= 0 for digits in hashes)


def bent(**changes: Any) -> str:
    return json.dumps(json.loads(plan_to_json(PLAN)) | changes)


def test_a_plan_recorded_before_a_field_was_added_keeps_its_hash() -> None:
    """A field that came later is written only where it differs; so old runs can be resumed."""
    old = json.loads(plan_to_json(PLAN))
    later: dict[str, Any] = {
        "num_chunks": 2,
        "bucket_bytes": 1,
        "backend": "gloo",
        "network_name": "x",
    }
    assert not later.keys() & old.keys()
    for name, value in later.items():
        changed = dataclasses.replace(PLAN, **{name: value})
        assert json.loads(plan_to_json(changed)) == old | {name: value}
        assert plan_from_json(plan_to_json(changed)) == changed


LINK = PLAN.network.links[0][1]
OTHER_LINKS: dict[str, Any] = {
    "jitter_distribution": "pareto",
    "jitter_correlation": 0.25,
    "jitter_reorders": True,
    "bursts": BurstLoss(to_bad=0.01, to_good=0.3),
    "duplication": 0.01,
    "corruption": 0.001,
    "reordering": 0.02,
    "queue_packets": 1000,
}


def test_every_later_field_of_a_link_is_tried_here() -> None:
    """A new field must be added to the test below."""
    assert {f.name for f in dataclasses.fields(Link) if f.metadata == LATER} == set(OTHER_LINKS)


@pytest.mark.parametrize("name", OTHER_LINKS)
def test_what_else_links_do_is_written_only_where_they_do_it(name: str) -> None:
    """A field, a dataclass of its own (bursts) or a flag: read back equal, and the hash differs."""
    link = dataclasses.replace(LINK, **{name: OTHER_LINKS[name]})
    plan = dataclasses.replace(PLAN, network=PLAN.network.with_links(link))
    written = json.loads(plan_to_json(plan))["network"]["links"][0][1]
    plain = dataclasses.replace(PLAN, network=PLAN.network.with_links(LINK))
    was = json.loads(plan_to_json(plain))["network"]["links"][0][1]
    assert set(written) - set(was) == {name}
    assert {key: written[key] for key in was} == was
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan_hash(plan) != plan_hash(plain)


def test_bursts_are_written_with_all_their_probabilities() -> None:
    """By name; a file without one of them takes its default."""
    link = dataclasses.replace(LINK, bursts=BurstLoss(to_bad=0.01, to_good=0.3))
    plan = dataclasses.replace(PLAN, network=PLAN.network.with_links(link))
    data = json.loads(plan_to_json(plan))
    bursts = data["network"]["links"][0][1]["bursts"]
    assert bursts == {"to_bad": 0.01, "to_good": 0.3, "loss_bad": 1.0, "loss_good": 0.0}
    bursts["to_bad"] = "often"
    with pytest.raises(PlanError, match=r'links\[0\]\[1\]\.bursts\.to_bad: found "often"'):
        plan_from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "plan: not JSON"),
        ("[]", "plan: schema_version is None; this netbench reads 1"),
        (bent(schema_version=99), "plan: schema_version is 99; this netbench reads 1"),
        (bent(colour="red"), "plan: unknown field 'colour'"),
        (bent(seed="x"), 'plan.seed: found "x", expected int'),
        (bent(iterations=True), "plan.iterations: found true, expected int"),
        (bent(layout=[8, 8]), "plan.layout: found [8, 8], expected an object"),
        (bent(placement=3), "plan.placement: found 3, expected a list"),
        (bent(placement=["a"]), 'plan.placement[0]: found "a", expected int'),
        (bent(network={"regions": []}), "plan.network: "),
    ],
)
def test_what_is_not_a_plan_is_refused_by_field(text: str, message: str) -> None:
    """A damaged file gives one line, not a traceback."""
    with pytest.raises(PlanError) as caught:
        plan_from_json(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"placement": [0, 1, 2, 9]}, "plan.placement: does not fit the other parts"),
        ({"placement": [0, 0, 1, 2]}, "plan.placement: does not fit the other parts"),
        ({"device_nodes": [0, 0, 1, 7]}, "plan.device_nodes: does not fit the other parts"),
        ({"node_names": ["a"]}, "plan.network.nic_bps: does not fit the other parts"),
        ({"stages": []}, "plan.stages: does not fit the other parts"),
        ({"data_parallel": "trunk"}, "plan.data_parallel: does not fit the other parts"),
        ({"num_micro_batches": 0}, "plan.num_micro_batches: does not fit the other parts"),
        ({"device_types": [3, 3, 3, 3]}, "plan.device_types: does not fit the other parts"),
        ({"scale": -1.0}, "plan.scale: found -1.0, expected a number from 0 to 1e+30"),
        ({"scale": "nan"}, 'plan.scale: found "nan", expected float'),
        ({"seed": 10**40}, "expected a number from 0 to 1e+30"),
    ],
    ids=str,
)
def test_an_edited_plan_whose_parts_do_not_fit_is_refused(
    changes: dict[str, object], says: str
) -> None:
    """Simulating it would end in an index out of range."""
    with pytest.raises(PlanError) as caught:
        plan_from_json(json.dumps(json.loads(plan_to_json(PLAN)) | changes))
    assert says in str(caught.value)
