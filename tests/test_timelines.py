"""Timelines, and their traces."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from netbench.errors import RecordError, UsageError
from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.systems import position_of, rank_lanes
from netbench.timelines import (
    COMMUNICATOR,
    COMPUTE,
    NETWORK,
    Slice,
    Timeline,
    lanes,
    name_of_rank,
    read_timeline,
    timeline_events,
    write_timeline,
)


def plan_of(variant: str) -> Plan:
    scenario = load_scenario("case3")
    return build_plan(
        scenario,
        variant,
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )


@pytest.fixture
def plan() -> Plan:
    return plan_of("megatron-p8")


def timeline(*slices: Slice) -> Timeline:
    return Timeline(plan="abc", source="emulated", iteration_s=2.5, slices=slices)


@pytest.mark.parametrize("variant", ["dtfm-scheduled", "megatron-p8", "megatron-p4t2", "zero3"])
def test_stages_are_those_of_the_simulators_lanes(variant: str) -> None:
    """A second way to say which rank is in which stage."""
    found = plan_of(variant)
    if found.schedule == "none":
        assert {position_of(found, rank).stage for rank in range(found.layout.num_ranks)} == {0}
        return
    for lane in rank_lanes(found).tolist():
        assert [position_of(found, rank).stage for rank in lane] == list(range(found.layout.pp))


def test_a_rank_is_named_by_region_node_and_stage(plan: Plan) -> None:
    """Logical rank 9: the second stage's second pipeline."""
    node = plan.device_nodes[plan.placement[9]]
    region = plan.network.regions[plan.network.node_regions[node]]
    assert name_of_rank(plan, 9) == f"{region} {plan.node_names[node]} (rank 9, stage 1)"


def test_a_timeline_is_what_its_trace_says(plan: Plan, tmp_path: Path) -> None:
    """Written and read back, compressed or not."""
    written = timeline(
        Slice(kind="forward", rank=0, start_s=0.25, end_s=0.5, args=(("micro_batch", 3),)),
        Slice(kind="send", rank=0, start_s=0.5, end_s=1.0, peer=8, args=(("bytes", 7),)),
        Slice(kind="receive", rank=8, start_s=0.125, end_s=1.25, peer=0),
    )
    for name in ("t.json", "t.json.gz"):
        write_timeline(tmp_path / name, plan, written)
        assert read_timeline(tmp_path / name) == written
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["plan"] == "abc"


def test_slices_are_on_the_threads_of_their_rank(plan: Plan) -> None:
    """Two that overlap get two threads; names and arguments are for a person."""
    slices = (
        Slice(kind="barrier", rank=1, start_s=0.0, end_s=1.0),
        Slice(kind="weight", rank=1, start_s=0.0, end_s=1.0),
        Slice(kind="send", rank=1, start_s=0.0, end_s=1.0, peer=9),
        Slice(kind="receive", rank=1, start_s=0.5, end_s=1.5, peer=9),
    )
    events = [e for e in timeline_events(plan, timeline(*slices)) if e["ph"] == "X"]
    assert {(e["name"], e["tid"]) for e in events} == {
        ("barrier", NETWORK),
        ("weight", COMPUTE),
        ("send to rank 9", COMMUNICATOR),
        ("receive from rank 9", COMMUNICATOR + 1),
    }


def test_an_arrow_goes_from_a_send_to_the_receive_of_its_message(plan: Plan) -> None:
    """Matched by ends, tag and number; what has no other end has no arrow."""
    sends = [
        Slice(kind="send", rank=0, start_s=i, end_s=i + 1, peer=8, args=(("message", i),))
        for i in range(3)
    ]
    receive = Slice(kind="receive", rank=8, start_s=0, end_s=2.25, peer=0, args=(("message", 1),))
    events = timeline_events(plan, timeline(*sends, receive), first=1, step=2)
    start, end = (event for event in events if event["ph"] in "sf")
    assert (start["pid"], start["ts"]) == (1, 1e6)
    assert (end["pid"], end["ts"]) == (17, 2.25e6)
    assert start["id"] == end["id"]


def test_slices_of_a_lane_do_not_overlap() -> None:
    """And no more lanes than happen at once."""
    rank, begin = [0] * 6, [0.0, 0.5, 1.0, 1.5, 3.0, 3.0]
    end = [1.0, 2.0, 1.5, 2.0, 4.0, 5.0]
    found = lanes(rank, begin, end)
    assert set(found) == {0, 1}
    for lane in set(found):
        mine = [(b, e) for b, e, free in zip(begin, end, found, strict=True) if free == lane]
        assert all(before[1] <= after[0] for before, after in pairwise(mine))


def test_a_file_that_is_no_trace_is_named(plan: Plan, tmp_path: Path) -> None:
    """Missing, cut short, or something else."""
    path = tmp_path / "t.json.gz"
    with pytest.raises(RecordError, match=r"t\.json\.gz: the trace cannot be read: No such file"):
        read_timeline(path)
    write_timeline(path, plan, timeline())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordError, match="cannot be read"):
        read_timeline(path)
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(RecordError, match=": not a trace of an emulated iteration"):
        read_timeline(other)
    with pytest.raises(UsageError, match="cannot be written"):
        write_timeline(tmp_path / "no" / "t.json", plan, timeline())
