"""Named models on more and more devices: what a sweep over models and replicas means."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from netbench.errors import PlanError, nearest
from netbench.plan.variants import find_variant
from netbench.scenario.model import Scenario


def replicated(
    scenario: Scenario, models: Sequence[str] | None = None, replicas: Sequence[int] | None = None
) -> tuple[Scenario, ...]:
    """The scenario for each of these models on each of these numbers of its devices, the first
    ones, with the batch of one replica on each. None or empty: the workload's model, all devices.

    Of a scenario that trains a GPT, itself. Raises PlanError for a model that is not in its sweep,
    and for more replicas than devices.
    """
    workload = scenario.workload
    if not workload.model:
        if models or replicas:
            raise PlanError(
                f"scenario {scenario.name} trains a GPT on all its devices; models and replicas "
                "are for a workload that names a model, e.g. of dp-scaling"
            )
        return (scenario,)
    alone = dataclasses.replace(workload, batch=workload.batch // scenario.num_devices)
    known = {alone.model: alone} | {model.model: model for model in scenario.sweep.models}
    for name in models or ():
        if name not in known:
            raise PlanError(
                f"scenario {scenario.name} has no model {name!r}; {nearest(name, known)}"
            )
    for number in replicas or ():
        if not 0 < number <= scenario.num_devices:
            raise PlanError(
                f"{number} replicas; expected 1 to {scenario.num_devices}, the devices of scenario "
                f"{scenario.name}"
            )
    return tuple(
        dataclasses.replace(
            scenario.first_devices(number),
            workload=dataclasses.replace(known[name], batch=known[name].batch * number),
        )
        for name in models or (workload.model,)
        for number in replicas or (scenario.num_devices,)
    )


def check_model(scenario: Scenario, variant: str, layers: int) -> None:
    """Raises PlanError where a system cannot train the scenario's model, or it has other layers."""
    model, system = scenario.workload.model, find_variant(variant).system
    if model and layers != scenario.workload.layers:
        raise PlanError(
            f"layers is {layers}, and {model} of scenario {scenario.name} has "
            f"{scenario.workload.layers}; leave it out"
        )
    if model and system != "ddp":
        raise PlanError(
            f"{variant} cuts a GPT into layers, and scenario {scenario.name} trains {model}; use "
            "ddp[-tree|-central-ps|-sharded-ps], whose ranks have the whole model"
        )
