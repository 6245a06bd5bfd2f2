"""Named models that compute, built by transformers from their configurations.

Weights are random and depend only on the seed; nothing is downloaded. Dropout is off, so every
layout trains the same model. The normalisations of a ResNet see one micro-batch at a time, so the
result depends on the micro-batch, but not on the number of replicas.
"""

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from netbench.errors import PlanError
from netbench.plan.model import Plan
from netbench.trainers.layers.gpt import DTYPES
from netbench.trainers.layers.real import Batches, RealStage
from netbench.workload.models import IMAGE_CLASSES, IMAGE_SIDE, SENTENCE_CLASSES, VOCABULARY, WORDS

if TYPE_CHECKING:
    from netbench.trainers.layers.stage import StageRole

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
    "bert-base": BERT,  # all else is transformers' default
}
"""Arguments of transformers' configurations; `image_size` and `sequence` also shape the data."""


def build_named(plan: Plan) -> nn.Module:
    """Build the plan's model on the CPU. Raises PlanError if transformers is missing."""
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
    """Return sample `number` of the data, and its class; the same on every rank.

    ResNet: (3, side, side) fp32, noise whose brightness grows with the class. BERT: (words,) int64;
    the class is 1 if the first word is in the upper half of the vocabulary.
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
    """Numbers of the samples in the micro-batches of a replica."""

    def tokens(self, iteration: int, micro_batch: int) -> torch.Tensor:
        """Return (b,) int64, in place of tokens."""
        return torch.tensor(list(self.numbers(iteration, micro_batch)))


class NamedStage(RealStage):
    """A whole named model that computes."""

    def __init__(self, plan: Plan, part: "StageRole") -> None:
        super().__init__(plan, part)
        self._name, self._seed = plan.workload.model, plan.seed
        self._batches = _Numbers(plan, part.replica)

    def _compute(self, entry: torch.Tensor | None, tokens: torch.Tensor | None) -> torch.Tensor:
        """Return the micro-batch's part of the loss."""
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
