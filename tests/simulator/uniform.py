"""Plans on a uniform network, for closed forms."""

from __future__ import annotations

import dataclasses
import math

from netbench.plan import Plan, build_plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Link, Network
from netbench.simulator import TransportProfile

FREE = TransportProfile(
    header_bytes=0,
    ethernet_bytes=0,
    inside_node_bps=math.inf,
    host_bps=math.inf,
    max_window_bytes=math.inf,
    first_window_segments=10**12,
    window_factor=1e12,
)
"""A library that costs nothing: no copies, no windows, no slow start."""


def uniform_plan(
    variant: str,
    *,
    num_nodes: int = 8,
    one_way_delay_s: float = 0.0,
    bandwidth_bps: float = math.inf,
    layers: int = 8,
    batch: int = 64,
    forward_s: float = 0.01,
    backward_s: float = 0.03,
    optimizer_s: float = 0.0,
) -> Plan:
    """A GPT-XL plan on single-device nodes that are all alike, with the given stage times."""
    scenario = load_scenario("case3")
    link = Link(one_way_delay_s=one_way_delay_s, bandwidth_bps=bandwidth_bps)
    network = Network(
        regions=("here",),
        links=((link,),),
        node_regions=(0,) * num_nodes,
        sharing="pair",
        nic_bps=(math.inf,) * num_nodes,
        mtu_bytes=9001,
    )
    scenario = dataclasses.replace(
        scenario,
        nodes=scenario.nodes[:num_nodes],
        network=network,
        sweep=dataclasses.replace(scenario.sweep, pipeline=0),
    )
    plan = build_plan(scenario, variant, layers, batch, 1, 2, 1, scale=1.0)
    stages = tuple(
        dataclasses.replace(
            stage, forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s
        )
        for stage in plan.stages
    )
    return dataclasses.replace(plan, stages=stages, collective_s=0.0)
