"""What zero3 adds to a plan."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.errors import PlanError
from netbench.plan import Plan, build_plan, describe_plan, iteration_bytes, plan_memory
from netbench.plan.zero3 import stays_gathered, unit_parameters, zero3_units
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.local import has_trainer, host_cost

CASE4 = load_scenario("case4")
CASE5 = load_scenario("case5")
EXAMPLE = load_scenario("example-two-labs")


def case5(variant: str, layers: int = 24) -> Plan:
    return build_plan(CASE5, variant, layers, 1024, 2022, 2, 1)


def with_nodes(scenario: Scenario, *indices: int) -> Scenario:
    return dataclasses.replace(scenario, nodes=tuple(scenario.nodes[i] for i in indices))


@pytest.mark.parametrize(("per_rank", "micro_batch"), [(1, 1), (2, 2), (6, 3), (7, 1), (12, 4)])
def test_zero3_takes_the_largest_micro_batch_up_to_4_that_divides(
    per_rank: int, micro_batch: int
) -> None:
    """So that every sequence is trained once."""
    plan = build_plan(EXAMPLE, "zero3", 8, 4 * per_rank, 0, 1, 0)
    assert plan.workload.micro_batch == micro_batch
    assert plan.num_micro_batches * micro_batch == per_rank


@pytest.mark.parametrize(("layers", "units"), [(24, (18, 6)), (32, (18, 14)), (40, (18, 22))])
def test_zero3_keeps_as_many_layers_gathered_as_the_limit_allows(
    layers: int, units: tuple[int, ...]
) -> None:
    """GPT-XL: 18 layers of 50.4 million and 64 million of embeddings are below 1e9, 19 are not."""
    assert case5("zero3", layers).units == units


def test_zero3_gathers_a_small_model_once() -> None:
    """All of it stays; of a model whose embeddings alone exceed the limit, nothing does."""
    assert zero3_units(EXAMPLE.workload) == (EXAMPLE.workload.layers,)
    huge = dataclasses.replace(EXAMPLE.workload, embedding_parameters=2_000_000_000)
    assert zero3_units(huge) == (EXAMPLE.workload.layers,)


def test_the_first_units_stay_gathered_up_to_the_limit() -> None:
    """The limit counts all that stay, embeddings included."""
    assert stays_gathered([5, 3, 3], 8) == [True, True, False]
    assert stays_gathered([5, 3, 3], 4) == [False, False, False]


def test_units_that_are_not_the_model_are_refused() -> None:
    """The message says what was found and what would do."""
    with pytest.raises(PlanError, match=r"units \(3,\) hold 3 layers; the model has 24"):
        unit_parameters(dataclasses.replace(case5("zero3"), units=(3,)))


@pytest.mark.parametrize(("layers", "units"), [(24, (3,) * 8), (20, (2, 3) * 4), (4, (1,) * 4)])
def test_what_is_prefetched_is_in_up_to_8_nearly_equal_units(
    layers: int, units: tuple[int, ...]
) -> None:
    """So that there is something to gather while a unit computes."""
    plan = build_plan(CASE5, "zero3-prefetch2", layers, 1024, 0, 2, 1)
    assert (plan.units, plan.prefetch_units) == (units, 2)


def test_hybrid_without_a_size_shards_inside_a_region() -> None:
    """Case 5 has 8 regions of 8 GPUs, case 4 has 4 of 16, listed region by region."""
    assert case5("zero3-hybrid").shard_ranks == 8
    plan = build_plan(CASE4, "zero3-random-hybrid", 24, 1024, 2022, 2, 1)
    assert plan.shard_ranks == 16


def test_all_ranks_in_one_group_is_plain_zero3() -> None:
    """There is nothing between groups, then."""
    assert case5("zero3-hybrid64").shard_ranks == 0


def test_groups_that_do_not_divide_are_refused() -> None:
    """With what would."""
    with pytest.raises(PlanError, match=r"64 devices of scenario case5 .* groups of 7; choose"):
        case5("zero3-hybrid7")


def test_regions_of_different_sizes_are_refused() -> None:
    """With their sizes."""
    uneven = with_nodes(EXAMPLE, 0, 1, 2)
    with pytest.raises(PlanError, match="needs as many devices in every region") as caught:
        build_plan(uneven, "zero3-hybrid", 8, 24, 0, 2, 1)
    for region in {node.region for node in uneven.nodes}:
        assert region in str(caught.value)


def test_one_region_is_refused() -> None:
    """Inside it is everywhere."""
    with pytest.raises(PlanError, match="has its devices in one"):
        build_plan(load_scenario("case1"), "zero3-hybrid", 24, 1024, 0, 2, 1)


def test_regions_that_are_not_listed_one_after_the_other_are_refused() -> None:
    """Neighbours would be in several; a random placement has them in several anyway."""
    mixed = with_nodes(EXAMPLE, 0, len(EXAMPLE.nodes) - 1, 1, len(EXAMPLE.nodes) - 2)
    with pytest.raises(PlanError, match="region by region"):
        build_plan(mixed, "zero3-hybrid", 8, 16, 0, 2, 1)
    assert build_plan(mixed, "zero3-random-hybrid", 8, 16, 0, 2, 1).shard_ranks


def test_traffic_of_groups_and_across() -> None:
    """8 groups of 8: each gathers and scatters 7 times the model 4 times over, and 1.04 more for
    what is beyond the live limit; 8 shards of it go twice to 7 more groups, once."""
    plan = case5("zero3-hybrid")
    parameters, model_bytes = plan.stages[0].parameters, plan.stages[0].gradient_bytes
    again = (parameters - 1e9) / parameters
    inside = 8 * 7 * plan.num_micro_batches * (2 + again) * model_bytes
    across = 8 * 2 * 7 * model_bytes / 8
    assert iteration_bytes(plan) == pytest.approx(inside + across)


def test_kept_gradients_are_scattered_once_and_live_parameters_gathered_once() -> None:
    """Those beyond the limit twice in every micro-step."""
    plan = case5("zero3-accumulate")
    parameters, model_bytes = plan.stages[0].parameters, plan.stages[0].gradient_bytes
    beyond = (parameters - 1e9) / parameters
    passes = 1 - beyond + 2 * plan.num_micro_batches * beyond + 1
    assert iteration_bytes(plan) == pytest.approx(63 * passes * model_bytes)


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
    """Of an eighth of the model instead of a 64th."""
    scenario = dataclasses.replace(
        CASE5,
        devices={
            name: dataclasses.replace(device, optimizer_s_per_parameter={"default": 1e-9})
            for name, device in CASE5.devices.items()
        },
    )
    seconds = [
        build_plan(scenario, name, 24, 1024, 0, 2, 1).stages[0].optimizer_s
        for name in ("zero3", "zero3-hybrid")
    ]
    assert seconds[1] == pytest.approx(8 * seconds[0])


def test_the_host_carries_messages_round_the_rings() -> None:
    """Per unit and rank: 4 micro-steps of 3 passes of 64, or of 8 and 7 groups back and forth; or
    8 gathers and one scatter."""
    costs = {name: host_cost(case5(name)) for name in
             ("zero3", "zero3-hybrid", "zero3-hybrid-accumulate")}  # fmt: skip
    assert costs["zero3"] == 2 * 64 * 64 * 4 * 3
    assert costs["zero3-hybrid"] == 2 * 64 * (8 * 4 * 3 + 14)
    assert costs["zero3-hybrid-accumulate"] == 2 * 64 * (8 * 9 + 14)


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("zero3", "shard, 1 + 1"),
        ("zero3-hybrid", "shard among 8, 1 + 1"),
        ("zero3-hybrid-prefetch-accumulate", "shard among 8, 1 of 8 units ahead, gradients kept, "),
    ],
)
def test_descriptions_tell_the_variants_apart(variant: str, text: str) -> None:
    """And the trainers run all of them."""
    plan = case5(variant)
    assert text in describe_plan(plan)
    assert has_trainer(plan)
