"""Options of `netbench sweep` and `netbench require`, which vary the plans of a scenario."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import click

from netbench.api.sweeps import Base
from netbench.commands.options import (
    SETTING_OPTIONS,
    aliased_option,
    placement_seed_option,
    split_names,
)
from netbench.plan.what_if import LINKS
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting

Command = Callable[..., Any]


def base_options(function: Command) -> Command:
    """Add the options of a command whose first argument is a `Base`."""
    options = (
        click.argument("scenario"),
        aliased_option(
            "--systems",
            "--system",
            metavar="NAME,...",
            help="Systems, comma-separated.  [default: the scenario's]",
        ),
        *SETTING_OPTIONS,
        placement_seed_option,
        click.option(
            "--links",
            type=click.Choice(LINKS),
            help="Links that change: between regions, inside regions, or all links and NICs.  "
            "[default: between; with one region: all]",
        ),
    )

    @functools.wraps(function)
    def command(*, scenario: str, systems: str | None, links: str | None, **others: Any) -> Any:
        found = load_scenario(scenario)
        asked = {field.name: others.pop(field.name) for field in dataclasses.fields(Setting)}
        base = Base.of(found, split_names(systems), links, **asked)
        return function(base, **others)

    for option in reversed(options):
        command = option(command)
    return command
