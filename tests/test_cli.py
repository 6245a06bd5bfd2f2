"""The command line: imports, suggestions and exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from netbench import __version__, cli
from netbench.errors import NetbenchError, UsageError

HEAVY = (
    "altair", "jinja2", "matplotlib", "netbench.trainers", "pandas", "paramiko", "pydantic", "rich",
    "torch", "vl_convert",
)  # fmt: skip


def loaded_by(args: list[str]) -> set[str]:
    """Names in sys.modules after one command line in a fresh interpreter."""
    script = (
        "import sys\nfrom netbench.cli import run\n"
        f"run({args!r})\nprint('\\n' + ' '.join(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "Usage: netbench" in result.stdout
    return set(result.stdout.splitlines()[-1].split())


def add_command(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> None:
    """Make `netbench boom` call `function`."""
    module = types.ModuleType("netbench_test_boom")
    module.command = click.command("boom")(function)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.LAZY, "boom", (module.__name__, "Fails."))


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    """`netbench --help` answers without loading a command's libraries."""
    modules = loaded_by(["--help"])
    assert modules.isdisjoint(HEAVY)
    commands = {name for name in modules if name.startswith("netbench.commands")}
    assert commands == {"netbench.commands", "netbench.commands.lazy"}


@pytest.mark.parametrize("name", sorted(cli.LAZY))
def test_help_of_a_command_imports_neither_torch_nor_paramiko(name: str) -> None:
    """Every listed command exists, and describing it needs no trainer and no SSH."""
    assert loaded_by([name, "--help"]).isdisjoint({"matplotlib", "paramiko", "torch"})


def commands_below(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of all its subcommands."""
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            below = click.Context(found, context, name, terminal_width=80)
            yield from commands_below(found, below)


def test_every_option_has_help_and_no_line_of_help_is_cut() -> None:
    """click shortens the descriptions of commands in an 80-column terminal."""
    root = click.Context(cli.netbench, None, "netbench", terminal_width=80)
    found = list(commands_below(cli.netbench, root))
    assert len(found) > 40
    for context in found:
        options = [each for each in context.command.params if isinstance(each, click.Option)]
        lacking = [each.name for each in options if not (each.help or each.hidden)]
        assert not lacking, context.command_path
        cut = [
            line for line in context.get_help().splitlines() if re.search(r"^ .*\w\.\.\.$", line)
        ]
        assert not cut, context.command_path


def test_an_unknown_command_is_a_usage_error_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A typing mistake is answered with the name that was meant."""
    assert cli.run(["knrel"]) == 2
    assert "no such command 'knrel'; did you mean kernel?" in capsys.readouterr().err


def test_an_unknown_command_near_nothing_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    """If no name is near, the message lists all."""
    assert cli.run(["xyzzy"]) == 2
    assert f"expected one of {', '.join(cli.LAZY)}" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(NetbenchError, 1), (UsageError, 2)])
def test_an_expected_failure_is_one_line_and_its_exit_code(
    error: type[NetbenchError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A NetbenchError is printed without a traceback."""

    def fail() -> None:
        raise error("disk is full")

    add_command(monkeypatch, fail)
    assert cli.run(["boom"]) == code
    assert capsys.readouterr().err == "error: disk is full\n"


def test_an_interrupt_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends a command with the shell's exit code for it."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    add_command(monkeypatch, interrupt)
    assert cli.run(["boom"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [ImportError, SystemError])
def test_a_signal_during_compiled_code_is_not_a_crash(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled code turns what a signal handler raises into nested SystemErrors.

    While a compiled module is imported, pybind11 turns it into an ImportError.
    """

    def ends(cause: BaseException) -> None:
        def end() -> None:
            inner = SystemError("returned a result with an exception set")
            inner.__cause__ = cause
            raise kind("returned a result with an exception set") from inner

        add_command(monkeypatch, end)

    ends(KeyboardInterrupt())
    assert cli.run(["boom"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    ends(SystemExit(143))
    with pytest.raises(SystemExit, match="143"):
        cli.run(["boom"])
    ends(ValueError())
    with pytest.raises(kind):
        cli.run(["boom"])


def test_a_command_returns_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The integer that a command returns is the exit code."""
    add_command(monkeypatch, lambda: 3)
    assert cli.run(["boom"]) == 3


def test_a_reader_that_leaves_early_is_not_an_error() -> None:
    """`netbench doctor | head -0` ends quietly, as a process ended by SIGPIPE would."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.run(
        [sys.executable, "-m", "netbench", "kernel", "status"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.parametrize(
    ("shell", "message"),
    [
        ("{} scenario list > /dev/full", "error: standard output: [Errno 28] No space left"),
        ("{} scenario list >&-", "error: standard output is closed; redirect it"),
        ("mkdir d; cd d; rmdir ../d; {} scenario list", "error: the working directory: No such"),
    ],
)
def test_a_broken_environment_is_one_message(shell: str, message: str, tmp_path: Path) -> None:
    """A full disk behind standard output, none at all, a folder that was deleted."""
    netbench = f"{sys.executable} -c 'from netbench.cli import main; main()'"
    ended = subprocess.run(
        ["bash", "-c", shell.format(netbench)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith(message)


def test_an_error_is_wrapped_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Elsewhere it is one line."""

    def fail() -> None:
        raise NetbenchError("a sentence of words that is longer than forty characters, by far")

    add_command(monkeypatch, fail)
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.run(["boom"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.run(["boom"]) == 1
    assert capsys.readouterr().err == (
        "error: a sentence of words that is\nlonger than forty characters, by far\n"
    )


def test_the_package_is_a_program() -> None:
    """`python -m netbench` is the `netbench` command."""
    process = subprocess.run(
        [sys.executable, "-m", "netbench", "--version"], capture_output=True, text=True, check=True
    )
    assert process.stdout == f"netbench {__version__}\n"


@pytest.mark.parametrize(
    ("command", "singular", "plural", "value"),
    [
        ("run", "--system", "--systems", "zero3"),
        ("run", "--network", "--networks", "all"),
        ("run", "--seed", "--seeds", "7"),
        ("sweep", "--system", "--systems", "zero3"),
        ("sweep", "--network", "--networks", "1ms"),
        ("explain", "--system", "--systems", "zero3"),
        ("schedule", "--system", "--systems", "zero3"),
        ("schedule", "--seed", "--seeds", "7"),
        ("schedule", "--scheduler", "--schedulers", "dtfm"),
    ],
)
def test_singular_and_plural_are_the_same_option(
    command: str, singular: str, plural: str, value: str
) -> None:
    """Both spellings set the same parameter, and help lists only one of them."""
    root = click.Context(cli.netbench, None, "netbench", terminal_width=80)
    found = cli.netbench.get_command(root, command)
    assert found is not None
    if isinstance(found, click.Group):
        found = found.get_command(root, "place")
    assert found is not None
    context = click.Context(found, root, command, terminal_width=80)
    parse = found.make_parser(context).parse_args
    values = [parse([name, value])[0] for name in (singular, plural)]
    assert values[0] == values[1] != {}
    words = found.get_help(context).split()
    assert (singular in words) != (plural in words)
