"""Networks, scenarios and plans of equal machines with one root netem each.

All destinations of a machine share its egress, `rate` behind `delay`. Its NIC of 10 Gbit/s limits
what it receives.
"""

import dataclasses
from functools import cache

from netbench.plan.benchmark import CollectivePlan, uniform_network
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.devices import load_device_profile
from netbench.scenario.model import Network, Workload

NIC_BPS, MTU_BYTES = 10e9, 9001
"""Source: results/published/README.md (AWS)."""

HOST_BPS = 17.2e9
"""Limit of the 8 vCPUs of a p3.2xlarge, bit/s of payload. Source: scenarios/case2.yaml."""

OPS = {
    "allreduce": "all-reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "dp-allreduce": "all-reduce",
    "dp-central-ps": "central-ps",
    "dp-sharded-ps": "sharded-ps",
}
"""Published operation -> netbench's."""

IN_PARTS = "dp-"
"""Beginning of the operations that n machines divide into n parts, one after another."""

Link = tuple[float, float]
"""One-way delay in ms, rate in Gbit/s."""

NETWORKS: tuple[Link, ...] = ((0.05, 10), (1, 5), (5, 2), (10, 1), (50, 1))
"""The published networks; the first is the LAN, not shaped."""


def network_name(link: Link) -> str:
    """Return e.g. `5 ms 2 Gbit/s`."""
    return f"{link[0]:g} ms {link[1]:g} Gbit/s"


def root_netem(num_nodes: int, link: Link) -> Network:
    """Return the network of `num_nodes` machines."""
    delay_ms, rate_gbps = link
    network = uniform_network(
        num_nodes,
        one_way_delay_s=delay_ms / 1e3,
        bandwidth_bps=rate_gbps * 1e9,
        sharing="class",
        mtu_bytes=MTU_BYTES,
    )
    return dataclasses.replace(
        network,
        sharing="class-nic",
        nic_bps=(NIC_BPS,) * num_nodes,
        host_bps=(HOST_BPS,) * num_nodes,
    )


def collective(op: str, num_nodes: int, link: Link, backend: str, size_mib: int) -> CollectivePlan:
    """Return the plan of a published operation."""
    return CollectivePlan(
        op=OPS[op],
        num_nodes=num_nodes,
        payload_bytes=size_mib << 20,
        backend=backend,
        network=root_netem(num_nodes, link),
        iterations=1,
        warmup_iterations=0,
    )


def machines(name: str, num_nodes: int, link: Link, workload: Workload, depth: int) -> Scenario:
    """Return a scenario of machines with a built-in V100 each, in pipelines of `depth` stages."""
    small = _small()
    node = small.nodes[0]
    return dataclasses.replace(
        small,
        name=name,
        path="",
        network=dataclasses.replace(root_netem(num_nodes, link), regions=small.network.regions),
        devices={node.device: load_device_profile(node.device)},
        nodes=tuple(
            dataclasses.replace(node, name=f"node{index}", nic_bps=NIC_BPS, host_bps=HOST_BPS)
            for index in range(num_nodes)
        ),
        workload=workload,
        sweep=dataclasses.replace(small.sweep, pipeline=depth, networks=(), micro_batch=()),
    )


def small_workload() -> Workload:
    """Return the workload of GPT-3 small."""
    return _small().workload


@cache
def _small() -> Scenario:
    return load_scenario("gpt3-small")
