"""Plans in parts: which run so, what runs of them, and what their iterations take."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.api.simulation import predictions
from netbench.errors import PlanError
from netbench.plan.build import Choices, build_plans
from netbench.plan.describe import describe_plan
from netbench.plan.model import Execution, Plan
from netbench.plan.scale import unmerge
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.scenario.model import NO_TCP, Tcp
from netbench.testbed.effort import MESSAGE_S, emulation_s, extend, in_parts, warm_part

BATCHES = (1024, 2048, 4096)


def make_plans(variant: str, *batch: int, scale: float = 1000.0) -> tuple[Plan, ...]:
    choices = Choices(variants=[variant], layers=[24], batch=batch, seeds=[2022])
    return build_plans(load_scenario("case3"), choices, Execution(iterations=2, scale=scale))


@pytest.mark.parametrize(
    ("variant", "parts", "words"),
    [
        ("dtfm-scheduled", (1, 2), "in parts (1 and 2 rounds)"),
        ("megatron-p8", (32, 64), "in parts (32 and 64 micro-batches)"),
        ("megatron-p4-interleaved2", (32, 64), "in parts (32 and 64 micro-batches)"),
        ("fsdp", (1, 2), "in parts (1 and 2 micro-steps)"),
    ],
)
def test_long_iterations_run_in_two_lengths_that_all_batches_share(
    variant: str, parts: tuple[int, int], words: str
) -> None:
    plans = in_parts(make_plans(variant, 1024, 2048, 4096))
    assert {plan.parts for plan in plans} == {parts}
    assert words in describe_plan(plans[0])
    shared = {plan.shortened() for plan in plans}
    assert len(shared) == 1
    ran = [part.num_rounds * part.num_micro_batches for part in shared.pop()]
    whole = plans[0].num_rounds * plans[0].num_micro_batches
    assert ran == [whole // plans[0].num_periods * number for number in parts]


@pytest.mark.parametrize("variant", ["megatron-p8", "megatron-p4t2"])
def test_pipelines_that_meet_run_more_micro_batches(variant: str) -> None:
    """All 128 of the smallest batch, and 32 more."""
    choices = Choices(variants=[variant], layers=[24], batch=BATCHES, seeds=[2022])
    plans = build_plans(load_scenario("case1"), choices, Execution(scale=1000.0))
    assert [plan.num_micro_batches for plan in plans] == [128, 256, 512]
    assert {plan.parts for plan in in_parts(plans)} == {(32, 128)}


@pytest.mark.parametrize(
    ("case", "tcp", "micro_batches"),
    [
        ("case5", Tcp(), 64),
        ("case5", Tcp(min_rto_s=0.5), 32),
        ("case4", Tcp(), 32),
        ("case5", NO_TCP, None),
    ],
)
def test_the_longer_part_runs_first_where_windows_of_tcp_settle_slowly(
    case: str, tcp: Tcp, micro_batches: int | None
) -> None:
    """A round trip between Seoul and London is 476 ms, the longest in case 4 is 134 ms."""
    choices = Choices(variants=["megatron-p8"], layers=[24], batch=BATCHES, seeds=[2022])
    (plan, *_) = build_plans(load_scenario(case), choices, Execution(scale=32.0))
    plan = dataclasses.replace(plan, network=dataclasses.replace(plan.network, tcp=tcp))
    assert warm_part(plan) is None
    first = warm_part(dataclasses.replace(plan, parts=(32, 64)))
    assert (first and first.num_micro_batches) == micro_batches


def test_micro_steps_that_differ_at_the_ends_run_with_one_between_them() -> None:
    """Copies of the model are reduced in the last micro-step only."""
    (plan,) = in_parts(make_plans("zero3-hybrid8", 4096))
    assert plan.parts == (2, 3)


@pytest.mark.parametrize(("layers", "parts"), [(24, (1, 2)), (40, (1, 18)), (48, (8, 16))])
def test_layers_that_are_gathered_alone_run_in_one_micro_step(
    layers: int, parts: tuple[int, int]
) -> None:
    """All of them, or some of very many. Within 0.5% of the whole in the simulator: the number of
    buckets of gradients stays."""
    choices = Choices(variants=["zero3"], layers=[layers], batch=BATCHES, seeds=[2022])
    built = build_plans(load_scenario("case5"), choices, Execution(scale=1.0))
    plans = in_parts([unmerge(plan) for plan in built])
    assert {(plan.layer_parts, plan.parts) for plan in plans} == {(True, parts)}
    assert (
        f"in parts ({parts[0]} and {parts[1]} layers beyond the limit, in one micro-step)"
        in describe_plan(plans[0])
    )
    assert plan_from_json(plan_to_json(plans[0])) == plans[0]
    (short, long), *_ = {plan.shortened() for plan in plans}
    assert [short.units, long.units] == [(22, *(1,) * count) for count in parts]
    assert [short.stages[0].num_layers, long.stages[0].num_layers] == [22 + n for n in parts]
    times = predictions([*plans, short, long], None)
    update_s = plans[0].stages[0].optimizer_s
    for plan in plans:
        extended_s = extend(plan, times[plan_hash(short)], times[plan_hash(long)], once=update_s)
        assert extended_s == pytest.approx(times[plan_hash(plan)], rel=5e-3)


def test_parts_are_no_more_layers_than_there_are() -> None:
    """Two of 24 layers are beyond the live limit in case 3; of 23 it is one, too few for parts."""
    choices = Choices(variants=["zero3"], layers=[23, 24], batch=BATCHES, seeds=[2022])
    built = build_plans(load_scenario("case3"), choices, Execution(scale=1000.0))
    plans = in_parts([unmerge(plan) for plan in built])
    assert {(plan.workload.layers, plan.layer_parts) for plan in plans} == {(23, False), (24, True)}
    (few,) = {plan for plan in plans if plan.layer_parts and plan.workload.batch == 1024}
    for parts in ((1, 3), (2, 2)):
        with pytest.raises(PlanError, match=r"parts: does not fit"):
            plan_from_json(plan_to_json(dataclasses.replace(few, parts=parts)))


@pytest.mark.parametrize("variant", ["zero3-hybrid8", "zero3-accumulate", "fsdp"])
def test_micro_steps_that_differ_do_not_stand_for_each_other(variant: str) -> None:
    plans = in_parts([unmerge(plan) for plan in make_plans(variant, *BATCHES)])
    assert not any(plan.layer_parts for plan in plans)


def test_a_layer_of_parts_is_added_in_every_micro_step_and_the_update_once() -> None:
    """An update of 2 s; a micro-step of 10 s with the 8 layers beyond the first unit, of 18 s with
    16, so of 32 s with 30; four of them."""
    plans = make_plans("zero3", 1024)
    layers = dataclasses.replace(plans[0].workload, layers=48)
    plan = dataclasses.replace(
        plans[0], workload=layers, units=(18, *(1,) * 30), layer_parts=True, parts=(8, 16)
    )
    assert extend(plan, 12.0, 20.0, once=2.0) == pytest.approx(2.0 + 4 * 32.0)
    assert extend(plan, 100.0, 180.0) == pytest.approx(4 * 320.0)


@pytest.mark.parametrize("batches", [(128, 4096), (4096, 128)])
def test_a_short_plan_does_not_make_a_long_one_run_whole(batches: tuple[int, int]) -> None:
    """One round is what the parts of many rounds share, in either order of the batches."""
    choices = Choices(variants=["dtfm-random-p32"], layers=[32], batch=batches, seeds=[2022])
    built = build_plans(load_scenario("case3"), choices, Execution(scale=1000.0))
    found = {plan.workload.batch: plan.parts for plan in in_parts(built)}
    assert found == {128: (), 4096: (1, 2)}


def test_two_rounds_that_no_other_batch_shares_run_with_fewer_micro_batches_each() -> None:
    (alone,) = in_parts(make_plans("dtfm-scheduled", 1024))
    assert alone.parts == (8, 24)
    assert "in parts (8 and 24 micro-batches)" in describe_plan(alone)
    ran = [(part.num_rounds, part.num_micro_batches) for part in alone.shortened()]
    assert ran == [(2, 8), (2, 24)]
    assert [part.workload.batch for part in alone.shortened()] == [128, 384]
    assert plan_from_json(plan_to_json(alone)) == alone


def test_micro_batches_that_pass_no_stages_run_one_and_two() -> None:
    """Nothing fills or drains. All-reduces between the nodes of case 2 take long, those inside the
    nodes of case 1 nothing."""
    choices = Choices(variants=["megatron-t8"], layers=[24], batch=[1024], seeds=[2022])
    execution = Execution(scale=1000.0)
    (inside,) = in_parts(build_plans(load_scenario("case1"), choices, execution))
    (between,) = in_parts(build_plans(load_scenario("case2"), choices, execution))
    assert (inside.parts, between.parts) == ((), (1, 2))
    num_messages = (8 * 128 * 24 * 2 * 2) * (2 * 7 * 8)
    assert emulation_s(between) > num_messages * MESSAGE_S > 60 * emulation_s(inside)


def test_iterations_run_whole_where_parts_would_not_be_shorter() -> None:
    (few,) = in_parts(make_plans("megatron-p8", 512))
    assert few.parts == ()
    assert few.shortened() == (few,)
    scenario = load_scenario("example-two-labs")
    quick = build_plans(scenario, Choices.of(scenario.sweep, whole=True))
    assert in_parts(quick) == quick


def test_plans_that_run_whole_keep_their_hash() -> None:
    (plan,) = make_plans("megatron-p8", 1024)
    assert "parts" not in plan_to_json(plan)
    divided = dataclasses.replace(plan, parts=(32, 64))
    assert plan_hash(divided) != plan_hash(plan)
    assert plan_from_json(plan_to_json(divided)) == divided


@pytest.mark.parametrize(
    ("variant", "parts"),
    [
        *(("megatron-p8", parts) for parts in [(64,), (64, 64), (0, 64), (256, 512), (2, 64)]),
        ("dtfm-scheduled", (2, 3)),
    ],
)
def test_parts_that_do_not_fit_the_plan_are_refused(variant: str, parts: tuple[int, ...]) -> None:
    (plan,) = make_plans(variant, 1024)
    with pytest.raises(PlanError, match=r"plan\.parts: does not fit"):
        plan_from_json(plan_to_json(dataclasses.replace(plan, parts=parts)))


@pytest.mark.parametrize(
    ("variant", "batches"),
    [
        ("dtfm-random", (1024,)),
        *((name, BATCHES) for name in ("dtfm-random", "megatron-p8", "deepspeed-pp", "zero3")),
    ],
)
def test_parts_give_the_simulated_time_of_the_whole(variant: str, batches: tuple[int, ...]) -> None:
    """Within 0.5%, in the simulator; emulations were compared once (docs/local-testbed.md)."""
    plans = in_parts(make_plans(variant, *batches, scale=1.0))
    parts = plans[0].shortened()
    times = predictions([*plans, *parts], None)
    short_s, long_s = (times[plan_hash(part)] for part in parts)
    for plan in plans:
        assert extend(plan, short_s, long_s) == pytest.approx(times[plan_hash(plan)], rel=5e-3)
