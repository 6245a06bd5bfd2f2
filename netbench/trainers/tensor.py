"""Tensor parallelism: layers that several ranks share, computed or virtual.

Computed layers are sharded as DTensors: query, key, value, feed_in and the head by columns,
projection, feed_out and the table of tokens by rows; the rest every rank holds. A block all-reduces
its boundary tensor twice in each direction. Under sequence parallelism norms and residuals are of a
part of the sequence each: every all-reduce is a reduce-scatter and an all-gather.

Virtual layers all-reduce over the network where their ranks are on several nodes. GPUs of one node
do it over links that no shaper reaches, and loopback would be for free: there the rank sleeps for
what a ring takes at `Transport.inside_node_bps`.

Sources: Megatron-LM (Shoeybi et al. 2019), section 3; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from netbench.plan import Plan
from netbench.plan.model import VIRTUAL
from netbench.plan.tensor import (
    LAYER_ALL_REDUCES,
    inside_all_reduce_s,
    on_one_node,
    tensor_groups,
)
from netbench.trainers.collectives import (
    Group,
    count_slices,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    split,
)
from netbench.trainers.layers import Embedding, GPTBlock, Head
from netbench.trainers.links import payload_bytes
from netbench.trainers.virtual import compute
from netbench.trainers.world import TIMEOUT

SEQUENCE = 1
"""Dimension of activations (b, s, h) that sequence parallelism splits."""


class SharedLayers:
    """This rank's shards of layers that compute, and the boundary tensors between them.

    All processes of the world make one at the same time. group: of this rank, by tensor index.
    """

    def __init__(self, plan: Plan, group: Group) -> None:
        self.index, self._size = group.index, group.size
        self._splits_sequence = plan.sequence_parallel
        self._process_group = _connect(tensor_groups(plan), group)
        self._mesh = DeviceMesh.from_group(self._process_group, torch.device(plan.compute).type)

    def shard(self, layers: Iterable[nn.Module]) -> None:
        """Keep of every layer what this rank holds. Each has the same values on all ranks."""
        for layer in layers:
            for style in _styles(layer, self._splits_sequence):
                # src_data_rank: all have the values, nobody sends them.
                parallelize_module(layer, self._mesh, style, src_data_rank=None)
            if isinstance(layer, GPTBlock):
                layer.heads //= self._size

    def part(self, boundary: torch.Tensor) -> torch.Tensor:
        """What this rank sends of a boundary tensor: (elements / size,)."""
        flat = boundary.flatten()
        if self._splits_sequence:
            return flat
        return flat.tensor_split(self._size)[self.index]

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """What this rank's layers take, from the part it was sent: (elements,), or with sequence
        parallelism the part itself."""
        if self._splits_sequence:
            return part
        boundary = part.new_empty(self._size * part.numel())
        dist.all_gather_into_tensor(boundary, part.contiguous(), group=self._process_group)
        return boundary


def local_part(parameter: nn.Parameter) -> nn.Parameter:
    """What this rank holds of a parameter: itself where it is not sharded."""
    if not isinstance(parameter, DTensor):
        return parameter
    with torch.no_grad():
        return nn.Parameter(parameter.to_local())


def local_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's part of a parameter's gradient. Of one that all ranks hold, summed over what each
    of them contributed."""
    gradient = parameter.grad
    assert gradient is not None
    if not isinstance(gradient, DTensor):
        return gradient
    assert isinstance(parameter, DTensor)
    return gradient.redistribute(placements=parameter.placements).to_local()


def hold(layers: nn.Module, parts: Sequence[nn.Parameter]) -> None:
    """Let sharded parameters be views of `parts`, in the order of `layers.parameters()`."""
    places = [
        (module, name, parameter)
        for module in layers.modules()
        for name, parameter in module.named_parameters(recurse=False)
    ]
    for (module, name, parameter), part in zip(places, parts, strict=True):
        if isinstance(parameter, DTensor):
            sharded = DTensor.from_local(
                part.detach(),
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            module.register_parameter(name, nn.Parameter(sharded))


def _connect(groups: Sequence[Sequence[int]], mine: Group) -> dist.ProcessGroup:
    """The process group of `mine`. Every process of the world makes all of them, in one order."""
    made = [dist.new_group(list(group), timeout=TIMEOUT, sort_ranks=False) for group in groups]
    own = made[[tuple(group) for group in groups].index(mine.members)]
    assert isinstance(own, dist.ProcessGroup)
    return own


def _styles(layer: nn.Module, splits_sequence: bool) -> list[dict[str, ParallelStyle]]:
    """How a layer is shared, to be applied one after the other.

    A norm's output is gathered once, and is then the replicated input of all that follow.
    """
    between: Placement = Shard(SEQUENCE) if splits_sequence else Replicate()

    def gathered(*norms: str) -> list[dict[str, ParallelStyle]]:
        styles: list[dict[str, ParallelStyle]] = []
        if splits_sequence:
            styles.append({norm: SequenceParallel(sequence_dim=SEQUENCE) for norm in norms})
        output = PrepareModuleOutput(
            output_layouts=between, desired_output_layouts=Replicate(), use_local_output=False
        )
        return [*styles, dict.fromkeys(norms, output)]

    match layer:
        case Embedding():
            tokens = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
            embedded = PrepareModuleOutput(
                output_layouts=Replicate(), desired_output_layouts=between
            )
            return [{"tokens": tokens}, {"": embedded}]
        case GPTBlock():
            by_columns = dict.fromkeys(("query", "key", "value", "feed_in"), ColwiseParallel())
            by_rows = dict.fromkeys(
                ("projection", "feed_out"), RowwiseParallel(output_layouts=between)
            )
            return [*gathered("attention_norm", "feed_norm"), {**by_columns, **by_rows}]
        case Head():
            return [*gathered("norm"), {"scores": ColwiseParallel(output_layouts=Replicate())}]
    raise TypeError(f"no rule to share a {type(layer).__name__}")


def tensor_peers(plan: Plan, group: Group) -> set[int]:
    """Processes of a tensor-parallel group that this one all-reduces with over the world.

    Computed layers do so in a process group of their own, virtual ones of one node not at all.
    """
    leaves = plan.compute == VIRTUAL and not on_one_node(plan, group.members)
    return group.neighbours if leaves else set()


class SharedCompute:
    """Computes on a virtual device whose layers several share: sleeps, and all-reduces.

    num_layers: that a pass goes through. group: of this rank, by tensor index.
    """

    def __init__(self, plan: Plan, group: Group, num_layers: float) -> None:
        self._all_reduces = LAYER_ALL_REDUCES * num_layers
        self._inside_s = inside_all_reduce_s(plan)
        self._is_inside = on_one_node(plan, group.members)
        self._splits_sequence = plan.sequence_parallel
        self._slices = count_slices(plan.activation_bytes, plan.transport.chunk_bytes)
        # A ring cuts the tensor into a chunk per rank, and those into slices.
        messages = max(self._slices, group.size)
        self._group = Group.buffered(
            group.world, group.members, plan, plan.activation_bytes / messages
        )
        num_bytes = payload_bytes(plan.activation_bytes, plan.scale, messages)
        self._tensor = torch.zeros(num_bytes, dtype=torch.uint8)
        self._chunks = split(num_bytes, group.size)

    def __call__(self, seconds: float, passes: int) -> None:
        """Occupy the device for this long in so many passes, and for their all-reduces."""
        count = round(passes * self._all_reduces)
        if self._is_inside or not count:
            compute(seconds + count * self._inside_s)
            return
        for _ in range(count):
            self._layer_part(seconds / count)

    def _layer_part(self, seconds: float) -> None:
        """Attention or feed-forward."""
        if not self._splits_sequence:
            compute(seconds)
            ring_all_reduce(self._group, self._tensor, self._slices)
            return
        mine = self._tensor[slice(*self._chunks[self._group.index])]
        ring_all_gather(self._group, self._tensor, self._chunks, self._slices)
        compute(seconds)
        ring_reduce_scatter(self._group, mine, self._tensor, self._chunks, self._slices)
