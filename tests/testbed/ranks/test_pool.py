"""Ranks driven in step, against ranks that are threads of this test."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence

import pytest

from netbench.errors import TestbedError
from netbench.testbed.interface import Clocks
from netbench.testbed.namespaces import node_addresses
from netbench.testbed.ranks import pool as ranks
from netbench.testbed.ranks.hangs import Activity, Process, read_activity
from netbench.testbed.ranks.pool import SLEEP_MARGIN, Message, RankPool, allowance_s
from netbench.testing.nodes import FakeChannel, FakeTestbed
from tests.plans import small_plan

PLAN = dataclasses.replace(small_plan(dp=3), device_nodes=(0, 0, 1))
NODES = node_addresses(["ohio-0", "ohio-1"])


class FakeRank(FakeChannel):
    """A rank that answers at once, as `answer` says; None = the rank leaves."""

    def __init__(
        self, rank: int, answer: Callable[[int, Message], Message | None], pid: int = 0
    ) -> None:
        super().__init__(self._answers, [json.dumps({"event": "started", "pid": pid})])
        self.rank = rank
        self.failure: TestbedError | None = None
        self._message = answer

    def say(self, message: Message) -> None:
        self._lines.put(json.dumps(message))

    @property
    def heard(self) -> list[Message]:
        return [json.loads(line) for line in self.sent]

    def _answers(self, line: str) -> list[str | None]:
        answer = self._message(self.rank, json.loads(line))
        return [None if answer is None else json.dumps(answer)]

    def receive(self) -> str | None:
        line = super().receive()
        if self.failure:
            raise self.failure
        return line


class FakeRanks(FakeTestbed):
    """Starts fake ranks and remembers them."""

    def __init__(
        self,
        answer: Callable[[int, Message], Message | None],
        pids: Sequence[int] = (0, 0, 0),
        read: Callable[[], Activity] = read_activity,
        offsets_s: Sequence[float] = (),
    ) -> None:
        super().__init__(NODES, self._start_rank, read, offsets_s)
        self.ranks: list[FakeRank] = []
        self._answer, self._pids = answer, pids

    def _start_rank(self, node: int, rank: int) -> FakeRank:
        self.ranks.append(FakeRank(rank, self._answer, self._pids[rank]))
        return self.ranks[-1]


def obedient(rank: int, message: Message) -> Message | None:
    """Answers every order as a rank does."""
    events = {"connect": "ready", "prepare": "prepared", "run": "iteration"}
    event = events.get(message["op"])
    return (
        {"event": event, "rank": rank, "start_s": 5.0, "end_s": 10.0 + rank}
        if event
        else {"event": "other"}
    )


def started_pool(
    answer: Callable[[int, Message], Message | None],
    read: Callable[[], Activity] = read_activity,
    pid_of_rank_1: int = 0,
) -> tuple[RankPool, FakeRanks]:
    testbed = FakeRanks(answer, (0, pid_of_rank_1, 0), read)
    pool = RankPool(testbed, PLAN)
    pool.start(lambda count: None)
    return pool, testbed


def test_ranks_of_a_node_get_its_address_and_rank_0_serves_the_store() -> None:
    """Device order is rank order; the store is on the first rank's node."""
    pool, testbed = started_pool(obedient)
    pool.connect(store_port=1234)
    heard = [rank.heard[0] for rank in testbed.ranks]
    assert [order["address"] for order in heard] == ["10.77.0.1", "10.77.0.1", "10.77.0.2"]
    assert [order["serve_store"] for order in heard] == [True, False, False]
    assert {order["store"] for order in heard} == {"10.77.0.1:1234"}
    assert {order["world_size"] for order in heard} == {3}


def test_answers_come_back_in_rank_order() -> None:
    """Whoever finishes first."""
    pool, _ = started_pool(obedient)
    pool.prepare()
    assert [answer["rank"] for answer in pool.run(0, 5.0)] == [0, 1, 2]


def test_progress_counts_the_ranks_that_started() -> None:
    """One call per rank."""
    counts: list[int] = []
    RankPool(FakeRanks(obedient), PLAN).start(counts.append)
    assert counts == [1, 2, 3]


def test_a_rank_that_reports_an_error_is_named_with_its_node() -> None:
    """The message of the rank is not lost."""

    def fails(rank: int, message: Message) -> Message | None:
        return (
            {"event": "error", "message": "out of memory"} if rank == 2 else obedient(rank, message)
        )

    pool, _ = started_pool(fails)
    with pytest.raises(TestbedError, match=r"rank 2 on ohio-1: out of memory"):
        pool.connect(store_port=1)


def test_a_channel_that_fails_is_an_error_of_its_rank() -> None:
    """Nobody waits for an answer that cannot come."""
    pool, testbed = started_pool(obedient)
    testbed.ranks[1].failure = TestbedError("node0: a line is longer than 64MiB")
    with pytest.raises(TestbedError, match="rank 1 on ohio-0: node0: a line is longer than 64MiB"):
        pool.connect(store_port=1)


def test_a_rank_that_leaves_is_named_with_what_it_owed() -> None:
    """The end of its channel is seen at once, not after a deadline."""
    pool, _ = started_pool(lambda rank, message: None if rank == 1 else obedient(rank, message))
    with pytest.raises(
        TestbedError, match=r"rank 1 on ohio-0: ended without a message, in connecting"
    ):
        pool.connect(store_port=1)


def test_those_who_lost_a_peer_are_not_the_cause() -> None:
    """They complain before the death of the rank they lost is known."""

    def loses(rank: int, message: Message) -> Message | None:
        return [
            {"event": "error", "message": "Connection closed by peer", "follows": True},
            {"event": "error", "message": "Connection closed by peer", "follows": True},
            {"event": "ended", "status": -9},
        ][rank]

    pool, _ = started_pool(loses)
    with pytest.raises(TestbedError) as caught:
        pool.connect(store_port=1)
    assert str(caught.value) == (
        "rank 2 on ohio-1: was killed by SIGKILL, in connecting; 2 others then lost a connection"
    )


def test_a_rank_that_is_gone_when_an_order_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed send reports nothing; the end of its channel does."""
    pool, testbed = started_pool(obedient)

    def gone(line: str) -> None:
        testbed.ranks[1].close()
        raise TestbedError("a rank has gone: Broken pipe")

    monkeypatch.setattr(testbed.ranks[1], "send", gone)
    with pytest.raises(TestbedError, match="rank 1 on ohio-0: ended without a message"):
        pool.connect(store_port=1)


def test_ranks_that_hang_are_named_and_the_others_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 never answers; nothing is sent, and its process is stopped."""
    monkeypatch.setattr(ranks, "WATCH_S", 0.001)
    times = itertools.count(0.0, 30.0)
    processes = {7: Process(session=1, state="T", cpu_s=0.0)}

    def read() -> Activity:
        return Activity(at_s=next(times), num_bytes=0, processes=processes)

    def hangs(rank: int, message: Message) -> Message | None:
        return {"event": "other"} if rank == 1 else obedient(rank, message)

    pool, _ = started_pool(hangs, read, pid_of_rank_1=7)
    with pytest.raises(TestbedError) as caught:
        pool.connect(store_port=1)
    assert str(caught.value) == (
        "nothing was sent for 120 s; stopped, by a signal or a debugger: rank 1 on ohio-0, "
        "in connecting"
    )


def test_virtual_devices_may_sleep_for_what_they_compute() -> None:
    """Two stages, 4 micro-batches of 1 + 3 ms each, and 2 ms of the optimizer per stage."""
    assert allowance_s(PLAN) == pytest.approx(SLEEP_MARGIN * 2 * (4 * 0.004 + 0.002))


def test_stop_reaches_every_rank_that_is_left() -> None:
    """The last order is `stop`."""
    pool, testbed = started_pool(obedient)
    pool.stop()
    assert [rank.heard[-1]["op"] for rank in testbed.ranks] == ["stop"] * 3


class DriftingRanks(FakeRanks):
    """Nodes whose clocks are apart and drift, read with an error. Time passes when they are read.

    true_s: the time now. at: (node, true seconds) -> its clock.
    """

    READ_AT_S = (0.0, 100.0)
    AHEAD_S = (0.0, 3.0)
    DRIFT = (0.0, 50e-6)
    ERROR_S = (0.0, 0.0004)

    def __init__(self, answer: Callable[[int, Message], Message | None]) -> None:
        super().__init__(answer)
        self._moments_s = itertools.chain(self.READ_AT_S, itertools.repeat(self.READ_AT_S[-1]))

    @classmethod
    def at(cls, node: int, true_s: float) -> float:
        return true_s * (1 + cls.DRIFT[node]) + cls.AHEAD_S[node]

    def clocks(self) -> Clocks:
        at_s = next(self._moments_s)
        offsets_s = {n: self.at(n, at_s) - at_s + self.ERROR_S[n] for n in range(2)}
        return Clocks(at_s=at_s, offsets_s=offsets_s, error_s=max(self.ERROR_S))


def test_events_of_hosts_whose_clocks_drift_are_in_causal_order() -> None:
    """Messages take 1 ms. Clocks are 3 s apart and drift by 5 ms in the iteration."""
    start_s, sends_s, flight_s = 10.0, [20.0, 50.0, 90.0], 1e-3

    def answer(rank: int, message: Message) -> Message | None:
        if message["op"] != "run":
            return obedient(rank, message)
        node = PLAN.device_nodes[rank]
        kind, late_s = ("send", 0.0) if node == 0 else ("receive", flight_s)
        moments_s = [DriftingRanks.at(node, s + late_s) - message["start_at"] for s in sends_s]
        events = [[kind, s, s, {"message": index}] for index, s in enumerate(moments_s)]
        ends = {"start_s": message["start_at"], "end_s": DriftingRanks.at(node, 99.0)}
        return {"event": "iteration", "rank": rank, **ends, "events": events}

    testbed = DriftingRanks(answer)
    pool = RankPool(testbed, PLAN)
    pool.start(lambda count: None)
    sender, _, receiver = pool.run(0, start_s, trace=True)
    assert pool.clock_error_s == max(DriftingRanks.ERROR_S)
    assert [event[1] for event in sender["events"]] == pytest.approx([10.0, 40.0, 80.0])
    for sent, received in zip(sender["events"], receiver["events"], strict=True):
        assert received[2] - sent[1] == pytest.approx(flight_s, abs=pool.clock_error_s)
    assert receiver["end_s"] == pytest.approx(99.0, abs=pool.clock_error_s)
