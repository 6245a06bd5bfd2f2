"""The `netbench` command: finds the subcommand, loads only that one, turns errors into exit codes.

Exit codes: 0 good, 1 failure, 2 usage, 3 finished but not trustworthy, 130 interrupted.
A command returns its exit code, or None for 0.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import click

from netbench import __version__
from netbench.commands.lazy import Commands, LazyGroup
from netbench.errors import EXIT_INTERRUPTED, NetbenchError

LAZY: Commands = {
    "run": ("netbench.commands.run", "command", "Run a scenario and print its table."),
    "collective": ("netbench.commands.collective", "command", "Time a collective on a network."),
    "sweep": ("netbench.commands.sweep", "command", "Simulate a scenario on a grid of networks."),
    "require": ("netbench.commands.require", "command", "Find how poor a network may be."),
    "schedule": ("netbench.commands.schedule", "schedule", "Search where the ranks go."),
    "explain": ("netbench.commands.explain", "command", "Say where an iteration's time goes."),
    "trace": ("netbench.commands.trace", "trace", "Compare what ranks did with their simulation."),
    "table": ("netbench.commands.table", "command", "Print a run's table again."),
    "scenario": ("netbench.commands.scenario", "scenario", "List, show and check scenarios."),
    "reproduce": ("netbench.commands.reproduce", "command", "Regenerate results/README.md."),
    "calibrate": ("netbench.commands.calibrate", "command", "Measure a device of this machine."),
    "net": ("netbench.commands.net", "net", "Shape a network, prove it, get the old one back."),
    "kernel": ("netbench.commands.kernel", "kernel", "Build the guest kernel, or say how it is."),
    "doctor": ("netbench.commands.doctor", "doctor", "Say what this machine can run, and why not."),
}

EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143
"""128 + the signal, as a shell reports a process ended by SIGPIPE or SIGTERM."""


class Netbench(LazyGroup):
    """The top of the command line."""

    def invoke(self, ctx: click.Context) -> Any:
        # click would turn a closed pipe (`netbench table | head`) into exit code 1.
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _silence_stdout()
            return EXIT_BROKEN_PIPE
        return result


@click.group(cls=Netbench, commands=LAZY, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="netbench %(version)s")
def netbench() -> None:
    """How fast does distributed training run on a network you do not have?

    `netbench run case3` is the place to start.
    """


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` by default); return the exit code. Prints every error."""
    try:
        result: Any = netbench.main(args, prog_name="netbench", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _interrupted()
    except (ImportError, SystemError) as error:  # compiled code's, of what a signal raises in it
        cause = _first_cause(error)
        if isinstance(cause, KeyboardInterrupt):
            return _interrupted()
        if isinstance(cause, SystemExit):
            raise cause from None
        raise
    except NetbenchError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    return result if isinstance(result, int) else 0


def _first_cause(error: BaseException) -> BaseException:
    """Compiled code that calls compiled code makes several of one, each from the one before."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _interrupted() -> int:
    click.echo("interrupted", err=True)
    return EXIT_INTERRUPTED


def _silence_stdout() -> None:
    """Let the interpreter flush on exit into nothing: the reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run())


def _terminate(signum: int, frame: FrameType | None) -> None:
    """Leave by an exception, so that what cleans up after itself does."""
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
