"""Layers that compute: a part of a GPT with its gradients and optimizer, on a CPU or a GPU."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from netbench.errors import TestbedError
from netbench.plan.model import Plan
from netbench.systems import system_of
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.slices import equal_chunks
from netbench.trainers.events import RECORDER, recorded, recorded_pass
from netbench.trainers.layers.gpt import DTYPES, build_layer
from netbench.workload.tokens import check_tokens, map_tokens, vocabulary_size

if TYPE_CHECKING:
    from netbench.trainers.layers.stage import StageRole
    from netbench.trainers.layers.tensor import SharedLayers

SGD_LEARNING_RATE, ADAM_LEARNING_RATE = 0.1, 1e-3
"""Learning rates, high enough that a small model learns within a few steps."""

ADAMW_WEIGHT_DECAY = 0.1
"""Weight decay of diloco's inner steps. Source: Douillard et al. 2023, section 3."""

OPTIMIZERS: dict[str, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=SGD_LEARNING_RATE),
    "adam": lambda tensors: torch.optim.Adam(tensors, lr=ADAM_LEARNING_RATE),
    "adamw": lambda tensors: torch.optim.AdamW(
        tensors, lr=ADAM_LEARNING_RATE, weight_decay=ADAMW_WEIGHT_DECAY
    ),
}
"""Optimizers by name (`System.optimizer`)."""


def find_device(name: str) -> torch.device:
    """Return device `cpu` or `cuda`. Raises TestbedError if torch sees no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise TestbedError("torch sees no CUDA device here; choose cpu")
    return torch.device(name)


def device_of(plan: Plan) -> torch.device:
    """Return the device that has a plan's tensors: that of layers that compute, or the CPU."""
    return torch.device("cuda" if plan.compute == "cuda" else "cpu")


def settle(device: torch.device) -> None:
    """Wait until the device has done what this thread has queued, so that clocks mean something."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


PERIOD = 4
"""Synthetic tokens can be predicted from the token this many places before: a model can learn."""


class SyntheticData:
    """Sequences that repeat a random motif of `PERIOD` tokens, with every eighth token random.

    They are the same on every rank and in every layout.

    vocabulary: tokens are 0 .. vocabulary - 1. sequence: inputs per sample.
    """

    def __init__(self, *, seed: int, vocabulary: int, sequence: int) -> None:
        self._seed, self._vocabulary, self._sequence = seed, vocabulary, sequence

    def sample(self, index: int) -> torch.Tensor:
        """Return (sequence + 1,) int64: inputs, and targets shifted by one. They depend only on the
        seed and the index."""
        random = np.random.default_rng((self._seed, index))
        length = self._sequence + 1
        tokens = np.resize(random.integers(self._vocabulary, size=PERIOD), length)
        noise = random.integers(self._vocabulary, size=length)
        return torch.from_numpy(np.where(random.random(length) < 1 / 8, noise, tokens))


class TokenFile:
    """A memory-mapped file of tokens, cut into sequences that repeat without end.

    Raises PlanError for a file that is missing or too short, and, when a sample is read, for tokens
    beyond the vocabulary.
    """

    def __init__(self, path: Path, *, vocabulary: int, sequence: int) -> None:
        self._path, self._vocabulary, self._sequence = path, vocabulary, sequence
        self._tokens = map_tokens(path, sequence)
        self._num_samples = (len(self._tokens) - 1) // sequence

    def sample(self, index: int) -> torch.Tensor:
        """Return (sequence + 1,) int64."""
        start = index % self._num_samples * self._sequence
        tokens = self._tokens[start : start + self._sequence + 1]
        check_tokens(self._path, tokens, start, self._vocabulary)
        return torch.from_numpy(tokens.astype(np.int64))


class Batches:
    """Micro-batches of one replica, iteration after iteration."""

    def __init__(self, plan: Plan, replica: int) -> None:
        workload = plan.workload
        self._data: SyntheticData | TokenFile
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
        """Return (b, s + 1) int64. Sample i of iteration t is sequence t * batch + i."""
        return torch.stack([self._data.sample(i) for i in self.numbers(iteration, micro_batch)])

    def numbers(self, iteration: int, micro_batch: int) -> range:
        """Return the indices of a micro-batch's samples."""
        first = iteration * self._batch + self._offset + micro_batch * self._micro_batch
        return range(first, first + self._micro_batch)


def build_layers(plan: Plan, part: int) -> list[nn.Module]:
    """Build the layers of one of the model's parts: stages x chunks, in order.

    A named model has one stage of one chunk.
    """
    if plan.workload.model:
        from netbench.trainers.layers.named import build_named  # it imports this module

        return [build_named(plan)]
    parts = [plan.stages[i % plan.layout.pp].num_layers for i in range(num_parts(plan))]
    return build_blocks(plan, [layers // plan.num_chunks for layers in parts], part)


def build_blocks(plan: Plan, parts: Sequence[int], part: int) -> list[nn.Module]:
    """Build one part of a GPT: its blocks, before them the embedding in the first part, after them
    the head in the last. parts: blocks of every part."""
    first = 1 + sum(parts[:part])
    last = first + parts[part] + (part == len(parts) - 1)
    indices = range(first - (part == 0), last)
    return [build_layer(plan.workload, index, plan.seed) for index in indices]


def num_parts(plan: Plan) -> int:
    """Return the number of parts that the model is cut into."""
    return plan.depth


def flatten(
    parameters: Sequence[nn.Parameter], gradient_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move parameters into one tensor, and their gradients, zero, into another: both (elements,).

    Autograd accumulates into the second, unless the dtypes differ: then `RealStage` adds gradients
    to it after every backward pass.
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
    """Cut `flat` into tensors of the parameters' shapes."""
    start = 0
    for parameter in parameters:
        yield flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


def _share(plan: Plan, group: Group | None, layers: Iterable[nn.Module]) -> "SharedLayers | None":
    """Keep this rank's shards of layers that `group` shares; None = no group shares them."""
    if group is None:
        return None
    from netbench.trainers.layers.tensor import SharedLayers  # it takes a second to import

    shared = SharedLayers(plan, group)
    shared.shard(layers)
    return shared


class _Opened(NamedTuple):
    """State from a micro-batch's forward pass for its backward pass.

    entry: activations in. tokens: for the first and the last part. output: activations out, or the
    loss.
    """

    entry: torch.Tensor | None
    tokens: torch.Tensor | None
    output: torch.Tensor


class RealStage:
    """A part of the model that computes: a `TrainedStage`.

    Its gradients are those of the mean loss over the whole batch, of which every replica adds its
    part.
    """

    def __init__(self, plan: Plan, part: "StageRole") -> None:
        workload = plan.workload
        self.chunk = part.index // plan.layout.pp
        self._device = find_device(plan.compute)
        self._dtype = DTYPES[workload.dtype]
        sequence = workload.sequence // (plan.layout.tp if plan.sequence_parallel else 1)
        self._shape = (workload.micro_batch, sequence, workload.hidden)
        self._recomputes = workload.recomputation
        self._splits_backward = plan.splits_backward
        self._is_first = part.index == 0
        self._is_last = part.index == num_parts(plan) - 1
        self._layers = nn.ModuleList(build_layers(plan, part.index)).to(self._device)
        self._shared = _share(plan, part.tensor_group, self._layers)
        parts = list(self._layers.parameters())
        if self._shared:
            parts = self._shared.local_parts(self._layers)
        self.parameters, self.gradients = flatten(parts, part.gradient_dtype)
        if self._shared:
            self._shared.attach(self._layers, parts)
        self._weights = list(self._layers.parameters())
        # Weights whose gradients autograd does not accumulate into the flat ones.
        self._apart = [
            (weight, gradient)
            for weight, gradient in zip(self._weights, views(self.gradients, parts), strict=True)
            if weight.grad is None
        ]
        index, count = part.shard
        self._shard = slice(*equal_chunks(self.parameters.numel(), count)[index])
        self._updated = self.parameters[self._shard]
        self._has_master = bool(plan.master_weights)
        if self._has_master:
            exact = torch.promote_types(self._dtype, torch.float32)
            self._updated = self._updated.to(plan.master_weights, exact, copy=True)
        self._optimizer = OPTIMIZERS[system_of(plan).optimizer]([self._updated])
        self._batches = Batches(plan, part.replica)
        self._share = workload.micro_batch / workload.batch
        self._iteration = self._num_forward = 0
        self._loss = 0.0
        self._open: dict[int, _Opened] = {}
        self._owed: dict[int, Callable[[], object]] = {}

    @property
    def layers(self) -> nn.ModuleList:
        """Layers in order."""
        return self._layers

    @recorded_pass("forward")
    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Return activations for activations. The first part reads tokens."""
        tokens = None
        if self._is_first or self._is_last:
            # Not `micro_batch`: every round of GPipe counts from 0.
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
        """Run all layers. Return activations, or the last part's contribution to the loss."""
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
        """Return the input's gradient for the output's; gradients of weights add up."""
        entry, _, output = self._open.pop(micro_batch)
        torch.autograd.backward(output, None if gradient is None else self._unpack(gradient))
        self._collect()
        if entry is None:
            settle(self._device)
            return torch.empty(0, dtype=torch.uint8)
        assert entry.grad is not None
        return self._pack(entry.grad)

    @recorded_pass("backward")
    def backward_input(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """`backward` without the gradients of weights, which `backward_weight` adds later."""
        # Takes seconds to import; only this schedule's ranks need it.
        from torch.distributed.pipelining._backward import (
            stage_backward_input,
            stage_backward_weight,
        )

        entry, tokens, output = self._open.pop(micro_batch)
        if self._recomputes:
            output = self._compute(entry, tokens)
        above = None if gradient is None else self._unpack(gradient)
        if entry is None:
            # Tokens have no gradient: all work is for the weights.
            self._owed[micro_batch] = lambda: torch.autograd.backward(output, above)
            return torch.empty(0, dtype=torch.uint8)
        (below,), groups = stage_backward_input(
            [output], None if above is None else [above], [entry], iter(self._weights)
        )
        self._owed[micro_batch] = lambda: stage_backward_weight(iter(self._weights), groups)
        assert below is not None
        return self._pack(below)

    def backward_weight(self, micro_batch: int) -> None:
        """Add the gradients of weights that `backward_input` left out."""
        with RECORDER.span("weight", micro_batch=micro_batch, chunk=self.chunk):
            self._owed.pop(micro_batch)()
            self._collect()
            settle(self._device)

    def _collect(self) -> None:
        """Add up gradients of another dtype than autograd's, and those of shards."""
        for weight, gradient in self._apart:
            if weight.grad is not None:
                gradient += self._shared.local_gradient(weight) if self._shared else weight.grad
                weight.grad = None

    @recorded("optimizer")
    def update(self) -> None:
        """Step, zero the gradients, and begin the next batch."""
        self._updated.grad = self.gradients[self._shard].to(self._updated)
        self._optimizer.step()
        if self._has_master:
            self.parameters[self._shard] = self._updated
        self.zero_gradients()
        settle(self._device)

    def load(self, parameters: torch.Tensor) -> None:
        """Replace the parameters."""
        self.parameters.copy_(parameters)
        if self._has_master:
            self._updated.copy_(parameters[self._shard])

    def zero_gradients(self) -> None:
        """Begin the next batch without a step."""
        self.gradients.zero_()
        self._iteration += 1
        self._num_forward = 0

    def skip(self, num_micro_batches: int) -> None:
        """Skip the next micro-batches of this iteration, which other ranks take."""
        self._num_forward += num_micro_batches

    def take_loss(self) -> float | None:
        """Return the last part's contribution to the mean loss since the last call.

        Among ranks that share the part, only the first has it.
        """
        if not self._is_last or (self._shared and self._shared.index):
            return None
        loss, self._loss = self._loss, 0.0
        return loss

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._shared:
            tensor = self._shared.part(tensor)
        packed = tensor.detach().contiguous().view(-1).view(torch.uint8)
        settle(self._device)  # a pass ends when its result is there
        return packed

    def _unpack(self, boundary: torch.Tensor) -> torch.Tensor:
        """Return a copy of a received boundary tensor, whose buffer is reused meanwhile."""
        tensor = boundary.view(self._dtype).to(self._device, copy=True)
        if self._shared:
            tensor = self._shared.whole(tensor)
        return tensor.view(self._shape)
