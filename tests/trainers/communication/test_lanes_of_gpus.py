"""Lanes of real GPUs over real NCCL, with nothing in their place.

They run wherever torch sees a GPU, one or several: see `gpus.device_orders`.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from netbench.plan.model import Plan
from netbench.trainers.calibrate import iterate
from netbench.trainers.communication import nccl
from netbench.trainers.communication.collectives import tree_all_reduce, tree_lanes, tree_peers
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.nccl import CudaDevice, NcclWorld
from netbench.trainers.communication.world import TAG_PIPELINE, World
from netbench.trainers.layers.rehearsal import rehearse
from netbench.trainers.layers.stage import StageRole, build_stage, gradient_dtype
from tests.trainers.communication.every_collective import inputs, run_all
from tests.trainers.gpus import device_orders, on_gpus
from tests.trainers.processes import on_processes

# Counted without starting CUDA, which a forked process could not use then.
if not torch.cuda.device_count():
    pytest.skip("torch sees no GPU", allow_module_level=True)


class GpuWorld(NcclWorld):
    """This process as a node of its own, with a GPU."""

    @classmethod
    def connect(cls, **ends: Any) -> GpuWorld:
        order = device_orders(ends["size"])[ends["rank"]]
        nccl.prepare_process(order["index"], order["environment"])
        made = cls.join(**ends, device=CudaDevice())
        assert isinstance(made, GpuWorld)
        return made


@pytest.mark.parametrize("size", [2, 5])
def test_collectives_over_nccl_are_those_over_gloo(size: int) -> None:
    members = tuple(range(size))[::-1]
    over_nccl = on_processes(size, run_all, members, 1, "cuda", world_type=GpuWorld)
    assert over_nccl == on_processes(size, run_all, members, 1)


def _all_reduce_in_trees(found: World, length: int) -> list[float]:
    group = Group.of(found, range(found.size))
    found.warm(tree_peers(group), tree_lanes(group))
    tensor = inputs(found.size, length, "cuda")[found.rank]
    tree_all_reduce(group, tensor, num_slices=3)
    total: list[float] = tensor.tolist()
    return total


def test_channels_of_two_trees_do_not_wait_for_each_other() -> None:
    found = on_processes(6, _all_reduce_in_trees, 100, world_type=GpuWorld)
    assert found == [torch.stack(inputs(6, 100)).sum(0).tolist()] * 6


DELAY_S = 3.0
"""A message is sent so long after its receiver posted it, and trained meanwhile."""


def _train_while_receiving(found: World, plan: Plan) -> float:
    """Seconds of an iteration, while a receive of process 0 waits for process 1."""
    found.warm([1 - found.rank])
    rehearse(plan)
    message, posted = torch.zeros(1000, device="cuda"), torch.zeros(1)
    if found.rank:
        found.receive(posted, 0, TAG_PIPELINE).wait()  # of the CPU, so over gloo
        time.sleep(DELAY_S)
        found.send(message, 0, TAG_PIPELINE).wait()
        return 0.0
    stage = build_stage(
        plan,
        StageRole(index=0, replica=0, gradient_dtype=gradient_dtype(plan), gradient_messages=1),
    )
    receive = found.receive(message, 1, TAG_PIPELINE)
    found.send(posted, 1, TAG_PIPELINE).wait()
    started_s = time.monotonic()
    iterate(plan, stage)
    taken_s = time.monotonic() - started_s
    receive.wait()
    assert time.monotonic() - started_s > DELAY_S - 1  # it did wait meanwhile
    return taken_s


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_receive_that_waits_does_not_hold_up_layers(dtype: str) -> None:
    """Nothing of an iteration waits for the device to be idle once it was rehearsed."""
    plan = on_gpus("ddp", layers=(4,), dp=1, dtype=dtype, recomputation=True)
    taken_s, _ = on_processes(2, _train_while_receiving, plan, world_type=GpuWorld)
    assert taken_s < DELAY_S / 2
