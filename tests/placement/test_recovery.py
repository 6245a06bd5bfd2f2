"""Repairs after lost or added devices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.placement import recovery
from netbench.placement.plan_problem import Request, grid_of
from netbench.placement.problem import Grid
from netbench.placement.recovery import Load, Repair, devices_of, load_seconds, repair
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator.iteration import simulate

CASE3 = load_scenario("case3")
TWO_LABS = load_scenario("example-two-labs")
STAGE_PARAMETERS = 3 * (12 * 2048**2 + 13 * 2048)
"""Three layers of GPT-XL, a stage of L24 in 8 that has no embeddings."""


def request(num_ranks: int = 64, variant: str = "dtfm-scheduled", batch: int = 1024) -> Request:
    return Request(
        scenario=CASE3,
        variant=variant,
        setting=Setting(layers=24, batch=batch),
        num_ranks=num_ranks,
    )


def listed(asked: Request) -> Grid:
    return grid_of(asked.listed())


def mended(asked: Request, *lost: int, moves: int = 0, added: tuple[int, ...] = ()) -> Repair:
    return repair(
        asked, listed(asked), (), lost=lost, added=added, moves=moves, evaluations=20, seed=1
    )


def test_without_spare_devices_a_pipeline_is_given_up_and_nothing_is_loaded() -> None:
    """Seven pipelines remain; the other seven devices of the broken one are idle or replace idle
    ones. The batch is the largest below 1024 that seven divide."""
    found = mended(request(), 21)
    assert (found.plan.layout.dp, found.plan.workload.batch) == (7, 1022)
    assert (found.loads, found.load_s, found.repaired.num_necessary) == ((), 0.0, 0)
    assert len(found.idle) == 7
    assert 21 not in found.plan.placement
    assert sorted({*found.plan.placement, *found.idle, 21}) == list(range(64))
    assert found.before_s == simulate(request().listed()).iteration_s
    assert found.after_s == simulate(found.plan).iteration_s == found.repaired.value


def test_a_spare_device_loads_the_lost_stage_from_one_that_holds_it() -> None:
    """dtfm loads four bytes per parameter (fp32 weights with SGD), others twelve with Adam, at the
    rate of the link plus headers and slow start."""
    asked = request(num_ranks=56, batch=56 * 16)
    found = mended(asked, 21)
    (load,) = found.loads
    assert (found.plan.layout.dp, found.plan.workload.batch) == (7, 896)
    assert load.slot == (0, 5)
    assert load.device >= 56
    assert load.source % 8 == 5
    assert load.source != 21
    assert load.size_bytes == found.load_bytes == 4 * STAGE_PARAMETERS
    nodes = found.plan.device_nodes
    link = found.plan.network.link(nodes[load.source], nodes[load.device])
    alone_s = 8 * load.size_bytes / link.bandwidth_bps
    assert alone_s < found.load_s < 1.1 * alone_s + 20 * link.one_way_delay_s
    megatron = mended(dataclasses.replace(asked, variant="megatron-p8"), 21)
    assert megatron.load_bytes == 12 * STAGE_PARAMETERS


def test_loads_from_one_source_share_its_link() -> None:
    """Two loads to one region take twice as long as one if they share a class."""
    plan = request().listed()
    one = Load(device=1, source=0, slot=(0, 0), size_bytes=1e9)
    two = dataclasses.replace(one, device=2)
    assert load_seconds(plan, [one, two]) == pytest.approx(2 * load_seconds(plan, [one]), rel=0.02)


def test_several_that_load_the_same_take_it_from_several() -> None:
    """Two lost devices of a stage and two spare ones use two sources."""
    found = mended(request(num_ranks=48, batch=768), 5, 13)
    assert len({load.source for load in found.loads}) == len(found.loads) == 2


def test_added_devices_are_spare_until_they_make_a_pipeline() -> None:
    """Eight added devices make a pipeline of eight stages; seven do not, and nothing is loaded."""
    asked = request(num_ranks=56, batch=896)
    enough = mended(asked, added=tuple(range(56, 64)))
    assert (enough.plan.layout.dp, enough.plan.workload.batch) == (8, 896)
    assert (enough.repaired.num_necessary, len(enough.idle)) == (8, 0)
    assert {load.device for load in enough.loads} == set(range(56, 64))
    lost_too = mended(asked, 3, added=tuple(range(56, 64)))
    assert (lost_too.plan.layout.dp, lost_too.repaired.num_necessary) == (7, 1)


@pytest.mark.parametrize(
    ("system", "why"),
    [
        ("zero3", "a lost device takes its part of the parameters with it; restart"),
        ("hivemind", "its other ranks go on without a lost one"),
        ("diloco", "its ranks do not hold the same state; restart"),
    ],
)
def test_a_system_whose_pipelines_are_not_copies_cannot_be_repaired(system: str, why: str) -> None:
    """Each has its own reason."""
    asked = Request(scenario=CASE3, variant=system, setting=Setting(layers=24, batch=1024))
    with pytest.raises(PlanError, match=f"a placement of {system} cannot be repaired: {why}"):
        repair(asked, np.arange(64)[:, None], (), lost=(0,))


def test_a_stage_without_a_surviving_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one pipeline of two stages on four devices, a spare device has no source; the error
    comes before any search."""
    monkeypatch.setattr(recovery, "find_repair", None)
    asked = Request(
        scenario=TWO_LABS,
        variant="megatron-p2",
        setting=Setting(layers=8, batch=16, micro_batch=1),
        num_ranks=2,
    )
    with pytest.raises(PlanError, match="no device is left that holds stage 0 of megatron-p2"):
        repair(asked, np.array([[0, 1]]), (), lost=(0,))


@pytest.mark.parametrize(
    ("lost", "added", "message"),
    [
        ((), (), "no node is lost or added; name one with --lost or --added"),
        ((), (3,), "is added, but it is already in the placement"),
        ((60,), (60,), "is both lost and added; name it once"),
        (tuple(range(60)), (), "a pipeline of dtfm-scheduled: 4, expected 8; describe"),
    ],
)
def test_impossible_repairs_are_refused(
    lost: tuple[int, ...], added: tuple[int, ...], message: str
) -> None:
    """The error is one line."""
    with pytest.raises(PlanError, match=message):
        mended(request(), *lost, added=added)


def test_nodes_are_named() -> None:
    """A name means all devices of the node; an unknown name gets suggestions."""
    case1 = load_scenario("case1")
    assert devices_of(case1, [case1.nodes[1].name]) == tuple(range(8, 16))
    with pytest.raises(PlanError, match=r'has no node ".*x"; did you mean'):
        devices_of(case1, [f"{case1.nodes[1].name}x"])
    with pytest.raises(PlanError, match="is named 2 times; name it once"):
        devices_of(case1, [case1.nodes[1].name] * 2)
