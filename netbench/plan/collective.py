"""One collective or transfer on one network.

`CollectivePlan` travels where `Plan` does (see `experiment`), so it has the same names for what a
session needs: scenario, variant, system, node_names, device_nodes, iterations, scale.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from netbench.errors import PlanError, nearest
from netbench.scenario.model import SHARING, Link, Network, Scenario
from netbench.units import counted

COLLECTIVE_SCHEMA_VERSION = 1

SYSTEM = "collective"
"""What tells the JSON of a collective plan from that of a training plan."""

OPS = (
    "p2p",
    "all-reduce",
    "broadcast",
    "reduce",
    "all-gather",
    "reduce-scatter",
    "central-ps",
    "sharded-ps",
)
"""p2p: rank 0 sends to rank 1. central-ps: reduce to rank 0, then broadcast from it. sharded-ps:
all-to-all of gradient shards, sum, all-gather of parameters."""

BACKENDS = ("gloo", "nccl")

ELEMENT_BYTES = 4
"""Tensors are float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectivePlan:
    """An op, one rank per node. Raises PlanError for what cannot be run.

    payload_bytes: what one rank sends (p2p, broadcast), holds (all-reduce, reduce, central-ps,
    sharded-ps), ends with (all-gather) or starts with (reduce-scatter): the size that nccl-tests
    calls S. iterations includes the first `warmup_iterations`. scale: bytes and bandwidths are
    divided by it. scenario: where the network comes from.
    """

    schema_version: int = COLLECTIVE_SCHEMA_VERSION
    system: str = SYSTEM
    scenario: str = "uniform"
    op: str
    num_nodes: int
    payload_bytes: int
    backend: str
    network: Network
    iterations: int
    warmup_iterations: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        for what, found, known in (("op", self.op, OPS), ("backend", self.backend, BACKENDS)):
            if found not in known:
                raise PlanError(f'{what} "{found}" is unknown; {nearest(found, known)}')
        if self.num_nodes < 2:
            raise PlanError(
                f"{counted(self.num_nodes, 'node')}: expected at least 2, to send between"
            )
        if self.num_nodes != self.network.num_nodes:
            raise PlanError(
                f"{self.num_nodes} nodes on a network of {self.network.num_nodes}; "
                "expected one network node each"
            )
        if self.payload_bytes < 1:
            raise PlanError(f"payload is {self.payload_bytes} bytes; expected at least 1")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise PlanError(f"scale is {self.scale}; expected a number above 0")
        if not 0 <= self.warmup_iterations < self.iterations:
            raise PlanError(
                f"{self.warmup_iterations} of {self.iterations} iterations are warm-up; "
                "expected at least one iteration that is not"
            )

    @property
    def variant(self) -> str:
        return self.op

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{i}" for i in range(self.num_nodes))

    @property
    def device_nodes(self) -> tuple[int, ...]:
        return tuple(range(self.num_nodes))

    @property
    def shard_elements(self) -> int:
        """Elements of one rank's shard, scaled: the payload is rounded up to `num_nodes` shards."""
        return math.ceil(self.payload_bytes / self.scale / ELEMENT_BYTES / self.num_nodes)


def uniform_network(
    num_nodes: int,
    *,
    one_way_delay_s: float,
    bandwidth_bps: float,
    sharing: str = "pair",
    mtu_bytes: int = 1500,
) -> Network:
    """Equal links between all nodes. bandwidth_bps: of each pair, of each class of destinations
    (here: all of them), or of each node's NIC, as `sharing` says."""
    if sharing not in SHARING:
        raise PlanError(f'sharing "{sharing}" is unknown; {nearest(sharing, SHARING)}')
    if one_way_delay_s == 0 and bandwidth_bps == math.inf:
        raise PlanError(
            "no delay and an unlimited rate: nothing would take any time; give one of them"
        )
    link_bps, nic_bps = (math.inf, bandwidth_bps) if sharing == "nic" else (bandwidth_bps, math.inf)
    return Network(
        regions=("everywhere",),
        links=((Link(one_way_delay_s=one_way_delay_s, bandwidth_bps=link_bps),),),
        node_regions=(0,) * num_nodes,
        sharing=sharing,
        nic_bps=(nic_bps,) * num_nodes,
        mtu_bytes=mtu_bytes,
    )


def first_nodes(scenario: Scenario, num_nodes: int) -> Network:
    """The network of a scenario's first nodes, without the regions that none of them is in."""
    network = scenario.network
    if num_nodes > network.num_nodes:
        raise PlanError(
            f"scenario {scenario.name} has {network.num_nodes} nodes, {num_nodes} were asked for; "
            "give fewer --nodes or another --scenario"
        )
    kept = sorted(set(network.node_regions[:num_nodes]))
    return dataclasses.replace(
        network,
        regions=tuple(network.regions[region] for region in kept),
        links=tuple(tuple(network.links[src][dst] for dst in kept) for src in kept),
        node_regions=tuple(kept.index(region) for region in network.node_regions[:num_nodes]),
        nic_bps=network.nic_bps[:num_nodes],
    )


def held_bytes(plan: CollectivePlan) -> int:
    """Tensors that one rank holds at once, those that torch's gloo makes included.

    gloo's reduce-scatter works on a copy of its input, its all-gather fills a flat copy of its
    output, and a ring keeps two segments of at most 1 MiB.
    """
    shard = plan.shard_elements * ELEMENT_BYTES
    full = shard * plan.num_nodes
    return {
        "all-gather": 2 * full + shard,
        "reduce-scatter": 2 * full + shard,
        "sharded-ps": 3 * full + shard,
    }.get(plan.op, full)
