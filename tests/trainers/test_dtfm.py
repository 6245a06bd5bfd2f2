"""DT-FM on loopback ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest


@pytest.mark.parametrize("placement", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_an_iteration_lasts_at_least_its_critical_path_of_compute(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any], placement: tuple[int, ...]
) -> None:
    """Two rounds of GPipe over two stages: (m + pp - 1) x (F + B) per round, and the optimizer."""
    ranks = start_ranks(4)
    ranks.connect()
    plan = plan_of(placement=placement, num_rounds=2, num_micro_batches=3, forward_s=0.005)
    plan_hash = ranks.prepare(plan)
    for iteration in range(2):
        ended = ranks.run(plan_hash, iteration)
        seconds = [answer["end_s"] - answer["start_s"] for answer in ended]
        floor_s = 2 * (3 + 2 - 1) * (0.005 + 0.015) + 0.002
        assert max(seconds) >= floor_s
        for answer, second in zip(ended, seconds, strict=True):
            assert sum(answer["phases"].values()) == pytest.approx(second, abs=0.002)


def test_updates_of_one_node_share_its_cpu(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any]
) -> None:
    """The first pipeline's two stages on one node take twice as long as on two."""
    ranks = start_ranks(4)
    ranks.connect()
    plan = plan_of(placement=(0, 1, 2, 3), num_micro_batches=2)
    stages = tuple(replace(stage, optimizer_s=0.2) for stage in plan.stages)
    for device_nodes, share in (((0, 1, 2, 3), 1), ((0, 0, 1, 1), 2)):
        plan_hash = ranks.prepare(replace(plan, device_nodes=device_nodes, stages=stages))
        ended = ranks.run(plan_hash, 0)
        updated_s = max(answer["phases"]["optimizer_s"] for answer in ended)
        assert share * 0.2 <= updated_s < share * 0.2 + 0.15


@pytest.mark.parametrize(("data_parallel", "share"), [("ring", 1.0), ("sharded-ps", 0.5)])
def test_without_a_central_server_all_ranks_update_on_the_cpu_of_their_node(
    start_ranks: Callable[[int], Any],
    plan_of: Callable[..., Any],
    data_parallel: str,
    share: float,
) -> None:
    """All of the parameters, or a share each of the two pipelines; two ranks of a node at once."""
    ranks = start_ranks(4)
    ranks.connect()
    plan = plan_of(placement=(0, 1, 2, 3), num_micro_batches=2)
    stages = tuple(replace(stage, optimizer_s=0.4) for stage in plan.stages)
    plan = replace(plan, data_parallel=data_parallel, schedule="1f1b", stages=stages)
    for device_nodes, at_once in (((0, 1, 2, 3), 1), ((0, 1, 1, 0), 2)):
        plan_hash = ranks.prepare(replace(plan, device_nodes=device_nodes))
        for answer in ranks.run(plan_hash, 0):
            updated_s = answer["phases"]["optimizer_s"]
            assert share * at_once * 0.4 <= updated_s < share * at_once * 0.4 + 0.15
            lasted_s = answer["end_s"] - answer["start_s"]
            assert sum(answer["phases"].values()) == pytest.approx(lasted_s, abs=0.002)
