"""`netbench cost` on the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from netbench.cli import run

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "three-clouds.yaml"
CaptureFixture = pytest.CaptureFixture[str]

PRICES = """
prices:
  regions:
    Campus: {provider: A, continent: NA, machines: {RTX4090: {spot: 0.3, on_demand: 0.7}}}
    Garage: {provider: B, continent: NA, machines: {RTX4090: {on_demand: 0.5}}}
  egress:
    A: {zone: 0.01, region: 0.02, continent: 0.08}
    B: {region: 0.05, continent: 0.09}
"""
"""Prices of example-two-labs."""


def test_a_table_has_a_row_per_set_of_machines(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The spot price of two T4 is twice that of table 1."""
    path = tmp_path / "cost.csv"
    options = ["--peers", "A-2,A-8", "--models", "CONV", "--csv", str(path)]
    assert run(["cost", "multicloud-a", *options]) == 0
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["Machines"] for row in rows] == ["A-2", "A-8"]
    assert float(rows[0]["machines"]) == 0.36
    assert "GB: 10^9 bytes of payload" in capsys.readouterr().out


def test_interruptions_lower_the_goodput(capsys: CaptureFixture) -> None:
    """A table of its own, with goodput below throughput."""
    options = ["--peers", "A-4", "--models", "CONV", "--interruptions", "0.5", "--duration", "12h"]
    assert run(["cost", "multicloud-a", *options]) == 0
    last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("A-4")][-1]
    throughput, goodput = map(float, last.split()[2:4])
    assert 0 < goodput < throughput


def test_prices_may_be_in_another_file(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A scenario without prices needs one."""
    assert run(["cost", "example-two-labs", "--systems", "hivemind-swarm"]) == 2
    assert "or give --prices FILE" in capsys.readouterr().err
    path = tmp_path / "prices.yaml"
    text = EXAMPLE.read_text(encoding="utf-8")
    path.write_text(text[text.index("prices:") :], encoding="utf-8")
    assert run(["cost", str(EXAMPLE), "--prices", str(path)]) == 0


def test_interrupted_machines_may_have_prices_of_another_file(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """A scenario without any, and a system that goes on without a machine."""
    path = tmp_path / "prices.yaml"
    path.write_text(PRICES, encoding="utf-8")
    options = ["--systems", "diloco-h50", "--interruptions", "1", "--duration", "12h"]
    assert run(["cost", "example-two-labs", *options, "--prices", str(path)]) == 0
    last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("4 ")][-1]
    interrupted, on_demand = map(float, last.split()[-2:])
    assert interrupted > 0
    assert on_demand > 0


def test_two_traces_are_one_too_many(capsys: CaptureFixture) -> None:
    options = ["--interruptions", "1", "--churn", "trace.csv"]
    assert run(["cost", "multicloud-a", *options]) == 2
    assert "leave out one" in capsys.readouterr().err


def test_a_drawn_trace_is_written_and_read(tmp_path: Path, capsys: CaptureFixture) -> None:
    """With the same outcome."""
    trace, row = (
        tmp_path / "churn.csv",
        ["cost", "multicloud-a", "--peers", "A-4", "--models", "CONV"],
    )
    drawn = ["--interruptions", "1", "--write-churn", str(trace)]
    assert run([*row, *drawn]) == 0
    first = capsys.readouterr().out
    assert trace.read_text().startswith("time_s,node,event\n")
    assert run([*row, "--churn", str(trace)]) == 0
    assert (
        capsys.readouterr().out.splitlines()[-8:]
        == [line for line in first.splitlines() if not line.startswith("trace: ")][-8:]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--write-churn", "churn.csv"], "that --interruptions draws; add it"),
        (["--write-churn", "churn.csv", "--interruptions", "1"], "choose a row"),
    ],
)
def test_one_drawn_trace_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: CaptureFixture,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["cost", "multicloud-a", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "churn.csv").exists()
