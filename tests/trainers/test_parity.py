"""Every system and layout trains the model that one process trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.trainers.layouts import CASES, IN_16_BITS
from tests.trainers.parity import TOLERANCE, real_plan, reference_losses, trained_losses
from tests.trainers.rank_processes import RankProcesses

Lend = Callable[[int], AbstractContextManager[RankProcesses]]


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_one_process(lend_ranks: Lend, case: str) -> None:
    """Three steps, to rounding, in two precisions, on ranks that have trained other cases."""
    plans = {dtype: real_plan(dtype=dtype, **CASES[case]) for dtype in TOLERANCE}
    with lend_ranks(plans["fp32"].layout.num_ranks) as ranks:
        for dtype, plan in plans.items():
            losses = trained_losses(ranks, plan)
            assert losses == pytest.approx(reference_losses(plan), rel=TOLERANCE[dtype]), dtype


@pytest.mark.parametrize("case", IN_16_BITS)
def test_layers_of_16_bits_learn_as_those_of_32_do(lend_ranks: Lend, case: str) -> None:
    """With master weights. Without, Adam divides by 0 in fp16, where its epsilon is none."""
    plan = real_plan(master_weights="cpu", **IN_16_BITS[case])
    exact = dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, dtype="fp32"))
    with lend_ranks(plan.layout.num_ranks) as ranks:
        assert trained_losses(ranks, plan) == pytest.approx(reference_losses(exact), rel=1e-3)
