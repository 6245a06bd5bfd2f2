"""What a GPT-style model costs: FLOPs, parameters, bytes and, on a device profile, seconds.

Every formula counts one layer = self-attention + feed-forward of width 4h, h = hidden size,
s = sequence length, b = sequences per micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from netbench.errors import PlanError
from netbench.scenario.model import DeviceProfile, Workload
from netbench.units import counted
from netbench.workload.models import MODELS

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes per element."""

MEGATRON_GRADIENT_BYTES = 4
"""Bytes per parameter: Megatron accumulates and all-reduces gradients in fp32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """The cost of one pipeline stage on its device, per micro-batch unless said otherwise; of one
    of the ranks that share the stage, where it is tensor parallel.

    forward_s, backward_s: seconds, backward with recomputation where the workload has it.
    optimizer_s: seconds per iteration, alone on its host. parameters: count.
    gradient_bytes: bytes synchronised by data parallelism, per iteration.
    """

    num_layers: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    parameters: int
    gradient_bytes: int


def layer_forward_flops(workload: Workload) -> float:
    """FLOPs of one layer's forward pass over one micro-batch: 24 b s h^2 (1 + s / 6h).

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM" (2021), appendix; a multiply-add counts as two.
    """
    b, s, h = workload.micro_batch, workload.sequence, workload.hidden
    return 24.0 * b * s * h**2 * (1 + s / (6 * h))


def backward_factor(workload: Workload) -> int:
    """Backward work over forward work: 2, and one forward more with activation recomputation."""
    return 3 if workload.recomputation else 2


def pflop_per_iteration(workload: Workload) -> float:
    """Work of one iteration in PFLOP: 96 B s L h^2 (1 + s / 6h) / 1e15 with recomputation.

    Embeddings and heads are not counted, as in the published tables. Of a named model, what its
    blocks take.
    """
    passes = 1 + backward_factor(workload)
    if workload.model:
        return passes * MODELS[workload.model].forward_flops * workload.batch / 1e15
    per_sequence = layer_forward_flops(workload) / workload.micro_batch
    return passes * per_sequence * workload.layers * workload.batch / 1e15


def layer_parameters(workload: Workload) -> int:
    """Parameters of one layer: 12 h^2 weights and 13 h biases and layer norms."""
    return 12 * workload.hidden**2 + 13 * workload.hidden


def layer_matrices(workload: Workload) -> tuple[int, ...]:
    """Parameters of one layer's weight matrices in the order they are used: queries, keys and
    values 3 h^2, projection h^2, feed-forward 4 h^2 twice.

    Source: GPT-2 (Radford et al. 2019) as in Megatron-LM (Shoeybi et al. 2019, section 3).
    """
    square: int = workload.hidden**2
    return (3 * square, square, 4 * square, 4 * square)


def live_layers(workload: Workload, live_parameters: int) -> int:
    """Layers whose parameters may all stay gathered within `live_parameters`, embeddings first."""
    room = live_parameters - workload.embedding_parameters
    return min(workload.layers, max(0, room // layer_parameters(workload)))


def model_parameters(workload: Workload) -> int:
    """Parameters of the model: layers and embeddings."""
    return workload.layers * layer_parameters(workload) + workload.embedding_parameters


def activation_bytes(workload: Workload) -> int:
    """Bytes of the boundary tensor (b, s, h) of one micro-batch between two stages."""
    elements = workload.micro_batch * workload.sequence * workload.hidden
    return elements * DTYPE_BYTES[workload.dtype]


def gradient_bytes(system: str, workload: Workload, parameters: int) -> int:
    """Bytes of gradients that data parallelism synchronises for `parameters` parameters.

    dtfm, zero3 and ddp send them in the model's dtype, megatron in fp32 or more, hivemind in fp16;
    diloco sends differences of parameters, in fp32 or more.

    The published notes give dtfm 296 MB for a stage of 3 layers of GPT-XL and 409 MB for the
    first. The formula gives 288 MiB and, with 64 M embedding parameters, 410 MiB: read as MiB,
    the first agrees; the 8 MiB that remain are one h x h matrix, which only a stage with the
    classification head has. The other stages are taken without it.
    """
    own = DTYPE_BYTES[workload.dtype]
    sent = {
        "megatron": max(own, MEGATRON_GRADIENT_BYTES),
        "hivemind": DTYPE_BYTES["fp16"],
        "diloco": max(own, DTYPE_BYTES["fp32"]),
    }
    return parameters * sent.get(system, own)


def stage_costs(
    workload: Workload,
    profile: DeviceProfile,
    *,
    system: str,
    num_stages: int,
    tensor_parallel: int = 1,
    optimizer_shards: int = 1,
    stage_layers: Sequence[int] = (),
) -> tuple[Stage, ...]:
    """Cost of every pipeline stage, embeddings in the first.

    tensor_parallel: ranks that share every layer and the embeddings evenly; the few parameters
    that Megatron replicates (layer norms, biases after a reduction) are taken as shared too.
    optimizer_shards: ranks that share one stage's update (ZeRO: all of them).
    stage_layers: of each stage, together the workload's; () = as many each.
    Raises PlanError if the layers do not divide or the profile does not know the system.
    """
    if not stage_layers and workload.layers % num_stages:
        raise PlanError(
            f"{counted(workload.layers, 'layer')} cannot be divided into {num_stages} pipeline "
            f"stages; choose a multiple of {num_stages}, or another `pipeline` in the scenario's "
            "sweep"
        )
    stage_layers = stage_layers or [workload.layers // num_stages] * num_stages
    flops = _flops(profile, system, workload.dtype) * tensor_parallel
    layer_s = profile.layer_s.get(workload.dtype, profile.layer_s.get("default", 0.0))
    update_s = profile.optimizer_s_per_parameter
    optimizer_s = update_s.get(system, update_s.get("default", 0.0)) / optimizer_shards

    def stage(index: int) -> Stage:
        num_layers = stage_layers[index]
        forward_s = num_layers * (layer_s + layer_forward_flops(workload) / flops)
        embedding = workload.embedding_parameters if index == 0 else 0
        whole = num_layers * layer_parameters(workload) + embedding
        parameters = math.ceil(whole / tensor_parallel)
        return Stage(
            num_layers=num_layers,
            forward_s=forward_s,
            backward_s=forward_s * backward_factor(workload),
            optimizer_s=optimizer_s * parameters,
            parameters=parameters,
            gradient_bytes=gradient_bytes(system, workload, parameters),
        )

    return tuple(stage(index) for index in range(num_stages))


def _flops(profile: DeviceProfile, system: str, dtype: str) -> float:
    """Achieved FLOP/s of the device under `system`, else in `dtype`."""
    found = (profile.flops.get(key) for key in (system, dtype, "default"))
    flops = next((value for value in found if value is not None), None)
    if flops is None:
        raise PlanError(
            f"device {profile.name} has no FLOP/s for {system}; it has {sorted(profile.flops)}; "
            f"add `{system}` or `default` to its flops"
        )
    return flops
