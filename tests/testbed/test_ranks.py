"""Ranks driven in step, against ranks that are threads of this test."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Sequence

import pytest

from netbench.errors import TestbedError
from netbench.testbed.namespaces import node_addresses
from netbench.testbed.ranks import Message, RankPool
from netbench.testbed.transport import Channel

NODES = node_addresses(["ohio-0", "ohio-1"])


class FakeRank:
    """A channel whose other end answers at once, as `answer` says; None = the rank leaves."""

    def __init__(self, rank: int, answer: Callable[[int, Message], Message | None]) -> None:
        self.rank = rank
        self.heard: list[Message] = []
        self._answer = answer
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lines.put(json.dumps({"event": "started"}))

    def send(self, line: str) -> None:
        message = json.loads(line)
        self.heard.append(message)
        answer = self._answer(self.rank, message)
        self._lines.put(json.dumps(answer) if answer is not None else None)

    def receive(self) -> str | None:
        return self._lines.get()

    def close(self) -> None:
        self._lines.put(None)


class FakeTransport:
    """Starts fake ranks and remembers them."""

    def __init__(self, answer: Callable[[int, Message], Message | None]) -> None:
        self.ranks: list[FakeRank] = []
        self._answer = answer

    def run(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = 0.0
    ) -> tuple[int, str, str]:
        raise AssertionError("ranks are driven over their channels only")

    def start_rank(self, node: int, rank: int) -> Channel:
        self.ranks.append(FakeRank(rank, self._answer))
        return self.ranks[-1]

    def close(self) -> None:
        pass


def obedient(rank: int, message: Message) -> Message | None:
    """Answers every order as a rank does."""
    event = {"connect": "ready", "run": "iteration"}.get(message["op"])
    return {"event": event, "rank": rank, "end_s": 10.0 + rank} if event else {"event": "other"}


def started_pool(
    answer: Callable[[int, Message], Message | None],
) -> tuple[RankPool, FakeTransport]:
    transport = FakeTransport(answer)
    pool = RankPool(NODES, device_nodes=(0, 0, 1))
    pool.start(transport, lambda count: None)
    return pool, transport


def test_ranks_of_a_node_get_its_address_and_rank_0_serves_the_store() -> None:
    """Device order is rank order; the store is on the first rank's node."""
    pool, transport = started_pool(obedient)
    pool.connect(store_port=1234)
    heard = [rank.heard[0] for rank in transport.ranks]
    assert [order["address"] for order in heard] == ["10.77.0.1", "10.77.0.1", "10.77.0.2"]
    assert [order["serve_store"] for order in heard] == [True, False, False]
    assert {order["store"] for order in heard} == {"10.77.0.1:1234"}
    assert {order["world_size"] for order in heard} == {3}


def test_answers_come_back_in_rank_order() -> None:
    """Whoever finishes first."""
    pool, _ = started_pool(obedient)
    assert [answer["rank"] for answer in pool.run("abc", 0, 5.0)] == [0, 1, 2]


def test_progress_counts_the_ranks_that_started() -> None:
    """One call per rank."""
    counts: list[int] = []
    RankPool(NODES, (0, 1)).start(FakeTransport(obedient), counts.append)
    assert counts == [1, 2]


def test_a_rank_that_reports_an_error_is_named_with_its_node() -> None:
    """The message of the rank is not lost."""

    def fails(rank: int, message: Message) -> Message | None:
        return (
            {"event": "error", "message": "out of memory"} if rank == 2 else obedient(rank, message)
        )

    pool, _ = started_pool(fails)
    with pytest.raises(TestbedError, match=r"rank 2 on ohio-1: out of memory"):
        pool.connect(store_port=1)


def test_a_rank_that_leaves_is_named_with_what_it_owed() -> None:
    """The end of its channel is seen at once, not after a deadline."""
    pool, _ = started_pool(lambda rank, message: None if rank == 1 else obedient(rank, message))
    with pytest.raises(TestbedError, match=r"rank 1 on ohio-0 ended before it answered \(ready\)"):
        pool.connect(store_port=1)


def test_stop_reaches_every_rank_that_is_left() -> None:
    """The last order is `stop`."""
    pool, transport = started_pool(obedient)
    pool.stop()
    assert [rank.heard[-1]["op"] for rank in transport.ranks] == ["stop"] * 3
