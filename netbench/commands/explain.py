"""`netbench explain PLAN|SCENARIO`: where the time of a simulated iteration goes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from netbench.commands.files import check_formats, check_writable, results_option
from netbench.commands.simulation import plot_simulation, warn_of_disturbances
from netbench.errors import NetbenchError, PlanError, RecordError, UsageError
from netbench.plan import Plan, describe_plan, full_size_plan, memory_warnings, plan_from_json
from netbench.plan.serial import HASH_DIGITS, plan_hash
from netbench.plan.timeline import name_of_rank
from netbench.records import FILE_NAME, read_run
from netbench.scenario import list_scenarios, load_scenario
from netbench.units import format_bandwidth, format_bytes
from netbench.workload.costs import pflop_per_iteration

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from netbench.simulator.explain import Breakdown, Step
    from netbench.simulator.simulate import Simulation
    from netbench.simulator.usage import LinkUse

NUM_LINKS = 5
"""Of those that carry bytes, in the table."""

LEAST_DIGITS = 4
"""Of a plan's hash, to look for."""

ROWS = (
    ("forward", ("forward",)),
    ("backward", ("backward",)),
    ("optimizer", ("optimizer",)),
    ("bubble", ("bubble",)),
    ("point to point", ("transfer", "delay", "copy")),
    ("  bytes", ("transfer",)),
    ("  delay", ("delay",)),
    ("  hosts' copies", ("copy",)),
    ("collective", ("collective", "collective_delay", "tensor_parallel")),
    ("  bytes", ("collective",)),
    ("  delay", ("collective_delay",)),
    ("  inside layers", ("tensor_parallel",)),
)
"""Rows of the breakdown, and the causes that each sums."""


@click.command()
@click.argument("what", metavar="PLAN|SCENARIO")
@click.option(
    "--system", help="What to simulate, e.g. dtfm-random.  [default: the scenario's first]"
)
@click.option("--layers", type=int, help="Model depth.  [default: the scenario's first]")
@click.option(
    "--batch", type=int, help="Global batch size, in sequences.  [default: the scenario's first]"
)
@click.option("--seed", type=int, help="Of a random placement.  [default: the scenario's first]")
@click.option("--network", help="One of the scenario's networks.  [default: the scenario's first]")
@click.option(
    "--micro-batch",
    type=int,
    help="Micro-batch size, in sequences.  [default: the scenario's first]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, unrounded.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a trace (.json, .json.gz).")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture (PNG, SVG, PDF).")
@results_option
def command(
    what: str,
    system: str | None,
    layers: int | None,
    batch: int | None,
    seed: int | None,
    network: str | None,
    micro_batch: int | None,
    as_json: bool,
    trace: Path | None,
    plot: Path | None,
    results: Path,
) -> None:
    """Simulate one iteration and say where its time goes.

    PLAN is a plan's JSON file, or the first digits of the hash of a plan that was run; SCENARIO a
    name or a YAML file, of whose default slice the first setting is taken.
    """
    from netbench.simulator import simulate  # numba: not for --help

    check_writable(trace, plot)
    check_formats(plot)
    sizes = {"layers": layers, "batch": batch, "micro_batch": micro_batch}
    asked: dict[str, Any] = {**sizes, "network": network, "seed": seed}
    found = find_plan(what, results)
    if found is None:
        scenario = load_scenario(what)
        setting = scenario.sweep.first_setting(**asked)
        plan = full_size_plan(scenario, system or scenario.sweep.default_variants[0], setting)
        warnings = memory_warnings(plan, scenario)
    elif {system, *asked.values()} != {None}:
        raise UsageError(
            f"{what} is a plan, which has its settings; leave out --system, --layers, --batch, "
            "--seed, --network and --micro-batch, or give its scenario"
        )
    else:
        plan = found
        warnings = _memory_warnings(plan)
    simulation = simulate(plan)
    if as_json:
        click.echo(json.dumps(_json(simulation, warnings), indent=2))
    else:
        _print(Console(highlight=False), simulation, warnings)
    if trace is not None:
        from netbench.simulator.trace import write_trace

        write_trace(simulation, trace)
        click.echo(f"trace: {trace} (open it in ui.perfetto.dev)", err=True)
    if plot is not None:
        plot_simulation(simulation, plot)
        click.echo(f"picture: {plot}", err=True)


def find_plan(what: str, results: Path) -> Plan | None:
    """The plan in a JSON file, or recorded in `results` with a hash that begins with `what`; None
    where it can only be a scenario.

    Raises UsageError if several plans begin so, RecordError or PlanError for what cannot be read.
    """
    path = Path(what)
    if path.suffix == ".json":
        try:
            return plan_from_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise RecordError(f"{path}: cannot be read: {error}") from None
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None
    digits = what.lower()
    hexadecimal = not set(digits) - set("0123456789abcdef")
    is_hash = hexadecimal and LEAST_DIGITS <= len(digits) <= HASH_DIGITS
    if not is_hash or what in list_scenarios() or path.exists():
        return None
    plans: dict[str, object] = {}
    for records in sorted(results.glob(f"**/{FILE_NAME}")):
        try:
            recorded = read_run(records).plans
        except RecordError:
            continue  # damaged, and perhaps none of those asked for
        plans |= {hashed: plan for hashed, plan in recorded.items() if hashed.startswith(digits)}
    if not plans:
        raise UsageError(f"no plan in {results} has a hash that begins with {what}")
    if len(plans) > 1:
        raise UsageError(f"{what} begins {', '.join(sorted(plans))}; give more digits")
    return plan_from_json(json.dumps(next(iter(plans.values()))))


def _memory_warnings(plan: Plan) -> tuple[str, ...]:
    """None where the plan's scenario is not to be found: a plan does not hold its devices."""
    try:
        return memory_warnings(plan, load_scenario(plan.scenario))
    except NetbenchError:
        return ()


def _print(console: Console, simulation: Simulation, warnings: tuple[str, ...]) -> None:
    from netbench.simulator.explain import bound_s, breakdown, critical_path
    from netbench.simulator.losses import losses
    from netbench.simulator.usage import links

    plan, iteration_s = simulation.plan, simulation.iteration_s
    least_s = bound_s(plan)
    console.print(f"plan {describe_plan(plan)}", soft_wrap=True)
    for warning in warnings:
        console.print(f"[bold yellow]memory[/bold yellow]: {warning}", soft_wrap=True)
    warn_of_disturbances(console, [plan.network])
    console.print(
        f"\n[bold]{iteration_s:.4g} s[/bold] per iteration, "
        f"[bold]{pflop_per_iteration(plan.workload) / iteration_s:.3g} PFLOPS[/bold]; "
        f"compute alone would take {least_s:.4g} s ({least_s / iteration_s:.0%})\n",
        soft_wrap=True,
    )
    console.print("[bold]Largest losses[/bold]")
    for loss in losses(simulation):
        _print_hanging(console, loss.text)
    found = breakdown(simulation)
    console.print("\n[bold]Where a rank's time goes[/bold]")
    console.print(_breakdown_table(simulation, found))
    if not _are_alike(plan):
        worst = name_of_rank(plan, found.worst_rank)
        console.print(f"worst: the rank that waits longest, {worst}", style="dim")
    console.print("\n[bold]Critical path[/bold]: what decides when the iteration ends")
    console.print(_path_table(simulation, critical_path(simulation)))
    console.print("\n[bold]Busiest links[/bold]")
    console.print(_link_table(links(simulation)))


def _are_alike(plan: Plan) -> bool:
    """Whether all ranks do the same, for as long."""
    return plan.schedule == "none" and not plan.type_stages


def _print_hanging(console: Console, text: str) -> None:
    """Indented, and what does not fit on a terminal's line further; whole elsewhere."""
    if console.is_terminal:
        text = textwrap.fill(text, console.width - 2, subsequent_indent="  ")
    console.print(textwrap.indent(text, "  "), soft_wrap=True)


def _table(*columns: tuple[str, JustifyMethod]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head, justify in columns:
        table.add_column(head, justify=justify, no_wrap=True)
    return table


def _breakdown_table(simulation: Simulation, found: Breakdown) -> Table:
    """Mean over the ranks and the rank that waits longest, as seconds and shares."""
    from netbench.simulator.trail import Cause

    ranks: list[tuple[str, slice]] = [("mean", slice(None))]
    if _are_alike(simulation.plan):
        ranks = [("every rank", slice(None))]
    else:
        ranks.append(("worst", slice(found.worst_rank, found.worst_rank + 1)))
    heads: list[tuple[str, JustifyMethod]] = [("", "left")]
    for name, _ in ranks:
        heads += [(name, "right"), ("", "right")]
    table = _table(*heads)
    for name, causes in ROWS:
        seconds = found.seconds[:, [Cause[cause.upper()] for cause in causes]].sum(axis=1)
        if name.startswith("  ") and not seconds.any():
            continue
        means_s = [float(seconds[which].mean()) for _, which in ranks]
        cells = [(f"{x:.3f} s", f"{x / simulation.iteration_s:.1%}") for x in means_s]
        style = "dim" if name.startswith("  ") else None
        table.add_row(name, *(text for pair in cells for text in pair), style=style)
    return table


def _path_table(simulation: Simulation, steps: tuple[Step, ...]) -> Table:
    """By kind, and beside it what is on the network by link; most first."""
    from netbench.simulator.explain import seconds_by_kind, seconds_by_link

    table = _table(("", "left"), ("", "right"), ("on the network", "left"), ("", "right"))
    kinds = list(seconds_by_kind(steps).items())
    places = list(seconds_by_link(steps, simulation.plan).items())[: len(kinds)]
    for (kind, seconds), place in itertools.zip_longest(kinds, places):
        link, on_it_s = place or ("", None)
        table.add_row(kind, f"{seconds:.3f} s", link, "" if on_it_s is None else f"{on_it_s:.3f} s")
    return table


def _link_table(uses: tuple[LinkUse, ...]) -> Table:
    """The busiest; the rest are counted."""
    table = _table(
        ("", "left"), ("", "left"), ("bytes", "right"), ("payload rate", "right"), ("busy", "right")
    )
    for use in uses[:NUM_LINKS]:
        table.add_row(
            use.kind,
            use.name,
            format_bytes(round(use.payload_bytes), 3),
            format_bandwidth(use.capacity_bps, 3),
            f"{use.utilisation:.1%}",
        )
    if len(uses) > NUM_LINKS:
        table.add_row("", f"{len(uses) - NUM_LINKS} more, less busy", style="dim")
    return table


def _json(simulation: Simulation, warnings: tuple[str, ...]) -> dict[str, Any]:
    """All that `_print` shows, of all ranks and links, unrounded."""
    from netbench.simulator import explain
    from netbench.simulator.losses import losses
    from netbench.simulator.trail import Cause
    from netbench.simulator.usage import links

    plan, found = simulation.plan, explain.breakdown(simulation)
    steps = explain.critical_path(simulation)
    return {
        "plan_hash": plan_hash(plan),
        "scenario": plan.scenario,
        "variant": plan.variant,
        "iteration_s": simulation.iteration_s,
        "pflops": pflop_per_iteration(plan.workload) / simulation.iteration_s,
        "bound_s": explain.bound_s(plan),
        "memory_warnings": list(warnings),
        "phases": simulation.phases,
        "breakdown": {
            "mean_s": found.mean_s(),
            "worst_rank": found.worst_rank,
            "causes": [cause.name.lower() for cause in Cause],
            "by_rank_s": found.seconds.tolist(),
        },
        "losses": [dataclasses.asdict(loss) for loss in losses(simulation)],
        "critical_path": {
            "by_kind_s": explain.seconds_by_kind(steps),
            "by_link_s": explain.seconds_by_link(steps, plan),
            "steps": [dataclasses.asdict(step) for step in steps],
        },
        "links": [dataclasses.asdict(use) for use in links(simulation)],
    }
