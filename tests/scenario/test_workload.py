"""Workloads that name a model, and sweeps over models and replicas."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netbench.errors import ScenarioError
from netbench.scenario import load_scenario
from netbench.scenario.model import NAMED_MODELS, Workload
from netbench.scenario.schema import scenario_json_schema

GPT = "workload: {layers: 8, hidden: 512, heads: 8, sequence: 512, batch: 16}"
MODEL = "workload: {model: resnet18, batch_per_replica: 32}"
SWEEP = """
sweep:
  models: [{model: resnet18, batch_per_replica: 32}, {model: bert-base, batch_per_replica: 8}]
  replicas: [1, 2, 4]
"""


def test_a_named_model_has_the_batch_of_all_devices(bend: Callable[..., str]) -> None:
    """The sum over all four; the micro-batch is a replica's batch unless a smaller one is given."""
    assert load_scenario(bend(GPT, MODEL)).workload == Workload(
        layers=18, hidden=0, heads=0, sequence=0, batch=128, micro_batch=32, dtype="fp32",
        recomputation=False, model="resnet18",
    )  # fmt: skip
    smaller = MODEL.replace("32}", "32, micro_batch: 8, dtype: fp16}")
    found = load_scenario(bend(GPT, smaller)).workload
    assert (found.batch, found.micro_batch, found.dtype) == (128, 8, "fp16")


def test_a_sweep_of_models_runs_all_on_the_most_replicas_by_default(
    bend: Callable[..., str],
) -> None:
    """Each has the batch of one replica; the system is the one that trains models."""
    sweep = load_scenario(bend(GPT, MODEL, SWEEP)).sweep
    assert [(model.model, model.batch) for model in sweep.models] == [
        ("resnet18", 32),
        ("bert-base", 8),
    ]
    assert sweep.replicas == (1, 2, 4)
    assert sweep.default_models == ("resnet18", "bert-base")
    assert sweep.default_replicas == (4,)
    assert sweep.variants == ("ddp",)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            "{model: resnet19, batch_per_replica: 32}",
            "workload.model is \"resnet19\"; expected 'resnet18', 'resnet101' or 'bert-base'",
        ),
        (
            "{model: resnet18, batch_per_replica: 32, hidden: 512}",
            "workload.hidden is for a GPT and does not apply to a named model; remove it",
        ),
        (
            "{model: resnet18, batch: 32}",
            "workload.batch is for a GPT and does not apply to a named model; use batch_per",
        ),
        ("{model: resnet18}", 'workload.batch_per_replica is missing; write e.g. "batch_per_rep'),
        ("{model: bert-base, batch_per_replica: 8, size: 3}", "workload.size is an unknown key"),
        (
            "{layers: 8, hidden: 512, heads: 8, sequence: 512, batch: 16, batch_per_replica: 3}",
            "workload.batch_per_replica is an unknown key",
        ),
    ],
)
def test_sizes_of_a_gpt_and_names_do_not_mix(
    bend: Callable[..., str], workload: str, message: str
) -> None:
    """The error has file, line, key, what was found and what to do."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario(bend(GPT, f"workload: {workload}"))
    assert message in str(caught.value)
    assert "mine.yaml:9: " in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "sweep", "message"),
    [
        (MODEL, "layers: [8]", "sweep.layers is for a GPT, but the workload names a model"),
        (MODEL, "default: {batch: [8]}", "sweep.default.batch is for a GPT"),
        (GPT, "replicas: [1]", "sweep.replicas needs a workload that names a model; write e.g."),
        (GPT, "default: {models: [resnet18]}", "sweep.default.models needs a workload that names"),
        (MODEL, "replicas: [1, 5]", "sweep.replicas[1] is 5, more than the 4 devices of the nodes"),
        (MODEL, "default: {replicas: [8]}", "sweep.default.replicas[0] is 8, more than the 4"),
        (
            MODEL,
            "models: [{model: resnet18, batch_per_replica: 1}, {model: resnet18, "
            "batch_per_replica: 2}]",
            'sweep.models[1] "resnet18" is given twice',
        ),
        (
            MODEL,
            "{models: [{model: resnet18, batch_per_replica: 1}], default: {models: [resnet101]}}",
            'sweep.default.models[0] "resnet101" is not in sweep.models',
        ),
    ],
)
def test_a_sweep_fits_its_workload(
    bend: Callable[..., str], workload: str, sweep: str, message: str
) -> None:
    """Otherwise the error names the key and what would fit."""
    lines = sweep if sweep.startswith("{") else "{" + sweep + "}"
    with pytest.raises(ScenarioError) as caught:
        load_scenario(bend(GPT, workload, f"sweep: {lines}\n"))
    assert message in str(caught.value)


def test_a_device_needs_a_speed_of_either_kind(bend: Callable[..., str]) -> None:
    """FLOP/s, or the throughput of a model."""
    device = "devices: {V100: {throughput: {resnet18: 90.2}}}\n"
    (found,) = load_scenario(bend(GPT, MODEL, device)).devices.values()
    assert found.throughput == {"resnet18": 90.2}
    with pytest.raises(ScenarioError, match=r"devices\.V100\.flops is missing"):
        load_scenario(bend(GPT, MODEL, "devices: {V100: {memory: 16GB}}\n"))
    with pytest.raises(
        ScenarioError, match=r"vgg is not a model; expected one of resnet18, resnet101"
    ):
        load_scenario(bend(GPT, MODEL, "devices: {V100: {throughput: {vgg: 90.2}}}\n"))


def test_editors_offer_the_models_that_there_are() -> None:
    """The form and the model list the same models."""
    form = scenario_json_schema()["$defs"]["ModelForm"]
    assert form["properties"]["model"]["enum"] == list(NAMED_MODELS)
    assert "hidden" not in form["properties"]
