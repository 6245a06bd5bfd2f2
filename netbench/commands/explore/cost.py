"""`netbench cost SCENARIO`: what training costs, per hour and per million samples."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from netbench.api.costs import HEADS, Costs, Priced, priced
from netbench.commands.options import (
    FILE,
    NUMBERS,
    TIME,
    QuantityType,
    aliased_option,
    prices_option,
    split_names,
)
from netbench.commands.output import heading, wide_console
from netbench.cost.bill import ON_DEMAND, SPOT
from netbench.cost.churn import Outcome, interrupted_usd, train
from netbench.errors import UsageError
from netbench.files import write_file
from netbench.plan.build import Choices
from netbench.report.tables.cost import cost_grid, egress_grid, money
from netbench.report.tables.grid import Grid, csv_text, rich_table, table_of
from netbench.scenario import load_scenario
from netbench.scenario.churn import ChurnEvent, drawn_trace, read_trace, trace_text
from netbench.scenario.prices import read_prices

DAY_S, AWAY_S = 86400.0, 600.0


def parse_rate(text: str) -> float:
    """Parse interruptions of a machine per hour, e.g. 0.1."""
    try:
        rate = float(text.removesuffix("/h"))
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 3600:
        raise ValueError(f"{text!r} is not a rate per hour; write e.g. 0.1")
    return rate


@click.command()
@click.argument("scenario")
@aliased_option(
    "--systems",
    "--system",
    metavar="NAME,...",
    help="Systems, comma-separated.  [default: the scenario's]",
)
@click.option("--models", metavar="NAME,...", help="Models of the scenario's sweep.")
@click.option("--peers", metavar="NAME,...", help="Sets of machines of the scenario's sweep.")
@click.option("--layers", type=NUMBERS, help="Numbers of layers of a GPT.")
@click.option("--batch", type=NUMBERS, help="Global batch sizes of a GPT, in sequences.")
@prices_option
@click.option(
    "--interruptions",
    type=QuantityType("RATE", parse_rate),
    help="Interruptions of a spot machine per hour; adds a table with goodput.",
)
@click.option(
    "--away", type=TIME, default=AWAY_S, help="Mean time until an interrupted machine is back."
)
@click.option("--churn", type=FILE, help="Recorded trace of interruptions, a CSV file.")
@click.option(
    "--write-churn", type=FILE, help="Write the drawn trace to a CSV file, for --churn and for run."
)
@click.option("--duration", type=TIME, default=DAY_S, help="Time that interruptions last.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the interruptions.")
@click.option("--csv", type=FILE, help="Write the table to a CSV file.")
def command(
    scenario: str,
    systems: str | None,
    models: str | None,
    peers: str | None,
    layers: tuple[int, ...] | None,
    batch: tuple[int, ...] | None,
    prices: Path | None,
    interruptions: float | None,
    away: float,
    churn: Path | None,
    write_churn: Path | None,
    duration: float,
    seed: int,
    csv: Path | None,
) -> None:
    """Price the training of SCENARIO: machines, egress by class, and training data.

    Times are simulated, and egress is the payload that the plan sends. Prices are those of the
    section `prices` of the scenario.
    """
    if interruptions is not None and churn is not None:
        raise UsageError("--interruptions draws a trace and --churn reads one; leave out one")
    if write_churn is not None and interruptions is None:
        raise UsageError("--write-churn writes the trace that --interruptions draws; add it")
    found = load_scenario(scenario)
    chosen = Choices.of(
        found.sweep,
        variants=split_names(systems),
        models=split_names(models),
        peers=split_names(peers),
        layers=layers,
        batch=batch,
    )
    given = None if prices is None else read_prices(prices)
    console = wide_console()
    costs = Costs(rows=tuple(priced(found, chosen, given)))
    rows = [each.row for each in costs.rows]
    grid = cost_grid(HEADS, rows, costs.unit)
    console.print(heading(found))
    console.print(rich_table(grid))
    console.print()
    if any(sum(row.bill.egress_gb.values()) for row in rows):
        console.print(rich_table(egress_grid(HEADS, rows)))
        console.print()
    console.print(
        "simulated. machines, egress, data: $ per hour, of spot machines, of what they send, and "
        f"of training data. $/M: per million {costs.unit}. "
        "GB: 10^9 bytes of payload.",
        style="dim",
    )
    if csv is not None:
        write_file(csv, csv_text(grid) + "\n")
        console.print(f"table: {csv}", soft_wrap=True)
    if interruptions is None and churn is None:
        return
    outcomes = []
    for each in costs.rows:
        num_nodes = len(each.scenario.nodes)
        events: tuple[ChurnEvent, ...] = (
            read_trace(churn, num_nodes)
            if churn is not None
            else drawn_trace(
                num_nodes, duration, per_hour=interruptions or 0.0, away_s=away, seed=seed
            )
        )
        outcomes.append(train(each.plan, events, duration))
        if write_churn is not None:
            _write_trace(console, write_churn, events, len(costs.rows))
    usd = [
        interrupted_usd(each.scenario, given or each.scenario.prices, each.bill, outcome)
        for each, outcome in zip(costs.rows, outcomes, strict=True)
    ]
    _print_churn(console, costs.rows, outcomes, usd)


def _write_trace(console: Console, path: Path, events: Sequence[ChurnEvent], num_rows: int) -> None:
    """Write a trace. Raises UsageError if there is one for each of several rows."""
    if num_rows > 1:
        raise UsageError(
            f"--write-churn writes one trace, and each of {num_rows} rows has one; choose a row, "
            "e.g. with --peers and --models"
        )
    write_file(path, trace_text(events))
    console.print(f"trace: {path}", soft_wrap=True)


def _print_churn(
    console: Console, costs: Sequence[Priced], outcomes: Sequence[Outcome], usd: Sequence[float]
) -> None:
    """Print goodput and spot costs with interruptions beside those without."""
    rows = list(zip(costs, outcomes, usd, strict=True))
    console.print()
    console.print("spot machines that are interrupted", style="bold")
    grid: Grid = table_of(
        rows,
        [
            ("Machines", lambda row: row[0].labels[0]),
            ("Model", lambda row: row[0].labels[1]),
            ("samples/s", lambda row: f"{row[0].bill.samples_per_s:.4g}"),
            ("goodput/s", lambda row: f"{row[1].goodput:.4g}"),
            ("there", lambda row: f"{sum(row[1].machine_s) / row[1].seconds:.2f}"),
            ("rounds", lambda row: str(row[1].num_rounds)),
            ("repeated", lambda row: str(row[1].num_repeated)),
            ("spot $/million", lambda row: money(row[0].bill.million_usd(SPOT))),
            ("interrupted", lambda row: money(row[2])),
            ("on demand", lambda row: money(row[0].bill.million_usd(ON_DEMAND))),
        ],
        num_labels=2,
    )
    console.print(rich_table(grid))
    console.print()
    console.print(
        "goodput: samples per second that reached the model. there: machines, the mean over time. "
        "repeated: rounds that averaged again without a machine that went.",
        style="dim",
    )
