"""Ranks on real GPUs over real NCCL: the tests of other files, with nothing in GPUs' place.

They run wherever torch sees a GPU, one or several. The ranks of a test are nodes of their own, so
that NCCL lets them share a GPU and sends over sockets.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from netbench.cli import run
from netbench.plan.model import Plan
from netbench.scenario.devices import read_device_profile
from netbench.trainers.calibrate import iterate
from netbench.trainers.communication import nccl
from netbench.trainers.communication.collectives import tree_all_reduce, tree_lanes, tree_peers
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.nccl import CudaDevice, NcclWorld
from netbench.trainers.communication.world import TAG_PIPELINE, World
from netbench.trainers.layers.rehearsal import rehearse
from netbench.trainers.layers.stage import StageRole, build_stage, gradient_dtype
from tests.trainers.communication.every_collective import inputs, run_all
from tests.trainers.gpus import device_orders
from tests.trainers.layouts import CASES, IN_16_BITS
from tests.trainers.parity import TOLERANCE, real_plan, reference_losses, trained_losses
from tests.trainers.processes import on_processes
from tests.trainers.rank_processes import RankProcesses

# Counted without starting CUDA, which a forked process could not use then.
if not torch.cuda.device_count():
    pytest.skip("torch sees no GPU", allow_module_level=True)

Lend = Callable[[int], AbstractContextManager[RankProcesses]]


def on_gpus(system: str, **changes: Any) -> Plan:
    """`real_plan` on GPUs."""
    return dataclasses.replace(real_plan(system, **changes), compute="cuda")


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
"""A message is sent so long after its receiver posted it, and computed meanwhile."""


def _train_while_receiving(found: World, plan: Plan) -> float:
    """Seconds of an iteration, while a receive of process 0 waits for process 1."""
    found.warm([1 - found.rank])
    rehearse(plan)
    stage = build_stage(
        plan,
        StageRole(index=0, replica=0, gradient_dtype=gradient_dtype(plan), gradient_messages=1),
    )
    message = torch.zeros(1000, device="cuda")
    if found.rank:
        time.sleep(DELAY_S)
        found.send(message, 0, TAG_PIPELINE).wait()
        return 0.0
    receive = found.receive(message, 1, TAG_PIPELINE)
    started_s = time.monotonic()
    iterate(plan, stage)
    taken_s = time.monotonic() - started_s
    receive.wait()
    return taken_s


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_receive_that_waits_does_not_hold_up_layers(dtype: str) -> None:
    """Nothing of an iteration waits for the device to be idle once it was rehearsed."""
    plan = on_gpus("ddp", layers=(4,), dp=1, dtype=dtype, recomputation=True)
    taken_s, _ = on_processes(2, _train_while_receiving, plan, world_type=GpuWorld)
    assert taken_s < DELAY_S / 2


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_one_process(lend_gpu_ranks: Lend, case: str) -> None:
    """Three steps in fp64, whose rounding does not depend on the kernels that add."""
    plan = on_gpus(dtype="fp64", **CASES[case])
    with lend_gpu_ranks(plan.layout.num_ranks) as ranks:
        losses = trained_losses(ranks, plan)
    assert losses == pytest.approx(reference_losses(plan), rel=TOLERANCE["fp64"])


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("case", IN_16_BITS)
def test_layers_of_16_bits_learn_as_those_of_32_do(
    lend_gpu_ranks: Lend, case: str, where: str
) -> None:
    plan = on_gpus(master_weights=where, **IN_16_BITS[case])
    exact = dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, dtype="fp32"))
    with lend_gpu_ranks(plan.layout.num_ranks) as ranks:
        assert trained_losses(ranks, plan) == pytest.approx(reference_losses(exact), rel=1e-3)


def test_tensors_of_gpus_travel_over_gloo_through_host_memory(lend_gpu_ranks: Lend) -> None:
    plan = on_gpus("ddp", layers=(4,), dp=4, backend="gloo", dtype="fp64")
    with lend_gpu_ranks(4) as ranks:
        losses = trained_losses(ranks, plan)
    assert losses == pytest.approx(reference_losses(plan), rel=TOLERANCE["fp64"])


def test_the_spans_of_a_traced_iteration_are_within_it(lend_gpu_ranks: Lend) -> None:
    """Every pass and the update; each ends when the GPU has done its work."""
    plan = on_gpus("megatron")
    with lend_gpu_ranks(plan.layout.num_ranks) as ranks:
        hashed = ranks.prepare(plan)
        ranks.run(hashed, 0)
        for answer in ranks.run(hashed, 1, trace=True):
            kinds = [kind for kind, *_ in answer["events"]]
            assert kinds.count("forward") == kinds.count("backward") == plan.num_micro_batches
            assert kinds.count("optimizer") == 1
            took_s = answer["end_s"] - answer["start_s"]
            assert sum(answer["phases"].values()) == pytest.approx(took_s, abs=2e-3)
            ends = [end for kind, _, end, _ in answer["events"] if kind != "send"]
            assert max(ends) <= took_s + 1e-3 + answer["events"][0][1]


def test_a_model_that_does_not_fit_the_gpu_is_told_so(
    start_ranks: Callable[[int], RankProcesses],
) -> None:
    """A boundary tensor has 34 GB: 128 sequences of 65,536 tokens, hidden size 1024, fp32."""
    plan = on_gpus(
        "ddp", layers=(1,), dp=1, batch=128, micro_batch=128, sequence=1 << 16, hidden=1024
    )
    ranks = start_ranks(1)
    ranks.connect(device_orders(1))
    hashed = ranks.prepare(plan)
    ranks.send(0, op="run", plan_hash=hashed, iteration=0, start_at=0.0)
    (answer,) = ranks.all("error")
    assert "out of memory" in answer["message"]


def test_calibrate_measures_a_gpu(tmp_path: Path) -> None:
    """Exit code 3: times were unstable, as on a GPU that others use."""
    path = tmp_path / "gpu.yaml"
    arguments = ["--device", "cuda", "--hidden", "512,1024", "--quick", "--time", "10"]
    assert run(["calibrate", *arguments, "--output", os.fspath(path)]) in (0, 3)
    profile = read_device_profile("gpu", path)
    assert profile.memory_bytes > 1 << 30
    assert torch.cuda.get_device_name(0) in path.read_text()
