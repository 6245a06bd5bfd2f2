"""`netbench run --testbed sim`: simulate the plans instead of running them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from netbench.commands.output import print_warning
from netbench.machine import machine_name
from netbench.plan.experiment import Experiment, experiment_record
from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash
from netbench.pool import Pool
from netbench.progress import track
from netbench.records import Environment, RunStore
from netbench.report.pictures.style import save_picture
from netbench.scenario.model import Network
from netbench.systems import placed_name

if TYPE_CHECKING:
    from netbench.simulator.iteration import Simulation

PLACEHOLDER = "{plan}"
"""Replaced by the plan's name in the name of a trace or picture."""


def simulate_plans(
    console: Console,
    plans: Sequence[Plan],
    open_store: Callable[[Environment], RunStore],
    finished: Mapping[str, Sequence[int]],
    pool: Pool | None = None,
) -> Path:
    """Simulate every unfinished plan, and record one iteration of each as soon as it is there.

    pool: where, None = on all cores of this machine.
    """
    from netbench.simulator.parallel import each_timing  # numba: only when asked for

    warn_of_impairments(console, [plan.network for plan in plans])
    todo = [plan for plan in plans if not finished.get(plan_hash(plan))]
    found = (
        (todo[index], timing.iteration_s, {"phases": timing.phases})
        for index, timing in each_timing(todo, pool)
    )
    describe = pool.describe if pool is not None else None
    shown = track(console, found, len(todo), "simulated plans", describe)
    return record_simulated(open_store(simulator_environment()), shown)


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
    """Simulated seconds per iteration by plan hash, without plans that cannot be simulated.

    pool: where they are simulated, None = in this process.
    """
    from netbench.simulator.parallel import (  # numba: only when asked for
        LocalPool,
        predict_s,
        simulation_work,
    )

    pool = pool or LocalPool(1)
    results = pool.run(simulation_work(predict_s), plans)
    found = {plan_hash(plans[index]): seconds for index, seconds in results}
    return {key: seconds for key, seconds in found.items() if seconds is not None}


def warn_of_impairments(console: Console, networks: Iterable[Network]) -> None:
    """Print which impairments of these networks the simulator ignores."""
    links = {link for network in set(networks) for row in network.links for link in row}
    found = sorted({name for link in links for name in link.impairments})
    if found:
        what = "not simulated, times are those of links without; an emulated run includes them"
        print_warning(console, "network", f"{', '.join(found)}: {what}")


def simulator_environment() -> Environment:
    """Environment of a simulation, for its records."""
    from netbench.simulator.parallel import library_versions

    return Environment(
        kernel="none", mode="sim", scale=1.0, versions=library_versions(), machine=machine_name()
    )


def write_pictures(
    console: Console, plans: Sequence[Plan], trace: Path | None, plot: Path | None
) -> None:
    """Write trace and picture of the first plan, or of every plan if the name has `{plan}`."""
    from netbench.explain.perfetto import write_trace
    from netbench.simulator import simulate

    for plan in plans:
        wanted = [
            (kind, Path(str(path).replace(PLACEHOLDER, plan_name(plan))))
            for kind, path in (("trace", trace), ("picture", plot))
            if path is not None and (PLACEHOLDER in str(path) or plan is plans[0])
        ]
        if not wanted:
            continue
        simulation = simulate(plan)
        for kind, path in wanted:
            if kind == "trace":
                write_trace(simulation, path)
            else:
                plot_simulation(simulation, path)
            console.print(f"{kind} of {plan_name(plan)}: {path}", soft_wrap=True)


def plot_simulation(simulation: "Simulation", path: Path) -> None:
    """Draw an iteration's timeline to `path`. Raises UsageError if that fails."""
    from netbench.explain.activity import activity
    from netbench.explain.breakdown import timelines
    from netbench.report.pictures.timeline import timeline_figure

    plan = simulation.plan
    parts = [
        (part.name, part.to_s - part.from_s, part.repeat)
        for _, _, parts in timelines(simulation)
        for part in parts
    ]
    title = (
        f"{plan.scenario}, {plan.variant}, {plan.workload.name}, batch "
        f"{plan.workload.batch}: {simulation.iteration_s:.4g} s per iteration"
    )
    save_picture(timeline_figure(title, activity(simulation), parts), path)


def plan_name(plan: Plan) -> str:
    """Name that distinguishes a plan from others of its run, for use in a file name."""
    model = plan.workload
    placed = placed_name(plan.variant, plan.scheduler).replace(", ", "-").replace(" ", "-")
    words = [placed, model.name, f"B{model.batch}", f"m{model.micro_batch}"]
    words += [plan.network_name] if plan.network_name else []
    return "-".join([*words, str(plan.seed)])
