"""Models that are trained whole: what comes when in a pass, and what it costs."""

from __future__ import annotations

from netbench.errors import PlanError
from netbench.scenario.model import DeviceProfile, Workload
from netbench.workload.costs import (
    DTYPE_BYTES,
    Stage,
    backward_factor,
    layer_forward_flops,
    layer_parameters,
)
from netbench.workload.models import MODELS, Block


def blocks(workload: Workload) -> tuple[Block, ...]:
    """Of whatever is trained. A GPT's blocks are its embeddings, which cost no work worth counting,
    and its layers."""
    if workload.model:
        return MODELS[workload.model].blocks
    flops = layer_forward_flops(workload) / workload.micro_batch
    embeddings = Block(
        name="embeddings", parameters=workload.embedding_parameters, forward_flops=0.0
    )
    layers = (
        Block(name=f"layer {index}", parameters=layer_parameters(workload), forward_flops=flops)
        for index in range(workload.layers)
    )
    return (embeddings, *layers)


def model_stages(workload: Workload, device: DeviceProfile) -> tuple[Stage, ...]:
    """A named model on one device, per micro-batch: one stage; none for a GPT (`stage_costs`).

    The profile's throughput is of training alone, update included, and shared between the passes as
    their work is. Raises PlanError where the profile has none for the model.
    """
    if not workload.model:
        return ()
    model = MODELS[workload.model]
    throughput = device.throughput.get(workload.model)
    if throughput is None:
        raise PlanError(
            f"device {device.name} has no throughput for {workload.model}; it has "
            f"{sorted(device.throughput)}: add `throughput: {{{workload.model}: ...}}`, the "
            f"{model.unit} per second that one of it trains alone"
        )
    both_s = workload.micro_batch * model.units_per_sample / throughput
    forward_s = both_s / (1 + backward_factor(workload))
    stage = Stage(
        num_layers=workload.layers,
        forward_s=forward_s,
        backward_s=both_s - forward_s,
        optimizer_s=0.0,
        parameters=model.parameters,
        gradient_bytes=model.parameters * DTYPE_BYTES[workload.dtype],
    )
    return (stage,)
