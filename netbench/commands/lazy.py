"""A click group whose commands are imported when they are called, not when they are listed."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

Commands = Mapping[str, tuple[str, str, str]]
"""Command name -> (module, attribute, one line of help). Given apart so that help imports none."""


class LazyGroup(click.Group):
    """A group of `commands`, in their order; an unknown one is answered with the nearest."""

    def __init__(self, *args: Any, commands: Commands, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, attribute, _ = self.lazy[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.lazy or name.startswith("-"):
            return super().resolve_command(ctx, args)
        near = difflib.get_close_matches(name, self.lazy, n=2)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"One of: {', '.join(self.lazy)}."
        raise click.UsageError(f"No such command {name!r}. {hint}", ctx)
