"""Ranks on real GPUs over real NCCL: the tests of other files, with nothing in GPUs' place.

They run wherever torch sees a GPU, one or several. The ranks of a test are nodes of their own, so
that NCCL lets them share a GPU and sends over sockets.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from netbench.cli import run
from netbench.scenario.devices import read_device_profile
from tests.trainers.gpus import device_orders, on_gpus
from tests.trainers.layouts import CASES, IN_16_BITS
from tests.trainers.parity import TOLERANCE, reference_losses, trained_losses
from tests.trainers.rank_processes import RankProcesses

# Counted without starting CUDA, which a forked process could not use then.
if not torch.cuda.device_count():
    pytest.skip("torch sees no GPU", allow_module_level=True)

Lend = Callable[[int], AbstractContextManager[RankProcesses]]


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


@pytest.mark.parametrize("case", ["dtfm", "ddp with gloo's all-reduce", "zero3"])
def test_tensors_of_gpus_travel_over_gloo_through_host_memory(
    start_ranks: Callable[[int], RankProcesses], case: str
) -> None:
    plan = on_gpus(dtype="fp64", **{**CASES[case], "backend": "gloo"})
    ranks = start_ranks(plan.layout.num_ranks)
    ranks.connect(device_orders(plan.layout.num_ranks, backend="gloo"))
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
    # Not asked of torch: this process must not start CUDA, for others are forked from it.
    names = subprocess.check_output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    assert names.decode().splitlines()[0] in path.read_text()
