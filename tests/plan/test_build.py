"""Building plans from scenarios."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from netbench.errors import PlanError
from netbench.plan.build import Choices, build_plan, build_plans, pipeline_depth
from netbench.plan.describe import describe_plan
from netbench.plan.memory import plan_memory
from netbench.plan.model import Execution, Layout, Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.scenario import Scenario, list_scenarios, load_scenario
from netbench.scenario.model import Link, Setting
from netbench.systems import system_of
from netbench.systems.zero3 import LIVE_PARAMETERS

CASE3 = load_scenario("case3")
EXAMPLE = load_scenario("example-two-labs")
SMALL = load_scenario("gpt3-small")
MIXED = load_scenario("mixed-gpu")


def case3(variant: str, layers: int = 24, batch: int = 1024, seed: int = 2022) -> Plan:
    return build_plan(
        CASE3,
        variant,
        Setting(layers=layers, batch=batch, seed=seed),
        Execution(iterations=3, warmup_iterations=1),
    )


def with_sweep(scenario: Scenario, **changes: Any) -> Scenario:
    return dataclasses.replace(scenario, sweep=dataclasses.replace(scenario.sweep, **changes))


def with_nodes(scenario: Scenario, num_nodes: int, pipeline: int = 0) -> Scenario:
    """The scenario with its first nodes only."""
    nodes = scenario.nodes[:num_nodes]
    return with_sweep(dataclasses.replace(scenario, nodes=nodes), pipeline=pipeline)


@pytest.mark.parametrize(("batch", "rounds"), [(1024, 2), (2048, 4), (4096, 8)])
def test_dtfm_runs_rounds_of_64_micro_batches(batch: int, rounds: int) -> None:
    """Published: B = 512 x rounds with 8 pipelines and micro-batch 1."""
    plan = case3("dtfm-random", batch=batch)
    assert (plan.schedule, plan.data_parallel) == ("gpipe", "reduce-broadcast")
    assert plan.layout == Layout(pp=8, dp=8)
    assert (plan.num_rounds, plan.num_micro_batches) == (rounds, 64)
    assert plan.activation_bytes == 8 * 2**20


def test_gpipe_takes_one_round_where_64_does_not_divide() -> None:
    """A small batch is one round."""
    plan = build_plan(
        EXAMPLE,
        "dtfm-random",
        Setting(layers=8, batch=16),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert (plan.num_rounds, plan.num_micro_batches) == (1, 8)


def test_megatron_runs_all_micro_batches_in_one_1f1b_flush() -> None:
    """With fp16 gradients in a ring."""
    plan = case3("megatron-p8")
    assert (plan.schedule, plan.data_parallel) == ("1f1b", "ring")
    assert (plan.num_rounds, plan.num_micro_batches) == (1, 128)
    assert plan.stages[1].gradient_bytes == 2 * plan.stages[1].parameters


def test_tensor_parallel_ranks_share_a_stage() -> None:
    """Published as P2T4: 64 GPUs are 8 replicas of 2 stages of 4 ranks; a stage of 12 layers costs
    a rank what a stage of 3 layers costs a rank of P8, and so do its parameters."""
    plan, deep = case3("megatron-p2t4"), case3("megatron-p8")
    assert plan.layout == Layout(tp=4, pp=2, dp=8)
    assert plan.num_micro_batches == deep.num_micro_batches == 128
    assert plan.stages[1].num_layers == 12
    assert plan.stages[1].forward_s == pytest.approx(deep.stages[1].forward_s)
    assert plan.stages[1].backward_s == pytest.approx(deep.stages[1].backward_s)
    assert plan.stages[1].parameters == deep.stages[1].parameters
    assert plan.stages[1].gradient_bytes == deep.stages[1].gradient_bytes
    assert plan.stages[0].parameters - plan.stages[1].parameters == 64_000_000 / 4


def test_tensor_parallelism_alone_is_one_stage() -> None:
    """Published as T8: 8 replicas."""
    assert case3("megatron-t8").layout == Layout(tp=8, pp=1, dp=8)


def test_interleaving_keeps_the_stages_and_counts_their_chunks() -> None:
    """24 layers in 4 stages of 2 chunks of 3 layers; a plan says what a rank has in all."""
    plan = case3("megatron-p4-interleaved2")
    assert (plan.schedule, plan.num_chunks, plan.layout) == ("interleaved", 2, Layout(pp=4, dp=16))
    assert [stage.num_layers for stage in plan.stages] == [6] * 4


def test_stages_have_the_layers_the_scenario_says() -> None:
    """Variants that fix the depth themselves split layers evenly."""
    uneven = with_sweep(CASE3, pipeline=0, pipeline_layers=(8, 6, 6, 4))
    for variant in ("dtfm-random", "megatron", "megatron-interleaved2"):
        plan = build_plan(
            uneven,
            variant,
            Setting(layers=24, batch=1024),
            Execution(iterations=2, warmup_iterations=1),
        )
        assert plan.layout == Layout(pp=4, dp=16)
        assert [stage.num_layers for stage in plan.stages] == [8, 6, 6, 4]
        assert "p4d16 of 8+6+6+4 layers" in describe_plan(plan)
        first, _, _, last = plan_memory(plan)
        assert first.activations_bytes >= 2 * last.activations_bytes
    assert [
        s.num_layers
        for s in build_plan(
            uneven,
            "megatron-p8",
            Setting(layers=24, batch=1024),
            Execution(iterations=2, warmup_iterations=1),
        ).stages
    ] == ([3] * 8)
    with pytest.raises(PlanError, match=r"`pipeline_layers` of .* adds up to 24 layers, not 32; "):
        build_plan(
            uneven,
            "megatron",
            Setting(layers=32, batch=1024),
            Execution(iterations=2, warmup_iterations=1),
        )
    with pytest.raises(PlanError, match=r"8, 6, 6, 4 layers .* the 3 chunks of megatron-interle"):
        build_plan(
            uneven,
            "megatron-interleaved3",
            Setting(layers=24, batch=1024),
            Execution(iterations=2, warmup_iterations=1),
        )


@pytest.mark.parametrize(
    ("layers", "stages"),
    [
        (24, (3, 4, 3, 3, 3, 3, 3, 2)),  # published: results/published/README.md
        (30, (3, 4, 4, 4, 4, 4, 4, 3)),
        (8, (1,) * 8),  # 1 2 1 1 1 1 1 0 leaves a stage empty
    ],
)
def test_deepspeed_counts_embeddings_and_head_as_layers(
    layers: int, stages: tuple[int, ...]
) -> None:
    """In the partition of equal numbers; micro-batches are of 4."""
    plan = build_plan(
        CASE3, "deepspeed-pp-p8", Setting(layers=layers, batch=1024, seed=0), Execution()
    )
    assert tuple(stage.num_layers for stage in plan.stages) == stages
    assert plan.num_micro_batches == 1024 // 8 // 4


def test_half_precision_that_computes_has_master_weights() -> None:
    """Case 3 is in fp16. dtfm has them on the CPU, others where they compute, but for hivemind,
    which keeps its own; what is virtual has none."""

    def master_weights(variant: str, compute: str = "virtual") -> str:
        setting = Setting(layers=24, batch=1024)
        return build_plan(CASE3, variant, setting, Execution(compute=compute)).master_weights

    assert master_weights("dtfm-random", compute="cpu") == "cpu"
    assert master_weights("dtfm-random") == ""
    assert master_weights("dtfm-random", compute="cuda") == "cpu"
    assert master_weights("megatron-p8", compute="cuda") == "cuda"
    assert master_weights("zero3", compute="cpu") == "cpu"
    assert master_weights("hivemind", compute="cpu") == ""


def test_dtfm_under_1f1b_has_one_round() -> None:
    """Rounds are GPipe's."""
    plan = case3("dtfm-scheduled-1f1b-allreduce")
    assert (plan.schedule, plan.data_parallel) == ("1f1b", "ring")
    assert (plan.num_rounds, plan.num_micro_batches) == (1, 128)


def test_ddp_holds_the_whole_model_on_every_device() -> None:
    """Gradients are accumulated over the micro-batches and sent in buckets of 25 MiB."""
    plan = case3("ddp-tree")
    assert plan.layout == Layout(dp=64)
    assert (plan.schedule, plan.data_parallel) == ("none", "tree")
    assert plan.num_micro_batches * plan.workload.micro_batch == 16
    assert plan.bucket_bytes == 26_214_400
    assert plan.stages[0].gradient_bytes == 2 * plan.stages[0].parameters
    assert case3("megatron-p8").bucket_bytes == 0


def test_the_backend_is_the_scenarios() -> None:
    """NCCL unless it says otherwise."""
    gloo = dataclasses.replace(EXAMPLE, backend="gloo")
    assert build_plan(gloo, "zero3", Setting(layers=8, batch=16), Execution()).backend == "gloo"
    assert build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16), Execution()).backend == "nccl"


def test_zero3_spreads_the_batch_over_all_devices() -> None:
    """4 sequences per GPU and micro-step; one stage describes the model per micro-step."""
    plan = case3("zero3")
    dtfm = case3("dtfm-scheduled")
    assert plan.layout == Layout(dp=64)
    assert (plan.workload.micro_batch, plan.num_micro_batches) == (4, 4)
    assert len(plan.stages) == 1
    assert plan.stages[0].num_layers == 24
    assert (dtfm.live_parameters, dtfm.units) == (0, ())
    assert plan.live_parameters == LIVE_PARAMETERS


def test_zero3_computes_the_whole_model_in_a_micro_step() -> None:
    """On a device as fast under all systems: 4 sequences through 2 stages' worth of layers."""
    zero3 = build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16), Execution())
    dtfm = build_plan(EXAMPLE, "dtfm-scheduled", Setting(layers=8, batch=16), Execution())
    assert zero3.stages[0].forward_s == pytest.approx(4 * 2 * dtfm.stages[0].forward_s)


@pytest.mark.parametrize("name", list_scenarios())
def test_every_plan_of_every_scenario_trains_the_whole_batch(name: str) -> None:
    """Micro-batches x rounds x their size x replicas = batch; layers of the stages = layers.

    Micro-batches of peers are rounded up: a faster peer does more.
    """
    scenario = load_scenario(name)
    sweep = scenario.sweep
    plans = build_plans(
        scenario,
        Choices(
            variants=sweep.variants,
            layers=sweep.layers,
            batch=sweep.batch,
            seeds=sweep.seeds,
            networks=[network.name for network in sweep.networks],
            micro_batch=sweep.micro_batch,
        ),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert plans
    for plan in plans:
        sequences = plan.num_rounds * plan.num_micro_batches * plan.workload.micro_batch
        more = sequences * plan.layout.dp - plan.workload.batch
        has_peers = system_of(plan).has_peers
        assert 0 <= more < (plan.layout.dp * plan.workload.micro_batch if has_peers else 1)
        assert sum(stage.num_layers for stage in plan.stages) == plan.workload.layers
        assert len(plan.stages) == plan.layout.pp
        assert sorted(plan.placement) == list(range(scenario.num_devices))
    assert len({plan_hash(plan) for plan in plans}) == len(plans)


def test_the_example_suits_all_systems_on_four_nodes() -> None:
    """2 stages x 2 pipelines; zero3 holds the whole model in every rank, so all run at scale 10."""
    sweep = EXAMPLE.sweep
    plans = build_plans(
        EXAMPLE,
        Choices(variants=sweep.variants, layers=sweep.layers, batch=sweep.batch, seeds=sweep.seeds),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert {plan.system for plan in plans} == {"dtfm", "megatron", "zero3"}
    assert {plan.layout.num_ranks for plan in plans} == {4}
    assert {plan.scale for plan in plans} == {10.0}


def test_a_placement_of_fewer_ranks_than_devices_leaves_the_others_idle() -> None:
    """A placement has as many pipelines as it fills, at least one."""

    def placed(devices: range) -> Plan:
        return build_plan(
            CASE3,
            "dtfm-scheduled",
            Setting(layers=24, batch=1008),
            Execution(iterations=2, warmup_iterations=1),
            placement=devices,
        )

    plan = placed(range(1, 57))
    assert (plan.layout, plan.placement) == (Layout(pp=8, dp=7), tuple(range(1, 57)))
    assert len(plan.device_nodes) == 64
    with pytest.raises(
        PlanError, match=r"57 devices .* cannot be divided into pipelines of 8 stages"
    ):
        placed(range(57))


def test_the_maps_of_a_scenario_are_those_of_every_seed() -> None:
    """FluidStack's published orders: rank 2 on the first device of node 2, or on device 16."""
    scenario = load_scenario("fluidstack2")
    for variant, begins in (
        ("megatron-p8-random-nodes", (0, 1, 4, 5, 20, 21)),
        ("dtfm-random-nodes", (0, 1, 4, 5, 20, 21)),
        ("dtfm-random", (0, 27, 16)),
    ):
        for seed in (2022, 2023):
            plan = build_plan(
                scenario, variant, Setting(layers=24, batch=1024, seed=seed), Execution()
            )
            assert plan.placement[: len(begins)] == begins


def test_a_placement_that_ignores_the_seed_is_planned_once() -> None:
    """Random placements once per seed."""
    variants = ("dtfm-scheduled", "dtfm-random", "megatron-p8", "megatron-p8-random", "zero3")
    plans = build_plans(
        CASE3,
        Choices(variants=variants, layers=[24], batch=[1024], seeds=[2022, 2023, 2024]),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert Counter(plan.variant for plan in plans) == {
        "dtfm-scheduled": 1,
        "dtfm-random": 3,
        "megatron-p8": 1,
        "megatron-p8-random": 3,
        "zero3": 1,
    }


@pytest.mark.parametrize(
    ("devices", "layers", "depth"), [(64, 24, 8), (4, 24, 4), (6, 24, 6), (64, 12, 4), (7, 24, 1)]
)
def test_without_a_word_pipelines_are_as_deep_as_divides(
    devices: int, layers: int, depth: int
) -> None:
    """At most 8, dividing devices and layers."""
    assert pipeline_depth(with_nodes(CASE3, devices), layers) == depth


@pytest.mark.parametrize(
    ("variant", "layers", "batch", "message"),
    [
        ("dtfm-random", 23, 1024, "23 layers cannot be divided into 8 pipeline stages"),
        ("dtfm-random", 24, 1023, "batch 1023 does not divide into micro-batches of 1 for 8 repli"),
        ("zero3", 24, 1000, "batch 1000 does not divide among 64 ranks; choose a multiple"),
        ("dtfm-radnom", 24, 1024, 'unknown system "dtfm-radnom"; did you mean dtfm-random'),
        ("gossip", 24, 1024, 'unknown system "gossip"; expected one of dtfm-scheduled'),
        ("megatron-p8t16", 24, 1024, "megatron-p8t16 needs 8 pipeline stages of 16 tensor-parall"),
        ("megatron-p3t4", 24, 1024, "64 devices of scenario case3 cannot be divided into"),
    ],
)
def test_what_does_not_fit_is_refused(variant: str, layers: int, batch: int, message: str) -> None:
    """With what was found and what to choose."""
    with pytest.raises(PlanError) as caught:
        case3(variant, layers=layers, batch=batch)
    assert str(caught.value).startswith(message)


def test_more_ranks_than_devices_are_refused() -> None:
    """Naming the scenario and how many devices it has."""
    with pytest.raises(PlanError, match=r"at least 8 ranks, but scenario .* has 4 devices"):
        build_plan(EXAMPLE, "megatron-p8", Setting(layers=8, batch=16), Execution())


def test_devices_left_over_are_refused() -> None:
    """A scenario that asks for 4 stages cannot have 6 devices."""
    with pytest.raises(
        PlanError, match=r"6 devices .* cannot be divided into pipelines of 4 stages"
    ):
        build_plan(
            with_nodes(CASE3, 6, pipeline=4),
            "dtfm-random",
            Setting(layers=24, batch=1024),
            Execution(),
        )


def test_stages_are_costed_for_every_type_of_device() -> None:
    """A T4 has 28.8 of a V100's 55.4 TFLOPS; sizes do not depend on it."""
    plan = build_plan(MIXED, "dtfm-random", Setting(layers=40, batch=384, seed=2022), Execution())
    assert plan.type_names == ("V100", "A40", "T4")
    assert plan.stages == plan.type_stages[0]
    for v100, t4 in zip(plan.type_stages[0], plan.type_stages[2], strict=True):
        assert t4.forward_s / v100.forward_s == pytest.approx(55.4 / 28.8)
        assert t4.backward_s == pytest.approx(3 * t4.forward_s)
        same = dataclasses.replace(t4, forward_s=v100.forward_s, backward_s=v100.backward_s)
        assert same == v100
    types = [MIXED.nodes[node].device for node in plan.device_nodes]
    assert [plan.type_on(device) for device in range(48)] == types
    assert "p8d6 on 18 V100 + 14 A40 + 16 T4, random placement" in describe_plan(plan)


def test_devices_of_one_type_are_not_told_apart() -> None:
    """Their plans have no types, so that they keep their hash."""
    plan = case3("dtfm-random")
    assert (plan.device_types, plan.type_stages, plan.type_names) == ((), (), ())
    assert "device_types" not in plan_to_json(plan)
    assert plan.type_on(5) == ""
    assert plan.stages_on(5) == plan.stages


def test_a_collective_waits_for_the_slowest_host() -> None:
    """The cost beside the bytes is that of the slowest type."""
    slower = dataclasses.replace(MIXED.devices["T4"], collective_s={"default": 0.5})
    mixed = dataclasses.replace(MIXED, devices=MIXED.devices | {"T4": slower})
    assert (
        build_plan(
            mixed, "zero3", Setting(layers=40, batch=384, seed=2022), Execution()
        ).collective_s
        == 0.5
    )
    assert (
        build_plan(
            MIXED, "zero3", Setting(layers=40, batch=384, seed=2022), Execution()
        ).collective_s
        == 19.2e-3
    )


def test_a_network_of_the_sweep_replaces_every_link() -> None:
    """Sharing, frames and nodes stay."""
    plan = build_plan(
        SMALL, "dtfm-scheduled", Setting(layers=12, batch=64, network="10ms-1Gbit"), Execution()
    )
    own = build_plan(SMALL, "dtfm-scheduled", Setting(layers=12, batch=64), Execution())
    assert plan.network.link(0, 2) == Link(one_way_delay_s=0.01, bandwidth_bps=1e9)
    assert own.network.link(0, 2) == Link(one_way_delay_s=0.00005, bandwidth_bps=10e9)
    assert (plan.scenario, plan.network_name, own.network_name) == ("gpt3-small", "10ms-1Gbit", "")
    assert plan.network.with_links(own.network.link(0, 2)) == own.network


def test_networks_and_micro_batches_are_outer_dimensions() -> None:
    """In the order given; of 64 sequences there are 64, 32 or 16 micro-batches."""
    plans = build_plans(
        SMALL,
        Choices(
            variants=["dtfm-scheduled", "dtfm-scheduled-1f1b"],
            layers=[12],
            batch=[64],
            seeds=[0],
            networks=["1ms", "5ms"],
            micro_batch=[1, 2, 4],
        ),
        Execution(),
    )
    found = [(p.network_name, p.workload.micro_batch, p.num_micro_batches) for p in plans[::2]]
    assert found == [
        (network, size, 64 // size) for network in ("1ms", "5ms") for size in (1, 2, 4)
    ]
    assert [plan.schedule for plan in plans] == ["gpipe", "1f1b"] * 6


def test_what_a_variant_does_not_depend_on_is_planned_once() -> None:
    """zero3 chooses its own micro-batch."""
    plans = build_plans(
        EXAMPLE,
        Choices(variants=["zero3"], layers=[8], batch=[16], seeds=[0], micro_batch=[1, 2, 4]),
        Execution(),
    )
    assert len(plans) == 1


@pytest.mark.parametrize(
    ("scenario", "network", "message"),
    [
        ("gpt3-small", "1m", 'scenario gpt3-small has no network "1m"; did you mean 1ms'),
        ("case3", "1ms", 'scenario case3 has no network "1ms": its sweep has no `networks`'),
    ],
)
def test_an_unknown_network_is_refused(scenario: str, network: str, message: str) -> None:
    """With those there are."""
    with pytest.raises(PlanError) as caught:
        build_plan(
            load_scenario(scenario),
            "dtfm-scheduled",
            Setting(layers=24, batch=1024, network=network),
            Execution(),
        )
    assert str(caught.value).startswith(message)
