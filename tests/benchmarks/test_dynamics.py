"""TCP on a divided network in a guest, beside TCP at full size and slow start in closed form."""

from __future__ import annotations

import pytest

from benchmarks.dynamics import MIB, NAMES, Cell, differences, full_network, measured, table
from netbench.network.probing.slow_start import message_s, tcp_path
from netbench.scenario.model import Tcp

FAR = ((0.010, 1e9),)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return measured(FAR, (1.0, 32.0))


@pytest.mark.guest
def test_a_divided_network_has_the_dynamics_of_the_full_one(cells: list[Cell]) -> None:
    """Cold, bulk, and after idleness, within 3%: with 280 bytes per segment as with 8949."""
    (apart,) = differences(cells).values()
    assert len(apart) == len(NAMES)
    assert max(map(abs, apart)) < 0.03


@pytest.mark.guest
def test_cold_messages_take_the_time_of_slow_start(cells: list[Cell]) -> None:
    """10 segments, doubled in every round trip of 20 ms, then 1 Gbit/s."""
    path = tcp_path(full_network(*FAR[0], Tcp()), 0, 1)
    for cell in cells:
        expected_s = message_s(path, 8 * MIB, path.first_window)
        assert cell.times_s[0] == pytest.approx(expected_s, rel=0.05)


def test_the_table_has_seconds_at_full_size_and_differences_elsewhere() -> None:
    full = Cell(delay_s=0.01, rate_bps=1e9, scale=1.0, times_s=(1.0, 2.0, 3.0, 4.0, 5.0))
    half = Cell(delay_s=0.01, rate_bps=1e9, scale=2.0, times_s=(1.01, 2.0, 3.0, 4.0, 5.0))
    lines = table([full, half]).splitlines()
    assert lines[2].startswith("| 10 ms, 1 Gbit/s | 1 | 1 s | 2 s |")
    assert "| 2 | +1.00% | +0.00% |" in lines[3]
