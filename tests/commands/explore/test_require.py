"""`netbench require` on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.simulator import load_transport
from netbench.units import parse_bandwidth
from tests.commands import too_big, two_nodes

CaptureFixture = pytest.CaptureFixture[str]


def cells(printed: str) -> list[str]:
    """Cells of the row of dtfm-scheduled."""
    (line,) = [x for x in printed.splitlines() if re.match(r"dtfm-scheduled +[\d.]+ ", x)]
    return line.split()


@pytest.mark.parametrize("efficiency", [0.5, 0.8, 0.9])
def test_the_lowest_bandwidth_equals_the_closed_form(
    efficiency: float, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Two transfers may take the time that compute leaves; the limit is rounded up.

    On the ideal network transfers still take the time that the hosts themselves need.
    """
    scenario = two_nodes.write(tmp_path)
    assert run(["require", scenario, "--efficiency", str(efficiency)]) == 0
    ideal_s = two_nodes.COMPUTE_S + 2 * two_nodes.ACTIVATION_BITS / load_transport("nccl").host_bps
    transfer_s = (ideal_s / efficiency - two_nodes.COMPUTE_S) / 2
    paper_bps = two_nodes.ACTIVATION_BITS / transfer_s / two_nodes.GOODPUT
    found_bps = parse_bandwidth(cells(capsys.readouterr().out)[5])
    assert 0.999 * paper_bps <= found_bps <= 1.012 * paper_bps


def test_the_limit_is_enough_and_one_percent_less_is_not(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """A scenario with that bandwidth is good enough."""
    good_enough = []
    assert run(["require", two_nodes.write(tmp_path), "--efficiency", "80%"]) == 0
    limit_bps = parse_bandwidth(cells(capsys.readouterr().out)[5])
    for bandwidth in (limit_bps, 0.99 * limit_bps):
        scenario = two_nodes.write(tmp_path, f"{bandwidth:.0f}bit")
        assert run(["require", scenario, "--efficiency", "0.8"]) == 0
        printed = capsys.readouterr().out
        good_enough.append("is good enough" in printed)
    assert good_enough == [True, False]


def test_a_factor_is_relative_to_the_links(tmp_path: Path, capsys: CaptureFixture) -> None:
    """On links of 2 Gbit/s the factor is half that on links of 1 Gbit/s."""
    factors = []
    for bandwidth in ("1Gbit", "2Gbit"):
        scenario = two_nodes.write(tmp_path, bandwidth, "0.01ms")
        assert run(["require", scenario, "--efficiency", "0.8", "--factor"]) == 0
        factors.append(float(cells(capsys.readouterr().out)[5].removesuffix("x")))
    assert factors[0] == pytest.approx(2 * factors[1], rel=0.01)


def test_a_limit_that_does_not_exist_is_explained(tmp_path: Path, capsys: CaptureFixture) -> None:
    """With a delay of 500 ms no bandwidth is enough, and with 10 Mbit/s no delay is."""
    scenario = two_nodes.write(tmp_path, "10Mbit", "500ms")
    assert run(["require", scenario, "--efficiency", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert cells(printed)[5:] == ["none", "none"]
    assert "even unlimited bandwidth on these links alone gives" in printed
    assert "even zero delay on these links alone gives" in printed


@pytest.mark.parametrize("efficiency", ["0", "1.2", "120%", "most"])
def test_an_efficiency_is_above_0_and_up_to_1(efficiency: str, capsys: CaptureFixture) -> None:
    """The exit code is 2, and the message has an example."""
    assert run(["require", "case3", "--efficiency", efficiency]) == 2
    assert "write e.g. 0.8 or 80%" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("size", ["--layers", "--batch", "--micro-batch"])
def test_a_size_of_zero_is_an_error(size: str, capsys: CaptureFixture) -> None:
    """Zero must not be taken for an option that was left out."""
    assert run(["require", "case3", "--efficiency", "0.8", size, "0"]) == 2
    assert "0 is not in the range 1<=x<=" in capsys.readouterr().err


def test_a_plan_that_exceeds_memory_is_marked_and_warned_about(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """GPipe has an asterisk and a warning, 1F1B has neither."""
    scenario = too_big.write(tmp_path)
    assert run(["require", scenario, *too_big.SYSTEMS, "--efficiency", "0.5"]) == 0
    printed = capsys.readouterr().out
    names = [line.split()[0] for line in printed.splitlines() if re.match(r"dtfm\S+ +\d", line)]
    assert names == ["dtfm-scheduled*", "dtfm-scheduled-1f1b"]
    assert printed.count("* memory: dtfm-scheduled L12") == 1
