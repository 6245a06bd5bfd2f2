"""Predictions, transfers and collectives: every row is there, and is what its head says."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.commands.reproduce.simulated import InParts, Task, Transfer
from netbench.plan.benchmark import OPS, CollectivePlan
from netbench.plan.model import Plan
from netbench.report.page.predictions import (
    collectives,
    pipelines,
    predictions_page,
    printed,
    transfers,
)
from netbench.report.page.simulated import COLLECTIVES, PIPELINES, TRANSFERS, read_table
from tests.simulations import write


def seconds(task: Task) -> float:
    """Distinct where a table should distinguish."""
    if isinstance(task, Transfer):
        return task.plan.payload_bytes / 1e9
    if isinstance(task, CollectivePlan):
        return task.num_nodes + (0.5 if task.backend == "gloo" else 0.0)
    if isinstance(task, InParts):
        return seconds(task.plan)
    assert isinstance(task, Plan)
    whole = task.workload.micro_batch * (2.0 if task.schedule == "1f1b" else 1.0)
    return (task.seed - 2000) * (1.0 if task.scheduler == "random" else whole)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write(tmp_path, seconds)


def test_pipelines_show_schedule_and_micro_batch(results: Path) -> None:
    """Ten networks; two schedules with micro-batches of 1, 2 and 4."""
    table = read_table(results, PIPELINES)
    assert table is not None
    grid = pipelines(table[(table["backend"] == "gloo") & (table["dtype"] == "fp16")])
    assert len(grid.rows) == 10
    assert dict(zip(grid.head, grid.rows[-1], strict=True)) == {
        "Network": "10ms-1Gbit",
        "GPipe b1": "22.00", "GPipe b2": "44.00", "GPipe b4": "88.00",
        "1F1B b1": "44.00", "1F1B b2": "88.00", "1F1B b4": "176.0",
    }  # fmt: skip


def test_the_two_printed_times_stand_beside_the_simulated_ones(results: Path) -> None:
    """88 s is 8.81 times 8.97 s more; 176 s is 15 times 11 s more."""
    table = read_table(results, PIPELINES)
    assert table is not None
    grid = printed(table)
    assert grid.head[2:] == ("nccl fp16", "nccl fp32", "gloo fp16", "gloo fp32")
    assert grid.rows[0] == ("GPipe", "8.97", *["88.00 (+881.0%)"] * 4)
    assert grid.rows[1] == ("1F1B", "about 11", *["176.0 (+1500.0%)"] * 4)
    assert "In 4 of 4 columns the two are in the printed order" in predictions_page(results, {})


def test_all_forty_transfers_are_there(results: Path) -> None:
    """Two backends in a row; 64 MiB are 67.1 made-up ms, the transfer after it takes 2 s."""
    table = read_table(results, TRANSFERS)
    assert table is not None
    assert len(table) == 40
    grid = transfers(table)
    assert len(grid.rows) == 20
    assert grid.rows[0] == (
        "-", "-", "64", "107 → 67.1 (-37.3%)", "2500.0", "55 → 67.1 (+22.0%)", "2000.0",
    )  # fmt: skip
    assert grid.rows[-1][:3] == ("10", "1", "128")


def test_collectives_have_a_column_per_network_and_backend(results: Path) -> None:
    """Every op, at 4 and 8 nodes; a transfer has two."""
    table = read_table(results, COLLECTIVES)
    assert table is not None
    grid = collectives(table)
    assert list(dict.fromkeys(row[0] for row in grid.rows)) == list(OPS)
    assert grid.rows[0][:4] == ("p2p", "2", "2000", "2500")
    assert {row[1] for row in grid.rows[1:]} == {"4", "8"}
    assert grid.head[2:4] == ("1 ms, 5 Gbit/s, nccl", "1 ms, 5 Gbit/s, gloo")
    assert len(grid.head) == 8


def test_the_section_tells_what_is_assumed(results: Path) -> None:
    """The scenarios' own words."""
    text = predictions_page(results, {})
    assert (
        "Delays of the shaped networks are netem delays on the egress of every node"
        in text.replace("\n  ", " ")
    )
    assert "V100: the built-in V100, whose layers have hidden size 2048" in text
    assert "hidden 768, 12 heads, sequence 2048, fp16, with recomputation" in text


def test_before_anything_is_simulated_it_says_how(tmp_path: Path) -> None:
    """No table, no error."""
    assert "netbench reproduce --simulate" in predictions_page(tmp_path, {})
