"""Layers that compute: a part of a GPT with its gradients and optimizer, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from netbench.plan import Plan
from netbench.trainers.data import Data, SyntheticData, TokenFile
from netbench.trainers.events import recorded, recorded_pass
from netbench.trainers.layers import DTYPES, build_layer, vocabulary_size

if TYPE_CHECKING:
    from netbench.trainers.stage import Part

SGD_LEARNING_RATE, ADAM_LEARNING_RATE = 0.1, 1e-3
"""High enough that a small model learns within a few steps."""

OPTIMIZERS: dict[str, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    "dtfm": lambda tensors: torch.optim.SGD(tensors, lr=SGD_LEARNING_RATE),
}
"""By system: DT-FM's release steps with SGD; the others with Adam."""


def adam(tensors: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """What all systems but those in `OPTIMIZERS` step with."""
    return torch.optim.Adam(tensors, lr=ADAM_LEARNING_RATE)


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
        first = iteration * self._batch + self._offset + micro_batch * self._micro_batch
        samples = [self._data.sample(first + i) for i in range(self._micro_batch)]
        return torch.stack(samples)


def build_layers(plan: Plan, part: int) -> list[nn.Module]:
    """The layers of the part-th of the model's parts: stages x chunks, in order."""
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


class RealStage:
    """A part of the model that computes: a `Stage`.

    Its gradients are of the mean loss over the whole batch: every replica adds its share.
    """

    def __init__(self, plan: Plan, part: Part) -> None:
        workload = plan.workload
        self.chunk = part.index // plan.layout.pp
        self._device = torch.device(plan.compute)
        self._dtype = DTYPES[workload.dtype]
        self._shape = (workload.micro_batch, workload.sequence, workload.hidden)
        self._recomputes = workload.recomputation
        self._is_first = part.index == 0
        self._is_last = part.index == num_parts(plan) - 1
        self._layers = nn.ModuleList(build_layers(plan, part.index)).to(self._device)
        self._weights = [p for p in self._layers.parameters() if p.requires_grad]
        self.parameters, self.gradients = flatten(self._weights, part.gradient_dtype)
        self._optimizer = OPTIMIZERS.get(plan.system, adam)([self.parameters])
        self._batches = Batches(plan, part.replica)
        self._share = workload.micro_batch / workload.batch
        self._iteration = self._num_forward = 0
        self._loss = 0.0
        self._open: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}

    @recorded_pass("forward")
    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Activations in, activations out; the first part reads tokens, the last keeps its loss."""
        tokens = None
        if self._is_first or self._is_last:
            # Not by `micro_batch`: every round of GPipe counts from 0.
            tokens = self._batches.tokens(self._iteration, self._num_forward).to(self._device)
        self._num_forward += 1
        entry: torch.Tensor | None = None
        if activation is None:
            assert tokens is not None
            x = tokens[:, :-1]
        else:
            x = entry = self._unpack(activation).requires_grad_()
        for layer in self._layers:
            x = checkpoint(layer, x, use_reentrant=False) if self._recomputes else layer(x)
        if self._is_last:
            assert tokens is not None
            scores = x.flatten(0, 1).float() if x.dtype.itemsize < 4 else x.flatten(0, 1)
            x = F.cross_entropy(scores, tokens[:, 1:].flatten()) * self._share
            self._loss += x.item()
        self._open[micro_batch] = entry, x
        return self._pack(x)

    @recorded_pass("backward")
    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the output in, gradient of the input out; gradients of weights add up."""
        entry, output = self._open.pop(micro_batch)
        torch.autograd.backward(output, None if gradient is None else self._unpack(gradient))
        self._collect()
        if entry is None:
            return torch.empty(0, dtype=torch.uint8)
        assert entry.grad is not None
        return self._pack(entry.grad)

    def _collect(self) -> None:
        """Add up gradients in another dtype than autograd's."""
        if self.gradients.dtype == self._dtype:
            return
        for weight, gradient in zip(
            self._weights, views(self.gradients, self._weights), strict=True
        ):
            if weight.grad is not None:
                gradient += weight.grad
                weight.grad = None

    @recorded("optimizer")
    def update(self) -> None:
        """Step, zero the gradients, go on to the next batch."""
        self.parameters.grad = self.gradients.to(self._dtype)
        self._optimizer.step()
        self.zero_gradients()

    def zero_gradients(self) -> None:
        """Go on to the next batch without a step."""
        self.gradients.zero_()
        self._iteration += 1
        self._num_forward = 0

    def take_loss(self) -> float | None:
        """The last part's share of the mean loss since it was last asked."""
        if not self._is_last:
            return None
        loss, self._loss = self._loss, 0.0
        return loss

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """As boundary tensors are handed over. The loss is not: nobody is sent it."""
        return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)

    def _unpack(self, boundary: torch.Tensor) -> torch.Tensor:
        """A copy: the buffer is used again while this is still needed."""
        return boundary.view(self._dtype).view(self._shape).to(self._device, copy=True)
