"""Models by name as layers that compute: built by transformers from their configurations.

Weights are random and depend on the seed alone; nothing is downloaded. Dropout is off, so that
every layout trains the same model. Normalisations of a ResNet see a micro-batch at a time, as those
of a replica do: what is trained depends on the micro-batch, not on the number of replicas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from netbench.errors import PlanError
from netbench.plan import Plan
from netbench.trainers.layers import DTYPES
from netbench.trainers.real import Batches, RealStage
from netbench.workload.models import (
    IMAGE_CLASSES,
    IMAGE_SIDE,
    SENTENCE_CLASSES,
    VOCABULARY,
    WORDS,
)

if TYPE_CHECKING:
    from netbench.trainers.stage import Part

RESNET = {"num_labels": IMAGE_CLASSES, "image_size": IMAGE_SIDE}
BERT = {
    "num_labels": SENTENCE_CLASSES,
    "vocab_size": VOCABULARY,
    "sequence": WORDS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "resnet18": {
        **RESNET,
        "depths": [2, 2, 2, 2],
        "hidden_sizes": [64, 128, 256, 512],
        "layer_type": "basic",
    },
    "resnet101": {
        **RESNET,
        "depths": [3, 4, 23, 3],
        "hidden_sizes": [256, 512, 1024, 2048],
        "layer_type": "bottleneck",
    },
    "bert-base": BERT,  # what else there is, is transformers' default
}
"""What transformers' configurations are given; `image_size` and `sequence` are of our data."""


def build_named(plan: Plan) -> nn.Module:
    """The plan's model in its dtype, on the CPU. Raises PlanError where transformers is missing."""
    name = plan.workload.model
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise PlanError(
            f"{name} computes in layers of transformers, which is not installed ({error}); install "
            "it with: pip install 'netbench[models]', or leave out --compute"
        ) from error
    if name == "bert-base":
        made, like = transformers.BertForSequenceClassification, transformers.BertConfig
    else:
        made, like = transformers.ResNetForImageClassification, transformers.ResNetConfig
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        model: nn.Module = made(like(**CONFIGURATIONS[name]))
    return model.train().to(DTYPES[plan.workload.dtype])


def read_sample(name: str, seed: int, number: int) -> tuple[torch.Tensor, int]:
    """Sample `number` of the data, and its class; the same whoever asks.

    Of a ResNet: (3, side, side) fp32, noise that is brighter the higher the class. Of a BERT:
    (words,) int64; the class is 1 where the first word is of the upper half of the vocabulary.
    """
    random, known = np.random.default_rng((seed, number)), CONFIGURATIONS[name]
    if name == "bert-base":
        words = random.integers(known["vocab_size"], size=known["sequence"])
        return torch.from_numpy(words), int(words[0] >= known["vocab_size"] // 2)
    label = int(random.integers(known["num_labels"]))
    side = known["image_size"]
    image = random.standard_normal((3, side, side), dtype=np.float32)
    return torch.from_numpy(image + label / known["num_labels"]), label


class _Numbers(Batches):
    """Which samples the micro-batches of a replica are."""

    def tokens(self, iteration: int, micro_batch: int) -> torch.Tensor:
        """(b,) int64, in the place of tokens."""
        return torch.tensor(list(self.numbers(iteration, micro_batch)))


class NamedStage(RealStage):
    """A whole model that computes, named by the plan."""

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, part)
        self._name, self._seed = plan.workload.model, plan.seed
        self._batches = _Numbers(plan, part.replica)

    def _compute(self, entry: torch.Tensor | None, tokens: torch.Tensor | None) -> torch.Tensor:
        """The micro-batch's share of the loss."""
        assert tokens is not None
        samples = [read_sample(self._name, self._seed, number) for number in tokens.tolist()]
        inputs = torch.stack([sample for sample, _ in samples]).to(self._device)
        labels = torch.tensor([label for _, label in samples], device=self._device)
        if inputs.is_floating_point():
            inputs = inputs.to(self._dtype)
        (model,) = self._layers
        scores = model(inputs).logits
        if scores.dtype.itemsize < torch.float32.itemsize:
            scores = scores.float()
        return F.cross_entropy(scores, labels) * self._share
