"""Values with units as options of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from netbench import units


class Quantity(click.ParamType[Any]):
    """Numbers with units, read by a parser that raises ValueError as `netbench.units` do."""

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


TIME = Quantity("TIME", units.parse_time)
RATE = Quantity("RATE", units.parse_bandwidth)
SHARE = Quantity("SHARE", units.parse_percent)
