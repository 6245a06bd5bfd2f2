"""Published runs under tc: their plans, and the page."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pandas as pd
import pytest

from netbench.plan.model import Plan
from netbench.report.page.published import load
from netbench.report.page.simulated import SMALL, UNDER_TC
from netbench.report.page.under_tc.emulated import emulated_cells_csv
from netbench.report.page.under_tc.machines import NIC_BPS, OPS, root_netem
from netbench.report.page.under_tc.page import under_tc_page
from netbench.report.page.under_tc.small import NAME, TERAFLOPS, SmallCell, cells, fixing_cells
from netbench.simulator import simulate
from tests.report.page.emulated_runs import record
from tests.simulations import write

RESULTS = Path(__file__).parents[3] / "results"


def cell(schedule: str, mode: str, dp: int = 1, micro_batch: int = 1) -> SmallCell:
    """The cell of a schedule and mode in fp16 or fp32 with 10 ms and 1 Gbit/s."""
    return next(
        each
        for each in cells()
        if (each.series[0], each.series[2], each.dp, each.micro_batch, each.link)
        == (schedule, mode, dp, micro_batch, (10.0, 1.0))
    )


def test_the_lan_cell_of_every_series_comes_out() -> None:
    """`benchmarks/fit_gpt3_small.py` found the FLOP/s; nothing else is fitted."""
    assert fixing_cells().keys() == TERAFLOPS.keys()
    for fixing in fixing_cells().values():
        assert fixing.link == (0.05, 10.0)
        simulated_s = simulate(fixing.plan()).iteration_s
        assert simulated_s == pytest.approx(fixing.published_s, rel=5e-4)


def test_half_the_bytes_are_sent_in_half_the_precision() -> None:
    """The dtype of a series reaches its messages."""
    fp32, fp16 = (
        next(each for each in cells() if each.series[:2] == ("gpipe", dtype)).plan()
        for dtype in ("fp32", "fp16")
    )
    assert fp32.activation_bytes == 2 * fp16.activation_bytes == 4 * 2048 * 768


def test_plans_have_the_published_shape() -> None:
    """Three machines per pipeline, 64 sequences each; FSDP on 12 machines in one micro-step."""
    server = cell("gpipe", "central-ps", dp=16).plan()
    assert (server.layout.pp, server.layout.dp, server.num_micro_batches) == (3, 16, 64)
    assert [stage.num_layers for stage in server.stages] == [4, 4, 4]
    sharded = cell("zero3-fsdp", "12 nodes", dp=12, micro_batch=2).plan()
    assert (sharded.layout.dp, sharded.num_micro_batches) == (12, 1)
    assert sharded.workload.micro_batch == 2


def test_gradients_that_are_not_flattened_pay_a_ring_each() -> None:
    """At 50 ms, 24 matrices and the embeddings go round 3 + 3 hops, 40 vectors through trees."""
    by_tensor: Plan = next(
        each
        for each in cells()
        if each.series[2] == "allreduce" and each.dp == 4 and each.link == (50.0, 1.0)
    ).plan()
    sync_s = simulate(by_tensor).phases["sync_s"]
    assert 25 * 6 * 0.05 + 40 * 2 * 0.05 < sync_s < 25 * 6 * 0.05 + 40 * 6 * 0.05 + 4


def test_one_root_netem_is_shared_by_all_destinations() -> None:
    """All destinations are one class; what comes in is limited by the NIC."""
    network = root_netem(4, (10.0, 1.0))
    assert network.sharing == "class-nic"
    assert network.link(0, 1) == network.link(0, 3)
    assert (network.link(0, 1).bandwidth_bps, set(network.nic_bps)) == (1e9, {NIC_BPS})


def test_every_published_cell_is_on_the_page(tmp_path: Path) -> None:
    """Exact where simulated times are the published ones; nothing without simulated tables."""
    assert "Nothing has been simulated yet" in under_tc_page(tmp_path)
    page = under_tc_page(write(tmp_path))
    assert page.count(" → ") >= len(load(SMALL)) + len(load(UNDER_TC))
    assert page.count("%) =") == len(TERAFLOPS)
    assert set(load(UNDER_TC)["op"]) == OPS.keys()


def test_the_committed_page_has_the_mean_errors() -> None:
    """16 machines: the goal is 8% over all operations."""
    (line,) = [
        line
        for line in under_tc_page(RESULTS).splitlines()
        if line.startswith("Over all operations")
    ]
    on_16 = float(line.split(", ")[1].split("%")[0])
    assert on_16 < 8


def test_an_emulated_cell_is_beside_the_published_one(tmp_path: Path) -> None:
    """Series that have the same plan without replicas share its time; the newest run counts."""
    shared = cell("gpipe", "central-ps")
    old, new = (
        record(tmp_path, [shared.emulated()], seconds, scenario=NAME) for seconds in (1.0, 8.0)
    )
    table = pd.read_csv(io.StringIO(emulated_cells_csv(RESULTS, [old, new])))
    found = table[(table["dp_mode"] == "none") | (table["dp_mode"] == "central-ps")]
    assert len(found) == len(table) == 2
    assert [*found["emulated_s"]] == [8.0, 8.0]
    assert [*found["run"]] == [new.run_id] * 2
    assert found["error"].iloc[0] == pytest.approx(8 / shared.published_s - 1, abs=1e-4)
    page = under_tc_page(RESULTS, [old, new])
    assert "2 of 62 cells" in page.replace("\n", " ")
    assert "None of these cells has been emulated" in under_tc_page(RESULTS)


def test_a_cell_counts_whatever_constants_its_library_had(tmp_path: Path) -> None:
    """Nothing else of the plan may differ."""
    plan = cell("gpipe", "none").emulated()
    older = dataclasses.replace(plan.transport, window_bytes=0, max_slices=32)
    run = record(tmp_path, [dataclasses.replace(plan, transport=older)], 8.0, scenario=NAME)
    table = pd.read_csv(io.StringIO(emulated_cells_csv(RESULTS, [run])))
    assert set(table["emulated_s"]) == {8.0}
    other = record(tmp_path, [dataclasses.replace(plan, num_rounds=2)], 9.0, scenario=NAME)
    assert len(pd.read_csv(io.StringIO(emulated_cells_csv(RESULTS, [other])))) == 0
