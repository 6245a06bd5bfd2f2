"""The main loop of a rank, as its controller sees it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netbench.plan.model import Plan
from netbench.plan.serial import plan_to_json
from tests.trainers.rank_processes import ended


def test_a_rank_ends_with_its_channel(start_ranks: Callable[[int], Any]) -> None:
    """No controller, no rank: the other end sees the channel close, and the process is gone."""
    ranks = start_ranks(2)
    pids = ranks.pids
    ranks.hang_up(0)
    assert ranks.receive(0) == {}
    ranks.wait_ended(0)
    assert ended(pids[0])
    assert not ended(pids[1])


def test_stop_ends_a_rank(start_ranks: Callable[[int], Any]) -> None:
    """Without an answer."""
    ranks = start_ranks(1)
    ranks.send(0, op="stop")
    assert ranks.receive(0) == {}


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (
            {"op": "dance"},
            "unknown op 'dance'; expected connect, join, prepare, forget, meet, run or stop",
        ),
        ({"op": "meet", "plan_hash": "f00"}, "f00 was not prepared"),
        ({"op": "run", "plan_hash": "f00", "iteration": 0, "start_at": 0}, "f00 was not prepared"),
        ({"op": "prepare", "plan": "{}"}, "schema_version is None"),
    ],
)
def test_a_rank_that_cannot_says_why_and_ends(
    start_ranks: Callable[[int], Any], order: dict[str, Any], says: str
) -> None:
    """One error event with the reason, then the end of the channel."""
    ranks = start_ranks(1)
    ranks.send(0, **order)
    answer = ranks.receive(0)
    assert answer["event"] == "error"
    assert answer["rank"] == 0
    assert says in answer["message"]
    assert ranks.receive(0) == {}


def test_a_plan_of_another_size_is_refused(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Plan]
) -> None:
    """A plan for 4 ranks in a world of 2."""
    ranks = start_ranks(2)
    ranks.connect()
    ranks.send(0, op="prepare", plan=plan_to_json(plan_of(pp=2, dp=2)))
    assert "4 ranks, the world 2 processes" in ranks.receive(0)["message"]


def test_a_rank_serves_its_standard_streams_too() -> None:
    """`python -m netbench.trainers` speaks the same protocol on stdin and stdout."""
    done = subprocess.run(
        [sys.executable, "-m", "netbench.trainers"],
        input='{"op": "dance"}\n',
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    started, error = done.stdout.splitlines()
    assert '"event": "started"' in started
    assert '"event": "error"' in error
    assert "unknown op" in error
    assert done.returncode == 1


def test_who_joins_later_is_in_no_world_and_systems_whose_peers_stay_do_not_meet(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Plan]
) -> None:
    """It prepares its part all the same; its peers would be told of nobody."""
    ranks = start_ranks(1)
    ranks.all("ready", op="join", rank=0, world_size=1, address="127.0.0.1")
    hashed = ranks.prepare(plan_of(pp=1, dp=1))
    ranks.send(0, op="meet", plan_hash=hashed, members={"0": "127.0.0.1:1"}, epoch=1, new=[])
    assert "is of a system whose peers stay" in ranks.receive(0)["message"]


@pytest.mark.parametrize("system", ["dtfm", "megatron", "zero3"])
def test_a_rank_forgets_plans_and_ends_their_threads(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Plan], system: str
) -> None:
    """A session may run dozens of plans on the same ranks."""
    options: dict[str, Any] = {"pp": 1, "dp": 2, "units": (2,)} if system == "zero3" else {}
    plan = plan_of(system=system, **({"dp": 1} | options))
    ranks = start_ranks(2)
    ranks.connect()

    def count_threads() -> int:
        return len([*Path(f"/proc/{ranks.pids[0]}/task").iterdir()])

    counts = []
    for _ in range(4):
        key = ranks.prepare(plan)
        ranks.run(key, 0)
        counts.append(count_threads())
        for rank in range(2):
            ranks.send(rank, op="forget")
    deadline_s = time.monotonic() + 30.0
    while counts[-1] > counts[0] and time.monotonic() < deadline_s:
        time.sleep(0.1)
        counts[-1] = count_threads()
    assert counts[-1] <= counts[0]
    ranks.send(0, op="run", plan_hash=key, iteration=1, start_at=0)
    assert "was not prepared" in ranks.receive(0)["message"]
