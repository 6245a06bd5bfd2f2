"""Stages alone: backward passes in two parts, shards, master weights; what virtual ones take."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest
import torch

from netbench.errors import TestbedError
from netbench.trainers.layers.gpt import GPTBlock
from netbench.trainers.layers.real import SGD_LEARNING_RATE, RealStage
from netbench.trainers.layers.stage import StageRole, build_stage
from tests.trainers.parity import WORKLOAD, real_plan

SHAPE = (WORKLOAD.micro_batch, WORKLOAD.sequence, WORKLOAD.hidden)


def real_stage(index: int = 1, shard: tuple[int, int] = (0, 1), **changes: Any) -> RealStage:
    """One of three parts: two blocks."""
    plan = real_plan("dtfm", layers=(2, 2, 2), dp=1, **changes)
    dtype = {"fp64": torch.float64, "bf16": torch.bfloat16}[plan.workload.dtype]
    return RealStage(
        plan,
        StageRole(index=index, replica=0, gradient_dtype=dtype, gradient_messages=1, shard=shard),
    )


def boundary(seed: int) -> torch.Tensor:
    """A boundary tensor in fp64, as it comes from another stage."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, generator=random, dtype=torch.float64).view(-1).view(torch.uint8)


@pytest.mark.parametrize("recomputation", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_gradients_of_inputs_and_weights_apart_are_those_of_one_backward_pass(
    index: int, *, recomputation: bool
) -> None:
    """Three micro-batches, the weights' in another order than the inputs'; of the first part, the
    middle, and the last, which ends in a loss."""
    whole = real_stage(index, dtype="fp64", recomputation=recomputation)
    split = real_stage(index, dtype="fp64", recomputation=recomputation, schedule="zero-bubble")
    entries = [boundary(i) if index > 0 else None for i in range(3)]
    above = [boundary(10 + i) if index < 2 else None for i in range(3)]
    for stage in (whole, split):
        for i in range(3):
            stage.forward(i, entries[i])
    expected = [whole.backward(i, above[i]) for i in range(3)]
    assert whole.gradients.count_nonzero() > 0.5 * whole.gradients.numel()
    for i in range(3):
        found = split.backward_input(i, above[i]).view(torch.float64)
        assert torch.equal(found, expected[i].view(torch.float64))
    assert not split.gradients.any()
    for i in (2, 0, 1):
        split.backward_weight(i)
    torch.testing.assert_close(split.gradients, whole.gradients, rtol=1e-12, atol=1e-15)


def test_both_halves_of_a_backward_pass_need_one_recomputation() -> None:
    """Every block runs twice per micro-batch: forward, and again before its backward pass."""
    stage = real_stage(dtype="fp64", recomputation=True, schedule="zero-bubble")
    blocks = [layer for layer in stage.layers if isinstance(layer, GPTBlock)]
    calls: list[object] = []
    for block in blocks:
        block.register_forward_hook(lambda *_: calls.append(None))
    stage.forward(0, boundary(0))
    stage.backward_input(0, boundary(1))
    stage.backward_weight(0)
    assert len(calls) == 2 * len(blocks) == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported() -> None:
    """The message says what to do instead. No layer is built before."""
    with pytest.raises(TestbedError, match="no CUDA device here; choose cpu"):
        real_stage(dtype="fp64", compute="cuda")


def test_a_shard_of_a_server_updates_its_part_of_the_parameters() -> None:
    """And nothing else: with SGD, p - rate x g."""
    stage = real_stage(shard=(1, 3), dtype="fp64")
    before, size = stage.parameters.clone(), stage.parameters.numel()
    stage.gradients.fill_(1.0)
    stage.update()
    start, stop = size // 3, size * 2 // 3
    assert torch.equal(stage.parameters[:start], before[:start])
    assert torch.equal(stage.parameters[stop:], before[stop:])
    moved = before[start:stop] - SGD_LEARNING_RATE
    torch.testing.assert_close(stage.parameters[start:stop], moved, rtol=0, atol=1e-15)


def test_master_weights_keep_what_half_precision_would_round_away() -> None:
    """64 small steps: together those of an fp32 copy, of which bf16 shows the nearest; in bf16
    alone the weights that are larger than 128 steps never move."""
    alone, kept = (real_stage(dtype="bf16", master_weights=where) for where in ("", "cpu"))
    assert torch.equal(alone.parameters, kept.parameters)
    before = kept.parameters.clone()
    gradient = torch.tensor(1e-3, dtype=torch.bfloat16)
    exact = before.float()
    for _ in range(64):
        for stage in (alone, kept):
            stage.gradients.fill_(gradient)
            stage.update()
        exact -= SGD_LEARNING_RATE * gradient.float()
    assert kept.parameters.dtype == torch.bfloat16
    assert torch.equal(kept.parameters, exact.bfloat16())
    large = before.abs() > 0.1
    assert large.any()
    assert torch.equal(alone.parameters[large], before[large])
    assert not torch.equal(kept.parameters[large], before[large])


def test_master_weights_go_on_from_what_is_loaded() -> None:
    """A step of SGD from given parameters, not from those before."""
    stage = real_stage(dtype="bf16", master_weights="cpu")
    given = torch.linspace(-1, 1, stage.parameters.numel(), dtype=torch.float64)
    stage.load(given)
    stage.gradients.fill_(1.0)
    stage.update()
    assert torch.equal(stage.parameters, (given.float() - SGD_LEARNING_RATE).bfloat16())


@pytest.mark.parametrize(("chunks", "share"), [(1, 1.0), (2, 0.5)])
def test_a_virtual_stage_computes_what_the_plan_says(chunks: int, share: float) -> None:
    """Gradients of weights take a forward pass's time out of the backward pass; a chunk takes its
    share of the stage; a shard is updated in its share of the time."""
    plan = real_plan("dtfm", layers=(2, 2), compute="virtual", num_chunks=chunks)
    cost = dataclasses.replace(plan.stages[0], forward_s=0.1, backward_s=0.3, optimizer_s=0.8)
    plan = dataclasses.replace(plan, stages=(cost, cost))
    part = StageRole(
        index=1, replica=0, gradient_dtype=torch.float32, gradient_messages=1, updating=2,
        shard=(0, 4),
    )  # fmt: skip
    stage = build_stage(plan, part)
    slept_s: list[float] = []
    with mock.patch("time.sleep", slept_s.append):
        stage.forward(0, None)
        stage.backward(0, None)
        stage.backward_input(0, None)
        stage.backward_weight(0)
        stage.update()
    assert slept_s == pytest.approx([s * share for s in (0.1, 0.3, 0.2, 0.1, 0.8 * 2 / 4)])
