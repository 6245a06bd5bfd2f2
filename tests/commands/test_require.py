"""`netbench require`, as a person types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.simulator import load_transport
from netbench.units import parse_bandwidth
from tests.commands import two_nodes

CaptureFixture = pytest.CaptureFixture[str]


def cells(printed: str) -> list[str]:
    """Of the row of dtfm-scheduled."""
    (line,) = [x for x in printed.splitlines() if re.match(r"dtfm-scheduled +[\d.]+ ", x)]
    return line.split()


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_the_lowest_bandwidth_is_that_on_paper(
    share: float, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """What the share leaves beside compute is two transfers; rounded up to three digits.

    On the ideal network a host still carries what it can, so its transfers are not free.
    """
    scenario = two_nodes.write(tmp_path)
    assert run(["require", scenario, "--efficiency", str(share)]) == 0
    ideal_s = two_nodes.COMPUTE_S + 2 * two_nodes.ACTIVATION_BITS / load_transport("nccl").host_bps
    transfer_s = (ideal_s / share - two_nodes.COMPUTE_S) / 2
    paper_bps = two_nodes.ACTIVATION_BITS / transfer_s / two_nodes.GOODPUT
    found_bps = parse_bandwidth(cells(capsys.readouterr().out)[5])
    assert 0.999 * paper_bps <= found_bps <= 1.012 * paper_bps


def test_the_limit_keeps_the_share_and_a_percent_less_does_not(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Asked again on a network with that bandwidth, its share now is what was wanted."""
    shares = []
    assert run(["require", two_nodes.write(tmp_path), "--efficiency", "80%"]) == 0
    limit_bps = parse_bandwidth(cells(capsys.readouterr().out)[5])
    for bandwidth in (limit_bps, 0.99 * limit_bps):
        scenario = two_nodes.write(tmp_path, f"{bandwidth:.0f}bit")
        assert run(["require", scenario, "--efficiency", "0.8"]) == 0
        printed = capsys.readouterr().out
        shares.append("already does" in printed)
    assert shares == [True, False]


def test_a_factor_is_the_limit_over_what_there_is(tmp_path: Path, capsys: CaptureFixture) -> None:
    """On links of 2 Gbit/s the factor is half that on links of 1 Gbit/s."""
    factors = []
    for bandwidth in ("1Gbit", "2Gbit"):
        scenario = two_nodes.write(tmp_path, bandwidth, "0.01ms")
        assert run(["require", scenario, "--efficiency", "0.8", "--factor"]) == 0
        factors.append(float(cells(capsys.readouterr().out)[5].removesuffix("x")))
    assert factors[0] == pytest.approx(2 * factors[1], rel=0.01)


def test_what_even_the_ideal_link_cannot_give_is_said(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Each quantity alone: with half a second of delay no bandwidth helps, and the other way."""
    scenario = two_nodes.write(tmp_path, "10Mbit", "500ms")
    assert run(["require", scenario, "--efficiency", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert cells(printed)[5:] == ["none", "none"]
    assert "even unlimited bandwidth on these links alone gives" in printed
    assert "even zero delay on these links alone gives" in printed


@pytest.mark.parametrize("efficiency", ["0", "1.2", "120%", "most"])
def test_a_share_is_above_0_and_up_to_1(efficiency: str, capsys: CaptureFixture) -> None:
    """Exit code 2 and an example."""
    assert run(["require", "case3", "--efficiency", efficiency]) == 2
    assert "write e.g. 0.8 or 80%" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("size", ["--layers", "--batch", "--micro-batch"])
def test_a_size_of_zero_is_not_the_default(size: str, capsys: CaptureFixture) -> None:
    """It was asked for, and cannot be."""
    assert run(["require", "case3", "--efficiency", "0.8", size, "0"]) == 2
    assert "is 0; expected a positive whole number" in capsys.readouterr().err
