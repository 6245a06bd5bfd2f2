"""`netbench net trace`."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from netbench.network.traces.trace import read_trace
from netbench.scenario import load_scenario

REGIONS = load_scenario("case3").network.regions


def test_an_outage_is_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both directions fail together and come back."""
    file = tmp_path / "outage.csv"
    words = ["--link", "Ohio <-> Virginia", "--up", "60s", "--down", "5s", "--until", "100s"]
    assert run(["net", "trace", "outage", "case3", *words, "-o", str(file)]) == 0
    assert capsys.readouterr().err == f"wrote {file}: 4 changes\n"
    changes = read_trace(file, REGIONS)
    assert [(c.time_s, c.loss) for c in changes] == [(60, 1), (60, 1), (65, 0), (65, 0)]
    assert run(["net", "trace", "show", "case3", str(file)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split() == ["60s", "Ohio", "->", "Virginia", "11ms", "1.12Gbit", "down"]
    assert shown[3].split() == ["65s", "Ohio", "->", "Virginia", "11ms", "1.12Gbit", "0%"]


def test_a_day_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--link", "Ohio -> Virginia", "--low", "50%", "--steps", "4", "--peak", "3h"]
    assert run(["net", "trace", "diurnal", "case3", *words]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "time,link,delay,rate,loss"
    assert [row.split(",")[0] for row in rows[1:]] == ["0s", "6h", "12h", "18h"]
    assert [row.split(",")[3] for row in rows[1:]] == ["1.12Gbit", "840Mbit", "560Mbit", "840Mbit"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--link", "Ohio -> Mars", "--low", "50%"], "expected one of Ohio, Virginia"),
        (["--link", "Ohio", "--low", "100%"], "low is 1; expected a fraction"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["net", "trace", "diurnal", "case3", *words]) == 2
    assert message in capsys.readouterr().err
