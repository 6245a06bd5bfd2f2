"""Ranks that die, hang or diverge: real processes on loopback, and one message about them."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from netbench.errors import TestbedError
from netbench.plan.model import Plan
from netbench.testbed.ranks import hangs as activity
from netbench.testbed.ranks import pool as ranks
from netbench.testbed.ranks.pool import RankPool
from tests.plans import small_plan
from tests.ports import free_port
from tests.trainers.loopback import Loopback
from tests.trainers.parity import real_plan
from tests.trainers.rank_processes import PATIENCE_S, connect_to, end


class Pool:
    """A pool of four connected ranks that has prepared its plan, and their processes."""

    def __init__(self, fork_server: str, plan: Plan, prepared: bool) -> None:
        self.pool = RankPool(Loopback(fork_server), plan)
        started = self.pool.start(lambda count: None)
        self.pids = [message["pid"] for message in started]
        self.processes = [os.pidfd_open(pid) for pid in self.pids]
        self.pool.connect(free_port())
        if prepared:
            self.pool.prepare()
        self.iteration = 0

    def run(self) -> list[dict[str, Any]]:
        answers = self.pool.run(self.iteration, 0.0)
        self.iteration += 1
        return answers

    def hit(self, rank: int, *numbers: signal.Signals) -> None:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):  # killed by the one before
                os.kill(self.pids[rank], number)


@pytest.fixture
def start_pool(fork_server: str) -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def start(plan: Plan, server: str = fork_server, prepared: bool = True) -> Pool:
        pools.append(Pool(server, plan, prepared))
        return pools[-1]

    yield start
    for pool in pools:
        end(pool.processes)
        pool.pool.stop()


def caught_in(pool: Pool) -> str:
    """Return the error of the next iteration."""
    with pytest.raises(TestbedError) as caught:
        pool.run()
    return str(caught.value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_rank_is_the_cause_and_its_peers_are_not(
    start_pool: Callable[..., Pool], number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, so that the others are inside the iteration when they lose it; each complains."""
    monkeypatch.setattr(ranks, "SETTLE_S", PATIENCE_S)  # ends once all have complained
    pool = start_pool(small_plan())
    pool.run()
    pool.hit(2, signal.SIGSTOP)
    # A stopped process takes a signal but SIGKILL only once it goes on.
    threading.Timer(0.5, pool.hit, (2, number, signal.SIGCONT)).start()
    said = caught_in(pool)
    assert said.startswith(f"rank 2 on lab-2: was killed by {number.name}, in iteration 1 of dtfm")
    assert said.endswith("; 3 others then lost a connection")


def test_ranks_that_lost_a_peer_end_too(start_pool: Callable[..., Pool]) -> None:
    """None of them is left to wait for ever."""
    pool = start_pool(small_plan())
    pool.run()
    pool.hit(0, signal.SIGKILL)
    caught_in(pool)
    for pid in pool.pids:
        wait_ended(pid)


def test_a_stopped_rank_is_named_and_those_who_wait_for_it_are_not(
    start_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here after 2 s without bytes."""
    pool = start_pool(small_plan())
    pool.run()
    monkeypatch.setattr(activity, "QUIET_S", 2.0)
    monkeypatch.setattr(ranks, "WATCH_S", 0.5)
    pool.hit(1, signal.SIGSTOP)
    said = caught_in(pool)
    assert "stopped, by a signal or a debugger: rank 1 on lab-1, in iteration 1 of dtfm" in said
    assert "rank 0" not in said
    assert "rank 3" not in said


def test_a_rank_without_memory_says_so(start_pool: Callable[..., Pool]) -> None:
    """A limit that a larger plan exceeds, on one of four."""
    pool = start_pool(small_plan(gradient_bytes=1 << 30), prepared=False)
    limit = address_space_bytes(pool.pids[3]) + (256 << 20)
    resource.prlimit(pool.pids[3], resource.RLIMIT_AS, (limit, limit))
    with pytest.raises(TestbedError, match=r"^rank 3 on lab-3: out of memory: .*, in the prep"):
        pool.pool.prepare()


def test_a_loss_that_is_not_a_number_ends_the_run(
    diverging: str, start_pool: Callable[..., Pool]
) -> None:
    """The ranks that have a loss are the cause; the iterations before it were finished."""
    pool = start_pool(real_plan("dtfm"), diverging)
    said = [str(pool.run()[-1]["loss"])]
    message = ""
    for _ in range(5):
        try:
            said.append(str(pool.run()[-1]["loss"]))
        except TestbedError as error:
            message = str(error)
            break
    assert not {"nan", "inf"} & set(said)
    who = r"rank [13] on lab-[13]"
    what = f"the loss of iteration {len(said)} is (nan|inf)"
    assert re.match(f"{who}(, {who})?: {what}", message), message


@pytest.fixture
def diverging(tmp_path: Path) -> Iterator[str]:
    """A fork server whose ranks learn at a rate at which nothing converges."""
    path = str(tmp_path / "ranks.sock")
    server = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys, pathlib, netbench.trainers.layers.real as real\n"
            "from netbench.trainers.fork_server import serve\n"
            "real.SGD_LEARNING_RATE = 1e30\n"
            "serve(pathlib.Path(sys.argv[1]))",
            path,
        ]
    )
    connect_to(path, server).close()
    yield path
    server.kill()
    server.wait()


def wait_ended(pid: int) -> None:
    """Block until a process that is not ours has ended."""
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        assert select.select([process], [], [], PATIENCE_S)[0], f"process {pid} lives"
        os.close(process)


def address_space_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()
