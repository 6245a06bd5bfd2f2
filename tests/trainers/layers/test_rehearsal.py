"""A rehearsal needs no other rank, and runs all that a rank will run."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest

from netbench.plan.model import Plan
from netbench.trainers import rank as ranks
from netbench.trainers.layers import rehearsal
from netbench.trainers.layers.rehearsal import SEQUENCE, rehearse
from netbench.trainers.layers.stage import build_stage
from tests.trainers.layouts import CASES, IN_16_BITS
from tests.trainers.parity import real_plan


def watched(plan: Plan) -> Any:
    """The stage of a rehearsal. `before`: its parameters at first. `done`: names of its passes."""
    built: list[Any] = []

    def build(*arguments: Any) -> Any:
        stage: Any = build_stage(*arguments)
        stage.before, stage.done = stage.parameters.clone(), []
        for name in ("forward", "backward", "update"):
            setattr(stage, name, noted(stage.done, name, getattr(stage, name)))
        built.append(stage)
        return stage

    with mock.patch.object(rehearsal, "build_stage", build):
        rehearse(plan)
    (stage,) = built
    return stage


def noted(done: list[str], name: str, call: Any) -> Any:
    def noting(*arguments: Any) -> Any:
        done.append(name)
        return call(*arguments)

    return noting


@pytest.mark.parametrize("changes", [*CASES.values(), *IN_16_BITS.values()], ids=str)
def test_a_small_model_of_a_layer_is_trained(changes: dict[str, Any]) -> None:
    """Whatever the system and layout, in one process: each pass once, in the plan's data type."""
    plan = real_plan(**changes)
    stage = watched(plan)
    assert stage.done == ["forward", "backward", "update"]
    assert len(stage.layers) == 3  # embedding, block, head
    assert stage.take_loss() > 0
    assert str(stage.parameters.dtype).endswith(
        {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[plan.workload.dtype]
    )
    # Not in 16 bits without a master copy: SGD's steps may be smaller than a bit.
    if plan.workload.dtype == "fp32":
        assert (stage.parameters != stage.before).any()


def test_a_model_that_fills_a_gpu_is_rehearsed_in_little_memory() -> None:
    """128 sequences of 65,536 tokens, hidden size 4096, become one head and 128 tokens."""
    plan = real_plan(
        "megatron", batch=256, micro_batch=128, sequence=1 << 16, hidden=4096, heads=32
    )
    plan = dataclasses.replace(plan, token_file="/no/such/file")
    stage = watched(plan)
    assert stage.layers[1].query.in_features == 128
    assert stage.layers[1].heads == 1
    assert stage.layers[0].positions.num_embeddings == SEQUENCE
    assert sum(parameter.numel() for parameter in stage.layers.parameters()) < 1e6


@pytest.mark.parametrize(("compute", "count"), [("cuda", 1), ("cpu", 0), ("virtual", 0)])
def test_only_ranks_on_gpus_rehearse(compute: str, count: int) -> None:
    """Before their trainer is built."""
    plan = dataclasses.replace(real_plan("megatron", layers=(2,), dp=1), compute=compute)
    rank: Any = ranks.Rank(mock.Mock(), 0)
    rank._world = mock.Mock(size=1)
    done: list[Plan] = []
    with (
        mock.patch.object(rehearsal, "rehearse", done.append),
        mock.patch.object(ranks, "experiment_from_json", return_value=plan),
        mock.patch.object(ranks, "build_trainer", return_value=mock.Mock(address=None, rates={})),
    ):
        rank._prepare({"plan": ""})
    assert done == [plan] * count
