"""Named models, against the same ones built by transformers and counted by torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from netbench.scenario.model import NAMED_MODELS, Workload
from netbench.workload.costs import pflop_per_iteration
from netbench.workload.models import MODELS, Block

LABELS = {label: str(label) for label in range(1000)}


def resnet(depths: list[int], widths: list[int], layer: str) -> nn.Module:
    return ResNetForImageClassification(
        ResNetConfig(depths=depths, hidden_sizes=widths, layer_type=layer, id2label=LABELS)
    )


BUILT: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet([2, 2, 2, 2], [64, 128, 256, 512], "basic"),
    "resnet101": lambda: resnet([3, 4, 23, 3], [256, 512, 1024, 2048], "bottleneck"),
    "bert-base": lambda: BertForSequenceClassification(BertConfig()),
}

SAMPLES = {
    "resnet18": lambda: torch.empty(1, 3, 224, 224),
    "resnet101": lambda: torch.empty(1, 3, 224, 224),
    "bert-base": lambda: torch.zeros(1, 128, dtype=torch.long),
}


def parts(model: nn.Module) -> list[nn.Module]:
    """The modules that correspond to the blocks."""
    if isinstance(model, ResNetForImageClassification):
        stages = [
            block
            for stage in model.resnet.encoder.get_submodule("stages").children()
            for block in stage.get_submodule("layers").children()
        ]
        return [model.resnet.embedder, *stages, model.classifier]
    assert isinstance(model, BertForSequenceClassification)
    assert model.bert.pooler is not None
    head = nn.ModuleList([model.bert.pooler, model.classifier])
    return [model.bert.embeddings, *model.bert.encoder.layer, head]


@pytest.mark.parametrize("name", MODELS)
def test_blocks_have_the_parameters_and_the_work_of_the_real_ones(name: str) -> None:
    """Block by block the parameters, and the FLOPs of the whole, exactly."""
    with torch.device("meta"):
        model = BUILT[name]()
        with FlopCounterMode(display=False) as counted:
            model(SAMPLES[name]())
    blocks = MODELS[name].blocks
    found = [sum(p.numel() for p in part.parameters()) for part in parts(model)]
    assert [block.parameters for block in blocks] == found
    assert MODELS[name].parameters == sum(p.numel() for p in model.parameters())
    assert MODELS[name].forward_flops == pytest.approx(counted.get_total_flops(), rel=1e-12)


def test_the_work_of_a_block_is_its_own() -> None:
    """One block of each kind, counted alone on what it is given."""
    with torch.device("meta"):
        model = BUILT["resnet101"]()
        block = model.get_submodule("resnet.encoder.stages.2.layers.0")  # narrower, with a shortcut
        with FlopCounterMode(display=False) as counted:
            block(torch.empty(1, 512, 28, 28))
    named: dict[str, Block] = {block.name: block for block in MODELS["resnet101"].blocks}
    assert named["stage 2 block 0"].forward_flops == counted.get_total_flops()


def test_a_workload_names_what_there_is() -> None:
    """The same models, with the layers of their names."""
    assert set(NAMED_MODELS) == set(MODELS)


def test_the_work_of_an_iteration_is_three_forward_passes() -> None:
    """Backward is twice the forward pass; 32 images of 3.628 GFLOP."""
    workload = Workload(
        layers=18, hidden=0, heads=0, sequence=0, batch=32, recomputation=False, model="resnet18"
    )
    assert pflop_per_iteration(workload) == pytest.approx(3 * 32 * 3_628_146_688 / 1e15)
