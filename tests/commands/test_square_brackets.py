"""Titles, notes and names of a user's scenario are printed as they are, square brackets too."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from tests import four_nodes

TITLE = "Labs [/usr/share] [bold]"
NOTES = "See [/etc] and [link=x]."


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    """The four nodes, with square brackets in every text that a user chooses."""
    path = Path(four_nodes.write(tmp_path))
    text = path.read_text().replace("regions: [A, B]", 'regions: ["A[/b]", "B[red]"]')
    for name in ("A", "B"):
        full = {"A": "A[/b]", "B": "B[red]"}[name]
        text = text.replace(f"region: {name},", f'region: "{full}",')
        text = text.replace(f"    {name}: {{", f'    "{full}": {{')
    text = text.replace("between: [A, B]", 'between: ["A[/b]", "B[red]"]')
    text = text.replace("device: Box", 'device: "Box[/]"').replace("  Box: {", '  "Box[/]": {')
    header = f'title: "{TITLE}"\nnotes: "{NOTES}"\n'
    path.write_text(text.replace("name: four-nodes\n", f"name: four-nodes\n{header}"))
    return str(path)


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (("scenario", "show"), (TITLE, NOTES, "A[/b]", "Box[/]")),
        (("run", "--testbed", "sim"), (TITLE,)),
        (("explain",), ("A[/b]", "B[red]")),
        (("sweep", "--vary", "delay=1x,2x"), ()),
        (("require", "--efficiency", "0.5"), ()),
        (("schedule", "--evaluations", "20"), (TITLE,)),
    ],
    ids=lambda value: value[0] if value and value[0] != TITLE else "",
)
def test_square_brackets_are_text(
    command: tuple[str, ...],
    printed: tuple[str, ...],
    scenario: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No command takes them for markup."""
    monkeypatch.chdir(tmp_path)
    name, *options = command
    words = [name, options.pop(0)] if name == "scenario" else [name]
    assert run([*words, scenario, *options]) == 0
    out = capsys.readouterr().out
    for text in printed:
        assert text in out
