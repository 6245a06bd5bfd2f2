"""How much device memory a rank needs, first-order: enough to warn, not to promise.

Not counted: the allocator's fragmentation, communication buffers, the logits of a language-model
head, and the framework itself (about 1 GB on a GPU).
"""

from __future__ import annotations

from dataclasses import dataclass

from netbench.scenario.model import Workload
from netbench.workload.costs import DTYPE_BYTES, MEGATRON_GRADIENT_BYTES, activation_bytes

MOMENT_BYTES = 4
"""Bytes per parameter of each of Adam's two moments: fp32, or the dtype where that is larger."""

MASTER_BYTES = 4
"""Bytes per parameter: the fp32 copy that mixed precision updates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes on one rank's device at the peak, by what they hold.

    gathered_bytes: parameters of other ranks (zero3). activations_bytes: kept for the backward
    passes of the micro-batches under way. working_bytes: one layer while it is recomputed.
    """

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    gathered_bytes: float
    activations_bytes: float
    working_bytes: float

    @property
    def total_bytes(self) -> float:
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.gathered_bytes
            + self.activations_bytes
            + self.working_bytes
        )


def estimate_memory(
    workload: Workload,
    *,
    system: str,
    parameters: int,
    held_layers: int,
    tensor_parallel: int = 1,
    shards: int = 1,
    keeps_gradients: bool = False,
    gathered_parameters: int = 0,
    sequence_parallel: bool = False,
) -> MemoryEstimate:
    """What a rank needs.

    parameters: count on this rank's part of the model, before `shards` ranks share their states
    (ZeRO). keeps_gradients: whole, not shared. held_layers: see `held_layers`. gathered_parameters:
    count that zero3 keeps gathered. sequence_parallel: of the tensor-parallel ranks.
    """
    weight, gradient, optimizer = state_bytes(system, workload.dtype)
    layer = layer_bytes(workload, tensor_parallel, sequence_parallel=sequence_parallel)
    if workload.recomputation:
        sequences = tensor_parallel if sequence_parallel else 1
        kept, working = activation_bytes(workload) / sequences, layer
    else:
        kept, working = layer, 0.0
    return MemoryEstimate(
        parameters_bytes=weight * parameters / shards,
        gradients_bytes=gradient * parameters / (1 if keeps_gradients else shards),
        optimizer_bytes=optimizer * parameters / shards,
        gathered_bytes=float(weight * gathered_parameters),
        activations_bytes=held_layers * kept,
        working_bytes=working,
    )


def state_bytes(system: str, dtype: str) -> tuple[int, int, int]:
    """Bytes per parameter of weights, gradients and optimizer state on the device.

    dtfm: fp32 weights are updated on the CPU (SGD), the device has none. megatron: fp32 gradients
    and Adam, 18 bytes per fp16 parameter (Megatron-LM, documentation of the distributed optimizer).
    hivemind: as dtfm, with Adam. zero3, diloco: 16 (Rajbhandari et al. 2020, section 3.1); what
    diloco's outer step needs is on the CPU. ddp: 16, and gradients a second time in buckets
    (PyTorch, DistributedDataParallel, `gradient_as_bucket_view=False`).
    """
    weight = DTYPE_BYTES[dtype]
    master = MASTER_BYTES if weight < MASTER_BYTES else 0
    if system in ("dtfm", "hivemind"):
        return weight, weight, 0
    gradient = {"megatron": max(weight, MEGATRON_GRADIENT_BYTES), "ddp": 2 * weight}
    moments = 2 * max(weight, MOMENT_BYTES)
    return weight, gradient.get(system, weight), master + moments


def restart_bytes(system: str, dtype: str) -> int:
    """Bytes per parameter that a rank needs of another to go on where that one is: the weights that
    are updated, fp32 or the dtype where that is larger, and Adam's two moments of them; dtfm, which
    updates with SGD, has none. Weights of 16 bits follow from those."""
    updated = max(DTYPE_BYTES[dtype], MASTER_BYTES)
    return updated if system == "dtfm" else updated + 2 * max(DTYPE_BYTES[dtype], MOMENT_BYTES)


def layer_bytes(
    workload: Workload, tensor_parallel: int, *, sequence_parallel: bool = False
) -> float:
    """Activations that one layer keeps for its backward pass of one micro-batch:
    s b h (10 + 24 / t + 5 a s / (h t)) in 16 bits; 34 + 5 a s / h where t is 1. With sequence
    parallelism the 10 are over t as well.

    Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
    (2022), equations 1, 2 and 4. 32 bits are taken as twice that. Those of named models are not
    estimated.
    """
    if workload.model:
        return 0.0
    s, b, h, a = workload.sequence, workload.micro_batch, workload.hidden, workload.heads
    whole = 10 / tensor_parallel if sequence_parallel else 10
    per_element = whole + 24 / tensor_parallel + 5 * a * s / (h * tensor_parallel)
    return s * b * h * per_element * DTYPE_BYTES[workload.dtype] / 2


def held_layers(
    schedule: str,
    *,
    stage: int,
    num_stages: int,
    num_layers: int,
    num_micro_batches: int,
    num_chunks: int = 1,
) -> int:
    """Layers times micro-batches whose activations stage `stage` holds at the peak.

    num_layers: of the stage. gpipe: all micro-batches of a round. 1f1b: as many as there are stages
    from here to the end. interleaved: the warm-up of Narayanan et al. 2021, which is
    L (1 + (p - 1) / (p v)) layers in the first stage (Korthikanti et al. 2022, section 4.2.3).
    zero-bubble: as 1F1B's first stage, in every stage (Qi et al. 2023, ZB-H1).
    """
    if schedule == "interleaved":
        passes = 2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages + 1
        return min(passes, num_micro_batches * num_chunks) * num_layers // num_chunks
    under_way = {
        "gpipe": num_micro_batches,
        "1f1b": num_stages - stage,
        "zero-bubble": num_stages,
        "none": 1,
    }[schedule]
    return min(under_way, num_micro_batches) * num_layers
