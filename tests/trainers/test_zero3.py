"""ZeRO-3 on loopback ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from netbench.errors import PlanError
from netbench.plan import Plan
from netbench.trainers.collectives import Group
from netbench.trainers.world import TAG_COLLECTIVE, Work, World
from netbench.trainers.zero3 import Ring, Zero3, shard, stays_gathered, unit_parameters
from tests.trainers.processes import on_processes

LAYER_PARAMETERS = 12 * 8**2 + 13 * 8
"""Of the test plans' hidden size of 8."""


class CountingWorld(World):
    """Counts the bytes that collectives send."""

    sent_bytes = 0

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> Work:
        if tag == TAG_COLLECTIVE:
            self.sent_bytes += tensor.numel() * tensor.element_size()
        return super().send(tensor, process, tag)


def zero3_plan(plan_of: Callable[..., Plan], placement: Sequence[int], **fields: Any) -> Plan:
    """Two units of one layer each, of which one may stay gathered."""
    defaults: dict[str, Any] = {
        "num_micro_batches": 3,
        "units": (1, 1),
        "live_parameters": LAYER_PARAMETERS,
    }
    return plan_of(
        system="zero3", pp=1, dp=len(placement), placement=placement, **(defaults | fields)
    )


@pytest.mark.parametrize("placement", [(0, 1), (2, 0, 3, 1)])
def test_an_iteration_lasts_at_least_its_compute(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any], placement: tuple[int, ...]
) -> None:
    """Two plans in one process, run in turn: micro-steps x (F + B), and the optimizer."""
    ranks = start_ranks(len(placement))
    ranks.connect()
    plans = [zero3_plan(plan_of, placement, forward_s=seconds) for seconds in (0.005, 0.01)]
    hashes = [ranks.prepare(plan) for plan in plans]
    for iteration in range(2):
        for plan, plan_hash in zip(plans, hashes, strict=True):
            ended = ranks.run(plan_hash, iteration)
            floor_s = 3 * 4 * plan.stages[0].forward_s + 0.002
            for answer in ended:
                seconds = answer["end_s"] - answer["start_s"]
                assert seconds >= floor_s
                phases = answer["phases"]
                assert sum(phases.values()) == pytest.approx(seconds, abs=0.02)
                assert phases["forward_s"] >= 3 * plan.stages[0].forward_s
                assert phases["backward_s"] >= 9 * plan.stages[0].forward_s


def _iterate(world: CountingWorld, plan: Plan) -> list[int]:
    system = Zero3(world, plan)
    world.warm(system.peers())
    sent = []
    for _ in range(2):
        before = world.sent_bytes
        system.arm()
        system.iterate()
        sent.append(world.sent_bytes - before)
    return sent


@pytest.mark.parametrize(
    ("placement", "live_parameters", "gathers"),
    [
        ((1, 0), 2 * LAYER_PARAMETERS - 1, 3),
        ((2, 0, 3, 1), 0, 4),
        ((2, 0, 3, 1), 2 * LAYER_PARAMETERS, 2),
    ],
)
def test_units_beyond_the_live_limit_are_gathered_twice(
    plan_of: Callable[..., Any], placement: tuple[int, ...], live_parameters: int, gathers: int
) -> None:
    """Sent bytes of a rank: (n - 1)/n of a unit for each gather and each of the two scatters."""
    plan = zero3_plan(plan_of, placement, live_parameters=live_parameters, forward_s=0.0)
    ranks = len(placement)
    unit_bytes = 2 * LAYER_PARAMETERS  # fp16
    expected = 3 * (gathers + 2) * unit_bytes * (ranks - 1) // ranks
    assert (
        on_processes(ranks, _iterate, plan, world_type=CountingWorld)
        == [[expected, expected]] * ranks
    )


def test_scaled_down_a_message_is_shortened_by_what_gloo_adds(
    plan_of: Callable[..., Any],
) -> None:
    """162 bytes of each message at scale 2 are gloo's and TCP's, not payload."""
    plan = zero3_plan(plan_of, (0, 1), scale=2.0, forward_s=0.0)
    message_bytes = 2 * LAYER_PARAMETERS // 2 // 2 - 162
    assert (
        on_processes(2, _iterate, plan, world_type=CountingWorld)
        == [[3 * 5 * message_bytes] * 2] * 2
    )


def _train_linear(world: World, placement: Sequence[int]) -> tuple[Any, Any, Any]:
    group = Group.of(world, placement)
    world.warm(group.neighbours)
    torch.manual_seed(1)  # the same weights everywhere
    layer = nn.Linear(3, 8, bias=False)
    model = nn.Sequential(layer)
    weight = layer.weight.detach().clone()
    shard(model, [layer], Ring(group), [False])
    output = model(torch.eye(3)[:1] * (world.rank + 1))
    output.sum().backward()
    assert isinstance(layer.weight.grad, DTensor)
    gradient = layer.weight.grad.to_local()
    return weight.tolist(), output.detach().tolist(), gradient.tolist()


@pytest.mark.parametrize("placement", [(0, 1), (2, 0, 3, 1)])
def test_the_ring_gathers_weights_and_averages_gradients(placement: tuple[int, ...]) -> None:
    """Rank r's input is r + 1 times a unit vector: the mean gradient is that of 1 + ... + n."""
    size = len(placement)
    results = on_processes(size, _train_linear, placement, world_type=CountingWorld)
    for rank, (weight, output, gradient) in enumerate(results):
        column = torch.tensor(weight)[:, 0]
        assert torch.allclose(torch.tensor(output)[0], column * (rank + 1))
        expected = torch.zeros(8 // size, 3)
        expected[:, 0] = (size + 1) / 2
        assert torch.allclose(torch.tensor(gradient), expected)


def _collect(world: World, placement: Sequence[int]) -> tuple[list[float], list[float]]:
    group = Group.of(world, placement)
    world.warm(group.neighbours)
    ring = Ring(group)
    gathered = torch.zeros(2 * world.size)
    gathered[2 * world.rank : 2 * world.rank + 2] = torch.tensor([world.rank, -1.0])
    ring.all_gather(gathered)
    scattered = torch.empty(2)
    ring.reduce_scatter(scattered, torch.arange(2.0 * world.size) * (world.rank + 1))
    return gathered.tolist(), scattered.tolist()


@pytest.mark.parametrize("placement", [(1, 0), (2, 0, 3, 1)])
def test_ring_parts_belong_to_processes_whatever_the_placement(
    placement: tuple[int, ...],
) -> None:
    """Process p contributes and receives part p, as FSDP lays them out."""
    size = len(placement)
    for process, (gathered, scattered) in enumerate(
        on_processes(size, _collect, placement, world_type=CountingWorld)
    ):
        assert gathered == [x for p in range(size) for x in (float(p), -1.0)]
        factor = size * (size + 1) // 2
        assert scattered == [2.0 * process * factor, (2.0 * process + 1) * factor]


def test_the_first_units_stay_gathered_up_to_the_limit() -> None:
    """The limit counts all that stay, embeddings included."""
    assert stays_gathered([5, 3, 3], 8) == [True, True, False]
    assert stays_gathered([5, 3, 3], 4) == [False, False, False]


def test_units_that_are_not_the_model_are_refused(plan_of: Callable[..., Any]) -> None:
    """The message says what was found and what would do."""
    plan = zero3_plan(plan_of, (0, 1), units=(3,))
    with pytest.raises(PlanError, match=r"units \(3,\) hold 3 layers; the model has 2"):
        unit_parameters(plan)
