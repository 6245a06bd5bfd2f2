"""The scale of an emulation, and whether TCP acts in it."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.plan.build import Choices, build_plan, build_plans
from netbench.plan.collectives import ChainCut
from netbench.plan.model import Execution, Plan
from netbench.plan.scale import choose_scale, is_quick, keep_dynamics, unmerge
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting

CASE3 = load_scenario("case3")
EXAMPLE = load_scenario("example-two-labs")
SMALL = load_scenario("gpt3-small")


def case3(variant: str) -> Plan:
    return build_plan(CASE3, variant, Setting(layers=24, batch=1024, seed=2022), Execution())


def test_plans_of_one_run_share_the_largest_scale() -> None:
    """A small plan beside a large one is scaled with it."""
    scenario = dataclasses.replace(EXAMPLE, sweep=dataclasses.replace(EXAMPLE.sweep, pipeline=2))
    small, large = build_plans(
        scenario,
        Choices(variants=["dtfm-scheduled"], layers=[8], batch=[16, 16384], seeds=[0]),
        Execution(),
    )
    assert choose_scale(small) == 1.0
    assert small.scale == large.scale == choose_scale(large) > 1.0


def test_the_scale_asked_for_is_kept() -> None:
    """Whatever the traffic."""
    assert (
        build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16), Execution(scale=10)).scale == 10.0
    )


def test_plans_that_keep_tcp_have_the_largest_scale_with_segments_of_256_bytes() -> None:
    """8949 / 32 = 280 bytes; NCCL's 16 sockets; and a plan that reads back as it was written."""
    plan = keep_dynamics(case3("dtfm-scheduled"), CASE3)
    assert plan.scale == 32
    assert (plan.network.tcp.congestion, plan.network.tcp.sockets) == ("cubic", 16)
    assert not is_quick(plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan_hash(plan) != plan_hash(case3("dtfm-scheduled"))


def test_chains_are_cut_finely_where_tcp_acts() -> None:
    """In at most 128 slices, of 1 MiB as NCCL's if they are fewer. Megatron has no chains."""
    kept = keep_dynamics(case3("dtfm-scheduled"), CASE3).transport
    assert kept.chain_cut(100 * 2**20) == ChainCut(slices=100, ramp=16)
    assert kept.chain_cut(430e6) == ChainCut(slices=128, ramp=16)
    fast = case3("dtfm-scheduled").transport
    assert fast.chain_cut(430e6) == ChainCut(slices=103)
    assert keep_dynamics(case3("megatron-p8"), CASE3).transport == fast


def test_small_plans_keep_tcp_at_full_size_and_are_quick() -> None:
    """gpt3-small sends less than 2 GB; an asked-for scale is taken as it is."""
    small = build_plans(SMALL, Choices.of(SMALL.sweep), Execution())[0]
    kept = keep_dynamics(small, SMALL)
    assert (kept.scale, kept.network.tcp.acts) == (1, True)
    assert is_quick(kept)
    assert not is_quick(small)  # TCP does not act in it
    assert keep_dynamics(small, SMALL, 8.0).scale == 8


def test_tensors_that_do_not_fit_a_guest_leave_a_plan_as_it_is() -> None:
    """zero3 of case 3 holds 5 GB per rank: 160 MB at scale 32, of which a guest maps 60."""
    plan = case3("zero3")
    assert keep_dynamics(plan, CASE3) == plan
    assert plan.scale == 200


def test_plans_without_tcp_are_written_as_before() -> None:
    """Hashes of recorded plans stay: the field is only written where TCP acts."""
    assert "tcp" not in plan_to_json(case3("dtfm-scheduled"))


@pytest.mark.parametrize(("asked", "scale"), [(None, 200.0), (50.0, 50.0)])
def test_zero3_is_unmerged_at_a_scale_that_its_messages_allow(
    asked: float | None, scale: float
) -> None:
    """A 64th of the smallest matrix has 131 kB; gloo adds 162 bytes. A scale that was asked for
    stays."""
    setting = Setting(layers=32, batch=1024)
    execution = Execution(scale=asked or 1000.0)
    plan = unmerge(build_plan(CASE3, "zero3", setting, execution), asked)
    assert (plan.scale, plan.units) == (scale, (22, *[1] * 10))


def test_all_reduces_between_nodes_limit_the_scale_of_their_plans_alone() -> None:
    """A boundary tensor of 8.4 MB is cut for 8, 4 or 2 ranks: gloo adds 162 bytes to 1.05, 2.1 or
    4.2 MB, of which a twentieth at most at scales 324, 647 and 1294."""
    variants = ("megatron-p8", "megatron-t8", "megatron-p2t4", "megatron-p4t2")
    sizes = Choices(layers=(24,), batch=(1024,), variants=variants, seeds=(2022,))
    case2 = load_scenario("case2")
    chosen = {plan.variant: plan.scale for plan in build_plans(case2, sizes, Execution())}
    assert chosen == dict(zip(variants, (1000, 200, 500, 1000), strict=True))
    asked = build_plans(case2, sizes, Execution(scale=1000.0))
    assert {plan.scale for plan in asked} == {1000}
    assert (
        build_plan(case2, "megatron-t8", Setting(layers=24, batch=1024), Execution()).scale == 200
    )


def test_other_systems_are_not_unmerged() -> None:
    setting = Setting(layers=24, batch=1024)
    plan = build_plan(CASE3, "megatron-p8", setting, Execution(scale=1000.0))
    assert unmerge(plan) == plan
