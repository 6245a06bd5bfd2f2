"""Searches over layouts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from netbench.cost.bill import ON_DEMAND, SPOT
from netbench.errors import PlanError
from netbench.placement.layouts import (
    NUM_FINALISTS,
    Candidate,
    Degrees,
    PlacedCandidate,
    at_least_s,
    best_listed,
    cheapest,
    find_candidates,
    nearest_devices,
    parse_layout,
    search_layouts,
)
from netbench.placement.problem import Answer, Budget, Problem
from netbench.placement.schedulers import SCHEDULERS
from netbench.plan.build import build_plan
from netbench.plan.memory import memory_warnings, plan_memory
from netbench.plan.model import Execution
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Prices, RegionPrices, Setting
from netbench.simulator.iteration import simulate
from netbench.systems import find_variant

TWO_LABS = load_scenario("example-two-labs")
CASE3 = load_scenario("case3")
EIGHTS = load_scenario("case1").first_devices(16)
"""Two nodes of eight GPUs."""


def test_candidates_are_all_schedules_and_kinds_of_data_parallelism_of_some_degrees() -> None:
    """Listed for two stages of four layers on four devices."""
    dtfm = [
        f"dtfm-scheduled-p2{schedule}{kind}"
        for schedule in ("", "-1f1b")
        for kind in ("", "-allreduce", "-sharded-ps")
    ]
    megatron = [
        f"megatron-p2{schedule}"
        for schedule in ("", "-zero-bubble", "-interleaved2", "-interleaved4")
    ]
    found = find_candidates(TWO_LABS, Setting(layers=8, batch=16), degrees=Degrees(pp=2, tp=1))
    everywhere = [one for one in found if one.request.num_ranks is None]
    assert sorted(one.request.variant for one in everywhere) == sorted(dtfm + megatron)
    assert {one.plan.layout.dp for one in everywhere} == {2}
    alone = [one.request.variant for one in found if one not in everywhere]
    assert sorted(alone) == sorted([*dtfm[::3], *megatron])
    tensor = find_candidates(TWO_LABS, Setting(layers=8, batch=16), degrees=Degrees(pp=2, tp=2))
    assert {one.plan.layout.num_ranks for one in tensor} == {4}
    assert sum(one.plan.sequence_parallel for one in tensor) == 4


@pytest.mark.parametrize("scenario", [TWO_LABS, EIGHTS, CASE3], ids=lambda found: found.name)
def test_candidates_train_the_same_thing_and_fit(scenario) -> None:  # type: ignore[no-untyped-def]
    """Each trains the whole batch and model in memory without staleness, and occurs once; every
    depth shortens the longest stage, and one candidate leaves devices idle."""
    found = find_candidates(scenario, Setting(layers=24, batch=64))
    names = {(one.request.variant, one.plan.layout.num_ranks) for one in found}
    assert len(names) == len(found)
    assert {one.plan.system for one in found} >= {"dtfm", "megatron", "zero3"}
    limit = min(24, scenario.num_devices)
    depths = {one.plan.layout.pp for one in found}
    assert depths == {depth for depth in (1, 2, 3, 4, 5, 6, 8, 12, 24) if depth <= limit}
    for one in found:
        plan, chosen = one.plan, find_variant(one.request.variant)
        assert (chosen.staleness, chosen.local_steps, chosen.scheduler) == (0, 0, "identity")
        assert (plan.workload.layers, plan.workload.batch) == (24, 64)
        assert plan.layout.num_ranks <= scenario.num_devices
        assert not memory_warnings(plan, scenario)
    assert any(one.plan.layout.num_ranks < scenario.num_devices for one in found)


@pytest.mark.parametrize("scenario", [TWO_LABS, EIGHTS], ids=["one device a node", "eight"])
def test_no_placement_is_faster_than_the_bound(scenario) -> None:  # type: ignore[no-untyped-def]
    """Holds for any candidate on any placement."""
    rng = np.random.default_rng(0)
    for one in find_candidates(scenario, Setting(layers=8, batch=64)):
        for _ in range(3):
            devices = rng.permutation(scenario.num_devices)[: one.plan.layout.num_ranks]
            placed = dataclasses.replace(one.plan, placement=tuple(devices.tolist()))
            rounding = 1 + 1e-9  # nanoseconds, of the simulator
            assert at_least_s(placed) == one.at_least_s <= simulate(placed).iteration_s * rounding


def test_a_stage_may_synchronise_while_another_computes() -> None:
    """The first of two stages computes 8 micro-batches of 3 s; the second has nearly all gradients,
    whose 8 s on the ring mostly overlap."""
    plan = build_plan(TWO_LABS, "megatron-p2", Setting(layers=8, batch=16))
    assert (plan.layout.dp, plan.num_micro_batches) == (2, 8)
    first, last = plan.stages
    slow = dataclasses.replace(first, forward_s=1.0, backward_s=2.0, gradient_bytes=1000)
    large = dataclasses.replace(last, forward_s=0.01, backward_s=0.02, gradient_bytes=10**9)
    plan = dataclasses.replace(plan, stages=(slow, large))
    seconds = simulate(plan).iteration_s
    assert 24 <= at_least_s(plan) <= seconds < 24 + 8


def test_what_is_left_out_could_not_have_been_among_the_best() -> None:
    """Simulating all candidates gives the same best eight."""
    candidates = find_candidates(CASE3.first_devices(32), Setting(layers=24, batch=4096))
    by_time = sorted((simulate(one.plan).iteration_s, one.request.variant) for one in candidates)
    found = search_layouts(candidates, scheduler=still, budget=Budget(evaluations=0))
    names = [(one.iteration_s, one.candidate.request.variant) for one in found.best]
    assert names == by_time[:NUM_FINALISTS]
    assert (found.num_candidates, found.num_simulated < len(candidates)) == (len(candidates), True)


def still(problem: Problem, seed: int, budget: Budget) -> Answer:
    """A scheduler that returns the identity."""
    return Answer(grid=problem.ranks, stage_layers=problem.stage_layers)


def shuffling(problem: Problem, seed: int, budget: Budget) -> Answer:
    """A scheduler that returns the best of its random placements."""
    rng = np.random.default_rng(seed)
    grids = [
        rng.permutation(problem.num_devices)[: problem.ranks.size][problem.ranks]
        for _ in range(int(budget.evaluations))
    ]
    return Answer(
        grid=grids[int(np.argmin(problem.objective.times_s(np.array(grids))))],
        stage_layers=problem.stage_layers,
    )


def two_labs() -> tuple[Candidate, ...]:
    """Candidates on all devices: the small model trains fastest on one, where nothing is placed."""
    found = find_candidates(TWO_LABS, Setting(layers=8, batch=16))
    return tuple(one for one in found if one.request.num_ranks is None)


def test_a_placement_counts_where_it_is_better_and_the_best_is_told() -> None:
    """With four devices and 24 placements per run: reports improve to the end, and the answer
    depends only on seed and evaluations."""
    told: list[PlacedCandidate] = []
    budget = Budget(evaluations=320)
    found = search_layouts(
        two_labs(), scheduler=shuffling, name="shuffling", seed=1, budget=budget,
        progress=told.append,
    )  # fmt: skip
    again = search_layouts(two_labs(), scheduler=shuffling, name="shuffling", seed=1, budget=budget)
    assert [one.plan for one in found.best] == [one.plan for one in again.best]
    assert [one.iteration_s for one in told] == sorted((o.iteration_s for o in told), reverse=True)
    assert told[-1].iteration_s == found.best[0].iteration_s
    best = found.best[0]
    assert best.iteration_s == simulate(best.plan).iteration_s <= best.unplaced_s
    better = [one.plan for one in found.best if one.iteration_s < one.unplaced_s]
    assert {plan.scheduler for plan in better} == {"shuffling"}


def test_a_quarter_of_the_evaluations_goes_to_each_halving() -> None:
    """Eight plans, then four, two and one."""
    given: list[float] = []

    def counted(problem: Problem, seed: int, budget: Budget) -> Answer:
        given.append(budget.evaluations)
        return still(problem, seed, budget)

    search_layouts(two_labs(), scheduler=counted, budget=Budget(evaluations=128))
    assert given == [4.0] * 8 + [8.0] * 4 + [16.0] * 2 + [32.0]
    given.clear()
    search_layouts(two_labs(), scheduler=counted, budget=Budget(evaluations=20))
    assert given == [1.25] * 4 + [2.5] * 2 + [5.0]  # too few for eight


def test_candidates_of_the_scheduler_are_counted() -> None:
    """Besides the plans that were simulated as listed."""
    found = search_layouts(two_labs(), scheduler=still, budget=Budget(evaluations=128))
    assert found.num_evaluated == 8 + 4 + 2 + 1
    assert found.num_simulated <= found.num_candidates == len(two_labs())
    assert search_layouts(two_labs(), budget=Budget(evaluations=0)).num_evaluated == 0


def test_a_plan_that_does_not_fit_as_listed_is_placed_where_it_does() -> None:
    """The first device holds the second stage but not the first. Without a fitting placement there
    is an error."""
    (first, second) = plan_memory(
        build_plan(TWO_LABS, "dtfm-scheduled-p2", Setting(layers=8, batch=16), Execution())
    )
    assert second.total_bytes < first.total_bytes
    large = next(iter(TWO_LABS.devices.values()))
    between = (first.total_bytes + second.total_bytes) / 2
    small = dataclasses.replace(large, name="Small", memory_bytes=between)
    node = dataclasses.replace(TWO_LABS.nodes[0], device="Small")
    scenario = dataclasses.replace(
        TWO_LABS, nodes=(node, *TWO_LABS.nodes[1:]), devices={**TWO_LABS.devices, "Small": small}
    )
    found = find_candidates(scenario, Setting(layers=8, batch=16), degrees=Degrees(pp=2, tp=1))
    candidates = [o for o in found if o.plan.schedule == "gpipe" and o.request.num_ranks is None]
    assert all(memory_warnings(one.plan, scenario) for one in candidates)
    answer = search_layouts(candidates, budget=Budget(evaluations=320)).best
    assert len(answer) == len(candidates)
    assert not any(memory_warnings(one.plan, scenario) for one in answer)
    for scheduler, evaluations in ((SCHEDULERS["identity"], 320), (None, 0)):
        with pytest.raises(
            PlanError, match="no placement was found on which any of the 3 best plans fits"
        ):
            search_layouts(candidates, scheduler=scheduler, budget=Budget(evaluations=evaluations))


def test_without_time_there_is_an_answer() -> None:
    """One plan on the devices as listed; the others are counted."""
    found = search_layouts(two_labs(), scheduler=shuffling, budget=Budget(seconds=0))
    assert len(found.best) == found.num_simulated == 1
    assert found.num_left == found.num_candidates - 1
    assert all(one.iteration_s == one.unplaced_s for one in found.best)


def test_the_best_listed_system_is_that_of_the_published_table() -> None:
    """Case 3, L24 B1024: dtfm-scheduled, 18.46 s simulated (results/simulated)."""
    best = best_listed(CASE3, Setting(layers=24, batch=1024))
    assert best is not None
    assert (best.candidate.request.variant, round(best.iteration_s, 2)) == ("dtfm-scheduled", 18.46)


def test_the_best_listed_system_has_the_same_micro_batch() -> None:
    """A search for one micro-batch is compared with listed systems of the same micro-batch."""
    best = best_listed(TWO_LABS, Setting(layers=8, batch=16, micro_batch=4))
    assert best is not None
    assert best.plan.workload.micro_batch == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Degrees()),
        ("p8", Degrees(pp=8, tp=1)),
        ("t2", Degrees(tp=2)),
        ("p4t2", Degrees(pp=4, tp=2)),
        ("p8d8", Degrees(pp=8, tp=1, dp=8)),
    ],
)
def test_a_layout_is_auto_or_degrees(text: str, expected: Degrees) -> None:
    """Degrees are in the order of plan descriptions."""
    assert parse_layout(text) == expected


@pytest.mark.parametrize("text", ["", "8", "p0", "d8p8", "automatic", "p8 "])
def test_other_layouts_are_refused(text: str) -> None:
    """The error has examples."""
    with pytest.raises(PlanError, match=f'layout "{text}" is invalid; expected auto'):
        parse_layout(text)


THREE_SITES = """\
name: three-sites
title: Four GPUs, two of them in one site
regions: [North, Campus, South]
nodes:
  - {region: North, device: GPU}
  - {region: Campus, count: 2, device: GPU}
  - {region: South, device: GPU}
network:
  sharing: pair
  inside: {one_way_delay: 0.1ms, bandwidth: 10Gbit}
  links:
    - {between: [North, Campus], one_way_delay: 30ms, bandwidth: 100Mbit}
    - {between: [Campus, South], one_way_delay: 30ms, bandwidth: 100Mbit}
    - {between: [North, South], one_way_delay: 30ms, bandwidth: 100Mbit}
devices:
  GPU: {flops: 100TFLOPS, memory: 80GB, source: made up}
workload: # 7B
  layers: 32
  hidden: 4096
  heads: 32
  sequence: 2048
  dtype: fp16
  recomputation: true
  micro_batch: 1
  batch: 8
  embedding_parameters: 262M
sweep: {variants: [dtfm-scheduled, megatron]}
"""
CAMPUS = (1, 2)
"""The two devices of one site."""


@pytest.fixture
def three_sites(tmp_path: Path) -> Scenario:
    path = tmp_path / "three-sites.yaml"
    path.write_text(THREE_SITES)
    return load_scenario(str(path))


def test_a_site_alone_is_found_where_it_is_faster_than_all_devices(three_sites: Scenario) -> None:
    """Two devices of one site train a 7B model in a third of the time of four over the WAN, in
    every schedule of two stages. One device is too small."""
    candidates = find_candidates(three_sites, Setting(layers=32, batch=8))
    best = search_layouts(candidates, budget=Budget(evaluations=64)).best[0]
    assert (best.plan.layout.pp, best.plan.layout.num_ranks) == (2, 2)
    assert tuple(sorted(best.plan.placement)) == CAMPUS
    everywhere = [simulate(one.plan).iteration_s for one in candidates if not one.request.num_ranks]
    assert best.iteration_s < min(everywhere) / 2
    by_hand = build_plan(
        three_sites, best.plan.variant, Setting(layers=32, batch=8), placement=CAMPUS
    )
    assert best.iteration_s <= simulate(by_hand).iteration_s


def test_fast_devices_alone_are_found_beside_slow_ones() -> None:
    """A device of a twentieth of the speed would hold up the others."""
    fast = next(iter(TWO_LABS.devices.values()))
    slow = dataclasses.replace(fast, name="Slow", flops={"default": fast.flops["default"] / 20})
    nodes = tuple(
        dataclasses.replace(node, region="Campus", device=("Slow" if index < 2 else node.device))
        for index, node in enumerate(TWO_LABS.nodes)
    )
    network = dataclasses.replace(TWO_LABS.network, node_regions=(0,) * 4)
    scenario = dataclasses.replace(
        TWO_LABS, nodes=nodes, network=network, devices={**TWO_LABS.devices, "Slow": slow}
    )
    plan = build_plan(scenario, "dtfm-scheduled-p2", Setting(layers=8, batch=16), placement=(0, 1))
    assert nearest_devices(plan) == (2, 3)


def test_a_depth_that_does_not_divide_the_layers_has_the_longer_stages_first() -> None:
    """Eleven, eleven and ten layers of 32, and all devices are planned as well."""
    found = find_candidates(TWO_LABS, Setting(layers=32, batch=16), Degrees(pp=3, tp=1))
    layers = {tuple(stage.num_layers for stage in one.plan.stages) for one in found}
    assert layers == {(11, 11, 10)}
    best = search_layouts(found, budget=Budget(evaluations=32)).best[0]
    assert best.plan.layout.pp == 3
    assert best.iteration_s == simulate(best.plan).iteration_s


def test_degrees_that_nothing_has_are_refused() -> None:
    """The error is one line."""
    with pytest.raises(PlanError, match="no layout trains 8 layers with batch 16 on the 4 devices"):
        find_candidates(TWO_LABS, Setting(layers=8, batch=16), degrees=Degrees(pp=5))


def test_a_model_that_fits_no_device_is_refused_with_what_it_needs() -> None:
    """The error is that of the candidate with the least memory."""
    tiny = dataclasses.replace(
        TWO_LABS,
        devices={
            name: dataclasses.replace(device, memory_bytes=1e6)
            for name, device in TWO_LABS.devices.items()
        },
    )
    with pytest.raises(PlanError, match=r"of about .*MB.* RTX4090 has 1MB"):
        find_candidates(tiny, Setting(layers=8, batch=16))


def test_the_plan_is_built_as_its_name_says() -> None:
    """A name in the table can be run."""
    for one in two_labs():
        if one.request.num_ranks is None:
            assert one.plan == build_plan(
                TWO_LABS, one.request.variant, Setting(layers=8, batch=16)
            )


PRICES = Prices(
    places={
        "Campus": RegionPrices(
            provider="A", continent="NA",
            spot_usd={"RTX4090": 0.3}, on_demand_usd={"RTX4090": 0.6},
        ),
        "Garage": RegionPrices(
            provider="A", continent="NA",
            spot_usd={"RTX4090": 3.0}, on_demand_usd={"RTX4090": 0.6},
        ),
    },
    egress_usd={"A": {"zone": 0.0, "region": 0.5, "continent": 0.5, "oceania": 0.5}},
    loading_usd=0.0,
)  # fmt: skip
"""Machines of the garage cost ten times as much on the spot market, and egress dominates."""


@pytest.mark.parametrize("market", [SPOT, ON_DEMAND])
def test_the_cheapest_plan_is_the_cheapest_of_all(market: str) -> None:
    """Without placing, it is that of a bill of every candidate, and no bound is above its bill."""
    objective = cheapest(TWO_LABS, PRICES, market)
    candidates = find_candidates(TWO_LABS, Setting(layers=8, batch=16), every_region=True)
    usd = {}
    for one in candidates:
        seconds = simulate(one.plan).iteration_s
        usd[one.request.variant, one.plan.placement] = objective.value(one.plan, seconds)
        assert objective.bound(one.plan, one.at_least_s) <= objective.value(one.plan, seconds)
    found = search_layouts(candidates, budget=Budget(evaluations=0), objective=objective)
    assert {(0, 1), (2, 3)} < {placement for _, placement in usd}
    assert found.best[0].value == pytest.approx(min(usd.values()))
    assert [one.value for one in found.best] == sorted(one.value for one in found.best)


def test_the_cheapest_plan_leaves_expensive_machines_idle() -> None:
    """And egress between the labs; the fastest one may not."""
    budget = Budget(evaluations=0)
    objective = cheapest(TWO_LABS, PRICES, SPOT)
    candidates = find_candidates(TWO_LABS, Setting(layers=8, batch=16), every_region=True)
    found = search_layouts(candidates, budget=budget, objective=objective).best[0]
    nodes = {found.plan.device_nodes[device] for device in found.plan.placement}
    assert {TWO_LABS.nodes[node].region for node in nodes} == {"Campus"}
    with pytest.raises(PlanError, match="has no prices"):
        search_layouts(two_labs(), budget=budget, objective=cheapest(TWO_LABS, None, SPOT))
