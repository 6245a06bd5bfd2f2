"""Named models that compute: the same weights everywhere, and data parallelism that trains them."""

from __future__ import annotations

import dataclasses
import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from netbench.errors import PlanError
from netbench.plan.model import Plan
from netbench.trainers.communication.world import World
from netbench.trainers.layers.named import CONFIGURATIONS, NamedStage, build_named, read_sample
from netbench.trainers.layers.rehearsal import rehearse
from netbench.trainers.layers.stage import StageRole, build_stage
from netbench.trainers.systems.ddp import DdpRank
from netbench.workload.models import MODELS
from tests.trainers.parity import STEPS, TOLERANCE, real_plan
from tests.trainers.processes import on_processes

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8, "num_labels": 5,
                 "image_size": 16},
    "resnet101": {"depths": [1, 2], "hidden_sizes": [16, 32], "embedding_size": 8, "num_labels": 5,
                  "image_size": 16},
    "bert-base": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4,
                  "intermediate_size": 64, "vocab_size": 50, "sequence": 12},
}  # fmt: skip
"""Models of the same kind, but small. Ranks are forked, and know them too."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that train in a moment."""
    for name, changes in SMALL.items():
        monkeypatch.setitem(CONFIGURATIONS, name, CONFIGURATIONS[name] | changes)
        build_named(named_plan(name))  # imports what the ranks would else import one by one


def named_plan(model: str, dp: int = 2, **changes: Any) -> Plan:
    """`bucket_bytes` makes several buckets of it."""
    defaults: dict[str, Any] = {
        "batch": 8,
        "micro_batch": 2,
        "schedule": "none",
        "bucket_bytes": 8192,
    }
    return real_plan("ddp", layers=(1,), dp=dp, model=model, **defaults | changes)


def _losses(world: World, plan: Plan) -> list[float]:
    system = DdpRank(world, plan)
    world.warm(system.peers())
    losses = []
    for _ in range(STEPS):
        system.iterate()
        losses.append(system.take_loss() or 0.0)
    return losses


def one_process_losses(plan: Plan) -> list[float]:
    """Micro-batch by micro-batch, as a ResNet's normalisations see them."""
    model, workload = build_named(plan), plan.workload
    step_with = torch.optim.Adam(model.parameters(), lr=1e-3)
    dtype = {"fp32": torch.float32, "fp64": torch.float64}[workload.dtype]
    losses = []
    for step in range(STEPS):
        step_with.zero_grad()
        total = 0.0
        for first in range(
            step * workload.batch, (step + 1) * workload.batch, workload.micro_batch
        ):
            numbers = range(first, first + workload.micro_batch)
            samples = [read_sample(workload.model, plan.seed, number) for number in numbers]
            inputs = torch.stack([sample for sample, _ in samples])
            inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
            labels = torch.tensor([label for _, label in samples])
            loss = F.cross_entropy(model(inputs).logits, labels, reduction="sum") / workload.batch
            torch.autograd.backward(loss)
            total += loss.item()
        step_with.step()
        losses.append(total)
    return losses


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize(
    ("model", "kind"),
    [*((model, "ring") for model in SMALL), ("resnet18", "central-ps"), ("resnet18", "sharded-ps")],
)
def test_losses_are_those_of_one_process(model: str, kind: str, dtype: str) -> None:
    """Five steps, to rounding; two micro-batches on each of two replicas."""
    plan = named_plan(model, data_parallel=kind, dtype=dtype)
    found = [sum(shares) for shares in zip(*on_processes(2, _losses, plan), strict=True)]
    assert found == pytest.approx(one_process_losses(plan), rel=TOLERANCE[dtype])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("model", SMALL)
def test_a_named_model_is_rehearsed_as_it_is(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of the plan's own model, one update."""
    plan = named_plan(model)
    updated: list[Any] = []
    monkeypatch.setattr(NamedStage, "update", lambda stage: updated.append(stage))
    rehearse(plan)
    (stage,) = updated
    assert stage.gradients.any()
    assert stage.parameters.numel() == sum(p.numel() for p in build_named(plan).parameters())


@pytest.mark.parametrize("model", ["resnet18", "bert-base"])
def test_a_model_of_full_size_has_the_parameters_that_are_planned(model: str) -> None:
    """All of them trained, in one tensor."""
    plan = dataclasses.replace(named_plan(model, dp=1), compute="cpu")
    part = StageRole(index=0, replica=0, gradient_dtype=torch.float32, gradient_messages=1)
    assert build_stage(plan, part).gradients.numel() == MODELS[model].parameters


def test_the_same_seed_gives_the_same_model_and_data() -> None:
    """And leaves the random numbers of others alone."""
    plan = named_plan("resnet18")
    state = torch.random.get_rng_state()
    one, other = (build_named(plan).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)
    image, label = read_sample("resnet18", 7, 3)
    assert image.shape == (3, 224, 224)
    assert 0 <= label < 1000
    assert torch.equal(read_sample("resnet18", 7, 3)[0], image)
    words, _ = read_sample("bert-base", 7, 3)
    assert words.shape == (128,)
    assert not torch.equal(read_sample("bert-base", 7, 4)[0], words)


def test_without_transformers_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And how to do without."""

    def refuse(name: str) -> ModuleType:
        assert name == "transformers"
        raise ImportError("No module named 'transformers'")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(PlanError, match=r"pip install 'netbench\[models\]'"):
        build_named(named_plan("bert-base"))
