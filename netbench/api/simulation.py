"""Simulate plans, in memory or into the records of a run."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from netbench.api.plans import as_plans
from netbench.api.results import Results
from netbench.machine import machine_name
from netbench.plan.experiment import Experiment, experiment_record
from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.pool import Pool
from netbench.records import Environment, Run, RunStore

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


def simulated(plans: Sequence[Plan], pool: Pool | None = None) -> Iterator[Found]:
    """Simulate plans and yield each with its seconds and phases, as soon as it is there.

    pool: where, None = on all cores of this machine, in the order of `plans`.
    """
    from netbench.simulator.parallel import each_timing  # numba: only when something is simulated

    for index, timing in each_timing(plans, pool):
        yield plans[index], timing.iteration_s, {"phases": timing.phases}


def simulate_into(
    plans: Sequence[Plan],
    open_store: Callable[[Environment], RunStore],
    progress: Progress = iter,
    pool: Pool | None = None,
) -> Path:
    """Simulate plans and record one iteration of each; return the record file."""
    found = simulated(plans, pool)
    return record_simulated(open_store(simulator_environment()), progress(found))


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


def predictions(plans: Sequence[Plan], pool: Pool | None = None) -> dict[str, float]:
    """Return simulated seconds per iteration by plan hash, without plans that cannot be simulated.

    pool: where they are simulated, None = in this process.
    """
    from netbench.simulator.parallel import (  # numba: only when something is simulated
        LocalPool,
        predict_s,
        simulation_work,
    )

    results = (pool or LocalPool(1)).run(simulation_work(predict_s), plans)
    found = {plan_hash(plans[index]): seconds for index, seconds in results}
    return {key: seconds for key, seconds in found.items() if seconds is not None}


def simulator_environment() -> Environment:
    """Return the environment of a simulation, for its records."""
    from netbench.simulator.parallel import library_versions

    return Environment(
        kernel="none", mode="sim", scale=1.0, versions=library_versions(), machine=machine_name()
    )
