"""Tensor parallelism of layers that compute: they are DTensors, which take a second to import.

Query, key, value, feed_in and the head are sharded by columns, projection, feed_out and the table
of tokens by rows. Every rank has a copy of the rest. A block all-reduces its boundary tensor twice
in each direction. Under sequence parallelism, norms and residuals work on a part of the sequence,
and every all-reduce is a reduce-scatter and an all-gather.

Sources: Megatron-LM (Shoeybi et al. 2019), section 3; Korthikanti et al. 2022, section 4.2.
"""

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

from netbench.plan.model import Plan
from netbench.plan.tensor import tensor_groups
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.world import TIMEOUT
from netbench.trainers.layers.gpt import Embedding, GPTBlock, Head

SEQUENCE = 1
"""Dimension of activations (b, s, h) that sequence parallelism splits."""


class SharedLayers:
    """This rank's shards of layers that compute, and the boundary tensors between them.

    All processes of the world create one at the same time. group: ranks by tensor index.
    """

    def __init__(self, plan: Plan, group: Group) -> None:
        self.index, self._size = group.index, group.size
        self._splits_sequence = plan.sequence_parallel
        self._process_group = _connect(tensor_groups(plan), group)
        self._mesh = DeviceMesh.from_group(self._process_group, torch.device(plan.compute).type)

    def shard(self, layers: Iterable[nn.Module]) -> None:
        """Keep this rank's shards of layers, whose values are the same on all ranks."""
        for layer in layers:
            for style in _styles(layer, self._splits_sequence):
                # src_data_rank: all ranks have the values already.
                parallelize_module(layer, self._mesh, style, src_data_rank=None)
            if isinstance(layer, GPTBlock):
                layer.heads //= self._size

    def part(self, boundary: torch.Tensor) -> torch.Tensor:
        """Return the part of a boundary tensor that this rank sends: (elements / size,)."""
        flat = boundary.flatten()
        if self._splits_sequence:
            return flat
        return flat.tensor_split(self._size)[self.index]

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Return the input of this rank's layers from the part it received: (elements,).

        With sequence parallelism, that is the part itself.
        """
        if self._splits_sequence:
            return part
        boundary = part.new_empty(self._size * part.numel())
        dist.all_gather_into_tensor(boundary, part.contiguous(), group=self._process_group)
        return boundary

    def local_parts(self, layers: nn.Module) -> list[nn.Parameter]:
        """Return this rank's shards of parameters; those that are not sharded are whole."""
        with torch.no_grad():
            return [
                nn.Parameter(p.to_local()) if isinstance(p, DTensor) else p
                for p in layers.parameters()
            ]

    def local_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return this rank's part of a parameter's gradient.

        For a parameter that all ranks have, it is the sum of their contributions.
        """
        gradient = parameter.grad
        assert gradient is not None
        if not isinstance(gradient, DTensor):
            return gradient
        assert isinstance(parameter, DTensor)
        return gradient.redistribute(placements=parameter.placements).to_local()

    def attach(self, layers: nn.Module, parts: Sequence[nn.Parameter]) -> None:
        """Make sharded parameters views of `parts`, in the order of `layers.parameters()`."""
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
    """Create all process groups, as every process must, in one order. Return that of `mine`."""
    made = [dist.new_group(list(group), timeout=TIMEOUT, sort_ranks=False) for group in groups]
    own = made[[tuple(group) for group in groups].index(mine.members)]
    assert isinstance(own, dist.ProcessGroup)
    return own


def _styles(layer: nn.Module, splits_sequence: bool) -> list[dict[str, ParallelStyle]]:
    """Return the parallel styles of a layer, to apply one after the other.

    A norm's output is gathered once, and is then the replicated input of the modules that follow.
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
