"""Every command of README.md and docs/: executed, or at least understood by the command line."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.exceptions import NoArgsIsHelpError

from netbench import cli

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(netbench [^`]+)`")
OUTPUT = re.compile(r"netbench +\d")
"""Begins lines of output, e.g. `netbench 0.1.0, python 3.11` and rows of tables."""

UNDERSTOOD = {
    r" --inventory | --ssh|net agent": "needs hosts",
    r" net (apply|show|watch|verify|clear|replay) .*local| net shell": "needs a persistent network",
    r" calibrate": "measures for minutes, or on a GPU",
    r" doctor| kernel": "examines, or changes, this machine",
    r" reproduce": "simulates every published time",
    r" --resume": "needs a run that was stopped",
    r" --dask": "runs thousands of cells",
    r" collective(?!.* --testbed sim)": "boots a guest",
    r" trace diff": "needs a run with traces",
    r" schedule compare| --budget | --layout auto": "searches for a minute or more",
    r" --testbed sim --all| require | --vary .*:9": "simulates hundreds of plans",
    r" net (import|measure|inventory)": "needs files or hosts of the reader",
    r" report | explain HASH": "needs a run of the reader",
}
"""Commands that are not executed here, and why; tests of their own execute them."""

PROGRAMS = ("git", "make", "pip", "pipx", "docker", "eval", "echo", "python", "sed", "sudo")
"""Programs of other commands in the pages; only `make` is checked."""

SCENARIO = """
name: wan
regions: [Ohio, Virginia]
nodes: [{region: Ohio, count: 2, device: V100}, {region: Virginia, count: 2, device: V100}]
network:
  inside: {one_way_delay: 1ms, bandwidth: 5Gbit}
  links: [{between: [Ohio, Virginia], one_way_delay: 11ms, bandwidth: 1.12Gbit}]
workload: {layers: 8, hidden: 512, heads: 8, sequence: 512, batch: 16}
"""

HOSTS = """
hosts:
  - {name: a, address: 192.0.2.1, user: root, interface: eth0}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Documented:
    """A command in a page. fenced: it stands in a block of its own, as people copy it."""

    page: str
    text: str
    fenced: bool

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)


def commands_of(page: Path) -> Iterator[Documented]:
    """Yield the commands of a page: those of blocks of a shell, and inline ones."""
    text = page.read_text(encoding="utf-8")
    for language, body in FENCE.findall(text):
        if language not in ("", "sh", "shell", "console"):
            continue
        for line in re.sub(r"\\\n\s*", " ", body).splitlines():
            line = line.removeprefix("$ ")
            begins = line.startswith(("netbench ", *(f"{program} " for program in PROGRAMS)))
            if begins and not OUTPUT.match(line):
                yield Documented(page=page.name, text=line, fenced=True)
    for found in INLINE.findall(FENCE.sub("", text)):
        yield Documented(page=page.name, text=" ".join(found.split()), fenced=False)


ALL = [one for page in PAGES for one in commands_of(page)]
NETBENCH = [one for one in ALL if one.text.startswith("netbench ")]


def reason_not_to_run(one: Documented) -> str:
    """Return why a command is only parsed, "" if it is executed."""
    padded = f" {one.text} "
    return next((why for what, why in UNDERSTOOD.items() if re.search(what, padded)), "")


def arguments(one: Documented) -> list[str]:
    """Arguments with names of files and scenarios that exist in place of the reader's."""
    large = "megatron-p4t2" in one.text  # needs eight devices
    priced = one.words[1:2] == ["cost"]
    names = {
        "SCENARIO": "case3" if large else "multicloud-a" if priced else "example-two-labs",
        "PLAN|SCENARIO": "example-two-labs",
        "path/to/wan.yaml": "wan.yaml",
        "star.yaml": "wan.yaml",
        "again.yaml": "wan.yaml",
        "two-labs.yaml": "wan.yaml",
        "FOLDER": "results",
        "results/RUN": "results",
        "$address": "tcp://10.0.0.1:8786",
        "...": "",
    }
    words = [names.get(word, word.replace(",...", "")) for word in one.words[1:]]
    return [word for word in words if word]


def parse(args: list[str], *, strict: bool) -> None:
    """Let click parse a command line, without calling the command.

    strict: no argument may be missing. Raises click.UsageError.
    """
    command: click.Command = cli.netbench
    context = command.make_context("netbench", list(args))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return  # a group's name alone, e.g. `netbench net`
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        try:
            context = command.make_context(name, rest, parent=context)
        except (click.MissingParameter, NoArgsIsHelpError, click.BadOptionUsage):
            if strict:
                raise
            return  # a command or an option is named in a sentence, without what it needs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("documented")
    (folder / "wan.yaml").write_text(SCENARIO)
    (folder / "two.yaml").write_text(SCENARIO)
    (folder / "hosts.yaml").write_text(HOSTS)
    (folder / "train.py").write_text("")
    (folder / "results").mkdir()
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    shutil.copy(folder / "docs" / "examples" / "three-clouds.yaml", folder)
    return folder


def test_the_pages_have_commands() -> None:
    """A change of the pages' form must not empty the tests below."""
    assert len(NETBENCH) > 120
    assert sum(one.fenced for one in NETBENCH) > 45


def test_every_reason_is_needed() -> None:
    """A pattern that matches no command is out of date."""
    texts = [f" {one.text} " for one in NETBENCH]
    assert [what for what in UNDERSTOOD if not any(re.search(what, text) for text in texts)] == []


@pytest.mark.parametrize("one", dict.fromkeys(NETBENCH), ids=lambda one: f"{one.page}: {one.text}")
def test_the_command_line_understands_every_command(
    one: Documented, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands, options and their values exist; in a block no argument is missing."""
    monkeypatch.chdir(folder)
    parse(arguments(one), strict=one.fenced)


def executed() -> list[list[str]]:
    """Command lines to execute, in the order of the pages, so that later ones find files of earlier
    ones. Runs are dry, except in the simulator."""
    lines: dict[tuple[str, ...], None] = {}
    for one in NETBENCH:
        args = arguments(one)
        if reason_not_to_run(one):
            continue
        if args[0] == "run" and "sim" not in args:
            args.append("--dry-run")
        if args[0] == "schedule" and "repair" not in args:
            args += ["--evaluations", "2"]
        try:
            parse(args, strict=True)
        except click.UsageError:
            continue  # the name of a command in a sentence
        lines[tuple(args)] = None
    return [list(line) for line in lines]


def test_commands_that_are_cheap_succeed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in one folder, as a reader would type them one after the other."""
    monkeypatch.chdir(folder)
    lines = executed()
    # Placements, traces of links and runs are read by commands on pages before the ones that write
    # them.
    writers = {"-o", "--write-churn"}
    lines.sort(key=lambda args: (not writers & set(args), args[0] != "run", args[0] == "table"))
    assert len(lines) > 25
    failed = []
    for args in lines:
        code = cli.run(args)
        said = capsys.readouterr()
        if code != 0:
            failed.append(f"netbench {shlex.join(args)}: {code}: {said.err[-300:]}")
    assert failed == []


def test_every_target_of_make_exists() -> None:
    """README and pages name targets of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
    assert {"run", "test"} <= named <= targets


def test_every_other_program_is_known() -> None:
    """A new kind of command in a block needs a decision here."""
    others = [one.words[0] for one in ALL if one not in NETBENCH]
    assert set(others) <= set(PROGRAMS)
