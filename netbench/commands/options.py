"""Types of option values, and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from netbench import units
from netbench.errors import UsageError
from netbench.limits import MAX_BATCH, MAX_LAYERS


class QuantityType(click.ParamType[Any]):
    """Number with a unit, read by a parser of `netbench.units` or one that raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of whole numbers; write e.g. 24,32") from None
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{text!r} has a number twice")
    return numbers


def split_names(text: str | None) -> tuple[str, ...]:
    """Split comma-separated names. Raises UsageError for a repeated one."""
    names = () if text is None else tuple(text.split(","))
    if again := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UsageError(f'"{again[0]}" is given twice; keep one of the two')
    return names


class AliasedOption(click.Option):
    """Option of which `--help` lists only the first name, e.g. --systems but not --system."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


def aliased_option(name: str, alias: str, **settings: Any) -> Callable[[Any], Any]:
    """Add an option that also accepts `alias`, e.g. --system for --systems."""
    parameter = name.removeprefix("--")
    return click.option(name, alias, parameter, cls=AliasedOption, **settings)


NUMBERS = QuantityType("N,N,...", parse_numbers)
TIME = QuantityType("TIME", units.parse_time)
DELAY = QuantityType("TIME", units.parse_delay)
RATE = QuantityType("RATE", units.parse_bandwidth)
PERCENT = QuantityType("PERCENT", units.parse_percent)
FILE = click.Path(path_type=Path)

FIRST = "[default: the scenario's first]"

prices_option = click.option(
    "--prices", type=FILE, help="File with a section `prices` to use instead of the scenario's."
)

layers_option = click.option(
    "--layers", type=click.IntRange(1, MAX_LAYERS), help=f"Number of layers.  {FIRST}"
)
batch_option = click.option(
    "--batch", type=click.IntRange(1, MAX_BATCH), help=f"Global batch size, in sequences.  {FIRST}"
)
micro_batch_option = click.option(
    "--micro-batch",
    type=click.IntRange(1, MAX_BATCH),
    help=f"Micro-batch size, in sequences.  {FIRST}",
)
network_option = aliased_option(
    "--network",
    "--networks",
    metavar="NAME",
    help=f"Network of the scenario's sweep, by name.  {FIRST}",
)
SETTING_OPTIONS = (layers_option, batch_option, micro_batch_option, network_option)
"""Options that choose one setting of a scenario's sweep."""

placement_seed_option = aliased_option(
    "--seed", "--seeds", type=int, help=f"Seed of random placements.  {FIRST}"
)
picture_option = click.option("--plot", type=FILE, help="Write a picture (PNG, SVG, PDF).")
