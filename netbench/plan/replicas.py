"""Sweeps over models and numbers of replicas, or sets of machines."""

import dataclasses
from collections.abc import Mapping, Sequence

from netbench.errors import PlanError, nearest
from netbench.scenario.model import Scenario, Workload
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
    each = 1 if workload.parameters else scenario.num_devices
    alone = dataclasses.replace(workload, batch=workload.batch // each)
    known = {alone.model: alone} | {model.model: model for model in scenario.sweep.models}
    _check_models(scenario, models, known)
    for number in replicas:
        if not 0 < number <= scenario.num_devices:
            raise PlanError(
                f"{number} replicas; expected 1 to {scenario.num_devices}, the devices of scenario "
                f"{scenario.name}"
            )
    return tuple(
        dataclasses.replace(
            scenario.first_devices(number), workload=_of_replicas(known[name], number)
        )
        for name in models or (workload.model,)
        for number in replicas or (scenario.num_devices,)
    )


def _of_replicas(model: Workload, number: int) -> Workload:
    """The model with the batch of `number` replicas. A model given by its parameters has the batch
    of all."""
    return model if model.parameters else dataclasses.replace(model, batch=model.batch * number)


def _check_models(scenario: Scenario, models: Sequence[str], known: Mapping[str, Workload]) -> None:
    for name in models:
        if name not in known:
            raise PlanError(
                f"scenario {scenario.name} has no model {name!r}; {nearest(name, known)}"
            )


def peer_sets(
    scenario: Scenario, models: Sequence[str], peers: Sequence[str]
) -> tuple[tuple[Scenario, tuple[str, ...]], ...]:
    """Return the scenario with the machines of each of `peers`, for each of `models` and each batch
    that the set has, with the variants of the set. models: none = the workload's.

    Raises PlanError for a set or model that the scenario lacks.
    """
    sets = {each.name: each for each in scenario.sweep.peers}
    own = scenario.workload
    known = {own.model: own} | {model.model: model for model in scenario.sweep.models}
    _check_models(scenario, models, known)
    for name in peers:
        if name not in sets:
            raise PlanError(
                f"scenario {scenario.name} has no peers {name!r}; {nearest(name, sets)}"
            )
    chosen = models or (own.model,)
    return tuple(
        (
            dataclasses.replace(
                scenario.with_peers(sets[name]),
                workload=dataclasses.replace(known[model], batch=batch),
            ),
            sets[name].variants,
        )
        for name in peers
        for model in (sets[name].models or chosen)
        if model in chosen
        for batch in (sets[name].batch or (known[model].batch,))
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
