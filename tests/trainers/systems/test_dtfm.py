"""DT-FM on loopback ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.trainers.rank_processes import Answers, phases_add_up


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
        ended = ranks.run_undisturbed(plan_hash, iteration, phases_add_up)
        seconds = [answer["end_s"] - answer["start_s"] for answer in ended]
        floor_s = 2 * (3 + 2 - 1) * (0.005 + 0.015) + 0.002
        assert max(seconds) >= floor_s


def lasted(update_s: float) -> Callable[[Answers], bool]:
    """Return a check that updates took no longer than `update_s` and that phases add up."""

    def check(answers: Answers) -> bool:
        slowest_s = max(answer["phases"]["optimizer_s"] for answer in answers)
        return slowest_s < update_s + 0.15 and phases_add_up(answers)

    return check


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
        expected_s = share * 0.2
        ended = ranks.run_undisturbed(plan_hash, 0, lasted(expected_s))
        assert max(answer["phases"]["optimizer_s"] for answer in ended) >= expected_s


@pytest.mark.parametrize(("data_parallel", "share"), [("ring", 1.0), ("sharded-ps", 0.5)])
def test_without_a_central_server_all_ranks_update_on_the_cpu_of_their_node(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any], data_parallel: str, share: float
) -> None:
    """All of the parameters, or a share each of the two pipelines; two ranks of a node at once."""
    ranks = start_ranks(4)
    ranks.connect()
    plan = plan_of(placement=(0, 1, 2, 3), num_micro_batches=2)
    stages = tuple(replace(stage, optimizer_s=0.4) for stage in plan.stages)
    plan = replace(plan, data_parallel=data_parallel, schedule="1f1b", stages=stages)
    for device_nodes, at_once in (((0, 1, 2, 3), 1), ((0, 1, 1, 0), 2)):
        plan_hash = ranks.prepare(replace(plan, device_nodes=device_nodes))
        expected_s = share * at_once * 0.4
        for answer in ranks.run_undisturbed(plan_hash, 0, lasted(expected_s)):
            assert answer["phases"]["optimizer_s"] >= expected_s
