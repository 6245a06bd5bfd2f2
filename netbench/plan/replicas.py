"""Sweeps over named models and numbers of replicas."""

import dataclasses
from collections.abc import Sequence

from netbench.errors import PlanError, nearest
from netbench.scenario.model import Scenario
from netbench.systems import SYSTEMS, find_variant


def replicated(
    scenario: Scenario, models: Sequence[str] = (), replicas: Sequence[int] = ()
) -> tuple[Scenario, ...]:
    """Return the scenario for each of `models` on the first n devices for each n of `replicas`,
    with the batch of one replica on each device. Empty: the workload's model, all devices.

    A scenario that trains a GPT is returned as it is. Raises PlanError for a model that is not in
    the sweep, and for more replicas than devices.
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
    for name in models:
        if name not in known:
            raise PlanError(
                f"scenario {scenario.name} has no model {name!r}; {nearest(name, known)}"
            )
    for number in replicas:
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
    """Raise PlanError if the system cannot train the scenario's model with these layers."""
    model, system = scenario.workload.model, SYSTEMS[find_variant(variant).system]
    if model and layers != scenario.workload.layers:
        raise PlanError(
            f"layers is {layers}, and {model} of scenario {scenario.name} has "
            f"{scenario.workload.layers}; leave it out"
        )
    if model and not system.trains_named_models:
        whole = " or ".join(s.grammar for s in SYSTEMS.values() if s.trains_named_models)
        raise PlanError(
            f"{variant} cuts a GPT into layers, and scenario {scenario.name} trains {model}; use "
            f"{whole}, whose ranks have the whole model"
        )
