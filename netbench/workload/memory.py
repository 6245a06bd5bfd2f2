"""A first-order estimate of the device memory that a rank needs: enough to warn, not to promise.

Not counted: the allocator's fragmentation, communication buffers, the logits of a language-model
head, and the framework itself (about 1 GB on a GPU).
"""

import dataclasses
from dataclasses import dataclass

from netbench.scenario.model import Workload
from netbench.workload.costs import activation_bytes, layer_bytes

MOMENT_BYTES = 4
"""Bytes per parameter of each of Adam's two moments: fp32, or the dtype where that is larger."""

MASTER_BYTES = 4
"""Bytes per parameter: the fp32 copy that mixed precision updates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes on one rank's device at the peak, by use.

    gathered_bytes: parameters of other ranks (zero3). activations_bytes: kept for the backward
    passes of micro-batches in flight. working_bytes: one layer while it is recomputed.
    """

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    gathered_bytes: float
    activations_bytes: float
    working_bytes: float

    @property
    def total_bytes(self) -> float:
        return float(sum(dataclasses.astuple(self)))


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Bytes per parameter of weights, gradients and optimizer state on the device."""

    weight: int
    gradient: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weight + self.gradient + self.optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class RankModel:
    """The part of the model on one rank's device.

    parameters: count, before `shards` ranks divide their state (ZeRO). live_layers: layers times
    micro-batches whose activations it keeps at the peak. tensor_parallel: ranks that share every
    layer; sequence_parallel: they split what each would else keep whole. keeps_gradients: whole,
    not divided. gathered_parameters: count of other ranks' parameters. optimizer_shards: ranks that
    divide the optimizer state alone (ZeRO stage 1).
    """

    state: StateBytes
    parameters: int
    live_layers: int
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    shards: int = 1
    keeps_gradients: bool = False
    gathered_parameters: int = 0
    optimizer_shards: int = 1


def estimate_memory(workload: Workload, rank: RankModel) -> MemoryEstimate:
    """Estimate the memory that a rank needs."""
    state = rank.state
    layer = layer_bytes(workload, rank.tensor_parallel, sequence_parallel=rank.sequence_parallel)
    if workload.recomputation:
        sequences = rank.tensor_parallel if rank.sequence_parallel else 1
        kept, working = activation_bytes(workload) / sequences, layer
    else:
        kept, working = layer, 0.0
    shards = 1 if rank.keeps_gradients else rank.shards
    return MemoryEstimate(
        parameters_bytes=state.weight * rank.parameters / rank.shards,
        gradients_bytes=state.gradient * rank.parameters / shards,
        optimizer_bytes=state.optimizer * rank.parameters / rank.shards / rank.optimizer_shards,
        gathered_bytes=float(state.weight * rank.gathered_parameters),
        activations_bytes=rank.live_layers * kept,
        working_bytes=working,
    )
