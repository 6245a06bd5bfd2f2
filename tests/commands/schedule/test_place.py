"""`netbench schedule SCENARIO` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.placement.file import read_placed
from netbench.placement.schedulers import SCHEDULERS
from netbench.scenario import load_scenario
from netbench.simulator import simulate
from tests import four_nodes

CaptureFixture = pytest.CaptureFixture[str]

SEARCH = ("--scheduler", "random-1000", "--evaluations", "200")
"""Search with a fixed seed. 200 draws miss a given one of 24 placements in 1 of 5000 seeds."""


def test_the_best_of_all_placements_is_found(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It is as fast as the best of all 24; the table compares it with the order of the file."""
    scenario, file = four_nodes.write(tmp_path), tmp_path / "placement.json"
    assert run(["schedule", scenario, *SEARCH, "-o", str(file)]) == 0
    placed = read_placed(file, load_scenario(scenario))
    best_s, listed_s = (
        four_nodes.best_placement_s(scenario),
        four_nodes.listed_placement_s(scenario),
    )
    assert simulate(placed.plan()).iteration_s == placed.simulated_s == pytest.approx(best_s)
    assert best_s < 0.8 * listed_s
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith("random-1000 ")]
    assert float(row[1]) == pytest.approx(best_s, abs=1e-4)
    assert float(row[2].rstrip("%")) == pytest.approx(100 * (best_s / listed_s - 1), abs=0.06)
    assert lines[-2] == f"run it with: netbench run {scenario} --placement {file}"


@pytest.mark.parametrize("command", ["place", "compare"])
def test_help_names_all_schedulers(command: str, capsys: CaptureFixture) -> None:
    """The list is up to date, although help imports no scheduler."""
    assert run(["schedule", command, "--help"]) == 0
    assert ", ".join(SCHEDULERS) in " ".join(capsys.readouterr().out.split()).replace("- ", "-")


def test_no_placement_is_below_the_bound(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Bound and gap in the JSON agree with the best of all placements."""
    scenario = four_nodes.write(tmp_path)
    assert run(["schedule", scenario, *SEARCH, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["bound_s"] <= four_nodes.best_placement_s(scenario) == found["simulated_s"]
    assert found["gap"] == pytest.approx(found["simulated_s"] / found["bound_s"] - 1)
    assert found["identity_s"] == four_nodes.listed_placement_s(scenario)
    assert [step["value"] for step in found["steps"]][-1] == found["simulated_s"]


def test_a_listed_placement_that_does_not_fit_is_marked(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """In the order of the file, the first node gets stage 0, for which it is too small."""
    scenario = four_nodes.write(tmp_path, first="23MB")
    assert run(["schedule", scenario, *SEARCH]) == 0
    message = "identity does not fit: dtfm-scheduled L2: stage 0 needs about 25.2MB, Small has 23MB"
    assert message in " ".join(capsys.readouterr().out.split())
    assert run(["schedule", scenario, "--scheduler", "identity"]) == 2
    assert "identity ignores memory: 1 of 4 devices" in capsys.readouterr().err
    assert run(["schedule", four_nodes.write(tmp_path), *SEARCH]) == 0
    assert "does not fit" not in capsys.readouterr().out


def test_equal_numbers_of_candidates_give_equal_files(tmp_path: Path) -> None:
    """Two searches with the same number of candidates differ only in their duration."""
    scenario, files = (four_nodes.write(tmp_path), [tmp_path / "a.json", tmp_path / "b.json"])
    texts = []
    for file in files:
        assert run(["schedule", scenario, *SEARCH, "--seed", "3", "-o", str(file)]) == 0
        texts.append([line for line in file.read_text().splitlines() if "search_s" not in line])
    assert texts[0] == texts[1]
    assert any('"budget": "200 candidates"' in line for line in texts[0])


def test_the_best_so_far_is_printed_during_the_search(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Without a terminal there is at least a line for the first candidates."""
    scenario = four_nodes.write(tmp_path)
    assert run(["schedule", scenario, *SEARCH]) == 0
    out = capsys.readouterr().out
    assert "random-1000: best " in out
    assert "200 candidates" in out
    assert f"save it with -o placement.json; run it with: netbench run {scenario}" in out


def test_the_placement_is_drawn(tmp_path: Path) -> None:
    """The map is a PNG; a missing folder is an error before the search."""
    scenario = four_nodes.write(tmp_path)
    assert run(["schedule", scenario, *SEARCH, "--plot", str(tmp_path / "map.png")]) == 0
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert run(["schedule", scenario, *SEARCH, "--plot", str(tmp_path / "no" / "map.png")]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheduler", "randm"], "did you mean random"),
        (["--budget", "30"], "30s"),
        (["--budget", "0s"], "write e.g. 30s"),
        (["--system", "dtfm-schduled"], "did you mean dtfm-scheduled"),
        (["--layers", "3"], "3 layers"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--plot", "map.foo"], "write e.g. map.png, .svg or .pdf"),
    ],
)
def test_an_impossible_search_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2; the message says what to write instead."""
    assert run(["schedule", four_nodes.write(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


def test_help_shows_the_search_and_the_other_commands(capsys: CaptureFixture) -> None:
    """It covers `schedule SCENARIO` and lists `schedule compare`."""
    assert run(["schedule", "--help"]) == 0
    out = capsys.readouterr().out
    assert "netbench schedule [OPTIONS] SCENARIO" in out
    assert "--budget" in out
    assert "\n  compare " in out


def test_place_is_the_default_command(tmp_path: Path, capsys: CaptureFixture) -> None:
    """`schedule place SCENARIO` is `schedule SCENARIO`; options may come before the scenario."""
    scenario = four_nodes.write(tmp_path)
    assert run(["schedule", "place", scenario, "--scheduler", "identity"]) == 0
    assert run(["schedule", "--scheduler", "identity", scenario]) == 0
    first, second = capsys.readouterr().out.split("four-nodes\n")[1:]
    tables = [
        re.sub(r"^ *[\d.]+ s  searc.*\n", "", text, flags=re.MULTILINE) for text in (first, second)
    ]
    assert tables[0].split("searched")[0] == tables[1].split("searched")[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["case3", "--budgte", "1s"], "No such option '--budgte'"),
        (["case3", "--budget", "30"], "Invalid value for '--budget'"),
        (["case3", "case5"], "unexpected extra argument (case5)"),
    ],
)
def test_a_usage_error_does_not_name_the_default_command(
    words: list[str], message: str, capsys: CaptureFixture
) -> None:
    """`place` is neither in the usage nor in the hint."""
    assert run(["schedule", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Usage: netbench schedule [OPTIONS] SCENARIO\n" in err
    assert "Try 'netbench schedule --help' for help." in err
    assert "place" not in err


def test_a_misspelt_command_is_not_taken_for_a_scenario(capsys: CaptureFixture) -> None:
    """With two arguments, the first was meant as a command."""
    assert run(["schedule", "comapre", "case3"]) == 2
    assert "did you mean compare?" in capsys.readouterr().err
