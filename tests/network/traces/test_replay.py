"""Replays on doubles that have different clocks, refuse steps, or vanish."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netbench.errors import NetworkError
from netbench.network.remote.agent import host, operations
from netbench.network.remote.agent import replay as agent_replay
from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.messages import Owner
from netbench.network.remote.fleet import ARM_LEASE_S, Fleet, FleetError
from netbench.network.traces import replay
from netbench.network.traces.replay import Played, Playing, play, progress
from netbench.network.traces.trace import Change, ReplayStep, compile_replays
from tests.fake_machines import FakeMachines, FakeReplay
from tests.networks import ADDRESSES, two_regions

STEPS = (ReplayStep(time_s=0.0, text="one\n"), ReplayStep(time_s=0.5, text="two\n"))


def channel(**options: object) -> FakeReplay:
    """Return a channel whose agent has its steps."""
    made = FakeReplay(**options)  # type: ignore[arg-type]
    made.send(json.dumps({"steps": [(step.time_s, step.text) for step in STEPS]}))
    return made


def test_all_start_at_one_time_whatever_their_clocks_say() -> None:
    """Clocks are an hour apart, and each node gets the start by its own."""
    channels = {0: channel(ahead_s=3600.0), 1: channel(ahead_s=-20.0, late_s=0.002)}
    starts: list[float] = []
    found = play(channels, dict.fromkeys(channels, STEPS), starts.append)
    assert len(starts) == 1
    for node, ahead_s in ((0, 3600.0), (1, -20.0)):
        played = found[node]
        assert isinstance(played, Played)
        assert abs(channels[node].start_s - ahead_s - starts[0]) <= played.clock_error_s
        assert 0 < played.clock_error_s < 1
        assert channels[node].loaded == [[step.time_s, step.text] for step in STEPS]
    assert found[1].late_s == (0.002, 0.002)  # type: ignore[union-attr]
    assert found[1].worst_s == 0.002 + found[1].clock_error_s  # type: ignore[union-attr]


class Slow(FakeReplay):
    """Answers to no step until it is closed."""

    def _load_all(self) -> Iterator[str]:
        return iter(())


def test_a_node_that_refuses_stops_all_at_once() -> None:
    """The others are neither waited for nor reported."""
    waiting = Slow()
    waiting.send(json.dumps({"steps": []}))
    channels: dict[int, FakeReplay] = {0: waiting, 1: channel(refuses={1: "tc refused `two`"})}
    steps = {0: (ReplayStep(time_s=3600.0, text="late\n"),), 1: STEPS}
    found = play(channels, steps)
    assert list(found) == [1]
    assert str(found[1]) == "tc refused `two`"
    assert waiting.closed


def test_a_vanished_node_is_reported_even_before_the_start() -> None:
    gone = channel()
    gone.receive = lambda: None  # type: ignore[method-assign]
    found = play({0: channel(), 1: gone}, {0: STEPS, 1: STEPS})
    assert list(found) == [1]
    assert "its agent has gone" in str(found[1])


def test_an_agent_that_refuses_the_request_says_why() -> None:
    """Its error is read in place of its clock."""

    class Refusing(FakeReplay):
        def send(self, line: str) -> None:
            raise NetworkError("the command there has ended")

        def receive(self) -> str | None:
            return json.dumps({"error": "eth0 is not armed"})

    assert str(play({0: Refusing()}, {0: STEPS})[0]) == "eth0 is not armed"


def test_progress_as_text() -> None:
    assert progress((1.0, 90.0), -0.5) == "0 of 2 changes; the next one at 1s, in 2 s"
    assert progress((1.0, 90.0), 1.0) == "1 of 2 changes; the next one at 90s, in 89 s"
    assert progress((1.0, 90.0), 91.0) == "2 of 2 changes"
    assert progress((1.0, 90.0), float("-inf")) == "0 of 2 changes"


def test_a_trace_is_played_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "START_MARGIN_S", 7200.0)  # the double does not wait for it
    playing = Playing({0: channel()}, {0: STEPS})
    assert isinstance(playing.result()[0], Played)
    assert playing.wait(0.0)
    assert re.match("0 of 2 changes; the next one at 0s, in (7200|7[01]..) s", playing.progress)


# The agent's loop, with `sh` in place of `tc`.


TC = """
number=0
while read line; do
    number=$((number + 1))
    case $line in
        "qdisc show"*) printf '[{"in": "two"}'; sleep 0.01; echo ', {"parts": 2}]' ;;
        wrong*) echo "Command failed -:$number" >&2; exit 1 ;;
        *) echo "$line" >> "$0" ;;
    esac
done
"""


class Agent:
    """`serve_steps` in a thread, with lines to and from it.

    Places append what they are given to files of their names, and refuse wrong lines.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.started = folder, list[str]()
        self.is_over = False
        there, write_end = os.pipe()
        self.stdin = os.fdopen(write_end, "w")
        self.answers: list[dict[str, float]] = []
        patch.setattr(sys, "stdin", os.fdopen(there))
        patch.setattr(agent_replay, "print", self._take, raising=False)
        self.outcome: list[object] = []
        self._thread: threading.Thread | None = None

    def _take(self, line: str, *, flush: bool) -> None:
        assert flush
        self.answers.append(json.loads(line))

    def start(self, place: str) -> subprocess.Popen[bytes]:
        self.started.append(place)
        pipe = subprocess.PIPE
        command = ["sh", "-c", TC, str(self.folder / f"at-{place}")]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)

    def check(self) -> None:
        if self.is_over:
            raise AgentError("the lease has ended")

    def serve(self, steps: list[tuple[float, dict[str, str]]], *orders: object) -> None:
        def run() -> None:
            try:
                self.outcome.append(agent_replay.serve_steps(steps, self.start, self.check))
            except AgentError as error:
                self.outcome.append(str(error))

        self.stdin.write("".join(json.dumps(order) + "\n" for order in orders[:1]))
        self._thread = threading.Thread(target=run)
        self._thread.start()
        for order in orders[1:]:
            self.stdin.write(json.dumps(order) + "\n")
        self.stdin.flush()

    def end(self) -> object:
        assert self._thread is not None
        self._thread.join(120.0)
        return self.outcome[0]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Agent]:
    """Return an agent that waits for lines."""
    made = Agent(monkeypatch, tmp_path)
    yield made
    made.stdin.close()
    sys.stdin.close()


def test_the_agent_loads_every_place_when_it_is_due(served: Agent) -> None:
    """It does not load earlier, and reports how late it was."""
    start_s = time.monotonic() + 0.1
    steps = [(0.0, {"a": "x\n", "b": "y\n"}), (0.3, {"b": "z\n"})]
    served.serve(steps, {"start_s": start_s})
    assert served.end() == 2
    end_s = time.monotonic()
    assert end_s >= start_s + 0.3
    assert served.started == ["a", "b"]
    assert (served.folder / "at-a").read_text() == "x\n"
    assert (served.folder / "at-b").read_text() == "y\nz\n"
    assert len(served.answers) == 2
    assert all(0 < answer["late_s"] < end_s - start_s for answer in served.answers)


def test_the_agent_reports_its_clock(served: Agent) -> None:
    before_s = time.monotonic()
    served.serve([], {"clock": True}, {"start_s": 0.0})
    assert served.end() == 0
    assert before_s <= served.answers[0]["at_s"] <= time.monotonic()


def test_the_agent_stops_when_the_controller_has_gone(served: Agent) -> None:
    """It stops at once, although the next step is an hour away, and loads nothing more."""
    served.serve([(0.0, {"a": "x\n"}), (3600.0, {"a": "never\n"})], {"start_s": time.monotonic()})
    while not served.answers:
        time.sleep(0.01)
    served.stdin.close()
    assert served.end() == 1
    assert "never" not in (served.folder / "at-a").read_text()


def test_the_agent_loads_nothing_after_its_lease(
    served: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends while the agent waits. The classes may belong to somebody else by then."""
    steps = [(0.0, {"a": "x\n"}), (0.3, {"a": "theirs\n"})]
    wait_until = agent_replay._wait_until

    def wait(at_s: float) -> bool:
        is_connected = wait_until(at_s)
        served.is_over = bool(served.answers)
        return is_connected

    monkeypatch.setattr(agent_replay, "_wait_until", wait)
    served.serve(steps, {"start_s": time.monotonic()})
    assert served.end() == "the lease has ended"
    assert (served.folder / "at-a").read_text() == "x\n"


def test_a_replay_ends_with_its_lease(nodes: FakeMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each step it checks that the interface is still its own."""
    request = {"owner": {"name": "a", "pid": 1, "session": "s"}, "interface": "eth0"}
    operations.arm({**request, "lease_s": 30.0})

    def serve(steps: object, start: object, check: Callable[[], object] = lambda: None) -> int:
        check()
        nodes.boottime_s += 31
        check()
        return 0

    monkeypatch.setattr(agent_replay, "serve_steps", serve)
    with pytest.raises(AgentError, match="eth0 is not armed: the lease has ended"):
        agent_replay.replay({**request, "steps": []})


def test_the_agent_names_place_time_and_line(served: Agent) -> None:
    """The error quotes the line among all lines that were loaded."""
    steps = [(0.0, {"node 3": "one\ntwo\n"}), (0.1, {"node 3": "three\nwrong one\nfour\n"})]
    served.serve(steps, {"start_s": time.monotonic()})
    assert served.end() == "node 3, at 0.1 s: tc refused `wrong one`: Command failed -:6"


def test_a_batch_is_acknowledged_where_lo_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real `tc` is used in a network namespace with lo down."""
    alone = ["unshare", "--user", "--map-root-user", "--net", "--"]
    if subprocess.run([*alone, "tc", "-V"], capture_output=True, check=False).returncode:
        pytest.skip("no `tc`, or no namespace without privileges")
    start = subprocess.Popen
    monkeypatch.setattr(agent_replay, "TOOL_S", 120.0)
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **k: start([*alone, *argv], **k))
    with agent_replay.start_batch() as process:
        batch = agent_replay.Batch(process)
        for text in ("", "qdisc add dev lo root pfifo limit 9\n", ""):
            batch.feed(text)
            assert batch.refusal() == ""
        batch.feed("qdisc add dev lo root nothing\n")
        assert batch.refusal().startswith("tc refused `qdisc add dev lo root nothing`: ")


def test_a_long_wait_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """`select` may be late by a thousandth of its time: the last one is short."""
    waits: list[float] = []
    now_s = [0.0]

    def wait(*arguments: object) -> tuple[list[int], list[int], list[int]]:
        waits.append(arguments[3])  # type: ignore[arg-type]
        now_s[0] += waits[-1] * 1.001
        return [], [], []

    monkeypatch.setattr(select, "select", wait)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    assert agent_replay._wait_until(86400.0)
    assert 0 <= now_s[0] - 86400.0 <= 1.001e-5
    assert len(waits) < 40


# A fleet of doubles.


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    """Four machines, each with its own kernel."""
    found = FakeMachines(monkeypatch, tmp_path, 4)
    monkeypatch.setattr(host, "boot_id", lambda: f"boot of {host.namespace()}")
    monkeypatch.setattr(replay, "START_MARGIN_S", 0.01)
    return found


def fleet(nodes: FakeMachines) -> Fleet:
    machines = [
        nodes.machine(node, name=name, addresses=ADDRESSES[node])
        for node, name in enumerate(("one", "two", "three", "four"))
    ]
    return Fleet(machines, owner=Owner(name="alice@laptop", pid=1, session="s"))


CHANGES = (Change(time_s=0.0, src=0, dst=1, loss=0.5), Change(time_s=0.1, src=0, dst=1, loss=0.0))


def armed(nodes: FakeMachines, some: Fleet) -> None:
    """Arm all nodes, as `apply` would; the doubles show another node's configuration."""
    for node in range(4):
        some._ask_all("arm", [node], {"lease_s": ARM_LEASE_S})


def test_a_fleet_plays_its_nodes_steps(nodes: FakeMachines) -> None:
    replays = dict(enumerate(compile_replays(two_regions(), CHANGES, ADDRESSES, "eth0")))
    with fleet(nodes) as some:
        armed(nodes, some)
        found = some.replay(replays, print)
    assert [len(found[node].late_s) for node in range(4)] == [2, 2, 0, 0]
    for node, wanted in replays.items():
        assert nodes.replays[node].loaded == [[s.time_s, s.text] for s in wanted.steps]
        assert nodes.replays[node].closed


def test_a_fleet_names_the_host_that_failed(nodes: FakeMachines) -> None:
    nodes.replays[1] = FakeReplay(refuses={1: "at 0.1 s: tc refused `x`: no"})
    replays = dict(enumerate(compile_replays(two_regions(), CHANGES, ADDRESSES, "eth0")))
    with fleet(nodes) as some:
        armed(nodes, some)
        with pytest.raises(FleetError, match="playing the trace failed on 1 of 4") as raised:
            some.replay(replays, print)
    assert str(raised.value).endswith("\n  two: at 0.1 s: tc refused `x`: no")
    assert all(channel.closed for channel in nodes.replays.values())


def test_a_fleet_names_the_host_that_could_not_start(nodes: FakeMachines) -> None:
    replays = dict(enumerate(compile_replays(two_regions(), CHANGES, ADDRESSES, "eth0")))
    with fleet(nodes) as some:
        armed(nodes, some)
        nodes.lost = {2}
        with pytest.raises(FleetError, match="starting the replay failed on 1 of 4"):
            some.replay(replays, print)
        nodes.lost = set()
    assert all(nodes.replays[node].closed for node in (0, 1, 3))
