"""`netbench schedule repair` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netbench.cli import run
from tests import four_nodes

CaptureFixture = pytest.CaptureFixture[str]
TWO_LABS = "example-two-labs"


def repair(*arguments: str) -> int:
    return run(["schedule", "repair", *arguments])


def test_a_lost_node_costs_a_pipeline(capsys: CaptureFixture) -> None:
    """One of two pipelines of two stages is left, with the whole batch."""
    assert repair(TWO_LABS, "--lost", "node3", "--moves", "1") == 0
    printed = capsys.readouterr().out
    assert "lost: node3" in printed
    rows = {line.rsplit(None, 2)[0]: line.split()[-2:] for line in printed.splitlines() if line}
    assert rows["pipelines"] == ["2", "1"]
    assert rows["batch, sequences"] == ["16", "16"]
    assert rows["devices idle"] == ["0", "1"]
    assert "moves: 0 necessary, 1 more allowed; exact: all placements were tried" in printed


def test_a_repaired_placement_can_be_repaired_again(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The lost node returns and forms a pipeline with the idle device.

    Both load a stage from the device that has it.
    """
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert repair(TWO_LABS, "--lost", "node3", "-o", str(first)) == 0
    capsys.readouterr()
    assert repair(str(first), "--added", "node3", "--json", "-o", str(second)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pipelines"], found["num_necessary"], found["idle"]) == (2, 2, [])
    kept = [json.loads(path.read_text())["pipelines"] for path in (first, second)]
    assert found["grid"] == kept[1]
    assert len(kept[0]) == 1
    stage_of = {name: stage for stage, name in enumerate(kept[0][0])}
    assert sorted(load["device"] for load in found["loads"]) == sorted(
        {"node0", "node1", "node2", "node3"} - set(stage_of)
    )
    assert all(stage_of[load["source"]] == load["stage"] for load in found["loads"])
    assert found["load_bytes"] == sum(load["size_bytes"] for load in found["loads"])
    assert found["load_s"] > 0


def test_a_placement_of_an_unknown_scenario_needs_its_file(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The name in the placement finds no file; with --scenario the repair works."""
    scenario, first = four_nodes.write(tmp_path), tmp_path / "first.json"
    assert run(["schedule", scenario, "--scheduler", "identity", "-o", str(first)]) == 0
    capsys.readouterr()
    assert repair(str(first), "--lost", "node3") == 2
    assert '"four-nodes", which netbench does not include; give its file with --scenario' in (
        " ".join(capsys.readouterr().err.split())
    )
    second = tmp_path / "second.json"
    assert repair(str(first), "--lost", "node3", "--scenario", scenario, "-o", str(second)) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"run it with: netbench run {scenario} --placement {second}"


def test_a_file_of_any_name_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """A file without a suffix is a placement, unless its name is that of a scenario."""
    monkeypatch.chdir(tmp_path)
    assert repair(TWO_LABS, "--lost", "node3", "-o", "mended") == 0
    Path("mended").rename("again")
    assert repair("again", "--added", "node3") == 0
    Path("again").rename(TWO_LABS)
    capsys.readouterr()
    assert repair(TWO_LABS, "--added", "node3") == 2
    assert "is already in the placement" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (TWO_LABS, "--lost", "node0", "--scenario", "case3"),
            f"--scenario is given, but the scenario is {TWO_LABS}; leave it out",
        ),
        (
            ("none.json", "--lost", "node0", "--layers", "8"),
            "--layers is given, but none.json already says it; leave it out",
        ),
        ((TWO_LABS, "--lost", "nod3"), 'has no node "nod3"; did you mean node3'),
        ((TWO_LABS,), "no node is lost or added; name one with --lost or --added"),
        (
            (TWO_LABS, "--lost", "node0", "--lost", "node1", "--lost", "node2"),
            "too few devices are left for a pipeline of dtfm-scheduled: 1, expected 2; describe",
        ),
        ((TWO_LABS, "--lost", "node0", "--system", "zero3"), "of zero3 cannot be repaired"),
        (
            (TWO_LABS, "--added", "node0"),
            'node "node0" is added, but it is already in the placement',
        ),
        (
            ("none.json", "--lost", "node0"),
            "none.json: no such file; write one with: netbench schedule",
        ),
    ],
)
def test_an_impossible_repair_is_one_message(
    arguments: tuple[str, ...], message: str, capsys: CaptureFixture
) -> None:
    """The exit code is not 0, and standard output stays empty."""
    assert repair(*arguments) in (1, 2)
    printed = capsys.readouterr()
    assert message in " ".join(printed.err.split())
    assert printed.out == ""
