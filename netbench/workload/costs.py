"""Costs of a GPT-style model: FLOPs, parameters, bytes and, on a device profile, seconds.

Every formula counts one layer = self-attention + feed-forward of width 4h, h = hidden size,
s = sequence length, b = sequences per micro-batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netbench.errors import PlanError
from netbench.scenario.model import DeviceProfile, Workload
from netbench.units import counted
from netbench.workload.models import model_of

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes per element."""


def at_least_fp32(dtype: str) -> str:
    """Return `dtype`, or fp32 if it has fewer bytes."""
    return dtype if DTYPE_BYTES[dtype] > DTYPE_BYTES["fp32"] else "fp32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """The cost of one pipeline stage on its device, for one of its tensor-parallel ranks and per
    micro-batch unless said otherwise.

    forward_s, backward_s: seconds; backward includes recomputation if the workload recomputes.
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
    """Return the FLOPs of one layer's forward pass over a micro-batch: 24 b s h^2 (1 + s / 6h).

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM" (2021), appendix; a multiply-add counts as two.
    """
    b, s, h = workload.micro_batch, workload.sequence, workload.hidden
    return 24.0 * b * s * h**2 * (1 + s / (6 * h))


def layer_bytes(
    workload: Workload, tensor_parallel: int, *, sequence_parallel: bool = False
) -> float:
    """Return the activations that one layer keeps for the backward pass of one micro-batch:
    s b h (10 + 24 / t + 5 a s / (h t)) in 16 bits; 34 + 5 a s / h if t is 1. Sequence parallelism
    divides the 10 by t as well.

    Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
    (2022), equations 1, 2 and 4. 32 bits count as twice that. Activations of named models are not
    estimated.
    """
    if workload.model:
        return 0.0
    s, b, h, a = workload.sequence, workload.micro_batch, workload.hidden, workload.heads
    whole = 10 / tensor_parallel if sequence_parallel else 10
    per_element = whole + 24 / tensor_parallel + 5 * a * s / (h * tensor_parallel)
    return s * b * h * per_element * DTYPE_BYTES[workload.dtype] / 2


def layer_traffic_bytes(workload: Workload) -> float:
    """Return the bytes that the forward pass of a layer moves beside its matrix products: what it
    keeps for the backward pass is written once and read once."""
    return 2 * layer_bytes(workload, 1)


def backward_factor(workload: Workload) -> int:
    """Return backward work over forward work: 2, or 3 with activation recomputation."""
    return 3 if workload.recomputation else 2


def pflop_per_iteration(workload: Workload) -> float:
    """Return the work of one iteration in PFLOP: 96 B s L h^2 (1 + s / 6h) / 1e15 with
    recomputation, or that of a named model's blocks.

    Embeddings and heads are not counted, as in the published tables.
    """
    passes = 1 + backward_factor(workload)
    if workload.model:
        return passes * model_of(workload).forward_flops * workload.batch / 1e15
    per_sequence = layer_forward_flops(workload) / workload.micro_batch
    return passes * per_sequence * workload.layers * workload.batch / 1e15


def layer_parameters(workload: Workload) -> int:
    """Return the parameters of one layer: 12 h^2 weights, 13 h biases and layer norms."""
    return 12 * workload.hidden**2 + 13 * workload.hidden


def layer_matrices(workload: Workload) -> tuple[int, ...]:
    """Return the parameters of one layer's weight matrices in order of use: queries, keys, values
    and projection h^2 each, feed-forward 4 h^2 twice.

    Source: DT-FM's model, whose stages of four layers have 24 matrices.
    """
    square: int = workload.hidden**2
    return (*(square,) * 4, 4 * square, 4 * square)


def stage_tensors(workload: Workload, stage: Stage) -> tuple[int, ...]:
    """Return the parameters of every tensor of a stage's gradients: per layer the matrices of
    queries, keys, values and projection (h^2 each) and of feed-forward (4 h^2 twice), their biases,
    and two layer norms; then the embeddings, if the stage has them."""
    h = workload.hidden
    layer = (h * h,) * 4 + (4 * h * h,) * 2 + (h,) * 5 + (4 * h,) + (h,) * 4
    rest = stage.parameters - stage.num_layers * sum(layer)
    return layer * stage.num_layers + ((rest,) if rest > 0 else ())


def live_layers(workload: Workload, live_parameters: int) -> int:
    """Return the layers that may stay gathered within `live_parameters`, after the embeddings."""
    room = live_parameters - workload.embedding_parameters
    return min(workload.layers, max(0, room // layer_parameters(workload)))


def model_parameters(workload: Workload) -> int:
    """Return the parameters of the model: layers and embeddings."""
    return workload.layers * layer_parameters(workload) + workload.embedding_parameters


def activation_bytes(workload: Workload) -> int:
    """Return the bytes of the boundary tensor (b, s, h) of one micro-batch between two stages."""
    elements = workload.micro_batch * workload.sequence * workload.hidden
    return elements * DTYPE_BYTES[workload.dtype]


def stage_costs(
    workload: Workload,
    profile: DeviceProfile,
    *,
    system: str,
    num_stages: int,
    gradient_dtype: str = "",
    tensor_parallel: int = 1,
    optimizer_shards: int = 1,
    stage_layers: Sequence[int] = (),
) -> tuple[Stage, ...]:
    """Return the cost of every pipeline stage, embeddings in the first.

    system: a key of the profile's FLOP/s and update times. gradient_dtype: what data parallelism
    sends, "" = the workload's.
    The published notes give dtfm 296 MiB for a stage of 3 layers of GPT-XL, 8 MiB more than the
    formula: one h x h matrix, which only a stage with the classification head has.
    tensor_parallel: ranks that divide every layer and the embeddings evenly. The few parameters
    that Megatron replicates (layer norms, biases after a reduction) count as divided too.
    optimizer_shards: ranks that divide a stage's update (ZeRO: all of them).
    stage_layers: of each stage, adding up to the workload's; () = evenly.
    Raises PlanError if the layers do not divide or the profile has no FLOP/s for the system.
    """
    if not stage_layers and workload.layers % num_stages:
        raise PlanError(
            f"{counted(workload.layers, 'layer')} cannot be divided into {num_stages} pipeline "
            f"stages; choose a multiple of {num_stages}, or another `pipeline` in the scenario's "
            "sweep"
        )
    stage_layers = stage_layers or [workload.layers // num_stages] * num_stages
    flops = _flops(profile, system, workload.dtype) * tensor_parallel
    layer_s = _by_dtype(profile.layer_s, workload.dtype, 0.0)
    memory_speed = _by_dtype(profile.memory_speed, workload.dtype, math.inf) * tensor_parallel
    pass_s = (
        layer_s
        + layer_forward_flops(workload) / flops
        + layer_traffic_bytes(workload) / memory_speed
    )
    element_bytes = DTYPE_BYTES[gradient_dtype or workload.dtype]
    update_s = profile.optimizer_s_per_parameter
    optimizer_s = update_s.get(system, update_s.get("default", 0.0)) / optimizer_shards

    def stage(index: int) -> Stage:
        num_layers = stage_layers[index]
        forward_s = num_layers * pass_s
        embedding = workload.embedding_parameters if index == 0 else 0
        whole = num_layers * layer_parameters(workload) + embedding
        parameters = math.ceil(whole / tensor_parallel)
        return Stage(
            num_layers=num_layers,
            forward_s=forward_s,
            backward_s=forward_s * backward_factor(workload),
            optimizer_s=optimizer_s * parameters,
            parameters=parameters,
            gradient_bytes=parameters * element_bytes,
        )

    return tuple(stage(index) for index in range(num_stages))


def _by_dtype(values: Mapping[str, float], dtype: str, otherwise: float) -> float:
    return values.get(dtype, values.get("default", otherwise))


def _flops(profile: DeviceProfile, system: str, dtype: str) -> float:
    """Return the achieved FLOP/s of the device in `dtype`, else under `system`. Those of systems
    are of 16 bits, so a dtype that has its own comes first."""
    found = (profile.flops.get(key) for key in (dtype, system, "default"))
    flops = next((value for value in found if value is not None), None)
    if flops is None:
        raise PlanError(
            f"device {profile.name} has no FLOP/s for {system}; it has {sorted(profile.flops)}; "
            f"add `{system}` or `default` to its flops"
        )
    return flops
