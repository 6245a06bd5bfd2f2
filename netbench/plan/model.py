"""What a plan is: frozen data, SI units in the names."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from netbench.scenario.model import LATER, Network, Workload
from netbench.workload.costs import Stage

PLAN_SCHEMA_VERSION = 1

VIRTUAL = "virtual"
COMPUTE = (VIRTUAL, "cpu", "cuda")
"""Where layers compute; `virtual`: nowhere, they sleep for as long as it would take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Tensor x pipeline x data parallel degrees; `p2t4d8` = pp 2, tp 4, dp 8."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """How far a point-to-point transfer may run ahead of the receiver that posts it.

    NCCL over TCP: a send is done once its bytes are in the library's FIFO and the socket buffers,
    which the kernel grows to `window_factor` x rate x round-trip time.
    fifo_bytes: bytes. window_factor: dimensionless. chunk_bytes: slice of a pipelined collective.
    inside_node_bps: between two GPUs of a node, bit/s of payload. Source: the simulator's profile
    of NCCL (`inside_node` in simulator/profiles/nccl.yaml), fitted on cases 1 and 2.
    host_bps: what one process moves between its GPU and its sockets, bit/s of payload. Source: the
    same profile's `host`, fitted on published transfers.
    """

    fifo_bytes: int = 1 << 20
    window_factor: float = 2.0
    chunk_bytes: int = 1 << 22
    inside_node_bps: float = field(default=153e9, metadata=LATER)
    host_bps: float = field(default=9.55e9, metadata=LATER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The experiment. `placement[rank]` is the device index, `device_nodes[device]` the node index.

    Rank order: `dtfm` pipeline * pp + stage; `megatron` (stage * dp + pipeline) * tp + tensor
    index; the others 0..dp-1.
    schedule: gpipe, 1f1b, interleaved, zero-bubble, none.
    data_parallel: reduce-broadcast, ring, shard, tree, central-ps, sharded-ps, butterfly.
    num_rounds: GPipe rounds of `num_micro_batches` each (per pipeline); 1 for other schedules.
    stages: per rank of a pipeline, a tensor-parallel rank's share of it.
    activation_bytes: one micro-batch's boundary tensor. scale: bytes and bandwidths are divided
    by it. iterations includes the first `warmup_iterations`.

    zero3 only: `workload.micro_batch` is its own (see `zero3.zero3_micro_batch`), `stages` holds
    the whole model, and num_micro_batches counts the micro-steps of a rank. units: layers of
    each unit that is gathered together. live_parameters: that may stay gathered between uses.

    num_chunks: model chunks per rank; chunk c of stage s is the (c * pp + s)-th part of the model,
    and costs 1 / num_chunks of the stage. bucket_bytes: gradients that ddp all-reduces together.
    collective_s: what a zero3 or ddp collective costs beside its bytes (launch, the framework's
    hooks). backend: the library whose semantics hold, nccl or gloo. network_name: of the scenario's
    `sweep.networks`, "" = the scenario's own network.

    compute: where layers compute: `virtual` sleeps for what `stages` says; or `cpu`, `cuda`, or
    where a `script` chooses.
    token_file: what those train on, "" = synthetic tokens. master_weights: where an fp32 copy of
    them is updated, cpu or cuda, "" = nowhere. sequence_parallel: tensor-parallel ranks split what
    they would all hold alike.
    shard_ranks: zero3 ranks, neighbours in the order of ranks, that hold one copy; 0 = all.
    prefetch_units: units zero3 gathers ahead. accumulation: zero3 gradients of micro-steps are
    `` scattered each, `keep` kept whole until the last, with the live parameters. local_steps:
    diloco's iterations between two averagings. staleness: hivemind's iterations from gradients to
    the update they make. compression: dtype of what hivemind sends, "" = the gradients' own.
    script: the command a `command` system starts on every rank.
    device_types: of each device, an index into `type_names` and `type_stages`, which has what
    `stages` says for every type of device; all three are empty where devices are of one type. Else
    `stages` are those of the first type: their seconds are nobody else's, their sizes everybody's.
    """

    schema_version: int = PLAN_SCHEMA_VERSION
    scenario: str
    variant: str
    system: str
    layout: Layout
    scheduler: str
    seed: int
    placement: tuple[int, ...]
    device_nodes: tuple[int, ...]
    node_names: tuple[str, ...]
    network: Network
    workload: Workload
    schedule: str
    data_parallel: str
    num_rounds: int
    num_micro_batches: int
    stages: tuple[Stage, ...]
    activation_bytes: int
    transport: Transport
    iterations: int
    warmup_iterations: int
    scale: float
    units: tuple[int, ...] = ()
    live_parameters: int = 0
    num_chunks: int = field(default=1, metadata=LATER)
    bucket_bytes: int = field(default=0, metadata=LATER)
    collective_s: float = field(default=0.0, metadata=LATER)
    backend: str = field(default="nccl", metadata=LATER)
    network_name: str = field(default="", metadata=LATER)
    compute: str = field(default=VIRTUAL, metadata=LATER)
    token_file: str = field(default="", metadata=LATER)
    master_weights: str = field(default="", metadata=LATER)
    sequence_parallel: bool = field(default=False, metadata=LATER)
    shard_ranks: int = field(default=0, metadata=LATER)
    prefetch_units: int = field(default=0, metadata=LATER)
    accumulation: str = field(default="", metadata=LATER)
    local_steps: int = field(default=0, metadata=LATER)
    staleness: int = field(default=0, metadata=LATER)
    compression: str = field(default="", metadata=LATER)
    script: tuple[str, ...] = field(default=(), metadata=LATER)
    device_types: tuple[int, ...] = field(default=(), metadata=LATER)
    type_stages: tuple[tuple[Stage, ...], ...] = field(default=(), metadata=LATER)
    type_names: tuple[str, ...] = field(default=(), metadata=LATER)

    def type_on(self, device: int) -> str:
        """Name of the type of `device`; "" where all are of one."""
        return self.type_names[self.device_types[device]] if self.type_names else ""

    def stages_on(self, device: int) -> tuple[Stage, ...]:
        """What each stage costs on `device`."""
        return self.type_stages[self.device_types[device]] if self.type_stages else self.stages

    def on_device(self, device: int) -> Plan:
        """The plan as the rank on `device` sees it: its `stages` are what they cost there."""
        return self._of_one_type(self.stages_on(device))

    def at_slowest(self) -> Plan:
        """The plan as if every rank were as slow as the slowest: for systems whose ranks all do the
        same, and wait for each other."""
        if not self.type_stages:
            return self
        used = {self.device_types[device] for device in self.placement}
        return self._of_one_type(
            tuple(
                dataclasses.replace(
                    of_types[0],
                    forward_s=max(stage.forward_s for stage in of_types),
                    backward_s=max(stage.backward_s for stage in of_types),
                    optimizer_s=max(stage.optimizer_s for stage in of_types),
                )
                for of_types in zip(*(self.type_stages[kind] for kind in used), strict=True)
            )
        )

    def _of_one_type(self, stages: tuple[Stage, ...]) -> Plan:
        return dataclasses.replace(
            self, stages=stages, device_types=(), type_stages=(), type_names=()
        )
