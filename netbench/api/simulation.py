"""Simulate plans, in memory or into the records of a run."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from netbench.api.plans import as_plans
from netbench.api.results import Results
from netbench.errors import PlanError
from netbench.plan.experiment import Experiment, experiment_record
from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Environment, Run, RunStore
from netbench.testbed.runs.controller import machine_name

Found = tuple[Plan, float, dict[str, Any]]
"""A plan, seconds of its iteration, and further fields of its `Record`."""

Progress = Callable[[Iterator[Found]], Iterable[Found]]
"""Passes results on, and may show how many have come."""


def simulate(plans: Plan | Iterable[Plan]) -> Results:
    """Simulate one iteration of every plan, on all cores. Nothing is written to disk.

    Raises PlanError for a plan that cannot be simulated.
    """
    wanted = as_plans(plans)
    return Results(
        run=Run(
            path=Path(),
            run_id="",
            sessions=(),
            plans={plan_hash(plan): json.loads(plan_to_json(plan)) for plan in wanted},
            predictions={},
            probes=(),
            records=tuple(
                experiment_record(plan, "", iteration_s, "simulated", **fields)
                for plan, iteration_s, fields in simulated(wanted)
            ),
            verdicts=(),
            reasons=(),
        )
    )


def simulated(plans: Sequence[Plan]) -> Iterator[Found]:
    """Simulate plans on all cores and yield each with its seconds and phases."""
    from netbench.simulator.parallel import time_plans  # numba: only when something is simulated

    for plan, timing in zip(plans, time_plans(plans), strict=True):
        yield plan, timing.iteration_s, {"phases": timing.phases}


def simulate_into(
    plans: Sequence[Plan], open_store: Callable[[Environment], RunStore], progress: Progress = iter
) -> Path:
    """Simulate plans and record one iteration of each; return the record file."""
    return record_simulated(open_store(simulator_environment()), progress(simulated(plans)))


def record_simulated(
    store: RunStore, found: Iterable[tuple[Experiment, float, dict[str, Any]]]
) -> Path:
    """Record an iteration of each plan: its seconds, and further fields of its `Record`."""
    with store:
        for plan, iteration_s, fields in found:
            store.append_iteration(
                experiment_record(plan, store.run_id, iteration_s, "simulated", **fields)
            )
        store.append_verdict()
        return store.path


def predictions(plans: Sequence[Plan]) -> dict[str, float]:
    """Return simulated seconds per iteration by plan hash, without plans that cannot be
    simulated."""
    from netbench.simulator.parallel import time_plan  # numba: only when something is simulated

    found = {}
    for plan in plans:
        with suppress(PlanError):
            found[plan_hash(plan)] = time_plan(plan).iteration_s
    return found


def simulator_environment() -> Environment:
    """Return the environment of a simulation, for its records."""
    from netbench.simulator.parallel import library_versions

    return Environment(
        kernel="none", mode="sim", scale=1.0, versions=library_versions(), machine=machine_name()
    )
