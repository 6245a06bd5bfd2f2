"""The included scenarios, against the published tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from netbench.scenario import Scenario, list_scenarios, load_scenario
from netbench.scenario.devices import load_device_profile

CASES = ("case1", "case2", "case3", "case4", "case5")
PUBLISHED = Path(__file__).parents[2] / "results" / "published"


def test_the_five_cases_and_an_example_come_with_netbench() -> None:
    """They have these names."""
    assert set(list_scenarios()) >= {*CASES, "example-two-labs"}


@pytest.mark.parametrize("name", list_scenarios())
def test_a_scenario_is_called_as_its_file(name: str) -> None:
    """Each also has a title."""
    scenario = load_scenario(name)
    assert scenario.name == name
    assert 0 < len(scenario.title) <= 60


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_64_v100_training_gpt_xl(name: str) -> None:
    """Published: hidden 2048, 16 heads, sequence 2048, micro-batch 1, fp16, recomputation."""
    scenario = load_scenario(name)
    model = scenario.workload
    assert scenario.num_devices == 64
    assert {node.device for node in scenario.nodes} == {"V100"}
    assert (model.hidden, model.heads, model.sequence, model.micro_batch) == (2048, 16, 2048, 1)
    assert (model.dtype, model.recomputation) == ("fp16", True)
    assert scenario.sweep.pipeline == 8


@pytest.mark.parametrize("name", CASES)
def test_the_sweep_covers_what_was_published_for_the_systems_that_run(name: str) -> None:
    """Layers, batches and systems of the published CSV; DeepSpeed's engine has another file, and is
    predicted in cases 4 and 5."""
    sweep = load_scenario(name).sweep
    with (PUBLISHED / "published_iteration_times.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["case"] == name]
    assert set(sweep.layers) == {int(row["layers"]) for row in rows}
    assert set(sweep.batch) == {int(row["batch"]) for row in rows}
    assert set(sweep.seeds) == {int(float(row["seed"])) for row in rows if row["seed"]}
    published = {row["system"] for row in rows}
    assert set(sweep.variants) == {*published, "deepspeed-pp-random-nodes"}
    if name == "case1":  # where tensor-parallel ranks share a node
        assert set(sweep.default_variants) == published


@pytest.mark.parametrize(
    ("name", "table"), [("case4", "case4_region_links.csv"), ("case5", "aws_region_links.csv")]
)
def test_links_are_the_published_table(name: str, table: str) -> None:
    """Ping RTT applied one way and NCCL throughput, equal in both directions, for every pair."""
    network = load_scenario(name).network
    with (PUBLISHED / table).open() as file:
        rows = list(csv.DictReader(file))
    checked = 0
    for row in rows:
        if {row["region_a"], row["region_b"]} <= set(network.regions):
            a, b = (network.regions.index(row[key]) for key in ("region_a", "region_b"))
            for link in (network.links[a][b], network.links[b][a]):
                assert link.one_way_delay_s == pytest.approx(float(row["ping_rtt_ms"]) / 1e3)
                assert link.bandwidth_bps == pytest.approx(float(row["bandwidth_gbps"]) * 1e9)
            checked += 1
    num_regions = len(network.regions)
    assert checked == num_regions * (num_regions - 1) // 2


def test_case3_is_two_universities_of_32() -> None:
    """Nodes 0-31 in Ohio, 32-63 in Virginia; 5 Gbit/s and 1 ms, 1.12 Gbit/s and 11 ms."""
    network = load_scenario("case3").network
    assert network.regions == ("Ohio", "Virginia")
    assert network.node_regions == (0,) * 32 + (1,) * 32
    inside, across = network.link(0, 31), network.link(31, 32)
    assert (inside.one_way_delay_s, inside.bandwidth_bps) == (0.001, 5e9)
    assert (across.one_way_delay_s, across.bandwidth_bps) == (0.011, 1.12e9)


@pytest.mark.parametrize(("name", "regions", "each"), [("case4", 4, 16), ("case5", 8, 8)])
def test_regions_are_even(name: str, regions: int, each: int) -> None:
    """In the order of the published node list; 2 Gbit/s and 10 ms inside."""
    network = load_scenario(name).network
    assert np.bincount(network.node_regions).tolist() == [each] * regions
    assert list(network.node_regions) == sorted(network.node_regions)
    for region in range(regions):
        assert network.links[region][region].one_way_delay_s == 0.010
        assert network.links[region][region].bandwidth_bps == 2e9


def test_data_centre_nodes_are_capped_by_their_nic() -> None:
    """Case 1: 8 x 8 at 25 Gbit/s; case 2: 8 x 4 and 32 x 1 at 10 Gbit/s, in the released order."""
    case1, case2 = load_scenario("case1"), load_scenario("case2")
    assert (case1.network.sharing, case2.network.sharing) == ("nic", "nic")
    assert case1.network.nic_bps == (25e9,) * 8
    assert case2.network.nic_bps == (10e9,) * 40
    assert [node.num_devices for node in case1.nodes] == [8] * 8
    assert [node.num_devices for node in case2.nodes] == [1, 1, 1, 1, 4] * 8


@pytest.mark.parametrize("name", ["case3", "case4", "case5"])
def test_shaped_cases_share_a_class(name: str) -> None:
    """The published runs did so, with jumbo frames, as their transfer times show."""
    network = load_scenario(name).network
    assert network.sharing == "class"
    # 64 MiB in 541 ms at 1 Gbit/s (p2p_under_tc.csv), against the share that is payload.
    measured = 64 * 2**20 * 8 / 0.541 / 1e9
    payload, frame = network.mtu_bytes - 52, network.mtu_bytes + 14
    assert payload / frame == pytest.approx(measured, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "round_trips_ms", "rates_gbps"),
    [
        ("fluidstack2", {("East", "Mid"): 20}, {("Mid", "East"): 3.34, ("East", "Mid"): 3.03}),
        (
            "fluidstack3",
            {("East", "Mid"): 21.8, ("East", "West"): 60.2, ("Mid", "West"): 39.7},
            {
                ("Mid", "East"): 3.04,
                ("West", "East"): 1.17,
                ("East", "Mid"): 3.10,
                ("West", "Mid"): 1.78,
                ("East", "West"): 0.15,
                ("Mid", "West"): 0.16,
            },
        ),
    ],
)
def test_fluidstack_is_as_measured(
    name: str,
    round_trips_ms: dict[tuple[str, str], float],
    rates_gbps: dict[tuple[str, str], float],
) -> None:
    """Both directions together take the round trip; rates are from sender to receiver."""
    scenario = load_scenario(name)
    network = scenario.network
    index = network.regions.index
    assert {node.device for node in scenario.nodes} == {"A40"}
    regions = np.asarray(network.node_regions)[list(scenario.device_nodes())]
    assert np.bincount(regions).tolist() == [16] * len(network.regions)
    for (a, b), round_trip_ms in round_trips_ms.items():
        there, back = network.links[index(a)][index(b)], network.links[index(b)][index(a)]
        both_ways_s = there.one_way_delay_s + back.one_way_delay_s
        assert both_ways_s == pytest.approx(round_trip_ms / 1e3)
    assert len(rates_gbps) == len(network.regions) * (len(network.regions) - 1)
    for (src, dst), rate_gbps in rates_gbps.items():
        assert network.links[index(src)][index(dst)].bandwidth_bps == pytest.approx(rate_gbps * 1e9)


@pytest.mark.parametrize("name", ["fluidstack2", "fluidstack3"])
def test_an_a40_reaches_the_share_of_its_peak_that_a_v100_does(name: str) -> None:
    """Nominally 150 TFLOPS against 125; the scenario has the product with three digits."""
    a40, v100 = load_scenario(name).devices["A40"], load_device_profile("V100")
    assert a40.memory_bytes == 48e9
    assert a40.flops == {
        system: pytest.approx(flops * 150 / 125, rel=0.002) for system, flops in v100.flops.items()
    }
    assert a40.optimizer_s_per_parameter == v100.optimizer_s_per_parameter


def test_gpt3_small_sweeps_ten_networks() -> None:
    """One-way delay in ms and rate in Gbit/s; three micro-batches; GPipe and 1F1B."""
    scenario = load_scenario("gpt3-small")
    model, sweep = scenario.workload, scenario.sweep
    assert (model.layers, model.hidden, model.heads, model.sequence) == (12, 768, 12, 2048)
    assert (model.batch, sweep.micro_batch) == (64, (1, 2, 4))
    assert [(node.device, node.num_devices) for node in scenario.nodes] == [("V100", 1)] * 3
    assert sweep.variants == ("dtfm-scheduled", "dtfm-scheduled-1f1b")
    found = [
        (network.link.one_way_delay_s * 1e3, network.link.bandwidth_bps / 1e9)
        for network in sweep.networks
    ]
    assert found == [
        (0.05, 10),
        (1, 10),
        (5, 10),
        (10, 10),
        (0.05, 5),
        (0.05, 2),
        (0.05, 1),
        (1, 5),
        (5, 2),
        (10, 1),
    ]
    assert sweep.networks[0].link == scenario.network.links[0][0]
    assert sweep.default_networks == ("10ms-1Gbit",)


def test_uneven_regions_are_case_5_with_other_counts() -> None:
    """13, 11, 9, 7, 7, 6, 6 and 5 of its 64 devices, with the same links, workload and devices."""
    uneven, case5 = load_scenario("uneven-regions"), load_scenario("case5")
    counts = [13, 11, 9, 7, 7, 6, 6, 5]
    assert np.bincount(uneven.network.node_regions).tolist() == counts
    assert uneven.num_devices == case5.num_devices == 64
    assert uneven.network.links == case5.network.links
    assert uneven.network.sharing == case5.network.sharing
    assert (uneven.workload, uneven.devices) == (case5.workload, case5.devices)


def test_spot_mix_has_the_nodes_of_case_2_in_regions_that_do_not_divide() -> None:
    """8 nodes of four GPUs and 32 of one with the same NIC; no region holds whole pipelines
    only."""
    spot, case2 = load_scenario("spot-mix"), load_scenario("case2")
    sizes = [sorted(node.num_devices for node in found.nodes) for found in (spot, case2)]
    assert sizes[0] == sizes[1]
    assert set(spot.network.nic_bps) == set(case2.network.nic_bps) == {10e9}
    assert spot.network.sharing == "nic"
    in_region = devices_by_region(spot)
    assert in_region == {"Virginia": 22, "Ohio": 19, "Oregon": 13, "Ireland": 10}
    assert all(count % spot.sweep.pipeline for count in in_region.values())


@pytest.mark.parametrize("name", ["spot-mix", "mixed-gpu"])
def test_links_between_regions_are_the_measured_ones(name: str) -> None:
    """Half of each directed round trip, and the throughput of its direction."""
    network = load_scenario(name).network
    with (PUBLISHED / "aws_region_links_directed.csv").open() as file:
        rows = {(row["sender"], row["receiver"]): row for row in csv.DictReader(file)}
    for src, sender in enumerate(network.regions):
        for dst, receiver in enumerate(network.regions):
            if src != dst:
                link, row = network.links[src][dst], rows[sender, receiver]
                assert link.one_way_delay_s == pytest.approx(float(row["ping_rtt_ms"]) / 2e3)
                assert link.bandwidth_bps == pytest.approx(float(row["nccl_gbps"]) * 1e9)


def test_mixed_gpu_has_three_kinds_that_do_not_line_up() -> None:
    """18 V100, 14 A40, 16 T4 in regions of 12, 15, 13 and 8."""
    scenario = load_scenario("mixed-gpu")
    kinds: dict[str, int] = {}
    for node in scenario.nodes:
        kinds[node.device] = kinds.get(node.device, 0) + node.num_devices
    assert kinds == {"V100": 18, "A40": 14, "T4": 16}
    assert list(devices_by_region(scenario).values()) == [12, 15, 13, 8]
    assert scenario.num_devices == 6 * scenario.sweep.pipeline


def devices_by_region(scenario: Scenario) -> dict[str, int]:
    """Count the devices of each region."""
    counts = dict.fromkeys(scenario.network.regions, 0)
    for node in scenario.nodes:
        counts[node.region] += node.num_devices
    return counts
