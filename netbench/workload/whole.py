"""Models that every rank has whole: their blocks in order, and their cost."""

from netbench.errors import PlanError
from netbench.scenario.model import DeviceProfile, Workload
from netbench.workload.costs import (
    DTYPE_BYTES,
    Stage,
    backward_factor,
    layer_forward_flops,
    layer_parameters,
)
from netbench.workload.models import Block, model_of


def blocks(workload: Workload) -> tuple[Block, ...]:
    """Return the blocks of a named model or a GPT. A GPT's are its embeddings, whose work is
    negligible, and its layers."""
    if workload.model:
        return model_of(workload).blocks
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
    """Return a named model as one stage on one device; nothing for a GPT (see `stage_costs`).

    The profile's throughput is that of training on one device, update included. The passes divide
    the time in proportion to their work. Raises PlanError if the profile has none for the model.
    """
    if not workload.model:
        return ()
    model = model_of(workload)
    throughput = device.throughput.get(workload.model)
    if throughput is None:
        raise PlanError(
            f"device {device.name} has no throughput for {workload.model}; it has "
            f"{sorted(device.throughput)}: add `throughput: {{{workload.model}: ...}}`, the "
            f"{model.unit} per second that one device trains alone"
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
