"""Options that the commands of `netbench schedule` share: plan to place, search budget, output."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from netbench.api.placement import (
    DEFAULT_BUDGET,
    DEFAULT_SYSTEM,
    Limits,
    make_request,
    parse_budget,
)
from netbench.commands.options import (
    FILE,
    SETTING_OPTIONS,
    QuantityType,
    aliased_option,
    prices_option,
)
from netbench.commands.output import check_writable, plain_console, wide_console
from netbench.cost.bill import ON_DEMAND, SPOT
from netbench.errors import UsageError
from netbench.limits import MAX_EVALUATIONS
from netbench.scenario import load_scenario
from netbench.scenario.model import Prices
from netbench.scenario.prices import read_prices

Command = Callable[..., Any]

SCHEDULER_NAMES = "identity, random, random-nodes, random-1000, region-aligned, dtfm, netbench"
"""Keys of `placement.schedulers.SCHEDULERS`, which `--help` does not import."""

COST, TIME = "cost", "time"
"""Objectives."""

on_demand_option = click.option(
    "--on-demand", "on_demand", is_flag=True, help="Rent on demand, not on the spot market."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Destination of a result. file, picture: None = not written. as_json: print JSON."""

    file: Path | None
    picture: Path | None
    as_json: bool

    def console(self) -> Console:
        """Console for messages: standard error if JSON goes to standard output."""
        return plain_console(stderr=True) if self.as_json else wide_console()


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Prices of a search. minimised: $ per sample are, instead of seconds. prices: None = those of
    the scenario. market: `bill.SPOT` or `bill.ON_DEMAND`."""

    minimised: bool
    prices: Prices | None
    market: str


def cost_options(function: Command) -> Command:
    """Add the options of a command that takes `costs`."""
    options = (
        click.option(
            "--objective",
            type=click.Choice([COST, TIME]),
            default=TIME,
            help="Quantity to minimise: $ per sample (with --layout), or time.",
        ),
        prices_option,
        on_demand_option,
    )

    @functools.wraps(function)
    def command(
        *args: Any, objective: str, prices: Path | None, on_demand: bool, **others: Any
    ) -> Any:
        costs = Costs(
            minimised=objective == COST,
            prices=None if prices is None else read_prices(prices),
            market=ON_DEMAND if on_demand else SPOT,
        )
        return function(*args, costs=costs, **others)

    for option in reversed(options):
        command = option(command)
    return command


def request_options(function: Command) -> Command:
    """Add the options of a command whose first argument is a `placement.plan_problem.Request`."""
    options = (
        click.argument("scenario"),
        aliased_option(
            "--system", "--systems", metavar="NAME", default=DEFAULT_SYSTEM, help="System to place."
        ),
        *SETTING_OPTIONS,
    )

    @functools.wraps(function)
    def command(*, scenario: str, system: str, **others: Any) -> Any:
        asked = {name: others.pop(name) for name in ("layers", "batch", "micro_batch", "network")}
        return function(make_request(load_scenario(scenario), system, **asked), **others)

    for option in reversed(options):
        command = option(command)
    return command


def limit_options(function: Command) -> Command:
    """Add the options of a command that takes `limits`."""
    options = (
        click.option(
            "--budget",
            type=QuantityType("TIME", parse_budget),
            default=DEFAULT_BUDGET,
            help="Time limit of a search, on one core, without compilation.",
        ),
        click.option(
            "--evaluations",
            type=click.IntRange(1, MAX_EVALUATIONS),
            help="Number of candidates, instead of --budget; reproducible on every machine.",
        ),
    )

    @functools.wraps(function)
    def command(*args: Any, budget: float, evaluations: int | None, **others: Any) -> Any:
        source = click.get_current_context().get_parameter_source("budget")
        if evaluations is not None and source is ParameterSource.COMMANDLINE:
            raise UsageError("--evaluations replaces --budget; leave out one of the two")
        return function(*args, limits=Limits(seconds=budget, evaluations=evaluations), **others)

    for option in reversed(options):
        command = option(command)
    return command


def output_options(function: Command) -> Command:
    """Add the options of a command that takes an `output`; its paths are checked first."""
    options = (
        click.option("-o", "--output", type=FILE, help="Write the placement to a JSON file."),
        click.option("--plot", type=FILE, help="Draw the placement on a map of the regions."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON with unrounded figures."),
    )

    @functools.wraps(function)
    def command(
        *args: Any, output: Path | None, plot: Path | None, as_json: bool, **others: Any
    ) -> Any:
        check_writable(output, pictures=[plot])
        wanted = Output(file=output, picture=plot, as_json=as_json)
        return function(*args, output=wanted, **others)

    for option in reversed(options):
        command = option(command)
    return command
