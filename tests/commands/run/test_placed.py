"""`netbench run --placement --testbed sim` on the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.records import find_run, read_run
from tests import four_nodes

CaptureFixture = pytest.CaptureFixture[str]

SEARCH = ("--evaluations", "200")


def rows(tmp_path: Path, *options: str, capsys: CaptureFixture) -> dict[str, dict[str, str]]:
    """Rows of the run's table by name."""
    # A separate folder, since runs that start in the same second have no order.
    results = ("--results", str(tmp_path / f"results{len(list(tmp_path.iterdir()))}"))
    scenario = four_nodes.write(tmp_path)
    assert run(["run", scenario, "--testbed", "sim", *results, *options]) == 0
    capsys.readouterr()
    assert run(["table", "four-nodes", *results, "--format", "csv"]) == 0
    return {row["row"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}


def test_a_scheduler_places_the_pipelines(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Variants that differ only in their default placement share one row, with the best time."""
    found = rows(tmp_path, "--placement", "random-1000", *SEARCH, capsys=capsys)
    assert set(found) == {"dtfm, random-1000 placement"}
    (row,) = found.values()
    best_s = four_nodes.best_placement_s(four_nodes.write(tmp_path))
    assert float(row["mean_s"]) == pytest.approx(best_s)
    assert row["published_n"] == "0"


def test_default_placements_have_rows_beside_the_scheduler(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """`default` places as without the option; `own`, its former name, still works."""
    options = ("--placement", "default,random-1000", *SEARCH)
    found = rows(tmp_path, *options, capsys=capsys)
    assert set(found) == {"dtfm-scheduled", "dtfm-random", "dtfm, random-1000 placement"}
    assert set(rows(tmp_path, "--placement", "own", capsys=capsys)) == {
        "dtfm-scheduled",
        "dtfm-random",
    }
    listed_s = four_nodes.listed_placement_s(four_nodes.write(tmp_path))
    assert float(found["dtfm-scheduled"]["mean_s"]) == listed_s


def test_a_file_of_schedule_is_run(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The row names its scheduler. The placement also applies to another batch."""
    scenario, file = four_nodes.write(tmp_path), str(tmp_path / "placement.json")
    search = ("--scheduler", "random-1000", *SEARCH)
    assert run(["schedule", scenario, *search, "-o", file]) == 0
    found = rows(tmp_path, "--placement", file, capsys=capsys)
    (row,) = found.values()
    assert row["row"] == "dtfm, random-1000 placement"
    assert float(row["mean_s"]) == pytest.approx(four_nodes.best_placement_s(scenario))
    larger = rows(tmp_path, "--placement", file, "--batch", "128", capsys=capsys)
    assert [row["batch"] for row in larger.values()] == ["128"]
    assert float(larger[row["row"]]["mean_s"]) > float(row["mean_s"])


def test_two_placements_cannot_share_a_row(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Two files of one scheduler are refused, since a table has one row for it.

    After one is renamed, both have rows. The same placement given twice has one row.
    """
    scenario = four_nodes.write(tmp_path)
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for seed, file in (("1", one), ("2", other)):
        search = ("--scheduler", "random", "--seed", seed, "-o", str(file))
        assert run(["schedule", scenario, *search]) == 0
    assert one.read_text().split("pipelines")[1] != other.read_text().split("pipelines")[1]
    command = ["run", scenario, "--testbed", "sim", "--results", str(tmp_path / "results")]
    assert run([*command, "--placement", f"{one},{other}"]) == 2
    printed = capsys.readouterr().err
    assert f'{one} and {other} would share the table row "dtfm, random placement"' in printed
    assert run([*command, "--placement", f"random,{one}"]) == 2
    assert (
        f'{one} and random would share the table row "dtfm, random placement"'
        in capsys.readouterr().err
    )
    assert not (tmp_path / "results").exists()
    other.write_text(other.read_text().replace('"random"', '"by hand"'))
    found = rows(tmp_path, "--placement", f"{one},{other}", capsys=capsys)
    assert set(found) == {"dtfm, random placement", "dtfm, by hand placement"}
    assert all(row["n"] == "1" for row in found.values())


def test_a_run_with_placements_is_resumed(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The records have the plans, so nothing is searched again and --placement is refused."""
    scenario, results = four_nodes.write(tmp_path), tmp_path / "results"
    command = ["run", scenario, "--testbed", "sim", "--results", str(results)]
    assert run([*command, "--placement", "random-1000", *SEARCH]) == 0
    before = find_run(results, "four-nodes")
    capsys.readouterr()
    assert run([*command, "--resume"]) == 0
    out = capsys.readouterr().out
    assert "all iterations are finished" in out
    assert "placed dtfm" not in out
    assert before is not None
    assert len(read_run(before).records) == 1
    assert run([*command, "--resume", "--placement", "default"]) == 2
    assert "--placement" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--placement", "random-100"), "did you mean random-1000"),
        (("--placement", "nothing.json"), "nothing.json: no such file"),
        (("--placement", "identity", "--compute", "cpu"), "virtual layers"),
        (("--placement", "a.json", "--systems", "zero3"), "a file names its system"),
    ],
)
def test_an_impossible_placement_is_refused(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2, before anything runs."""
    scenario = four_nodes.write(tmp_path)
    testbed = () if "--compute" in options else ("--testbed", "sim")
    assert run(["run", scenario, "--dry-run", *testbed, *options]) == 2
    assert message in capsys.readouterr().err
