"""The data of a plan: frozen, with SI units in the names."""

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cache

from netbench.plan.collectives import ChainCut, RingCut
from netbench.plan.schedules import SCHEDULES
from netbench.scenario.churn import ChurnEvent
from netbench.scenario.model import JITTER, LATER, Network, Workload
from netbench.workload.costs import Stage, layer_parameters

PLAN_SCHEMA_VERSION = 1

VIRTUAL = "virtual"
COMPUTE = (VIRTUAL, "cpu", "cuda")
"""Devices on which layers compute. `virtual` layers sleep for the time that computing takes."""

UPDATE, AVERAGING = "update", "averaging"
"""Values of `Plan.beside`."""


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
    """Transport constants for the trainers: NCCL's, carried by gloo (`emulated_transport`).

    Either end of a point-to-point connection buffers `fifo_bytes` + `window_bytes` +
    `window_factor` x rate x round-trip time; a transfer runs as far ahead of the receiver that
    posts it. chunk_bytes, tree_chunk_bytes: slices of chains and trees; at most `max_slices` of
    each. ramp_slices: see `ChainCut.ramp`. ring_chunk_bytes, ring_slices: what a rank passes on in
    a step of a ring, and the messages it does so in. inside_node_bps: between two GPUs of a node,
    bit/s of payload. host_bps: between a GPU and the sockets of its process, bit/s of payload; a
    collective has `channels` of these side by side. overhead_bytes: what gloo adds to a message on
    the wire.

    Defaults are the values of plans that were recorded without the field.
    """

    fifo_bytes: int = 1 << 20
    window_factor: float = 2.0
    chunk_bytes: int = 1 << 22
    inside_node_bps: float = field(default=153e9, metadata=LATER)
    host_bps: float = field(default=9.55e9, metadata=LATER)
    channels: int = field(default=2, metadata=LATER)
    window_bytes: int = field(default=0, metadata=LATER)
    tree_chunk_bytes: int = field(default=1 << 20, metadata=LATER)
    max_slices: int = field(default=32, metadata=LATER)
    overhead_bytes: int = field(default=162, metadata=LATER)
    ring_chunk_bytes: int = field(default=1 << 22, metadata=LATER)
    ring_slices: int = field(default=2, metadata=LATER)
    ramp_slices: int = field(default=1, metadata=LATER)

    def num_slices(self, full_bytes: float) -> int:
        """Return the number of slices of a chain or ring over this many bytes at full size."""
        return self._num_slices(full_bytes, self.chunk_bytes)

    def chain_cut(self, full_bytes: float) -> ChainCut:
        """Return how this many bytes at full size are cut in a chain."""
        return ChainCut(slices=self.num_slices(full_bytes), ramp=self.ramp_slices)

    def num_tree_slices(self, full_bytes: float) -> int:
        """Return the number of slices in each of two trees over this many bytes at full size."""
        return self._num_slices(full_bytes / 2, self.tree_chunk_bytes)

    def _num_slices(self, full_bytes: float, slice_bytes: int) -> int:
        return max(1, min(self.max_slices, round(full_bytes / slice_bytes)))

    def ring_cut(self, full_bytes: float, size: int) -> RingCut:
        """Return how NCCL cuts this many bytes at full size in a ring of `size` members."""
        passes = math.ceil(full_bytes / size / self.ring_chunk_bytes)
        return RingCut(slices=self.ring_slices, passes=max(1, passes))


@cache
def emulated_transport() -> Transport:
    """Return the transport of new plans, from the profiles of nccl and gloo."""
    # A rank imports this module, and reads the values from its plan: it needs no pydantic.
    from netbench.transport.profile import load_transport

    nccl, gloo = load_transport("nccl"), load_transport("gloo")
    assert nccl.emulation is not None
    return Transport(
        fifo_bytes=nccl.fifo_bytes,
        window_factor=nccl.window_factor,
        chunk_bytes=nccl.emulation.slice_bytes,
        inside_node_bps=nccl.inside_node_bps,
        host_bps=nccl.host_bps,
        channels=nccl.channels,
        window_bytes=nccl.window_bytes,
        tree_chunk_bytes=nccl.slice_bytes,
        max_slices=nccl.emulation.max_slices,
        ring_chunk_bytes=nccl.ring_chunk_bytes,
        ring_slices=nccl.ring_slices,
        # Beside its own bytes, the frame that announces a message.
        overhead_bytes=gloo.overhead_bytes + gloo.header_bytes + gloo.ethernet_bytes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The experiment. `placement[rank]` is the device index, `device_nodes[device]` the node index.

    system: a key of `systems.SYSTEMS`, which has the order of ranks (`System.rank_order`).
    schedule: a key of `schedules.SCHEDULES`, or none.
    data_parallel: reduce-broadcast, ring, shard, tree, central-ps, sharded-ps, butterfly,
    zero1, by-tensor.
    num_rounds: GPipe rounds of `num_micro_batches` each (per pipeline); 1 for other schedules.
    stages: cost of each stage of a pipeline, for one of its tensor-parallel ranks.
    activation_bytes: boundary tensor of one micro-batch. scale: divides bytes and bandwidths.
    iterations includes the first `warmup_iterations`.

    zero3 only: the system chooses `workload.micro_batch`, `stages` has the whole model, and
    num_micro_batches counts the micro-steps of a rank. units: layers of each unit that is gathered
    together. live_parameters: how many may stay gathered between uses.

    num_chunks: model chunks per rank. Chunk c of stage s is the (c * pp + s)-th part of the model,
    and costs 1 / num_chunks of the stage. bucket_bytes: gradients that ddp all-reduces together, or
    zero3 scatters together (0 = as DeepSpeed by default).
    collective_s: cost of a zero3 or ddp collective beside its bytes (launch, framework hooks).
    backend: the library whose semantics apply, nccl or gloo. network_name: one of the scenario's
    `sweep.networks`, "" = the scenario's own network.

    compute: where layers compute: `virtual` sleeps as long as `stages` says; `cpu`, `cuda`, or
    `script`. token_file: training data of layers that compute, "" = synthetic tokens.
    master_weights: device of an fp32 copy of the weights that is updated, cpu or cuda, "" = none.
    sequence_parallel: tensor-parallel ranks split the activations that each would else hold whole.
    shard_ranks: zero3 ranks, neighbours in the order of ranks, that share one copy; 0 = all.
    prefetch_units: units that zero3 gathers ahead. accumulation: zero3 scatters the gradients of
    every micro-step (""), or keeps them whole until the last, with the live parameters (`keep`).
    local_steps: diloco's iterations between two outer steps. staleness: hivemind's iterations
    from gradients to their update. compression: dtype that hivemind sends, "" = the gradients'.
    script: the command that the `command` system starts on every rank. iteration_regex: matches the
    lines in which it reports iterations, "" = those that `testbed.ranks.reports` knows.
    revision: differs if only the trainer has changed, so that no run of the earlier one is resumed.
    device_types: for each device, an index into `type_names` and `type_stages`; the latter has
    `stages` for each type. All three are empty if devices are of one type. Else `stages` are those
    of the first type: only their sizes hold for all.

    hivemind-swarm only: matchmaking_s: a round begins this long after peers began to look for a
    group, or later. type_steps: micro-batches of a peer's step, by type of device. host_factors:
    `DeviceProfile.host_factor` by type. peers: the scenario's `sweep.peers`, "" = all machines.
    beside: what runs beside the next accumulation: `UPDATE`, `AVERAGING` (and the update), "" =
    nothing.

    parts: periods of the two short iterations that an emulation runs and extends
    (`testbed.effort`); empty: iterations run whole. layer_parts: these count layers of one
    micro-step of zero3, beside its first unit.

    jitter: standard deviation of the time of a pass over a stage, over its mean, of the device that
    varies most. Such times are drawn where pipelines meet.

    churn: machines that go and come while the plan runs, in order of time. It begins with the first
    iteration, and stands still between iterations.
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
    iteration_regex: str = field(default="", metadata=LATER)
    revision: int = field(default=0, metadata=LATER)
    device_types: tuple[int, ...] = field(default=(), metadata=LATER)
    type_stages: tuple[tuple[Stage, ...], ...] = field(default=(), metadata=LATER)
    type_names: tuple[str, ...] = field(default=(), metadata=LATER)
    matchmaking_s: float = field(default=0.0, metadata=LATER)
    type_steps: tuple[int, ...] = field(default=(), metadata=LATER)
    host_factors: tuple[float, ...] = field(default=(), metadata=LATER)
    peers: str = field(default="", metadata=LATER)
    beside: str = field(default="", metadata=LATER)
    churn: tuple[ChurnEvent, ...] = field(default=(), metadata=LATER)
    parts: tuple[int, ...] = field(default=(), metadata=LATER)
    layer_parts: bool = field(default=False, metadata=LATER)
    jitter: float = field(default=JITTER, metadata=LATER)

    @property
    def has_pipelines(self) -> bool:
        """Ranks exchange activations, as a pipeline schedule says."""
        return self.schedule in SCHEDULES

    @property
    def has_turn(self) -> bool:
        """All ranks meet at a barrier between the forward and the backward passes of a round."""
        return self.has_pipelines and SCHEDULES[self.schedule].has_turn

    @property
    def splits_backward(self) -> bool:
        """Gradients of weights are computed apart from those of activations."""
        return self.has_pipelines and SCHEDULES[self.schedule].splits_backward

    @property
    def num_periods(self) -> int:
        """Number of repetitions in an iteration: of a round of GPipe, of a micro-batch in another
        pipeline or in each of two rounds, of a micro-step of zero3; with `layer_parts`, number of
        layers beside the first unit."""
        if self.layer_parts:
            return len(self.units) - 1
        return self.num_rounds if self.repeats_rounds else self.num_micro_batches

    @property
    def depth(self) -> int:
        """Number of stages that a micro-batch passes."""
        return self.layout.pp * self.num_chunks

    @property
    def repeats_rounds(self) -> bool:
        """The periods of `parts` are rounds: one in the shorter part, else many micro-batches."""
        return self.num_rounds > 1 and self.parts[:1] in ((), (1,))

    def shortened(self) -> "tuple[Plan, ...]":
        """Return the plans of the two iterations that run for one of this plan, or the plan itself.

        They are equal for plans that share them.
        """
        if self.layer_parts and self.parts:
            return tuple(map(self._of_layers, self.parts))
        batch = self.workload.batch // self.num_periods
        lengths = [self._of_length(periods, periods * batch) for periods in self.parts]
        return tuple(lengths) or (self,)

    def _of_layers(self, count: int) -> "Plan":
        """Return a micro-step of the first unit and `count` others, with the update of the whole.

        Buckets of gradients shrink with the model, so that their number stays: the delay of a
        collective does not depend on its bytes.
        """
        workload = self.workload
        (stage,), layers = self.stages, self.units[0] + count
        added = (layers - workload.layers) * layer_parameters(workload)
        parameters = stage.parameters + added
        # The first layer's gradients and those of the embeddings end the last bucket.
        ended = layer_parameters(workload) + workload.embedding_parameters
        shrunk = (parameters - ended) / (stage.parameters - ended)
        return dataclasses.replace(
            self,
            workload=dataclasses.replace(
                workload, layers=layers, batch=workload.batch // self.num_micro_batches
            ),
            stages=(
                dataclasses.replace(
                    stage,
                    num_layers=layers,
                    forward_s=stage.forward_s / workload.layers * layers,
                    backward_s=stage.backward_s / workload.layers * layers,
                    parameters=parameters,
                    gradient_bytes=round(stage.gradient_bytes * parameters / stage.parameters),
                ),
            ),
            units=self.units[: 1 + count],
            bucket_bytes=round(self.bucket_bytes * shrunk),
            num_micro_batches=1,
            parts=(),
            layer_parts=False,
        )

    def _of_length(self, periods: int, batch: int) -> "Plan":
        workload = dataclasses.replace(self.workload, batch=batch)
        if self.repeats_rounds:
            return dataclasses.replace(self, workload=workload, num_rounds=periods, parts=())
        return dataclasses.replace(self, workload=workload, num_micro_batches=periods, parts=())

    def type_on(self, device: int) -> str:
        """Return the name of the type of `device`; "" if all are of one type."""
        return self.type_names[self.device_types[device]] if self.type_names else ""

    def stages_on(self, device: int) -> tuple[Stage, ...]:
        """Return the cost of each stage on `device`."""
        return self.type_stages[self.device_types[device]] if self.type_stages else self.stages

    def on_device(self, device: int) -> "Plan":
        """Return the plan with the costs of `stages` on `device`."""
        return self._of_one_type(self.stages_on(device))

    def at_slowest(self) -> "Plan":
        """Return the plan as if every rank were as slow as the slowest: for systems whose ranks all
        do the same, and wait for each other."""
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

    def _of_one_type(self, stages: tuple[Stage, ...]) -> "Plan":
        return dataclasses.replace(
            self, stages=stages, device_types=(), type_stages=(), type_names=()
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """Execution of a plan. iterations, warmup_iterations, compute, token_file: as in `Plan`.
    scale: None = the scale that an emulation of the plan needs (`scale.choose_scale`)."""

    iterations: int = 1
    warmup_iterations: int = 0
    scale: float | None = None
    compute: str = VIRTUAL
    token_file: str = ""


ONCE = Execution(scale=1.0)
"""One iteration at full size, to simulate."""
