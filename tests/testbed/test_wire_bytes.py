"""Bytes on the wire in the guest: every rank sends what its algorithm says, and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from netbench.plan.model import Plan
from tests.testbed.uniform import NUM_NODES, run_uniform

pytestmark = pytest.mark.guest

WORKLOAD = "{layers: 8, hidden: 256, heads: 8, sequence: 512, batch: 16, dtype: fp16}"

MOST_HEADERS = 0.03
"""Tolerance of sent bytes. An interface counts a packet before it is cut into frames, up to 64 KiB
with one header of 66 bytes; acknowledgements are the rest."""


def boundaries(plan: Plan) -> float:
    """Two stages: the first sends every micro-batch's activations, the second the same number of
    gradients."""
    return plan.num_rounds * plan.num_micro_batches * plan.activation_bytes


def dtfm(plan: Plan) -> float:
    """Two replicas: one sends its gradients, the other the parameters."""
    return boundaries(plan) + plan.stages[0].gradient_bytes


def megatron(plan: Plan) -> float:
    """A ring all-reduce of n sends 2 (n - 1) / n of the gradients from every rank."""
    n = plan.layout.dp
    return boundaries(plan) + 2 * (n - 1) / n * plan.stages[0].gradient_bytes


def zero3(plan: Plan) -> float:
    """Every micro-step gathers the parameters once, for all stay live, and scatters gradients."""
    n = plan.layout.dp
    return plan.num_micro_batches * 2 * (n - 1) / n * plan.stages[0].gradient_bytes


def ddp(plan: Plan) -> float:
    """All-reduced bucket by bucket, or to a server for every part and back: as much."""
    n = plan.layout.dp
    return 2 * (n - 1) / n * plan.stages[0].gradient_bytes


CLOSED_FORMS: Mapping[str, Callable[[Plan], float]] = {
    "dtfm-scheduled": dtfm,
    "megatron": megatron,
    "deepspeed-pp": megatron,
    "zero3": zero3,
    "hivemind-sync": ddp,
    "diloco-h1": ddp,
    "ddp": ddp,
    "ddp-sharded-ps": ddp,
}


def test_ranks_send_what_their_algorithms_say(tmp_path: Path) -> None:
    """At full size, in every iteration, warm or not: at least the payload, and little more."""
    found = run_uniform(tmp_path, tuple(CLOSED_FORMS), speed="10TFLOPS", workload=WORKLOAD, depth=2)
    for plan, record in found:
        assert plan.scale == 1
        payload_bytes = CLOSED_FORMS[record.variant](plan)
        assert len(record.sent_bytes) == NUM_NODES
        for sent_bytes in record.sent_bytes:
            assert 1 < sent_bytes / payload_bytes < 1 + MOST_HEADERS, record.variant
