"""`netbench net replay` on doubles; with real hosts: tests/testbed/test_replay_in_guest.py.

The doubles hold, once shaped, what the real tc printed of node 0 of the network `pair`, so what is
read back is taken as right here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from netbench.network.remote import fleet
from netbench.network.shaping.batch import HANDLE
from netbench.network.traces import replay
from netbench.network.traces.trace import compile_replays, parse_trace
from netbench.scenario import load_scenario
from tests.fake_machines import FakeMachines, FakeReplay
from tests.networks import ADDRESSES

TRACE = "time,link,delay,rate,loss\n0s,ohio <-> virginia,,500Mbit,\n100ms,ohio -> virginia,,,1%\n"


@pytest.fixture
def command(
    files: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """A whole command line."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    monkeypatch.setattr(replay, "START_MARGIN_S", 0.01)
    monkeypatch.setattr(fleet.Fleet, "_check", lambda *_: None)
    return ["net", "replay", files[0], str(trace), *files[1:]]


def shaped(nodes: FakeMachines) -> list[bool]:
    return [kernel.root["handle"] == HANDLE for kernel in nodes.kernels]


def test_hosts_play_their_part_and_are_cleared(
    command: list[str], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each host loads the steps of its interface. The delays are printed."""
    assert run(command) == 0
    network = load_scenario(command[2]).network
    changes = parse_trace(TRACE, network.regions)
    for node, wanted in enumerate(compile_replays(network, changes, ADDRESSES, "eth0")):
        assert nodes.replays[node].loaded == [[step.time_s, step.text] for step in wanted.steps]
    assert [len(nodes.replays[node].loaded) for node in range(4)] == [2, 2, 1, 1]
    printed = capsys.readouterr().out
    assert "2 changes, the last one at 100ms" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["one", "2", "100us"] in [row[:3] for row in rows]
    assert ["four", "1", "100us"] in [row[:3] for row in rows]
    assert "4 of 4 hosts are as they were" in printed
    assert shaped(nodes) == [False] * 4
    operations = [operation for node, operation in nodes.asked if node == 0]
    assert operations.index("arm") < operations.index("apply") < operations.index("replay")


def test_a_late_host_is_named_and_the_status_says_so(
    command: list[str], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replay is finished but not trustworthy. A host in time is not named."""
    nodes.replays[2] = FakeReplay(late_s=0.0011)
    nodes.replays[3] = FakeReplay(late_s=0.0005)
    assert run(command) == 3
    assert "more than 1ms late: three\n" in capsys.readouterr().out
    assert shaped(nodes) == [False] * 4


def test_a_clock_that_is_not_known_well_enough_is_not_trustworthy(
    command: list[str],
    nodes: FakeMachines,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lateness and clock error are added. The message names the clock as the cause."""
    monkeypatch.setattr(replay, "_clock", lambda channel: (0.0, 0.0006))
    nodes.replays[1] = FakeReplay(late_s=0.0005)
    nodes.replays[2] = FakeReplay(late_s=0.0011)
    assert run(command) == 3
    printed = capsys.readouterr().out
    assert "more than 1ms late: three\n" in printed
    assert "whose offsets are not known to within 1ms: two; run this nearer" in printed


def test_a_refused_step_clears_all_and_names_host_time_and_line(
    command: list[str], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.replays[1] = FakeReplay(refuses={1: "at 0.1 s: tc refused `qdisc change`: no"})
    assert run(command) == 1
    printed = capsys.readouterr()
    assert "playing the trace failed on 1 of 4 hosts:" in printed.err
    assert "  two: at 0.1 s: tc refused `qdisc change`: no" in printed.err
    assert "4 of 4 hosts are as they were" in printed.out
    assert shaped(nodes) == [False] * 4


def test_nothing_is_changed_for_a_trace_that_is_wrong(
    command: list[str], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before any host is asked."""
    Path(command[3]).write_text("time,link,delay\n1s,ohio -> moon,1ms\n")
    assert run(command) != 0
    assert "trace.csv:2: link" in capsys.readouterr().err
    assert nodes.asked == []


def test_ctrl_c_clears(
    command: list[str],
    nodes: FakeMachines,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(fleet.Fleet, "_wait_for", interrupt)
    assert run(command) == 0
    assert "4 of 4 hosts are as they were" in capsys.readouterr().out
    assert shaped(nodes) == [False] * 4


def test_exactly_one_place_is_named(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command[:4]) == 2
    assert "--inventory FILE for your own hosts, or --testbed local" in capsys.readouterr().err
    assert run([*command[:4], "--testbed", "local", "--replace"]) == 2
    assert "are for hosts of an inventory" in capsys.readouterr().err
