"""Select plans of a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, Unpack

from netbench.plan.build import Choices, build_plans
from netbench.plan.model import ONCE, Plan
from netbench.scenario import Scenario, load_scenario


class PlanChoices(TypedDict, total=False):
    """Values of a sweep: one, or a list. A key that is missing keeps the scenario's default.

    systems: names, e.g. `dtfm-scheduled` or `zero3`. layers: of the model. batch, micro_batch: in
    sequences. networks: names in the scenario's sweep. seeds: of random placements. models,
    replicas: names of models and numbers of devices, where the scenario trains models by name.
    peers: names of sets of machines in the scenario's sweep.
    """

    systems: str | Sequence[str]
    layers: int | Sequence[int]
    batch: int | Sequence[int]
    micro_batch: int | Sequence[int]
    networks: str | Sequence[str]
    seeds: int | Sequence[int]
    models: str | Sequence[str]
    replicas: int | Sequence[int]
    peers: str | Sequence[str]


class SettingChoices(TypedDict, total=False):
    """One setting of a scenario. A key that is missing keeps the scenario's default.

    layers: of the model. batch, micro_batch: in sequences. network: name in the scenario's sweep.
    seed: of random placements.
    """

    layers: int | None
    batch: int | None
    micro_batch: int | None
    network: str | None
    seed: int | None


def make_plans(
    scenario: Scenario | str, *, whole_sweep: bool = False, **choices: Unpack[PlanChoices]
) -> tuple[Plan, ...]:
    """Return the plans of a scenario's default slice, at full size, one iteration each.

    scenario: a scenario, a name, or the path of a file. whole_sweep: all settings of the scenario,
    except for what `choices` select. Raises PlanError for an unknown name or a size that does not
    divide, ScenarioError for a file that cannot be read.
    """
    found = as_scenario(scenario)
    chosen = {name: as_tuple(values) for name, values in choices.items()}
    chosen["variants"] = chosen.pop("systems", ())
    return build_plans(found, Choices.of(found.sweep, whole=whole_sweep, **chosen), ONCE)


def as_scenario(scenario: Scenario | str) -> Scenario:
    """Return the scenario, read if it is a name or a path."""
    return load_scenario(scenario) if isinstance(scenario, str) else scenario


def as_plans(plans: Plan | Iterable[Plan]) -> tuple[Plan, ...]:
    """Return one plan or several as a tuple."""
    return (plans,) if isinstance(plans, Plan) else tuple(plans)


def as_tuple(values: Any) -> tuple[Any, ...]:
    """Return one value or several as a tuple; None is none."""
    if values is None:
        return ()
    return (values,) if isinstance(values, str | int) else tuple(values)
