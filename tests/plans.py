"""Plans whose simulated times have closed forms, and the smallest plan that ranks can run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from netbench.network.shaping.segments import goodput_ratio
from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Layout, Plan, Transport
from netbench.scenario import load_scenario
from netbench.scenario.model import Link, Network, Setting, Workload
from netbench.simulator import Simulation, simulate
from netbench.transport.profile import load_transport
from netbench.workload.costs import Stage
from tests.networks import one_region

NO_LIMITS = load_transport("nccl").model_copy(
    update={
        "host_bps": math.inf,
        "first_window_segments": 10**9,
        "max_window_bytes": math.inf,
        "sockets": 1,
        "fifo_bytes": 1 << 50,
    }
)
"""A transport without windows or copies: links alone limit it. Headers stay."""

NO_COSTS = load_transport("nccl").model_copy(
    update={
        "header_bytes": 0,
        "ethernet_bytes": 0,
        "inside_node_bps": math.inf,
        "host_bps": math.inf,
        "max_window_bytes": math.inf,
        "first_window_segments": 10**12,
        "window_factor": 1e12,
    }
)
"""A transport without headers, copies, windows or slow start."""

FORWARD_S, BACKWARD_S = 0.01, 0.03
MESSAGE_BYTES = 8_000_000
"""Bytes of a message between stages."""
GOODPUT = goodput_ratio(1500)
"""Payload over bytes on the wire, in full frames."""


def pipeline_plan(
    variant: str,
    *,
    stages: int,
    pipelines: int = 1,
    micro_batches: int,
    delay_s: float = 0.0,
    bandwidth_bps: float = math.inf,
    speeds: tuple[float, ...] = (),
    **changes: Any,
) -> Plan:
    """Build a plan with one node per rank, even nodes in North and odd ones in South.

    All links are alike. A pass takes FORWARD_S or BACKWARD_S over the speed of its stage.
    changes: other fields of the plan.
    """
    num_ranks = stages * pipelines
    link = Link(one_way_delay_s=delay_s, bandwidth_bps=bandwidth_bps)
    plan = build_plan(
        load_scenario("gpt3-small"), variant, Setting(layers=12, batch=64, seed=1), Execution()
    )
    plan = dataclasses.replace(
        plan,
        num_rounds=1,
        activation_bytes=MESSAGE_BYTES,
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
        num_micro_batches=micro_batches,
        stages=tuple(
            Stage(
                num_layers=1,
                forward_s=FORWARD_S / speed,
                backward_s=BACKWARD_S / speed,
                optimizer_s=0.0,
                parameters=1,
                gradient_bytes=0,
            )
            for speed in speeds or (1.0,) * stages
        ),
    )
    return dataclasses.replace(plan, **changes)


def simulate_published(case: str, variant: str, batch: int = 1024) -> Simulation:
    """Simulate a published setting with 24 layers."""
    return simulate(
        build_plan(
            load_scenario(case),
            variant,
            Setting(layers=24, batch=batch, seed=2022),
            Execution(iterations=2, warmup_iterations=1),
        )
    )


def uniform_plan(
    variant: str,
    *,
    num_nodes: int = 8,
    one_way_delay_s: float = 0.0,
    bandwidth_bps: float = math.inf,
    layers: int = 8,
    batch: int = 64,
    forward_s: float = FORWARD_S,
    optimizer_s: float = 0.0,
) -> Plan:
    """Build a GPT-XL plan on identical single-device nodes, with backward = 3 x forward."""
    scenario = load_scenario("case3")
    link = Link(one_way_delay_s=one_way_delay_s, bandwidth_bps=bandwidth_bps)
    scenario = dataclasses.replace(
        scenario,
        nodes=scenario.nodes[:num_nodes],
        network=one_region(link, num_nodes, mtu_bytes=9001),
        sweep=dataclasses.replace(scenario.sweep, pipeline=0),
    )
    plan = build_plan(
        scenario,
        variant,
        Setting(layers=layers, batch=batch, seed=1),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )
    stages = tuple(
        dataclasses.replace(
            stage, forward_s=forward_s, backward_s=3 * forward_s, optimizer_s=optimizer_s
        )
        for stage in plan.stages
    )
    return dataclasses.replace(plan, stages=stages, collective_s=0.0)


def small_plan(
    *,
    system: str = "dtfm",
    pp: int = 2,
    dp: int = 2,
    forward_s: float = 0.001,
    gradient_bytes: int = 30_000,
    link: Link = Link(one_way_delay_s=0.0, bandwidth_bps=1e9),  # noqa: B008 (frozen)
    sharing: str = "pair",
    **changes: Any,
) -> Plan:
    """Build a plan with one rank per node and all nodes in one region. changes: other fields."""
    ranks = pp * dp
    stage = Stage(
        num_layers=2,
        forward_s=forward_s,
        backward_s=3 * forward_s,
        optimizer_s=0.002,
        parameters=gradient_bytes // 2,
        gradient_bytes=gradient_bytes,
    )
    plan = Plan(
        scenario="test",
        variant=system,
        system=system,
        layout=Layout(pp=pp, dp=dp),
        scheduler="identity",
        seed=0,
        placement=tuple(range(ranks)),
        device_nodes=tuple(range(ranks)),
        node_names=tuple(f"n{i}" for i in range(ranks)),
        network=one_region(link, ranks, sharing=sharing),
        workload=Workload(layers=2 * pp, hidden=8, heads=1, sequence=8, batch=16),
        schedule="gpipe" if system == "dtfm" else "1f1b",
        data_parallel="reduce-broadcast" if system == "dtfm" else "ring",
        num_rounds=1,
        num_micro_batches=4,
        stages=(stage,) * pp,
        activation_bytes=40_000,
        transport=Transport(),
        iterations=2,
        warmup_iterations=1,
        scale=1.0,
    )
    return dataclasses.replace(plan, **changes)
