"""Layers that compute: a part of a GPT with its gradients and optimizer, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from netbench.errors import TestbedError
from netbench.plan import Plan
from netbench.trainers.collectives import equal_chunks
from netbench.trainers.data import Data, SyntheticData, TokenFile
from netbench.trainers.events import RECORDER, recorded, recorded_pass
from netbench.trainers.layers import DTYPES, build_layer
from netbench.trainers.tensor import SharedLayers, hold, local_gradient, local_part
from netbench.workload.tokens import vocabulary_size

if TYPE_CHECKING:
    from netbench.trainers.stage import Part

SGD_LEARNING_RATE, ADAM_LEARNING_RATE = 0.1, 1e-3
"""High enough that a small model learns within a few steps."""

ADAMW_WEIGHT_DECAY = 0.1
"""Of diloco's inner steps. Source: Douillard et al. 2023, section 3."""

OPTIMIZERS: dict[str, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    "dtfm": lambda tensors: torch.optim.SGD(tensors, lr=SGD_LEARNING_RATE),
    "diloco": lambda tensors: torch.optim.AdamW(
        tensors, lr=ADAM_LEARNING_RATE, weight_decay=ADAMW_WEIGHT_DECAY
    ),
}
"""By system: DT-FM's release steps with SGD, diloco's ranks with AdamW; the others with Adam."""


def adam(tensors: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """What all systems but those in `OPTIMIZERS` step with."""
    return torch.optim.Adam(tensors, lr=ADAM_LEARNING_RATE)


def find_device(name: str) -> torch.device:
    """`cpu` or `cuda`. Raises TestbedError where torch sees none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise TestbedError("torch sees no CUDA device here; choose cpu")
    return torch.device(name)


class Batches:
    """The micro-batches of one replica, iteration after iteration."""

    def __init__(self, plan: Plan, replica: int) -> None:
        workload = plan.workload
        self._data: Data
        vocabulary, sequence = vocabulary_size(workload), workload.sequence
        if plan.token_file:
            path = Path(plan.token_file)
            self._data = TokenFile(path, vocabulary=vocabulary, sequence=sequence)
        else:
            self._data = SyntheticData(seed=plan.seed, vocabulary=vocabulary, sequence=sequence)
        self._micro_batch = workload.micro_batch
        self._batch = workload.batch
        self._offset = replica * workload.batch // plan.layout.dp

    def tokens(self, iteration: int, micro_batch: int) -> torch.Tensor:
        """(b, s + 1) int64. Sample i of iteration t is sequence t * batch + i of the data."""
        return torch.stack([self._data.sample(i) for i in self.numbers(iteration, micro_batch)])

    def numbers(self, iteration: int, micro_batch: int) -> range:
        """Which samples of the data a micro-batch has."""
        first = iteration * self._batch + self._offset + micro_batch * self._micro_batch
        return range(first, first + self._micro_batch)


def build_layers(plan: Plan, part: int) -> list[nn.Module]:
    """The layers of the part-th of the model's parts: stages x chunks, in order. A named model is
    one of each."""
    if plan.workload.model:
        from netbench.trainers.named import build_named  # which needs this module

        return [build_named(plan)]
    parts = [plan.stages[i % plan.layout.pp].num_layers for i in range(num_parts(plan))]
    parts = [layers // plan.num_chunks for layers in parts]
    first = 1 + sum(parts[:part])
    indices = list(range(first, first + parts[part]))
    if part == 0:
        indices.insert(0, 0)
    if part == len(parts) - 1:
        indices.append(plan.workload.layers + 1)
    return [build_layer(plan.workload, index, plan.seed) for index in indices]


def num_parts(plan: Plan) -> int:
    """Parts the model is cut into."""
    return plan.layout.pp * plan.num_chunks


def flatten(
    parameters: Sequence[nn.Parameter], gradient_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move parameters into one tensor, and their gradients, zero, into another: both (elements,).

    Where the dtypes differ, gradients are added to the second after every backward pass
    (`RealStage`); else it is what autograd accumulates into.
    """
    first = parameters[0]
    size = sum(parameter.numel() for parameter in parameters)
    values = torch.empty(size, dtype=first.dtype, device=first.device)
    gradients = torch.zeros(size, dtype=gradient_dtype, device=first.device)
    for parameter, value, gradient in zip(
        parameters, views(values, parameters), views(gradients, parameters), strict=True
    ):
        value.copy_(parameter.detach())
        parameter.data = value
        if gradient_dtype == first.dtype:
            parameter.grad = gradient
    return values, gradients


def views(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> Iterator[torch.Tensor]:
    """`flat` cut into tensors of the parameters' shapes."""
    start = 0
    for parameter in parameters:
        yield flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


class _Opened(NamedTuple):
    """What a micro-batch's backward pass needs of its forward pass. entry: activations that came
    in. tokens: of the first and the last part. output: activations that went out, or the loss."""

    entry: torch.Tensor | None
    tokens: torch.Tensor | None
    output: torch.Tensor


class RealStage:
    """A part of the model that computes: a `Stage`.

    Its gradients are of the mean loss over the whole batch: every replica adds its share.
    """

    def __init__(self, plan: Plan, part: Part) -> None:
        workload = plan.workload
        self.chunk = part.index // plan.layout.pp
        self._device = find_device(plan.compute)
        self._dtype = DTYPES[workload.dtype]
        sequence = workload.sequence // (plan.layout.tp if plan.sequence_parallel else 1)
        self._shape = (workload.micro_batch, sequence, workload.hidden)
        self._recomputes = workload.recomputation
        self._splits_backward = plan.schedule == "zero-bubble"
        self._is_first = part.index == 0
        self._is_last = part.index == num_parts(plan) - 1
        self._layers = nn.ModuleList(build_layers(plan, part.index)).to(self._device)
        self._shared = SharedLayers(plan, part.tensor_group) if part.tensor_group else None
        if self._shared:
            self._shared.shard(self._layers)
        held = [local_part(p) for p in self._layers.parameters()]
        self.parameters, self.gradients = flatten(held, part.gradient_dtype)
        hold(self._layers, held)
        self._weights = list(self._layers.parameters())
        # What autograd does not accumulate into the flat gradients itself.
        self._apart = [
            (weight, gradient)
            for weight, gradient in zip(self._weights, views(self.gradients, held), strict=True)
            if weight.grad is None
        ]
        index, count = part.shard
        self._shard = slice(*equal_chunks(self.parameters.numel(), count)[index])
        self._updated = self.parameters[self._shard]
        self._has_master = bool(plan.master_weights)
        if self._has_master:
            exact = torch.promote_types(self._dtype, torch.float32)
            self._updated = self._updated.to(plan.master_weights, exact, copy=True)
        self._optimizer = OPTIMIZERS.get(plan.system, adam)([self._updated])
        self._batches = Batches(plan, part.replica)
        self._share = workload.micro_batch / workload.batch
        self._iteration = self._num_forward = 0
        self._loss = 0.0
        self._open: dict[int, _Opened] = {}
        self._owed: dict[int, Callable[[], object]] = {}

    @property
    def layers(self) -> nn.ModuleList:
        """What it computes, in order."""
        return self._layers

    @recorded_pass("forward")
    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Activations in, activations out; the first part reads tokens, the last keeps its loss."""
        tokens = None
        if self._is_first or self._is_last:
            # Not by `micro_batch`: every round of GPipe counts from 0.
            tokens = self._batches.tokens(self._iteration, self._num_forward).to(self._device)
        self._num_forward += 1
        entry = None if activation is None else self._unpack(activation).requires_grad_()
        # Gradients of inputs and of weights need one recomputation, not a checkpoint's for each.
        with torch.set_grad_enabled(not (self._recomputes and self._splits_backward)):
            output = self._compute(entry, tokens)
        if self._is_last:
            self._loss += output.item()
        self._open[micro_batch] = _Opened(entry, tokens, output)
        return self._pack(output)

    def _compute(self, entry: torch.Tensor | None, tokens: torch.Tensor | None) -> torch.Tensor:
        """Through all layers: activations, or the last part's share of the loss."""
        if entry is None:
            assert tokens is not None
            x = tokens[:, :-1]
        else:
            x = entry
        checkpoints = self._recomputes and not self._splits_backward
        for layer in self._layers:
            x = checkpoint(layer, x, use_reentrant=False) if checkpoints else layer(x)
        if self._is_last:
            assert tokens is not None
            scores = x.flatten(0, 1).float() if x.dtype.itemsize < 4 else x.flatten(0, 1)
            x = F.cross_entropy(scores, tokens[:, 1:].flatten()) * self._share
        return x

    @recorded_pass("backward")
    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the output in, gradient of the input out; gradients of weights add up."""
        entry, _, output = self._open.pop(micro_batch)
        torch.autograd.backward(output, None if gradient is None else self._unpack(gradient))
        self._collect()
        if entry is None:
            return torch.empty(0, dtype=torch.uint8)
        assert entry.grad is not None
        return self._pack(entry.grad)

    @recorded_pass("backward")
    def backward_input(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """`backward` without the gradients of weights, which `backward_weight` adds later."""
        # Seconds to import, which only this schedule's ranks should pay for.
        from torch.distributed.pipelining._backward import (
            stage_backward_input,
            stage_backward_weight,
        )

        entry, tokens, output = self._open.pop(micro_batch)
        if self._recomputes:
            output = self._compute(entry, tokens)
        above = None if gradient is None else self._unpack(gradient)
        if entry is None:
            # Tokens have no gradient: all there is to do is for the weights.
            self._owed[micro_batch] = lambda: torch.autograd.backward(output, above)
            return torch.empty(0, dtype=torch.uint8)
        (below,), groups = stage_backward_input(
            [output], None if above is None else [above], [entry], iter(self._weights)
        )
        self._owed[micro_batch] = lambda: stage_backward_weight(iter(self._weights), groups)
        assert below is not None
        return self._pack(below)

    def backward_weight(self, micro_batch: int) -> None:
        """The gradients of weights that `backward_input` has left."""
        with RECORDER.span("weight", micro_batch=micro_batch, chunk=self.chunk):
            self._owed.pop(micro_batch)()
            self._collect()

    def _collect(self) -> None:
        """Add up gradients in another dtype than autograd's, and those of shards."""
        for weight, gradient in self._apart:
            if weight.grad is not None:
                gradient += local_gradient(weight)
                weight.grad = None

    @recorded("optimizer")
    def update(self) -> None:
        """Step, zero the gradients, go on to the next batch."""
        self._updated.grad = self.gradients[self._shard].to(self._updated)
        self._optimizer.step()
        if self._has_master:
            self.parameters[self._shard] = self._updated
        self.zero_gradients()

    def load(self, parameters: torch.Tensor) -> None:
        """Go on from these parameters."""
        self.parameters.copy_(parameters)
        if self._has_master:
            self._updated.copy_(parameters[self._shard])

    def zero_gradients(self) -> None:
        """Go on to the next batch without a step."""
        self.gradients.zero_()
        self._iteration += 1
        self._num_forward = 0

    def skip(self, num_micro_batches: int) -> None:
        """Others take the next so many micro-batches of this iteration."""
        self._num_forward += num_micro_batches

    def take_loss(self) -> float | None:
        """The last part's share of the mean loss since it was last asked. Of ranks that share the
        part, the first has it."""
        if not self._is_last or (self._shared and self._shared.index):
            return None
        loss, self._loss = self._loss, 0.0
        return loss

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """As boundary tensors are handed over. The loss is not: nobody is sent it."""
        if self._shared:
            tensor = self._shared.part(tensor)
        return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)

    def _unpack(self, boundary: torch.Tensor) -> torch.Tensor:
        """A copy: the buffer is used again while this is still needed."""
        tensor = boundary.view(self._dtype).to(self._device, copy=True)
        if self._shared:
            tensor = self._shared.whole(tensor)
        return tensor.view(self._shape)
