"""Warnings about device memory."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.plan.build import Choices, build_plan, build_plans
from netbench.plan.memory import check_memory, memory_warnings, plan_memory, stages_that_fit
from netbench.plan.model import Execution, Plan
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting

CASE1 = load_scenario("case1")
SMALL = load_scenario("gpt3-small")
MIXED = load_scenario("mixed-gpu")
V100_BYTES = 16e9


def case1(variant: str, layers: int) -> Plan:
    return build_plan(
        CASE1,
        variant,
        Setting(layers=layers, batch=4096, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )


def without_recomputation(scenario: Scenario) -> Scenario:
    return dataclasses.replace(
        scenario, workload=dataclasses.replace(scenario.workload, recomputation=False)
    )


def test_published_settings_that_ran_get_no_warning() -> None:
    """On V100s of 16 GB; none comes nearer than 41%, megatron-p8 with 40 layers."""
    sweep = CASE1.sweep
    plans = build_plans(
        CASE1,
        Choices(variants=sweep.variants, layers=sweep.layers, batch=sweep.batch, seeds=sweep.seeds),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert {plan.variant for plan in plans} >= {"dtfm-scheduled", "megatron-p8", "zero3"}
    assert not any(memory_warnings(plan, CASE1) for plan in plans)
    nearest = max(plans, key=lambda plan: max(part.total_bytes for part in plan_memory(plan)))
    assert (nearest.variant, nearest.workload.layers) == ("megatron-p8", 40)


@pytest.mark.parametrize(
    ("variant", "layers", "share"),
    [
        ("dtfm-scheduled", 24, 0.18),
        ("dtfm-scheduled", 40, 0.28),
        ("megatron-p8", 24, 0.31),
        ("megatron-p8", 40, 0.446),
        ("megatron-t8", 40, 0.352),
        ("zero3", 40, 0.393),
    ],
)
def test_published_settings_come_this_near(variant: str, layers: int, share: float) -> None:
    """To 16 GB, in the rank that needs most: the first stage, which has the embeddings."""
    needs = [part.total_bytes for part in plan_memory(case1(variant, layers))]
    assert max(needs) == needs[0]
    assert needs[0] / V100_BYTES == pytest.approx(share, abs=0.006)


def test_replicas_of_zero_stage_1_divide_the_optimizer_alone() -> None:
    """deepspeed-pp, L24: the second stage has 4 layers; 8 replicas divide 12 bytes per parameter,
    and keep weights and gradients of fp16."""
    parameters = 4 * (12 * 2048**2 + 13 * 2048)
    part = plan_memory(case1("deepspeed-pp", 24))[1]
    assert part.parameters_bytes == part.gradients_bytes == 2 * parameters
    assert part.optimizer_bytes == 12 * parameters / 8


def test_a_first_stage_is_what_its_parts_add_up_to() -> None:
    """megatron-p8, L40: 5 layers and 64 M embeddings at 20 bytes, 8 x 5 boundaries, one layer."""
    parameters = 5 * (12 * 2048**2 + 13 * 2048) + 64_000_000
    boundaries = 8 * 5 * 2048 * 2048 * 2
    layer = 2048 * 2048 * (34 + 5 * 16 * 2048 // 2048)
    found = plan_memory(case1("megatron-p8", 40))[0].total_bytes
    assert found == pytest.approx(20 * parameters + boundaries + layer)


def test_zero3_gathers_up_to_the_live_limit_and_two_layers_more() -> None:
    """22 of 40 layers stay within 1.2e9 parameters. A 23rd computes while a 24th is gathered."""
    plan = case1("zero3", 40)
    gathered = 24 * (12 * 2048**2 + 13 * 2048) + 64_000_000
    assert plan_memory(plan)[0].gathered_bytes == 2 * gathered
    assert plan_memory(case1("zero3", 24))[0].gathered_bytes == 2 * gathered
    small = build_plan(SMALL, "zero3", Setting(layers=12, batch=66), Execution())
    assert plan_memory(small)[0].gathered_bytes == 2 * small.stages[0].parameters


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        (
            "ddp",
            "ddp L24: every rank needs about 23.6GB, V100 has 16GB; "
            "use a system that splits the model (zero3, fsdp, megatron)",
        ),
        (
            "megatron-p1",
            "megatron-p1 L24: every rank needs about 26.1GB, V100 has 16GB; "
            "use more stages or tensor-parallel ranks (-p<P>t<T>)",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_what_would_help(variant: str, message: str) -> None:
    """1.27e9 parameters at 20 bytes are 25.5 GB, 24 boundaries 0.2 GB, a layer at work 0.5 GB."""
    assert memory_warnings(case1(variant, 24), CASE1) == (message,)


def test_the_worst_stage_is_named_and_the_others_counted() -> None:
    """GPipe without recomputation keeps 256 layers of 305 MB: 78 GB in each of three stages."""
    scenario = without_recomputation(SMALL)
    plan = build_plan(
        scenario, "dtfm-scheduled", Setting(layers=12, batch=64, micro_batch=4), Execution()
    )
    (warning,) = memory_warnings(plan, scenario)
    assert warning == (
        "dtfm-scheduled L12: stage 0 needs about 78.3GB, V100 has 16GB "
        "(3 of 3 stages do not fit); use more stages, a variant with -1f1b, recomputation or "
        "a smaller micro-batch"
    )
    assert not memory_warnings(
        build_plan(SMALL, "dtfm-scheduled", Setting(layers=12, batch=64), Execution()), SMALL
    )


def test_only_the_stages_that_do_not_fit_are_counted() -> None:
    """1F1B: the first of three holds three micro-batches of 4.9 GB, the last one."""
    scenario = without_recomputation(SMALL)
    plan = build_plan(
        scenario, "dtfm-scheduled-1f1b", Setting(layers=12, batch=64, micro_batch=8), Execution()
    )
    (warning,) = memory_warnings(plan, scenario)
    assert "stage 0 needs about 29.5GB" in warning
    assert "(2 of 3 stages do not fit)" in warning
    assert "-1f1b or" not in warning.partition("; use ")[2]


def test_the_rank_that_needs_most_of_its_own_device_is_named() -> None:
    """The 38.9 GB of the first stage go into an A40's 48; 18 V100s and 16 T4s of 16 GB hold no
    stage."""
    plan = build_plan(MIXED, "megatron-p8", Setting(layers=40, batch=384), Execution())
    (warning,) = memory_warnings(plan, MIXED)
    assert warning.startswith(
        "megatron-p8 L40: stage 0 needs about 38.9GB, V100 has 16GB (34 of 48 ranks do not fit); "
    )
    assert not memory_warnings(
        build_plan(MIXED, "dtfm-scheduled", Setting(layers=40, batch=384), Execution()), MIXED
    )


def test_stages_that_need_much_may_be_on_devices_that_have_it() -> None:
    """Six layers and the embeddings do not fit into 16 GB, on six A40s they do."""
    a40 = [d for d, node in enumerate(MIXED.device_nodes()) if MIXED.nodes[node].device == "A40"]
    rest = [device for device in range(48) if device not in a40[:6]]
    layers = (6, 5, 5, 5, 5, 5, 5, 4)
    for firsts, others in ((a40[:6], rest), (rest[:6], rest[6:] + a40[:6])):
        columns = [firsts, *(others[s * 6 : s * 6 + 6] for s in range(7))]
        placement = [columns[stage][pipeline] for pipeline in range(6) for stage in range(8)]
        plan = build_plan(
            MIXED,
            "dtfm-scheduled",
            Setting(layers=40, batch=384),
            Execution(),
            placement=placement,
            stage_layers=layers,
        )
        warnings = memory_warnings(plan, MIXED)
        if firsts == a40[:6]:
            assert not warnings
        else:
            assert "stage 0 needs about 17.9GB, V100" in warnings[0]


def test_what_fits_is_said_for_every_type_and_stage() -> None:
    """Six layers under GPipe take 16.8 GB, five 14.2, the embeddings 1.1 more: A40s take all."""
    plan = build_plan(
        MIXED,
        "dtfm-scheduled",
        Setting(layers=40, batch=384),
        Execution(),
        stage_layers=(5, 6, 5, 5, 5, 5, 5, 4),
    )
    but_one = (True, False, *[True] * 6)
    assert stages_that_fit(plan, MIXED) == (but_one, (True,) * 8, but_one)
    assert plan.type_names == ("V100", "A40", "T4")


def test_a_device_of_unknown_memory_is_taken_to_suffice() -> None:
    """A profile need not say."""
    devices = {"V100": dataclasses.replace(CASE1.devices["V100"], memory_bytes=float("inf"))}
    unlimited = dataclasses.replace(CASE1, devices=devices)
    assert memory_warnings(case1("ddp", 24), unlimited) == ()


def test_what_fits_nowhere_is_refused_with_the_stage_its_need_and_what_devices_have() -> None:
    """In one line; what fits is not."""
    check_memory(case1("dtfm-scheduled-p8", 40), CASE1)
    with pytest.raises(PlanError) as caught:
        check_memory(
            build_plan(
                CASE1,
                "megatron-p1t2",
                Setting(layers=40, batch=4096),
                Execution(iterations=2, warmup_iterations=1),
            ),
            CASE1,
        )
    assert str(caught.value) == (
        "megatron-p1t2 L40 fits nowhere in scenario case1: stage 0 of 1 needs 64 devices "
        "of about 21.4GB, and V100 has 16GB (x64); use more stages or tensor-parallel ranks "
        "(-p<P>t<T>)"
    )


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.118e9, 0.119e9, 0.2e9, 0.5e9]), min_size=4, max_size=4))
def test_a_plan_is_refused_if_no_permutation_of_the_devices_fits(memories: list[float]) -> None:
    """All 24 of them tried: stages need 0.409, 0.1197, 0.1186 and 0.1176 GB."""
    two_labs = load_scenario("example-two-labs")
    plan = build_plan(
        two_labs,
        "megatron-p4",
        Setting(layers=4, batch=8),
        Execution(iterations=2, warmup_iterations=1),
    )
    needs = [part.total_bytes for part in plan_memory(plan)]
    profile = two_labs.devices[two_labs.nodes[0].device]
    names = [f"with{size:g}" for size in memories]
    scenario = dataclasses.replace(
        two_labs,
        nodes=tuple(
            dataclasses.replace(node, device=name)
            for node, name in zip(two_labs.nodes, names, strict=True)
        ),
        devices={
            name: dataclasses.replace(profile, name=name, memory_bytes=size)
            for name, size in zip(names, memories, strict=True)
        },
    )
    fits = any(
        all(
            need <= scenario.devices[name].memory_bytes
            for need, name in zip(needs, order, strict=True)
        )
        for order in permutations(names)
    )
    with nullcontext() if fits else pytest.raises(PlanError, match="fits nowhere"):
        check_memory(plan, scenario)
