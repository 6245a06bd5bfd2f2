"""A system that is written here and put into the registry is planned, costed and simulated.

It touches one module and one line of the registry: nothing else of netbench knows its name.
"""

from __future__ import annotations

import re

import pytest

from netbench.errors import PlanError
from netbench.explain.usage import links
from netbench.plan.describe import describe_plan
from netbench.plan.memory import plan_memory
from netbench.plan.model import Plan
from netbench.plan.scale import network_bytes
from netbench.plan.serial import plan_from_json, plan_to_json
from netbench.simulator import simulate
from netbench.systems import SYSTEMS, examples, find_variant, grammar
from netbench.systems.base import System, Variant
from netbench.systems.iteration import (
    COLLECTIVE,
    OPTIMIZER,
    Call,
    Segment,
    SegmentBuilder,
    add_micro_batches,
)
from netbench.testbed.runs.controller import has_trainer
from tests.plans import NO_COSTS, uniform_plan

NODES, RATE_BPS = 4, 1e9


class Toy(System):
    """Ranks average fp64 gradients in a ring, in two halves, while nothing computes."""

    name = "toy"
    grammar = "toy[-halves]"
    pattern = re.compile(r"toy(?P<halves>-halves)?")
    examples = ("toy",)

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(
            system=self.name,
            data_parallel="ring",
            pipeline=1,
            accumulation="halves" if found["halves"] else "",
        )

    def gradient_dtype(self, dtype: str) -> str:
        return "fp64"

    def segments(self, plan: Plan) -> tuple[Segment, ...]:
        (stage,), builder = plan.stages, SegmentBuilder()
        computed = add_micro_batches(builder, plan)
        halves = 2 if plan.accumulation == "halves" else 1
        call = Call(
            op="all-reduce",
            size_bytes=stage.gradient_bytes / halves,
            group_size=plan.layout.num_ranks,
            host_s=1.0,
        )
        averaged = builder.add("network", COLLECTIVE, calls=[call] * halves, after=[computed])
        builder.add("device", OPTIMIZER, stage.optimizer_s, after=[averaged])
        return (builder.build("iteration"),)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, Toy.name, Toy())


def toy_plan(variant: str) -> Plan:
    return uniform_plan(variant, num_nodes=NODES, bandwidth_bps=RATE_BPS, optimizer_s=0.5)


def test_its_names_are_read_and_suggested() -> None:
    """Messages have its grammar."""
    assert find_variant("toy-halves").accumulation == "halves"
    assert "toy" in examples()
    assert grammar().endswith(", toy[-halves]")
    with pytest.raises(PlanError, match=r'unknown system "toys"; did you mean toy\?'):
        find_variant("toys")


def test_its_plan_is_serialised_and_described() -> None:
    """Its JSON is read back, and no trainer runs it."""
    plan = toy_plan("toy-halves")
    assert plan_from_json(plan_to_json(plan)) == plan
    assert " toy-halves " in describe_plan(plan)
    assert not has_trainer(plan)


def test_its_costs_are_read_from_it() -> None:
    """8 bytes per parameter are sent; on the device there are 16, as by default."""
    plan = toy_plan("toy")
    parameters = plan.stages[0].parameters
    assert network_bytes(plan) == 2 * (NODES - 1) * 8 * parameters
    (memory,) = plan_memory(plan)
    states = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert states == 16 * parameters


@pytest.mark.parametrize(("variant", "calls"), [("toy", 1), ("toy-halves", 2)])
def test_its_iteration_is_simulated(variant: str, calls: int) -> None:
    """Compute, a second per call beside the bytes of a ring, the update."""
    plan = toy_plan(variant)
    found = simulate(plan, NO_COSTS)
    ring_s = 2 * (NODES - 1) / NODES * plan.stages[0].gradient_bytes * 8 / RATE_BPS
    stage = plan.stages[0]
    compute_s = plan.num_micro_batches * (stage.forward_s + stage.backward_s)
    assert found.iteration_s == pytest.approx(compute_s + calls + ring_s + 0.5, rel=1e-3)
    assert found.phases["sync_s"] == pytest.approx(calls + ring_s, rel=1e-3)
    carried = sum(link.payload_bytes for link in links(found) if link.kind == "pair")
    assert carried == pytest.approx(network_bytes(plan))
