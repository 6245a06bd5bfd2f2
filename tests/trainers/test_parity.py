"""Every system and layout trains the model that one process trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.trainers.conftest import RankProcesses
from tests.trainers.parity import TOLERANCE, real_plan, reference_losses, trained_losses

Start = Callable[[int], RankProcesses]

CASES: dict[str, dict[str, Any]] = {
    "dtfm": {"system": "dtfm"},
    "dtfm in two rounds": {"system": "dtfm", "num_rounds": 2},
    "dtfm, uneven, one pipeline": {"system": "dtfm", "layers": (3, 1, 2), "dp": 1},
    "dtfm, anywhere": {"system": "dtfm", "placement": (2, 0, 3, 1)},
    "megatron": {"system": "megatron"},
    "megatron, uneven, three replicas": {"system": "megatron", "layers": (1, 2), "dp": 3,
                                         "batch": 12},
    "megatron, recomputed, anywhere": {"system": "megatron", "recomputation": True,
                                       "placement": (3, 1, 0, 2)},
    "megatron, micro-batches of 2": {"system": "megatron", "micro_batch": 2},
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_one_process(start_ranks: Start, case: str, dtype: str) -> None:
    """Five steps, to rounding."""
    plan = real_plan(dtype=dtype, **CASES[case])
    ranks = start_ranks(plan.layout.num_ranks)
    ranks.connect()
    losses = trained_losses(ranks, plan)
    assert losses == pytest.approx(reference_losses(plan), rel=TOLERANCE[dtype])
