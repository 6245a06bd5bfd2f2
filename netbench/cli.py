"""The `netbench` command: import only the subcommand that is called, turn errors into exit codes.

Exit codes: 0 good, 1 failure, 2 usage, 3 finished but not trustworthy, 130 interrupted.
A command returns its exit code, or None for 0.
"""

import errno
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

from netbench.commands.lazy import Commands, LazyGroup
from netbench.errors import EXIT_INTERRUPTED, NetbenchError
from netbench.files import files_of_command
from netbench.version import __version__

LAZY: Commands = {
    "run": ("netbench.commands.run.command", "Run a scenario and print its table."),
    "collective": ("netbench.commands.collective", "Time a collective on a network."),
    "sweep": ("netbench.commands.explore.sweep", "Simulate a scenario on a grid of networks."),
    "require": ("netbench.commands.explore.require", "Find the worst network that is good enough."),
    "cost": ("netbench.commands.explore.cost", "Price a scenario's training."),
    "schedule": ("netbench.commands.schedule", "Search where to put the ranks."),
    "explain": ("netbench.commands.explore.explain", "Show where an iteration's time goes."),
    "trace": ("netbench.commands.trace", "Compare what ranks did with their simulation."),
    "table": ("netbench.commands.table", "Print the table of a run."),
    "report": ("netbench.commands.report", "Write an HTML page of runs, to forward."),
    "scenario": ("netbench.commands.scenario", "List, show and check scenarios."),
    "reproduce": ("netbench.commands.reproduce.command", "Regenerate the pages of results/."),
    "calibrate": ("netbench.commands.calibrate", "Measure a device of this machine."),
    "net": ("netbench.commands.net", "Shape, verify and restore a network."),
    "runs": ("netbench.commands.runs", "List runs; end what they left on hosts."),
    "kernel": ("netbench.commands.kernel", "Build the guest kernel, or show its state."),
    "doctor": ("netbench.commands.doctor", "Show what this machine, or hosts, can run."),
}

NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)

EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143
"""128 + the signal, as a shell reports a process ended by SIGPIPE or SIGTERM."""


class Netbench(LazyGroup):
    """Root of the command line."""

    def invoke(self, ctx: click.Context) -> Any:
        # click would turn a closed pipe (`netbench table | head`) into exit code 1.
        try:
            with files_of_command():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _silence_stdout()
            return EXIT_BROKEN_PIPE
        return result


@click.group(
    cls=Netbench,
    commands=LAZY,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="netbench %(version)s")
def netbench() -> None:
    """Predict and measure distributed training on a network you do not have.

    Start with `netbench run case3`.
    """


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` by default); return the exit code. Prints every error."""
    try:
        _check_process()
        result: Any = netbench.main(args, prog_name="netbench", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _interrupted()
    except (
        ImportError,
        SystemError,
    ) as error:  # compiled code wraps what a signal raises, several times
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, KeyboardInterrupt):
            return _interrupted()
        if isinstance(cause, SystemExit):
            raise cause from None
        raise
    except NetbenchError as error:
        _print_error(str(error))
        return error.exit_code
    except OSError as error:
        where = "standard output: " if error.errno in NOT_WRITTEN and not error.filename else ""
        click.echo(f"error: {where}{error}", err=True)
        return 1
    except MemoryError:
        click.echo("error: out of memory; choose a smaller scenario or fewer values", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _print_error(text: str) -> None:
    """Print an error, wrapped between words on a terminal; elsewhere it stays one line."""
    text = f"error: {text}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        wrap = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrap(line, width) for line in text.splitlines())
    click.echo(text, err=True)


def _check_process() -> None:
    """Raises NetbenchError if there is no standard output or no working directory."""
    if sys.stdout is None:
        raise NetbenchError("standard output is closed; redirect it, e.g. to /dev/null")
    try:
        Path.cwd()
    except OSError as error:
        raise NetbenchError(f"the working directory: {error.strerror}; change to another") from None


def _flush() -> bool:
    """Flush standard output. Return false, and close it, if it is full."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _silence_stdout()
        return False
    return True


def _interrupted() -> int:
    click.echo("interrupted", err=True)
    return EXIT_INTERRUPTED


def _silence_stdout() -> None:
    """Send the interpreter's final flush to the null device: the reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line of this process and exit."""
    signal.signal(signal.SIGTERM, _terminate)
    code = run()
    sys.exit(code if _flush() else code or 1)


def _terminate(signum: int, frame: FrameType | None) -> None:
    """Exit by an exception, so that context managers clean up."""
    sys.exit(EXIT_TERMINATED)
