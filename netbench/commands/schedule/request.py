"""Options that commands of `netbench schedule` share.

What is to be placed, for how long a search may go on, and where its answer goes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from netbench import units
from netbench.commands.base import SETTING_OPTIONS
from netbench.commands.files import check_formats, check_writable
from netbench.commands.live import wide_console
from netbench.commands.quantity import Quantity
from netbench.commands.schedule.interruption import Interrupted, never
from netbench.scenario import load_scenario
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.placement.problem import Budget
    from netbench.simulator.scheduling import Request

Command = Callable[..., Any]

DEFAULT_SYSTEM = "dtfm-scheduled"
DEFAULT_BUDGET = "30s"


SCHEDULER_NAMES = "identity, random, random-1000, region-aligned, dtfm, least-cost, netbench"
"""Of `placement.schedulers`, which a help text does not load."""


def parse_budget(text: str) -> float:
    """Seconds, above 0."""
    try:
        seconds = units.parse_time(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f'"{text}" is no time to search for; write e.g. 30s or 2min')
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Of a search. evaluations: candidates, None = as many as fit. interrupted: whether it is to
    end now with what it has."""

    seconds: float
    evaluations: int | None = None
    interrupted: Interrupted = never

    def budget(self) -> Budget:
        """As schedulers take it, without progress, of a search that begins now. A number of
        candidates alone decides, where there is one: the same then comes out on every machine."""
        from netbench.placement.problem import Budget

        self.interrupted()  # from here on, before any candidate, Ctrl-C ends the search
        if self.evaluations is None:
            return Budget(seconds=self.seconds, interrupted=self.interrupted)
        return Budget(evaluations=self.evaluations, interrupted=self.interrupted)

    def __str__(self) -> str:
        given = units.format_time(self.seconds)
        if self.evaluations is not None:
            given = counted(self.evaluations, "candidate")
        return f"{given}, interrupted" if self.interrupted() else given


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Where an answer goes. file, picture: None = there is none. as_json: what is printed."""

    file: Path | None
    picture: Path | None
    as_json: bool

    def console(self) -> Console:
        """For persons: beside JSON, on the standard error."""
        return Console(stderr=True, highlight=False) if self.as_json else wide_console()


def make_request(
    scenario: str,
    system: str = DEFAULT_SYSTEM,
    layers: int | None = None,
    batch: int | None = None,
    micro_batch: int | None = None,
    network: str | None = None,
) -> Request:
    """None: the first of the scenario's slice."""
    from netbench.simulator.scheduling import Request  # numba: not for --help

    found = load_scenario(scenario)
    setting = found.sweep.first_setting(
        layers=layers, batch=batch, micro_batch=micro_batch, network=network
    )
    return Request(
        scenario=found,
        variant=system,
        layers=setting.layers,
        batch=setting.batch,
        micro_batch=setting.micro_batch,
        network=setting.network,
    )


def request_options(function: Command) -> Command:
    """Options of a command that is given a `simulator.scheduling.Request` first."""
    options = (
        click.argument("scenario"),
        click.option("--system", default=DEFAULT_SYSTEM, show_default=True, help="What to place."),
        *SETTING_OPTIONS,
    )

    @functools.wraps(function)
    def command(
        *,
        scenario: str,
        system: str,
        layers: int | None,
        batch: int | None,
        micro_batch: int | None,
        network: str | None,
        **others: Any,
    ) -> Any:
        request = make_request(scenario, system, layers, batch, micro_batch, network)
        return function(request, **others)

    for option in reversed(options):
        command = option(command)
    return command


def limit_options(function: Command) -> Command:
    """Options of a command that is given `limits`."""
    options = (
        click.option(
            "--budget",
            type=Quantity("TIME", parse_budget),
            default=DEFAULT_BUDGET,
            show_default=True,
            help="Of a search, on one core; compiling comes on top.",
        ),
        click.option(
            "--evaluations",
            type=click.IntRange(min=1),
            help="Candidates instead of time: the same comes out on every machine.",
        ),
    )

    @functools.wraps(function)
    def command(*args: Any, budget: float, evaluations: int | None, **others: Any) -> Any:
        return function(*args, limits=Limits(seconds=budget, evaluations=evaluations), **others)

    for option in reversed(options):
        command = option(command)
    return command


def output_options(function: Command) -> Command:
    """Options of a command that is given an `output`, of which is known that it can be written."""
    options = (
        click.option(
            "-o", "--output", type=click.Path(path_type=Path), help="Keep it in a file, as JSON."
        ),
        click.option(
            "--plot", type=click.Path(path_type=Path), help="Draw it on a map of the regions."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, unrounded."),
    )

    @functools.wraps(function)
    def command(
        *args: Any, output: Path | None, plot: Path | None, as_json: bool, **others: Any
    ) -> Any:
        check_writable(output, plot)
        check_formats(plot)
        wanted = Output(file=output, picture=plot, as_json=as_json)
        return function(*args, output=wanted, **others)

    for option in reversed(options):
        command = option(command)
    return command
