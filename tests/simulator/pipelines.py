"""Pipelines whose times have closed forms, and plans of the published cases, simulated."""

from __future__ import annotations

import dataclasses
import math

from netbench.plan import Plan, build_plan
from netbench.plan.model import Layout
from netbench.scenario import load_scenario
from netbench.scenario.model import Link, Network
from netbench.simulator import Simulation, TransportProfile, simulate
from netbench.workload.costs import Stage

FREE = TransportProfile(
    host_bps=math.inf,
    first_window_segments=10**9,
    max_window_bytes=math.inf,
    sockets=1,
    fifo_bytes=1 << 50,
)
"""No transport limits: what is left is the links."""

F, B = 0.01, 0.03  # seconds of a forward and a backward pass
SIZE = 8_000_000  # bytes of a message between stages
GOODPUT = (1500 - 52) / (1500 + 14)


def pipeline(
    variant: str,
    *,
    stages: int,
    pipelines: int = 1,
    rounds: int = 1,
    micro_batches: int,
    delay_s: float = 0.0,
    bandwidth_bps: float = math.inf,
    speeds: tuple[float, ...] = (),
    optimizer_s: float = 0.0,
    gradient_bytes: int = 0,
    message_bytes: int = SIZE,
) -> Plan:
    """A plan with passes of F and B seconds over a stage's speed, a node per rank in two regions:
    even nodes in North, odd ones in South, all links alike."""
    num_ranks = stages * pipelines
    link = Link(one_way_delay_s=delay_s, bandwidth_bps=bandwidth_bps)
    plan = build_plan(load_scenario("gpt3-small"), variant, 12, 64, 1, 1, 0)
    return dataclasses.replace(
        plan,
        layout=Layout(pp=stages, dp=pipelines),
        placement=tuple(range(num_ranks)),
        device_nodes=tuple(range(num_ranks)),
        node_names=tuple(f"node{rank}" for rank in range(num_ranks)),
        network=Network(
            regions=("North", "South"),
            links=((link, link), (link, link)),
            node_regions=tuple(rank % 2 for rank in range(num_ranks)),
            sharing="pair",
            nic_bps=(math.inf,) * num_ranks,
        ),
        num_rounds=rounds,
        num_micro_batches=micro_batches,
        activation_bytes=message_bytes,
        stages=tuple(
            Stage(
                num_layers=1,
                forward_s=F / speed,
                backward_s=B / speed,
                optimizer_s=optimizer_s,
                parameters=1,
                gradient_bytes=gradient_bytes,
            )
            for speed in speeds or (1.0,) * stages
        ),
    )


def published(case: str, variant: str, batch: int = 1024) -> Simulation:
    return simulate(build_plan(load_scenario(case), variant, 24, batch, 2022, 2, 1))
