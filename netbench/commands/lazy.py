"""A click group whose commands are imported when they are called, not when they are listed."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
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
        hint = _did_you_mean(near) if near else f"One of: {', '.join(self.lazy)}."
        raise click.UsageError(f"No such command {name!r}. {hint}", ctx)


class DefaultGroup(LazyGroup):
    """A group with a command for what begins with none: `schedule case3` is `schedule place case3`.

    Its help is that command's, followed by the others.
    """

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.lazy, *ctx.help_option_names):
            # `comapre case3`: a default takes one argument, so the first was meant as a command.
            if len(args) > 1 and not any(arg.startswith("-") for arg in args[:2]):
                self._refuse_misspelt(ctx, args[0])
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # The usage is that of what was typed: nobody needs the default's name.
            if error.ctx is not None and error.ctx.command is self._default_command(ctx):
                error.ctx = ctx
            raise

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        default = self._default_command(ctx)
        formatter.write_usage(ctx.command_path, " ".join(default.collect_usage_pieces(ctx)))
        for name in self._others():
            formatter.write_usage(f"{ctx.command_path} {name}", "...", prefix=" " * 7)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_options(self._default_command(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name][2]) for name in self._others()])

    def _default_command(self, ctx: click.Context) -> click.Command:
        command = self.get_command(ctx, self.default)
        assert command is not None
        return command

    def _refuse_misspelt(self, ctx: click.Context, name: str) -> None:
        near = difflib.get_close_matches(name, self._others(), n=2)
        if near:
            raise click.UsageError(f"No such command {name!r}. {_did_you_mean(near)}", ctx)

    def _others(self) -> list[str]:
        return [name for name in self.lazy if name != self.default]


def _did_you_mean(names: Sequence[str]) -> str:
    return f"Did you mean {' or '.join(names)}?"
