"""Impossible requests to `netbench schedule`, with one message each."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run

CaptureFixture = pytest.CaptureFixture[str]
EXAMPLE = Path(__file__).parents[3] / "scenarios" / "example-two-labs.yaml"
GARAGE = "- {region: Garage, count: 2,"
BACK = "    - {from: Garage, to: Campus, one_way_delay: 8ms, bandwidth: 50Mbit}\n"


def changed(tmp_path: Path, old: str, new: str) -> str:
    """Write the example scenario with one text replaced."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "arguments", "message"),
    [
        (
            "bandwidth: 200Mbit",
            "bandwidth: 0Mbit",
            (),
            'network.links[0].bandwidth "0Mbit" is zero; a bandwidth must be positive',
        ),
        (BACK, "", (), "network.links has no link Garage -> Campus; add e.g."),
        (
            GARAGE,
            GARAGE.replace("2", "3"),
            (),
            "devices of scenario example-two-labs cannot be divided into pipelines of 2 stages",
        ),
        ("memory: 24GB", "memory: 10MB", (), "stage 0 of 2 needs 2 devices of about 208MB"),
        ("memory: 24GB", "memory: 10MB", ("--layout", "auto"), "RTX4090 has 10MB (x4)"),
        (GARAGE, GARAGE, ("--layers", "7"), "7 layers cannot be divided into 2 pipeline stages"),
        (GARAGE, GARAGE, ("--batch", "15"), "batch 15 does not divide into micro-batches of 1"),
        (GARAGE, GARAGE, ("--scheduler", "netbenhc"), "did you mean netbench?"),
        (
            GARAGE,
            GARAGE,
            ("--budget", "0s"),
            '"0s" is not a search time of 100ms or more; write e.g. 30s',
        ),
        (GARAGE, GARAGE, ("--evaluations", "0"), "0 is not in the range 1<=x<=1000000"),
        (GARAGE, GARAGE, ("--seed", "4294967296"), "is not in the range 0<=x<=4294967295"),
        (GARAGE, GARAGE, ("-o", "a.png", "--plot", "./a.png"), "a.png; choose different paths"),
    ],
)
def test_an_impossible_request_is_one_message(
    old: str,
    new: str,
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: CaptureFixture,
) -> None:
    """The message says what was found and what to do; the exit code is 2."""
    assert run(["schedule", changed(tmp_path, old, new), *arguments]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert message in printed
    assert "Traceback" not in printed


def test_a_fixed_layout_may_leave_devices_idle(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Five devices form two pipelines of two stages with --layout p2d2."""
    scenario = changed(tmp_path, GARAGE, GARAGE.replace("2", "3"))
    assert run(["schedule", scenario, "--layout", "p2d2", "--evaluations", "1"]) == 0
    assert " p2d2 " in capsys.readouterr().out
