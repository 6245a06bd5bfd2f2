"""The data of a scenario: frozen, with SI units in the names."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError

LATER = {"omit_default": True}
"""Metadata of a field that was added after plans were recorded. It is written only if it differs
from its default, so that those plans keep their hash."""

NAMED_MODELS = {"resnet18": 18, "resnet101": 101, "bert-base": 12}
"""Models that a workload may name instead of a GPT's sizes, with their layers. `workload.models`
has their parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstLoss:
    """Gilbert-Elliott loss in bursts: a link is good or bad, and may change state at every packet.

    to_bad, to_good: probability per packet of entering the state.
    loss_good, loss_bad: fraction of packets that is lost in each state.
    """

    to_bad: float = 0.0
    to_good: float = 1.0
    loss_bad: float = 1.0
    loss_good: float = 0.0

    @property
    def loss(self) -> float:
        """Fraction of packets that is lost in the long run."""
        if not self.to_bad + self.to_good:
            return self.loss_good
        bad = self.to_bad / (self.to_bad + self.to_good)
        return bad * self.loss_bad + (1 - bad) * self.loss_good


NO_BURSTS = BurstLoss()


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A directed network profile, source to destination.

    one_way_delay_s: seconds. bandwidth_bps: bit/s on the wire, inf = not limited.
    jitter_s: standard deviation of the delay, seconds. jitter_correlation: of successive packets,
    0..1. Packets keep their order unless `jitter_reorders`.
    loss: probability, 0..1, independent per packet; `bursts` is the alternative.
    duplication, corruption, reordering: fraction of packets that arrive twice, with one bit
    flipped, or without the delay and so ahead of others.
    queue_packets: capacity of the link, waiting and in flight; 0 = enough to drop none.
    """

    one_way_delay_s: float
    bandwidth_bps: float
    jitter_s: float = 0.0
    loss: float = 0.0
    jitter_distribution: str = field(default="normal", metadata=LATER)
    jitter_correlation: float = field(default=0.0, metadata=LATER)
    jitter_reorders: bool = field(default=False, metadata=LATER)
    bursts: BurstLoss = field(default=NO_BURSTS, metadata=LATER)
    duplication: float = field(default=0.0, metadata=LATER)
    corruption: float = field(default=0.0, metadata=LATER)
    reordering: float = field(default=0.0, metadata=LATER)
    queue_packets: int = field(default=0, metadata=LATER)

    def __hash__(self) -> int:
        # Of all fields it would take ten times as long, and few links differ in the others only.
        return hash((self.one_way_delay_s, self.bandwidth_bps))

    @property
    def mean_loss(self) -> float:
        """Fraction of packets that do not arrive intact, in the long run."""
        return 1 - (1 - max(self.loss, self.bursts.loss)) * (1 - self.corruption)

    @property
    def impairments(self) -> tuple[str, ...]:
        """Names of the impairments besides delay and rate."""
        values = {
            "jitter": self.jitter_s,
            "loss": max(self.loss, self.bursts.loss),
            "duplication": self.duplication,
            "corruption": self.corruption,
            "reordering": self.reordering,
            "a stated queue": self.queue_packets,
        }
        return tuple(name for name, value in values.items() if value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A machine. device: name of a profile. nic_bps: egress cap. host_bps: payload that its CPUs
    move through sockets, in and out together. inf = no limit."""

    name: str
    region: str
    device: str
    num_devices: int = 1
    nic_bps: float = math.inf
    host_bps: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Tcp:
    """TCP on the machines. The defaults of the fields are those of Linux.

    congestion: name of the congestion control, or `UNMODELLED`. slow_start_after_idle: a connection
    that was idle for longer than its retransmission timeout halves its window for every such time.
    initial_window: segments. min_rto_s: least retransmission timeout, seconds. send_buffer_bytes,
    receive_buffer_bytes: largest buffers of a socket (third values of tcp_wmem and tcp_rmem).
    packet_bytes: largest packet that TCP hands over to a NIC (segmentation offload), and the MTU of
    loopback. sockets: parallel connections of the communication library that one connection of an
    emulation stands for; windows are multiplied by it. limits_links: the rate of a link is that of
    one connection, which its window limits; the line is as fast as the NICs.
    """

    congestion: str = "cubic"
    slow_start_after_idle: bool = True
    initial_window: int = 10
    min_rto_s: float = 0.2
    send_buffer_bytes: int = 4 << 20
    receive_buffer_bytes: int = 6 << 20
    packet_bytes: int = 1 << 16
    sockets: int = 1
    limits_links: bool = field(default=False, metadata=LATER)

    @property
    def acts(self) -> bool:
        """TCP's windows limit what is sent, as they do on the machines."""
        return self.congestion != UNMODELLED

    @property
    def max_window_bytes(self) -> int:
        """Largest window of a socket: the send buffer or half of the receive buffer, as Linux until
        6.5 divides it."""
        return min(self.send_buffer_bytes, self.receive_buffer_bytes // 2)


def host_limits(nodes: Sequence[Node]) -> tuple[float, ...]:
    """Return `Network.host_bps` of nodes."""
    limits = tuple(node.host_bps for node in nodes)
    return limits if any(map(math.isfinite, limits)) else ()


UNMODELLED = "none"
"""`Tcp.congestion` of an emulation in which TCP's windows are kept from limiting anything."""

NO_TCP = Tcp(congestion=UNMODELLED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Links between regions, and the region of each node.

    links: (num_regions, num_regions), [src][dst]; the diagonal is the link inside a region.
    node_regions: index into `regions` per node. sharing: key of `scenario.sharing.SHARING`.
    nic_bps: egress cap per node, bit/s. mtu_bytes: IP MTU of every node's interface. tcp: TCP of
    the machines in an emulation that keeps its dynamics, else `NO_TCP`. host_bps: `Node.host_bps`
    of every node, () = no limits. An emulation of training limits NICs to half of them.
    """

    regions: tuple[str, ...]
    links: tuple[tuple[Link, ...], ...]
    node_regions: tuple[int, ...]
    sharing: str
    nic_bps: tuple[float, ...]
    mtu_bytes: int = 1500
    tcp: Tcp = field(default=NO_TCP, metadata=LATER)
    host_bps: tuple[float, ...] = field(default=(), metadata=LATER)

    @property
    def num_nodes(self) -> int:
        return len(self.node_regions)

    @property
    def host_limits_bps(self) -> tuple[float, ...]:
        """`host_bps` of every node, inf where there is no limit."""
        return self.host_bps or (math.inf,) * self.num_nodes

    def link(self, src: int, dst: int) -> Link:
        """Return the link from node `src` to node `dst` (indices), src != dst."""
        return self.links[self.node_regions[src]][self.node_regions[dst]]

    def with_links(self, link: Link) -> "Network":
        """Return this network with `link` between any two nodes, inside and across regions."""
        size = len(self.regions)
        return dataclasses.replace(self, links=((link,) * size,) * size)

    def one_way_delay_s(self) -> NDArray[np.float64]:
        """Return delays (num_nodes, num_nodes), seconds, [src, dst]; diagonal 0."""
        return self._matrix([[link.one_way_delay_s for link in row] for row in self.links], 0.0)

    def bandwidth_bps(self) -> NDArray[np.float64]:
        """Return rates (num_nodes, num_nodes), bit/s, [src, dst]; diagonal inf."""
        return self._matrix([[link.bandwidth_bps for link in row] for row in self.links], math.inf)

    def _matrix(self, by_region: list[list[float]], diagonal: float) -> NDArray[np.float64]:
        index = np.asarray(self.node_regions)
        by_node = np.asarray(by_region, dtype=np.float64)[np.ix_(index, index)]
        matrix: NDArray[np.float64] = by_node
        np.fill_diagonal(matrix, diagonal)
        return matrix


JITTER = 0.01
"""`DeviceProfile.jitter` of devices whose profile has none. Runs of `dtfm-scheduled` on the V100s
of case 1, alone in their nodes, differ by 0.07 to 0.8%, which needs 2% or more (docs/simulator.md).
"""

MAX_JITTER = 0.2
"""Largest jitter that a profile may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceProfile:
    """Sustained speeds of a device. `workload/profiles/` has sources and residuals.

    flops: achieved FLOP/s per dtype, else per system (`dtfm`, `megatron`, `zero3`), or `default`;
    if memory_speed is given, of matrix products alone.
    memory_speed: bytes/s of all other work of a layer, per dtype or `default`; empty = it counts in
    `flops`, which then hold for layers of the size that they were measured with.
    optimizer_s_per_parameter: seconds per parameter the device updates, per system or `default`.
    collective_s: host overhead of a zero3 or ddp collective (launch, the framework's hooks),
    seconds, per system or `default`.
    layer_s: overhead of a forward pass over a layer, seconds, per dtype or `default`; a backward
    pass has 2 or 3 times as much.
    memory_bytes: device memory. source: origin of the values.
    throughput: of named models trained on one device, in their unit per second (images, words), and
    of models given by parameters, in samples per second. step: micro-batches of one step, if the
    device is several GPUs that train as one (torch's DataParallel). host_factor: time that the CPU
    of its node needs to average gradients, over that of a Google n1-standard-8.
    jitter: standard deviation of the time of a pass over a stage, over its mean.
    """

    name: str
    flops: dict[str, float]
    optimizer_s_per_parameter: dict[str, float] = field(default_factory=dict)
    collective_s: dict[str, float] = field(default_factory=dict)
    layer_s: dict[str, float] = field(default_factory=dict)
    memory_speed: dict[str, float] = field(default_factory=dict)
    memory_bytes: float = math.inf
    source: str = ""
    throughput: dict[str, float] = field(default_factory=dict)
    step: int = 1
    host_factor: float = 1.0
    jitter: float = JITTER


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A GPT-style model and its batch, counted in sequences.

    embedding_parameters: parameters outside the layers (first stage).
    recomputation: activations are recomputed in the backward pass (backward = 3 x forward).
    model: one of `NAMED_MODELS`, or a model given by its parameters; "" = a GPT. For a model
    hidden, heads and sequence are 0, and `batch` and `micro_batch` count samples.
    parameters, tensors: of a model given by them: how many, and in how many tensors; else 0.
    sample_bytes: what a sample costs to load from storage.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    micro_batch: int = 1
    dtype: str = "fp16"
    recomputation: bool = True
    embedding_parameters: int = 0
    model: str = field(default="", metadata=LATER)
    parameters: int = field(default=0, metadata=LATER)
    tensors: int = field(default=0, metadata=LATER)
    sample_bytes: int = field(default=0, metadata=LATER)

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.sequence)
        if not self.model and min(sizes) < 1:
            raise PlanError(f"layers, hidden, heads and sequence are {sizes}; expected at least 1")

    @property
    def name(self) -> str:
        """Label: the model's name, or a GPT's layers, e.g. `L24`."""
        return self.model or f"L{self.layers}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepNetwork:
    """A named network of a sweep: `link` replaces every link between nodes."""

    name: str
    link: Link


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerSet:
    """Machines that train together, of all that a scenario has.

    nodes: how many of each region, the first in the order of the file. models, batch, variants: of
    the runs with these machines; empty = those of the sweep, or the workload's batch.
    """

    name: str
    nodes: tuple[tuple[str, int], ...]
    models: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionPrices:
    """Location of a region, and prices of its machines.

    provider: whose price for egress applies. continent: e.g. NA; `Oceania` has its own price.
    spot_usd, on_demand_usd: of a machine with a device of the type, $ per hour.
    """

    provider: str
    continent: str
    spot_usd: dict[str, float]
    on_demand_usd: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Prices of machines and traffic. GB are 10^9 bytes.

    places: by region. egress_usd: by provider and class (`zone`, `region`, `continent`, `oceania`,
    see `netbench.cost`), $ per GB that a machine sends. loading_usd: $ per GB of training data.
    """

    places: dict[str, RegionPrices]
    egress_usd: dict[str, dict[str, float]]
    loading_usd: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One point of a sweep.

    layers: of the model. batch: sequences. micro_batch: sequences, None = the workload's. network:
    name in the sweep, "" = the scenario's. seed: of placements.
    """

    layers: int
    batch: int
    micro_batch: int | None = None
    network: str = ""
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The settings of a scenario (`--all`), and the default slice of `netbench run`.

    pipeline: stages of a pipeline; 0 = the largest depth up to 8 that divides devices and layers.
    pipeline_layers: layers of each stage; empty = evenly.
    networks: empty = the scenario's only. default_networks: names.
    micro_batch: sequences; empty = the workload's only. system_micro_batch: sequences, by name of
    the systems that differ from the workload. gpipe_round: micro-batches of a GPipe round per
    pipeline; 0 = the system's. maps: device of every rank by `plan.maps.SEEDED`, for every seed.
    models: named models with the batch of one replica; empty = the workload's only. replicas:
    numbers of devices to train on, from the first; empty = all. Both only with a named model.
    peers: sets of machines to train on instead, each with its own batches; default_peers: names.
    """

    layers: tuple[int, ...]
    batch: tuple[int, ...]
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    default_layers: tuple[int, ...]
    default_batch: tuple[int, ...]
    default_variants: tuple[str, ...]
    default_seeds: tuple[int, ...]
    pipeline: int = 0
    pipeline_layers: tuple[int, ...] = ()
    networks: tuple[SweepNetwork, ...] = ()
    default_networks: tuple[str, ...] = ()
    micro_batch: tuple[int, ...] = ()
    default_micro_batch: tuple[int, ...] = ()
    system_micro_batch: Mapping[str, int] = field(default_factory=dict)
    gpipe_round: int = 0
    maps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    models: tuple[Workload, ...] = ()
    replicas: tuple[int, ...] = ()
    default_models: tuple[str, ...] = ()
    default_replicas: tuple[int, ...] = ()
    peers: tuple[PeerSet, ...] = ()
    default_peers: tuple[str, ...] = ()

    def first_setting(
        self,
        *,
        layers: int | None = None,
        batch: int | None = None,
        micro_batch: int | None = None,
        network: str | None = None,
        seed: int | None = None,
    ) -> Setting:
        """Return the first setting of the default slice, with the given values replaced."""
        if micro_batch is None:
            micro_batch = next(iter(self.default_micro_batch), None)
        return Setting(
            layers=self.default_layers[0] if layers is None else layers,
            batch=self.default_batch[0] if batch is None else batch,
            micro_batch=micro_batch,
            network=next(iter(self.default_networks), "") if network is None else network,
            seed=self.default_seeds[0] if seed is None else seed,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A network with nodes, devices, a workload and a sweep; one YAML file.

    backend: the library that carries collectives and transfers, nccl or gloo. tcp: of the machines.
    prices: None if the file has none. peers: name of the peer set that this scenario has been
    reduced to.
    """

    name: str
    title: str
    notes: str
    path: str
    network: Network
    nodes: tuple[Node, ...]
    devices: dict[str, DeviceProfile]
    workload: Workload
    sweep: Sweep
    backend: str = "nccl"
    tcp: Tcp = Tcp()
    prices: Prices | None = None
    peers: str = ""

    @property
    def num_devices(self) -> int:
        return sum(node.num_devices for node in self.nodes)

    def first_devices(self, num: int) -> "Scenario":
        """Return the scenario with its first `num` devices, without nodes that have none left."""
        nodes: list[Node] = []
        for node in self.nodes:
            left = min(node.num_devices, num - sum(node.num_devices for node in nodes))
            nodes += [dataclasses.replace(node, num_devices=left)] if left > 0 else []
        return self._with_nodes(nodes)

    def with_peers(self, peers: PeerSet) -> "Scenario":
        """Return the scenario with the machines of `peers` only, in the order of the file."""
        left, nodes = dict(peers.nodes), []
        for node in self.nodes:
            if left.get(node.region, 0) > 0:
                left[node.region] -= 1
                nodes.append(node)
        return dataclasses.replace(self._with_nodes(nodes), peers=peers.name)

    def _with_nodes(self, nodes: Sequence[Node]) -> "Scenario":
        regions = self.network.regions
        network = dataclasses.replace(
            self.network,
            node_regions=tuple(regions.index(node.region) for node in nodes),
            nic_bps=tuple(node.nic_bps for node in nodes),
            host_bps=host_limits(nodes),
        )
        return dataclasses.replace(self, nodes=tuple(nodes), network=network)

    def device_nodes(self) -> tuple[int, ...]:
        """Return the node of every device, in node order: device d is on node device_nodes()[d]."""
        return tuple(i for i, node in enumerate(self.nodes) for _ in range(node.num_devices))
