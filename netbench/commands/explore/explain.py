"""`netbench explain PLAN|SCENARIO`: show where the time of a simulated iteration goes."""

from __future__ import annotations

import itertools
import json
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netbench.api.explanation import Explanation, explain_plan
from netbench.commands.options import (
    FILE,
    FIRST,
    aliased_option,
    batch_option,
    layers_option,
    micro_batch_option,
    network_option,
    picture_option,
    placement_seed_option,
    prices_option,
)
from netbench.commands.output import (
    check_writable,
    plain_console,
    print_line,
    print_warning,
    results_option,
)
from netbench.commands.run.simulation import warn_of_impairments
from netbench.cost.bill import ON_DEMAND, SPOT, bill, machines_of
from netbench.errors import NetbenchError, PlanError, RecordError, UsageError
from netbench.files import read_text
from netbench.plan.build import build_plan
from netbench.plan.checks import check_micro_batch
from netbench.plan.describe import describe_plan
from netbench.plan.memory import memory_warnings
from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.records import FILE_NAME, HASH_DIGITS, read_run
from netbench.report.numbers import flops_text
from netbench.report.tables.cost import egress_share, money
from netbench.scenario import Scenario, list_scenarios, load_scenario
from netbench.scenario.model import Prices
from netbench.scenario.prices import read_prices
from netbench.timelines import name_of_rank
from netbench.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from netbench.explain.usage import LinkUse

NUM_LINKS = 5
"""Number of links in the table."""

LEAST_DIGITS = 4
"""Minimum number of digits of a plan's hash to search for."""

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
"""Rows of the breakdown, each with the causes it sums."""


@click.command()
@click.argument("what", metavar="PLAN|SCENARIO")
@aliased_option(
    "--system", "--systems", metavar="NAME", help=f"System to simulate, e.g. dtfm-random.  {FIRST}"
)
@layers_option
@batch_option
@placement_seed_option
@network_option
@micro_batch_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON with unrounded figures.")
@click.option("--trace", type=FILE, help="Write a trace for Perfetto (.json, .json.gz).")
@prices_option
@picture_option
@results_option
def command(
    what: str,
    system: str | None,
    prices: Path | None,
    as_json: bool,
    trace: Path | None,
    plot: Path | None,
    results: Path,
    **asked: Any,
) -> None:
    """Simulate one iteration and show where its time goes.

    PLAN is a plan's JSON file, or the first digits of the hash of a recorded plan. SCENARIO is a
    name or a YAML file; the first setting of its default slice is taken.
    """
    check_writable(trace, pictures=[plot])
    plan = find_plan(what, results)
    scenario: Scenario | None = None
    if plan is None:
        scenario = load_scenario(what)
        setting = scenario.sweep.first_setting(**asked)
        plan = build_plan(scenario, system or scenario.sweep.default_variants[0], setting)
        warnings = memory_warnings(plan, scenario)
        check_micro_batch(plan, asked["micro_batch"])
    elif {system, *asked.values()} != {None}:
        raise UsageError(
            f"{what} is a plan, which fixes all settings; leave out --system, --layers, --batch, "
            "--seed, --network and --micro-batch, or give its scenario"
        )
    else:
        warnings = _memory_warnings(plan)
        with suppress(NetbenchError):
            scenario = load_scenario(plan.scenario)
    given = None if prices is None else read_prices(prices)
    found = explain_plan(plan)
    if as_json:
        click.echo(json.dumps({**found.as_dict(), "memory_warnings": list(warnings)}, indent=2))
    else:
        _print(plain_console(), found, warnings)
        _print_cost(plain_console(), found, scenario, given)
    if trace is not None:
        found.write_trace(trace)
        click.echo(f"trace: {trace} (open it in ui.perfetto.dev)", err=True)
    if plot is not None:
        found.plot().save(plot)
        click.echo(f"picture: {plot}", err=True)


def find_plan(what: str, results: Path) -> Plan | None:
    """Return the plan in a JSON file, or the recorded one whose hash begins with `what`.

    Returns None if `what` can only be a scenario. Raises UsageError if several hashes begin so,
    RecordError or PlanError for a file that cannot be read.
    """
    path = Path(what)
    if path.suffix == ".json":
        try:
            return plan_from_json(read_text(path))
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
            continue  # a damaged file need not hold the plan
        plans |= {hashed: plan for hashed, plan in recorded.items() if hashed.startswith(digits)}
    if not plans:
        raise UsageError(f"no plan in {results} has a hash that begins with {what}")
    if len(plans) > 1:
        raise UsageError(
            f"several plans begin with {what}: {', '.join(sorted(plans))}; give more digits"
        )
    return plan_from_json(json.dumps(next(iter(plans.values()))))


def _memory_warnings(plan: Plan) -> tuple[str, ...]:
    """Warnings from the plan's scenario, which holds the devices; none if it cannot be found."""
    try:
        return memory_warnings(plan, load_scenario(plan.scenario))
    except NetbenchError:
        return ()


def _print(console: Console, found: Explanation, warnings: tuple[str, ...]) -> None:
    plan, iteration_s, least_s = found.plan, found.iteration_s, found.bound_s
    print_line(console, f"plan {describe_plan(plan)}")
    for warning in warnings:
        print_warning(console, "memory", warning)
    warn_of_impairments(console, [plan])
    print_line(
        console,
        Text.assemble(
            (f"\n{iteration_s:.4g} s", "bold"),
            " per iteration, ",
            (flops_text(found.pflops), "bold"),
            f"; compute alone would take {least_s:.4g} s ({least_s / iteration_s:.0%})\n",
        ),
    )
    if num_drawn := len(found.simulation.drawn_s[1:]):
        shortest_s, longest_s = found.range_s
        console.print(
            f"median of {num_drawn + 1} iterations whose passes take random times: "
            f"{shortest_s:.4g} to {longest_s:.4g} s\n",
            style="dim",
        )
    console.print("Largest losses", style="bold")
    for loss in found.losses:
        _print_hanging(console, loss.text)
    console.print("\nWhere a rank's time goes", style="bold")
    console.print(_breakdown_table(found))
    if not _are_alike(plan):
        worst = name_of_rank(plan, found.breakdown.worst_rank)
        console.print(f"worst: the rank that waits longest, {worst}", style="dim")
    what = ": the steps that determine when the iteration ends"
    console.print(Text.assemble(("\nCritical path", "bold"), what))
    console.print(_path_table(found))
    console.print("\nBusiest links", style="bold")
    console.print(_link_table(found.links))


def _print_cost(
    console: Console, found: Explanation, scenario: Scenario | None, prices: Prices | None
) -> None:
    """Print what it costs, if prices are known. Raises PlanError if they are given and lack a
    machine."""
    machines = None if scenario is None else machines_of(scenario, found.plan)
    if machines is None or not (prices or machines.prices):
        return
    priced = bill(machines, found.plan, prices, iteration_s=found.iteration_s)
    unit = "samples" if found.plan.workload.model else "sequences"
    texts = [
        f"{money(priced.hourly_usd(kind))} $ per hour, {money(priced.million_usd(kind))} $ per "
        f"million {unit} ({kind})"
        for kind in (SPOT, ON_DEMAND)
    ]
    share = egress_share(priced, SPOT)
    console.print("\nCost", style="bold")
    for text in (*texts, f"egress: {share:.0%} of the cost of spot machines"):
        print_line(console, f"  {text}")


def _are_alike(plan: Plan) -> bool:
    """Return true if all ranks do the same work in the same time."""
    return not plan.has_pipelines and not plan.type_stages


def _print_hanging(console: Console, text: str) -> None:
    """Print indented, wrapped with a hanging indent on a terminal."""
    if console.is_terminal:
        text = textwrap.fill(text, console.width - 2, subsequent_indent="  ")
    print_line(console, textwrap.indent(text, "  "))


def _table(*columns: tuple[str, JustifyMethod]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head, justify in columns:
        table.add_column(head, justify=justify, no_wrap=True)
    return table


def _breakdown_table(found: Explanation) -> Table:
    """Seconds and percentages: mean over the ranks, and the rank that waits longest."""
    from netbench.explain.causes import Cause

    worst = found.breakdown.worst_rank
    ranks: list[tuple[str, slice]] = [("mean", slice(None))]
    if _are_alike(found.plan):
        ranks = [("every rank", slice(None))]
    else:
        ranks.append(("worst", slice(worst, worst + 1)))
    heads: list[tuple[str, JustifyMethod]] = [("", "left")]
    for name, _ in ranks:
        heads += [(name, "right"), ("", "right")]
    table = _table(*heads)
    for name, causes in ROWS:
        seconds = found.breakdown.seconds[:, [Cause[cause.upper()] for cause in causes]].sum(axis=1)
        if name.startswith("  ") and not seconds.any():
            continue
        means_s = [float(seconds[which].mean()) for _, which in ranks]
        cells = [(f"{x:.3f} s", f"{x / found.iteration_s:.1%}") for x in means_s]
        style = "dim" if name.startswith("  ") else None
        table.add_row(name, *(text for pair in cells for text in pair), style=style)
    return table


def _path_table(found: Explanation) -> Table:
    """Seconds of the critical path by kind of step, and by link; largest first."""
    from netbench.explain.breakdown import seconds_by_kind, seconds_by_link

    table = _table(("", "left"), ("", "right"), ("on the network", "left"), ("", "right"))
    kinds = list(seconds_by_kind(found.critical_path).items())
    places = list(seconds_by_link(found.critical_path, found.plan).items())[: len(kinds)]
    for (kind, seconds), place in itertools.zip_longest(kinds, places):
        link, link_s = place or ("", None)
        table.add_row(kind, f"{seconds:.3f} s", link, "" if link_s is None else f"{link_s:.3f} s")
    return table


def _link_table(uses: tuple[LinkUse, ...]) -> Table:
    """Busiest links, and the number of the others."""
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
