"""`netbench run --testbed sim`: the same plans, records and table, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from netbench.commands.live import track
from netbench.errors import PlanError
from netbench.plan import Plan, placed_name, plan_hash
from netbench.plan.experiment import experiment_record
from netbench.records import Environment, RunStore
from netbench.scenario.model import Network
from netbench.testbed.local import Outcome, machine_name

if TYPE_CHECKING:
    from netbench.simulator.simulate import Simulation

PLACEHOLDER = "{plan}"
"""In the name of a trace or picture: replaced by the plan's."""


def simulate_plans(
    console: Console,
    plans: Sequence[Plan],
    open_store: Callable[[Environment], RunStore],
    finished: Mapping[str, Sequence[int]],
) -> Outcome:
    """One record of each plan that is not finished, over all cores."""
    from netbench.simulator.parallel import time_plans  # numba: only when asked for

    warn_of_disturbances(console, [plan.network for plan in plans])
    todo = [plan for plan in plans if not finished.get(plan_hash(plan))]
    timings = time_plans(todo)
    with open_store(simulator_environment()) as store:
        results = zip(todo, timings, strict=True)
        for plan, timing in track(console, results, len(todo), "simulated plans"):
            store.append_iteration(
                experiment_record(
                    plan, store.run_id, timing.iteration_s, "simulated", phases=timing.phases
                )
            )
        store.append_verdict(trustworthy=True)
        return Outcome(path=store.path, reasons=())


def predictions(plans: Sequence[Plan]) -> dict[str, float]:
    """Simulated seconds per iteration by plan hash; a plan that cannot be simulated has none."""
    from netbench.simulator.parallel import time_plan  # numba: only when asked for

    found = {}
    for plan in plans:
        with suppress(PlanError):
            found[plan_hash(plan)] = time_plan(plan).iteration_s
    return found


def warn_of_disturbances(console: Console, networks: Iterable[Network]) -> None:
    """Says, in one line, what of these networks the simulator leaves out."""
    links = {link for network in set(networks) for row in network.links for link in row}
    found = sorted({name for link in links for name in link.disturbances})
    if found:
        console.print(
            f"[yellow]network[/yellow]: {', '.join(found)}: not simulated, times are those of the "
            "links without; an emulated run has all of it",
            soft_wrap=True,
        )


def simulator_environment() -> Environment:
    """Where a simulation runs, for its records."""
    from netbench.simulator.parallel import library_versions

    return Environment(
        kernel="none",
        mode="sim",
        scale=1.0,
        versions=library_versions(),
        machine=machine_name(),
    )


def write_pictures(
    console: Console, plans: Sequence[Plan], trace: Path | None, plot: Path | None
) -> None:
    """Write the trace and the timeline of the first plan; of every plan to names with `{plan}`."""
    from netbench.simulator import simulate
    from netbench.simulator.trace import write_trace

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


def plot_simulation(simulation: Simulation, path: Path) -> None:
    """Write a picture of the iteration to `path`. Raises UsageError if that fails."""
    from netbench.report.timeline import plot_timeline
    from netbench.simulator.activity import activity
    from netbench.simulator.explain import timelines

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
    plot_timeline(title, activity(simulation), parts, path)


def plan_name(plan: Plan) -> str:
    """What tells a plan from others of its run, as part of a file's name."""
    model = plan.workload
    placed = placed_name(plan.variant, plan.scheduler).replace(", ", "-").replace(" ", "-")
    words = [placed, model.name, f"B{model.batch}", f"m{model.micro_batch}"]
    words += [plan.network_name] if plan.network_name else []
    return "-".join([*words, str(plan.seed)])
