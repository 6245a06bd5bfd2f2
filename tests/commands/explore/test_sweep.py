"""`netbench sweep` on the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from netbench.cli import run
from tests.commands import too_big, two_nodes

CaptureFixture = pytest.CaptureFixture[str]


def swept(tmp_path: Path, *options: str) -> list[dict[str, str]]:
    """Points of a sweep from its CSV."""
    path = tmp_path / "points.csv"
    assert run(["sweep", *options, "--csv", str(path)]) == 0
    return list(csv.DictReader(path.read_text().splitlines()))


def test_times_follow_the_bandwidth(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Times are within 2% of compute and two transfers; the table shows the same figures."""
    scenario = two_nodes.write(tmp_path)
    points = swept(tmp_path, scenario, "--vary", "bandwidth=50Mbit,100Mbit,200Mbit,1Gbit")
    for point in points:
        expected = two_nodes.iteration_s(float(point["bandwidth_bps"]))
        assert float(point["iteration_s"]) == pytest.approx(expected, rel=0.02)
        assert float(point["bound_s"]) == pytest.approx(two_nodes.COMPUTE_S / 2)
        assert float(point["efficiency"]) == pytest.approx(
            two_nodes.COMPUTE_S / 2 / float(point["iteration_s"])
        )
    printed = capsys.readouterr().out
    (row,) = [line.split() for line in printed.splitlines() if line.startswith("50Mbit")]
    assert row[1] == f"{float(points[0]['iteration_s']):.4f}"


def test_factors_are_relative_to_the_links(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A tenth of 1 Gbit/s is 100 Mbit/s, to the bit."""
    scenario = two_nodes.write(tmp_path)
    (factor,) = swept(tmp_path, scenario, "--vary", "bandwidth=0.1x")
    (value,) = swept(tmp_path, scenario, "--vary", "bandwidth=100Mbit")
    assert factor["iteration_s"] == value["iteration_s"]
    assert factor["bandwidth_factor"] == "0.1"
    assert "1x = 1Gbit" in capsys.readouterr().out


def test_every_combination_is_simulated(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The last variable has the columns; delay slows iterations, bandwidth speeds them up."""
    scenario = two_nodes.write(tmp_path)
    points = swept(
        tmp_path, scenario, "--vary", "bandwidth=100Mbit,1Gbit", "--vary", "delay=1ms,10ms,50ms"
    )
    times = [float(point["iteration_s"]) for point in points]
    assert len(times) == 6
    assert times[:3] == sorted(times[:3])
    assert times[3:] == sorted(times[3:])
    assert all(slow > fast for slow, fast in zip(times[:3], times[3:], strict=True))
    printed = capsys.readouterr().out
    assert "seconds, by one-way delay" in printed
    assert "bandwidth    1ms   10ms  50ms" in printed


def test_sizes_that_fit_no_layout_are_left_out_with_the_reason(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """3 layers do not divide into 2 stages; the other points are simulated."""
    points = swept(tmp_path, two_nodes.write(tmp_path), "--vary", "layers=2,3,4")
    assert [bool(point["problem"]) for point in points] == [False, True, False]
    assert points[1]["iteration_s"] == ""
    assert float(points[2]["pflops"]) > 0
    assert "3 layers cannot be divided" in capsys.readouterr().out


def test_systems_are_the_columns_of_three_tables(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The tables are seconds, TFLOPS (all are below 0.1 PFLOPS) and efficiency, a row per value."""
    command = ["sweep", "gpt3-small", "--network", "1ms", "--vary", "micro-batch=1,2,4"]
    assert run([*command, "--systems", "dtfm-scheduled,dtfm-scheduled-1f1b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for title in ("seconds", "TFLOPS", "efficiency"):
        start = lines.index(title)
        rule = next(i for i in range(start, len(lines)) if lines[i].startswith("─"))
        assert [line.split()[0] for line in lines[rule + 1 : rule + 4]] == ["1", "2", "4"]


def test_one_region_has_no_links_between_regions(tmp_path: Path, capsys: CaptureFixture) -> None:
    """All links change by default; --links between is an error that names the alternatives."""
    assert run(["sweep", "gpt3-small", "--vary", "bandwidth=1Gbit"]) == 0
    assert "all links and NICs" in capsys.readouterr().out
    assert run(["sweep", "gpt3-small", "--vary", "bandwidth=1Gbit", "--links", "between"]) == 2
    assert "use --links inside or all" in capsys.readouterr().err


def test_a_picture_is_drawn(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A picture with too many lines to distinguish is an error."""
    scenario, picture = two_nodes.write(tmp_path), tmp_path / "sweep.png"
    command = ["sweep", scenario, "--vary", "bandwidth=0.1x..10x:5", "--plot", str(picture)]
    assert run(command) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run([*command, "--vary", "delay=1ms..100ms:9"]) == 2
    assert "would have 9 lines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--vary", "speed=1"], "cannot be varied"),
        (["--vary", "delay=1ms", "--vary", "delay=2ms"], "is given twice"),
        (["--vary", "delay=2x"], "no link to change has a delay"),
        (["--vary", "layers=3"], "no point of the grid can be planned"),
        (["--vary", "delay=1ms..2s:400", "--vary", "bandwidth=1Mbit..1Gbit:400"], "160000 points"),
        (["--vary", "delay=1ms", "--links", "inside"], "no region has two nodes"),
        (["--vary", "delay=1ms", "--systems", "dtfm"], 'unknown system "dtfm"'),
        (["--vary", "delay=1ms", "--csv", "nowhere/x.csv"], "folder nowhere does not exist"),
        ([], "--vary"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: list[str], says: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2."""
    assert run(["sweep", two_nodes.write(tmp_path), *options]) == 2
    assert says in capsys.readouterr().err


def test_a_plan_that_exceeds_memory_is_marked_and_warned_about(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The figures of GPipe have an asterisk, those of 1F1B have none, and the CSV says the same."""
    scenario = too_big.write(tmp_path)
    points = swept(tmp_path, scenario, *too_big.SYSTEMS, "--vary", "delay=1ms,10ms")
    assert [bool(point["memory"]) for point in points] == [True, False] * 2
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.startswith("1ms ")]
    assert [[text.endswith("*") for text in row[1:]] for row in rows] == [[True, False]] * 3
    assert printed.count("* memory: dtfm-scheduled L12") == 1
    assert "V100 has 16GB" in printed


def test_a_point_has_the_micro_batch_of_its_row(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A varied or a fixed one; a system that chooses another one has no figure."""
    command = ["example-two-labs", "--systems", "zero3"]
    first, second = swept(tmp_path, *command, "--vary", "micro-batch=2,4")
    assert first["problem"] == "micro-batch: zero3 chooses its own size: 4 sequences, not 2"
    assert float(second["iteration_s"]) > 0
    command += ["--micro-batch", "2"]
    assert run(["sweep", *command, "--vary", "delay=1ms"]) == 2
    assert "zero3 chooses its own size" in capsys.readouterr().err
