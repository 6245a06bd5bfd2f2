"""Bytes and utilisation of links, against what plans send."""

from __future__ import annotations

import pytest

from netbench.explain.usage import links
from netbench.simulator import simulate
from netbench.systems import system_of
from tests.plans import GOODPUT, MESSAGE_BYTES, NO_LIMITS, pipeline_plan, simulate_published


def test_use_of_a_link_is_its_bytes_over_what_it_could_carry() -> None:
    """Activations go one way, gradients the other."""
    m, rate = 8, 1e9
    plan = pipeline_plan(
        "dtfm-scheduled", stages=2, num_rounds=2, micro_batches=m, delay_s=0.02, bandwidth_bps=rate
    )
    simulation = simulate(plan, NO_LIMITS)
    uses = links(simulation)
    assert [(use.kind, use.name) for use in uses] == [
        ("pair", "node0 -> node1"),
        ("pair", "node1 -> node0"),
    ]
    for use in uses:
        assert use.payload_bytes == pytest.approx(2 * m * MESSAGE_BYTES)
        assert use.capacity_bps == pytest.approx(rate * GOODPUT)
        share = 8 * 2 * m * MESSAGE_BYTES / (rate * GOODPUT) / simulation.iteration_s
        assert use.utilisation == pytest.approx(share)


@pytest.mark.parametrize(
    ("case", "variant"),
    [
        ("case3", "dtfm-scheduled"),
        ("case5", "dtfm-random"),
        ("case3", "megatron-p8"),
        ("case1", "megatron-p2t4"),
        ("case3", "ddp"),
        ("case3", "ddp-sharded-ps"),
    ],
)
def test_links_carry_what_the_plan_sends(case: str, variant: str) -> None:
    """All connections together, against the closed form of `netbench.plan.build`."""
    simulation = simulate_published(case, variant)
    sent = sum(
        u.payload_bytes for u in links(simulation) if u.kind in ("host", "channels", "inside")
    )
    assert sent == pytest.approx(
        system_of(simulation.plan).iteration_bytes(simulation.plan), rel=1e-9
    )


def test_zero3_sends_live_parameters_once_and_others_twice_per_micro_step() -> None:
    """Case 3: 22 of 24 layers fit 1.2e9 live parameters with 64e6 of embeddings. Each of 4
    micro-steps gathers them once and the matrices of 2 layers twice, and scatters all gradients."""
    simulation = simulate_published("case3", "zero3")
    layer, matrices, embedding = 12 * 2048**2 + 13 * 2048, 12 * 2048**2, 64_000_000
    live = (12 * 10**8 - embedding) // layer
    gathered = 4 * (live * layer + embedding + 2 * (24 - live) * matrices)
    scattered = 4 * (24 * layer + embedding)
    sent = sum(u.payload_bytes for u in links(simulation) if u.kind in ("host", "channels"))
    assert sent == pytest.approx(63 * 2 * (gathered + scattered), rel=1e-9)
