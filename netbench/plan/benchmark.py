"""A plan of one collective or transfer on one network, for `netbench collective`.

A `CollectivePlan` travels where a `Plan` does (see `experiment`), so it has the same names for what
a session needs: scenario, variant, system, node_names, device_nodes, iterations, scale.
"""

import dataclasses
import math
from dataclasses import dataclass

from netbench.errors import PlanError, nearest
from netbench.plan.collectives import COLLECTIVES
from netbench.scenario.model import Link, Network, Scenario
from netbench.scenario.sharing import SHARING
from netbench.units import counted

COLLECTIVE_SCHEMA_VERSION = 1

SYSTEM = "collective"
"""Value of `system` that marks a plan as a `CollectivePlan`."""

OPS = tuple(name for name, collective in COLLECTIVES.items() if collective.is_benchmark)
"""Collectives that `netbench collective` offers."""

BACKENDS = ("gloo", "nccl")

ELEMENT_BYTES = 4
"""Tensors are float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectivePlan:
    """An op with one rank per node. Raises PlanError for values that cannot be run.

    payload_bytes: bytes that one rank sends (p2p, broadcast), holds (all-reduce, reduce,
    central-ps, sharded-ps), ends with (all-gather) or starts with (reduce-scatter): the size that
    nccl-tests calls S. iterations includes the first `warmup_iterations`. scale: bytes and
    bandwidths are divided by it. scenario: the source of the network.
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
        """Elements of one rank's shard, scaled. The payload is rounded up to `num_nodes` shards."""
        return math.ceil(self.payload_bytes / self.scale / ELEMENT_BYTES / self.num_nodes)


def uniform_network(
    num_nodes: int,
    *,
    one_way_delay_s: float,
    bandwidth_bps: float,
    sharing: str = "pair",
    mtu_bytes: int = 1500,
) -> Network:
    """Return a network of equal links between all nodes.

    bandwidth_bps: of every NIC if `sharing` has NICs, else of every link.
    """
    if sharing not in SHARING:
        raise PlanError(f'sharing "{sharing}" is unknown; {nearest(sharing, SHARING)}')
    if one_way_delay_s == 0 and bandwidth_bps == math.inf:
        raise PlanError(
            "no delay and an unlimited rate: nothing would take any time; give a delay or a rate"
        )
    rates = bandwidth_bps, math.inf
    nic_bps, link_bps = rates if SHARING[sharing].has_nics else reversed(rates)
    return Network(
        regions=("everywhere",),
        links=((Link(one_way_delay_s=one_way_delay_s, bandwidth_bps=link_bps),),),
        node_regions=(0,) * num_nodes,
        sharing=sharing,
        nic_bps=(nic_bps,) * num_nodes,
        mtu_bytes=mtu_bytes,
    )


def first_nodes(scenario: Scenario, num_nodes: int) -> Network:
    """Return the network of a scenario's first nodes, without regions that hold none of them."""
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
        host_bps=network.host_bps[:num_nodes],
    )


def held_bytes(plan: CollectivePlan) -> int:
    """Bytes of the tensors that one rank holds at once, including those that torch's gloo makes.

    A ring also keeps two segments of at most 1 MiB, which do not count.
    """
    shard_bytes = plan.shard_elements * ELEMENT_BYTES
    whole, shards = COLLECTIVES[plan.op].tensors_held
    return (whole * plan.num_nodes + shards) * shard_bytes
