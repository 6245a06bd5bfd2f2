"""Plans of zero3 and fsdp."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from netbench.errors import PlanError
from netbench.placement.plan_problem import Request
from netbench.plan.build import build_plan
from netbench.plan.describe import describe_plan
from netbench.plan.memory import plan_memory
from netbench.plan.model import ONCE, Execution, Plan
from netbench.plan.scale import at_scale
from netbench.plan.serial import plan_hash
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting
from netbench.systems import system_of
from netbench.systems.iteration import FORWARD
from netbench.systems.sharded import stays_gathered, unit_parameters
from netbench.systems.zero3 import LIVE_PARAMETERS, Zero3
from netbench.testbed.runs.controller import has_trainer
from netbench.workload.costs import layer_parameters

CASE4 = load_scenario("case4")
CASE5 = load_scenario("case5")
EXAMPLE = load_scenario("example-two-labs")


def case5(variant: str, layers: int = 24) -> Plan:
    return build_plan(
        CASE5,
        variant,
        Setting(layers=layers, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )


def with_nodes(scenario: Scenario, *indices: int) -> Scenario:
    return dataclasses.replace(scenario, nodes=tuple(scenario.nodes[i] for i in indices))


@pytest.mark.parametrize(("per_rank", "micro_batch"), [(1, 1), (2, 2), (6, 3), (7, 1), (12, 4)])
def test_zero3_takes_the_largest_micro_batch_up_to_4_that_divides(
    per_rank: int, micro_batch: int
) -> None:
    """Every sequence is trained once."""
    plan = build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=4 * per_rank), Execution())
    assert plan.workload.micro_batch == micro_batch
    assert plan.num_micro_batches * micro_batch == per_rank


@pytest.mark.parametrize(("layers", "units"), [(24, (22, 1, 1)), (32, (22, 10)), (40, (22, 18))])
def test_zero3_keeps_as_many_layers_gathered_as_the_limit_allows(
    layers: int, units: tuple[int, ...]
) -> None:
    """GPT-XL: 22 layers of 50.4 million and 64 million of embeddings are below 1.2e9, 23 are not.

    The others are gathered one by one. 64 emulated ranks gather them as one unit if they are many.
    """
    assert case5("zero3", layers).units == units
    whole = build_plan(CASE5, "zero3", Setting(layers=layers, batch=1024), ONCE)
    assert whole.units == (22, *[1] * (layers - 22))


def test_zero3_gathers_a_small_model_once() -> None:
    """All of it stays; of a model whose embeddings alone exceed the limit, nothing does."""
    small = build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16), ONCE)
    assert small.units == (8,)
    workload = dataclasses.replace(EXAMPLE.workload, embedding_parameters=2_000_000_000)
    huge = dataclasses.replace(EXAMPLE, workload=workload)
    plan = build_plan(huge, "zero3", Setting(layers=8, batch=16), ONCE)
    assert (plan.units, system_of(plan).is_merged(plan)) == ((1,) * 8, False)
    merged = dataclasses.replace(plan, units=(8,))
    assert system_of(merged).is_merged(merged)


@pytest.mark.parametrize("layers", [8, 23])
def test_at_most_one_layer_beyond_the_limit_is_never_merged(layers: int) -> None:
    plan = case5("zero3", layers)
    assert system_of(plan).unmerged(plan) == plan


def test_few_ranks_emulate_every_matrix() -> None:
    """8 ranks send few messages, so their units are those of the full size at any scale."""
    few = dataclasses.replace(CASE5, nodes=CASE5.nodes[:8])
    plan = build_plan(few, "zero3", Setting(layers=40, batch=128), Execution(scale=1000))
    assert plan.units == (22, *[1] * 18)
    assert Zero3().num_messages(plan) < 200_000


def test_the_first_units_stay_gathered_up_to_the_limit() -> None:
    """The limit counts all that stay, embeddings included."""
    assert stays_gathered([5, 3, 3], 8) == [True, True, False]
    assert stays_gathered([5, 3, 3], 4) == [False, False, False]


def test_units_that_are_not_the_model_are_refused() -> None:
    """The message says what was found and what would do."""
    with pytest.raises(PlanError, match=r"units \(3,\) have 3 layers; the model has 24"):
        unit_parameters(dataclasses.replace(case5("zero3"), units=(3,)))


@pytest.mark.parametrize(("layers", "units"), [(24, (3,) * 8), (20, (2, 3) * 4), (4, (1,) * 4)])
def test_fsdp_has_up_to_8_nearly_equal_units(layers: int, units: tuple[int, ...]) -> None:
    """Units are gathered while others compute."""
    plan = build_plan(
        CASE5,
        "fsdp-prefetch2",
        Setting(layers=layers, batch=1024),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert (plan.units, plan.prefetch_units, plan.live_parameters) == (units, 2, 0)


def test_hybrid_without_a_size_shards_inside_a_region() -> None:
    """Case 5 has 8 regions of 8 GPUs, case 4 has 4 of 16, listed region by region."""
    assert case5("zero3-hybrid").shard_ranks == 8
    plan = build_plan(
        CASE4,
        "zero3-random-hybrid",
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert plan.shard_ranks == 16


def test_all_ranks_in_one_group_is_plain_zero3() -> None:
    """A single group has nothing to reduce across."""
    assert case5("zero3-hybrid64").shard_ranks == 0


def test_groups_that_do_not_divide_are_refused() -> None:
    """With what would."""
    with pytest.raises(PlanError, match=r"64 devices of scenario case5 .* groups of 7; choose"):
        case5("zero3-hybrid7")


def test_regions_of_different_sizes_are_refused() -> None:
    """With their sizes."""
    uneven = with_nodes(EXAMPLE, 0, 1, 2)
    with pytest.raises(
        PlanError, match="needs the same number of devices in every region"
    ) as caught:
        build_plan(
            uneven,
            "zero3-hybrid",
            Setting(layers=8, batch=24),
            Execution(iterations=2, warmup_iterations=1),
        )
    for region in {node.region for node in uneven.nodes}:
        assert region in str(caught.value)


def test_one_region_is_refused() -> None:
    """Inside it is everywhere."""
    with pytest.raises(PlanError, match="are in one; leave out -hybrid"):
        build_plan(
            load_scenario("case1"),
            "zero3-hybrid",
            Setting(layers=24, batch=1024),
            Execution(iterations=2, warmup_iterations=1),
        )


def test_regions_that_are_not_listed_one_after_the_other_are_refused() -> None:
    """Neighbours would be in several; a random placement has them in several anyway."""
    mixed = with_nodes(EXAMPLE, 0, len(EXAMPLE.nodes) - 1, 1, len(EXAMPLE.nodes) - 2)
    with pytest.raises(PlanError, match="region by region"):
        build_plan(
            mixed,
            "zero3-hybrid",
            Setting(layers=8, batch=16),
            Execution(iterations=2, warmup_iterations=1),
        )
    assert build_plan(
        mixed,
        "zero3-random-hybrid",
        Setting(layers=8, batch=16),
        Execution(iterations=2, warmup_iterations=1),
    ).shard_ranks


def test_traffic_of_groups_and_across() -> None:
    """8 groups of 8: each gathers and scatters 7 times the model 4 times over, and gathers again
    what is beyond the live limit; 8 shards of it go twice to 7 more groups, once."""
    plan = case5("zero3-hybrid")
    parameters, model_bytes = plan.stages[0].parameters, plan.stages[0].gradient_bytes
    again = (parameters - LIVE_PARAMETERS) / parameters
    inside = 8 * 7 * plan.num_micro_batches * (2 + again) * model_bytes
    across = 8 * 2 * 7 * model_bytes / 8
    assert system_of(plan).iteration_bytes(plan) == pytest.approx(inside + across)


def test_kept_gradients_are_scattered_once_and_live_parameters_gathered_once() -> None:
    """Parameters beyond the limit are gathered twice in every micro-step."""
    plan = case5("zero3-accumulate")
    parameters, model_bytes = plan.stages[0].parameters, plan.stages[0].gradient_bytes
    beyond = (parameters - LIVE_PARAMETERS) / parameters
    passes = 1 - beyond + 2 * plan.num_micro_batches * beyond + 1
    assert system_of(plan).iteration_bytes(plan) == pytest.approx(63 * passes * model_bytes)


def test_memory_of_a_shard_and_of_kept_gradients() -> None:
    """GPT-XL in fp16 with Adam: 16 bytes per parameter, of which 2 are gradients."""
    (plain,), (hybrid,), (kept,) = (
        plan_memory(case5(f"zero3{options}")) for options in ("", "-hybrid", "-hybrid-accumulate")
    )
    states = [
        sum((part.parameters_bytes, part.gradients_bytes, part.optimizer_bytes))
        for part in (plain, hybrid, kept)
    ]
    parameters = case5("zero3").stages[0].parameters
    assert states[0] == pytest.approx(16 * parameters / 64)
    assert states[1] == pytest.approx(16 * parameters / 8)
    assert states[2] == pytest.approx(14 * parameters / 8 + 2 * parameters)


def test_an_update_is_of_a_shard() -> None:
    """A rank updates an eighth of the model instead of a 64th."""
    scenario = dataclasses.replace(
        CASE5,
        devices={
            name: dataclasses.replace(device, optimizer_s_per_parameter={"default": 1e-9})
            for name, device in CASE5.devices.items()
        },
    )
    seconds = [
        build_plan(
            scenario,
            name,
            Setting(layers=24, batch=1024),
            Execution(iterations=2, warmup_iterations=1),
        )
        .stages[0]
        .optimizer_s
        for name in ("zero3", "zero3-hybrid")
    ]
    assert seconds[1] == pytest.approx(8 * seconds[0])


def test_the_host_carries_messages_round_the_rings() -> None:
    """Per rank and round of a ring: 63 messages among all, 7 in a group. Each of 4 micro-steps
    gathers the live unit, twice 2 layers of 6 matrices, and scatters 3 buckets of gradients; across
    groups, each bucket goes out and back once. In groups a part of a matrix has two slices, one of
    a bucket across groups two in each of four passes (three for the last, smaller bucket); larger
    parts are whole."""
    plans = {name: case5(name) for name in ("zero3", "zero3-hybrid", "zero3-hybrid-accumulate")}
    costs = {name: Zero3().num_messages(plan) for name, plan in plans.items()}
    twice, across = 2 * 2 * 6, 2 * 7 * 2 * (4 + 4 + 3)
    assert costs["zero3"] == 64 * 63 * 4 * (1 + twice + 3)
    assert costs["zero3-hybrid"] == 64 * (7 * 4 * (1 + 2 * twice + 3) + across)
    hybrid_accumulates = 64 * (7 * (1 + 4 * 2 * twice + 3) + across)
    assert costs["zero3-hybrid-accumulate"] == hybrid_accumulates


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("zero3", "shard, 1 + 1"),
        ("zero3-hybrid", "shard among 8, 1 + 1"),
        ("fsdp-hybrid-accumulate", "shard among 8, 1 of 8 units ahead, gradients kept, "),
    ],
)
def test_descriptions_tell_the_variants_apart(variant: str, text: str) -> None:
    """And the trainers run all of them."""
    plan = case5(variant)
    assert text in describe_plan(plan)
    assert has_trainer(plan)


def test_what_a_scheduler_places_is_simulated_at_full_size() -> None:
    """Only an emulation merges units, and a change of scale undoes it."""
    request = Request(scenario=CASE4, variant="zero3", setting=Setting(layers=32, batch=1024))
    whole = request.plan()
    assert (whole.scale, whole.units) == (1.0, (22, *[1] * 10))
    merged = at_scale(whole, 1000.0)
    assert merged.units == (22, 10)
    assert [system_of(plan).is_merged(plan) for plan in (merged, whole)] == [True, False]
    assert "last 10 layers gathered as one" in describe_plan(merged)
    assert at_scale(merged, 1.0) == whole
    assert system_of(merged).unmerged(merged) == dataclasses.replace(whole, scale=1000.0)


def test_a_large_layer_fills_several_buckets() -> None:
    """1.8e9 parameters a layer: buckets of 5e8 leave beside the backward pass, not after it."""
    workload = dataclasses.replace(EXAMPLE.workload, hidden=12288, heads=96)
    large = dataclasses.replace(EXAMPLE, workload=workload)
    plan = build_plan(large, "zero3", Setting(layers=4, batch=16), ONCE)
    calls = [
        call
        for segment in system_of(plan).segments(plan)
        for task in segment.tasks
        for call in task.calls
        if call.op == "reduce-scatter"
    ]
    last = layer_parameters(workload) + workload.embedding_parameters
    assert max(call.size_bytes for call in calls) <= 2 * (500_000_000 + last)
    assert sum(call.size_bytes for call in calls) == pytest.approx(plan.stages[0].gradient_bytes)


@pytest.mark.parametrize(
    ("variant", "layers"),
    [("zero3", 20), ("zero3", 40), ("zero3-accumulate", 24), ("fsdp", 24), ("fsdp-prefetch3", 24)],
)
def test_memory_counts_what_is_gathered_while_a_layer_computes(variant: str, layers: int) -> None:
    """From the tasks of a forward pass: a gather takes memory from when it may start until the
    compute that waits for it has ended. zero3's first gather stays. Biases are not gathered."""
    plan = build_plan(CASE5, variant, Setting(layers=layers, batch=1024), ONCE)
    tasks = system_of(plan).segments(plan)[0].tasks
    passes = [index for index, task in enumerate(tasks) if task.kind == FORWARD]
    gathers = [i for i, task in enumerate(tasks) if "all-gather" in {c.op for c in task.calls}]
    held_bytes = dict.fromkeys(passes, 0.0)
    for gather in gathers:
        may_start = max(before for before in tasks[gather].after if not tasks[before].calls)
        waits = next(i for i, task in enumerate(tasks) if gather in task.after and not task.calls)
        used = next((each for each in passes if each >= waits), None)
        if gather == gathers[0] and plan.live_parameters:
            used = passes[-1]
        for each in passes:
            if used is not None and may_start < each <= used:
                held_bytes[each] += sum(call.size_bytes for call in tasks[gather].calls)
    expected = plan_memory(plan)[0].gathered_bytes
    assert max(held_bytes.values()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("variant", ["zero3-hybrid", "fsdp-hybrid"])
def test_groups_of_a_placement_on_part_of_the_devices(variant: str) -> None:
    """Each region's part is a group. Regions that give different numbers are refused."""

    def planned(name: str, placement: Sequence[int]) -> Plan:
        setting = Setting(layers=24, batch=16 * len(placement))
        return build_plan(CASE4, name, setting, ONCE, placement=placement)

    halves = [device for device in range(64) if device % 16 < 8]
    assert planned(variant, halves).shard_ranks == 8
    assert planned(variant, range(48)).shard_ranks == 16
    with pytest.raises(PlanError, match=r"in every region; .* Oregon 16, California 8;"):
        planned(variant, range(40))
    with pytest.raises(PlanError, match=r"40 of 64 devices of scenario case4 cannot .* of 16; "
                       rf"choose {variant}<R> with R a divisor of 40"):  # fmt: skip
        planned(f"{variant}16", range(40))


@pytest.mark.parametrize(
    ("layers", "scale", "revision"), [(12, 1.0, 1), (23, 1.0, 1), (24, 1.0, 0), (32, 1000.0, 1)]
)
def test_plans_with_the_units_of_the_earlier_trainer_have_a_revision(
    layers: int, scale: float, revision: int
) -> None:
    """The earlier trainer did not overlap, and had all layers beyond the limit in one unit."""
    plan = at_scale(case5("zero3", layers), scale)
    assert plan.revision == revision
    assert at_scale(plan, scale) == plan
    earlier = dataclasses.replace(plan, revision=0)
    assert (plan_hash(earlier) == plan_hash(plan)) == (revision == 0)
    assert at_scale(earlier, scale) == plan
