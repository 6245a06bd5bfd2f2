"""A click group whose commands are imported when they are called, not when they are listed."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

from netbench.errors import nearest

Commands = Mapping[str, tuple[str, str]]
"""Command name -> (module, one line of help), so that `--help` imports no command. A module has
`command`, or a group with the name of the command."""


class LazyGroup(click.Group):
    """Group of `commands` in the given order; suggests the nearest for an unknown name."""

    def __init__(self, *args: Any, commands: Commands, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module = vars(importlib.import_module(self.lazy[cmd_name][0]))
        command = module.get("command") or module[cmd_name]
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.lazy or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"no such command {name!r}; {nearest(name, self.lazy)}", ctx)


class DefaultGroup(LazyGroup):
    """Group with a default command: `schedule case3` means `schedule place case3`.

    Its help is that of the default command, followed by a list of the others.
    """

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.lazy, *ctx.help_option_names):
            # `comapre case3`: the default takes one argument, so the first is a misspelt command.
            if len(args) > 1 and not any(arg.startswith("-") for arg in args[:2]):
                self._refuse_misspelt(ctx, args[0])
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # Show the usage of what was typed, without the default command's name.
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
            formatter.write_dl([(name, self.lazy[name][1]) for name in self._others()])

    def _default_command(self, ctx: click.Context) -> click.Command:
        command = self.get_command(ctx, self.default)
        assert command is not None
        return command

    def _refuse_misspelt(self, ctx: click.Context, name: str) -> None:
        if near := difflib.get_close_matches(name, self._others()):
            raise click.UsageError(f"no such command {name!r}; {nearest(name, near)}", ctx)

    def _others(self) -> list[str]:
        return [name for name in self.lazy if name != self.default]
