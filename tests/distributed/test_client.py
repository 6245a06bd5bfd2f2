"""Cells on a cluster started by hand: results, refusals, and deaths of a worker or of a client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from netbench.distributed.client import DaskPool
from netbench.errors import PlanError, TestbedError, UsageError
from netbench.plan.build import Choices, build_plans
from netbench.pool import Work
from netbench.scenario import load_scenario
from netbench.simulator.parallel import time_plan, time_plans
from tests.distributed import work
from tests.distributed.processes import HandMade, all_end, living, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandMade]:
    with closing(HandMade(tmp_path_factory.mktemp("cluster"), 2)) as found:
        found.wait()
        yield found


@pytest.fixture(scope="module")
def pool(cluster: HandMade) -> Iterator[DaskPool]:
    with DaskPool(cluster.address) as found:
        yield found


def test_simulated_times_are_those_of_this_machine_to_the_bit(pool: DaskPool) -> None:
    scenario = load_scenario("gpt3-small")
    networks = [network.name for network in scenario.sweep.networks]
    choices = Choices(
        variants=scenario.sweep.variants, layers=[12], batch=[64], seeds=[1], networks=networks
    )
    plans = build_plans(scenario, choices)
    here = [time_plan(plan) for plan in plans]
    assert len({timing.iteration_s for timing in here}) > 10
    assert list(time_plans(plans, pool)) == here


def test_every_item_has_its_own_result_in_batches_of_any_size(pool: DaskPool) -> None:
    squares = Work(name="square", function=work.square, max_batch=7)
    assert sorted(pool.run(squares, range(100))) == [(i, i * i) for i in range(100)]
    assert list(pool.run(squares, [])) == []
    assert sum(int(word) for word in pool.describe().replace(",", "").split()[1::2]) > 10


def test_an_error_of_a_cell_is_the_callers(pool: DaskPool) -> None:
    with pytest.raises(PlanError, match="5 layers cannot be placed"):
        list(pool.run(Work(name="refuse", function=work.refuse), [5]))


def test_a_crash_brings_the_end_of_the_cells_output(pool: DaskPool) -> None:
    with pytest.raises(TestbedError, match=r"signal 11 killed it") as caught:
        list(pool.run(Work(name="crash", function=work.crash), [1]))
    assert "--resume" in str(caught.value)


def test_more_memory_than_any_worker_has_is_refused_with_what_they_have(pool: DaskPool) -> None:
    huge = Work(name="square", function=work.square, memory_bytes=1 << 60)
    with pytest.raises(UsageError, match=r"no Dask worker can run a cell") as caught:
        list(pool.run(huge, [1]))
    assert str(caught.value).count("on 127.0.0.1: 1 core") == 2


def test_the_memory_of_children_counts(pool: DaskPool) -> None:
    small = Work(name="hoard", function=work.hoard, memory_bytes=200 << 20)
    with pytest.raises(TestbedError, match=r"it used 4\d\d ?MB of memory; its limit is 210 ?MB"):
        list(pool.run(small, [400 << 20]))


def test_a_cell_ends_when_nobody_waits_for_it_any_more(pool: DaskPool, tmp_path: Path) -> None:
    pids: list[int] = []
    for number, message in _started(pool, tmp_path / "never", 1):
        pids += message
        pool.cancel(number)
    assert len(pids) == 2
    assert all_end(pids)


CLIENT = """\
import sys
from pathlib import Path
from netbench.distributed.client import DaskPool
from tests.distributed.work import WAITING
with DaskPool(sys.argv[1]) as pool:
    say = lambda index, message: print(*message, flush=True)
    list(pool.run(WAITING, [Path("/never")] * 2, say))
"""


def test_cells_end_with_a_client_that_is_killed(pool: DaskPool, cluster: HandMade) -> None:
    words = [sys.executable, "-c", CLIENT, cluster.address]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        pids = [int(word) for _ in range(2) for word in client.stdout.readline().split()]
        assert living(pids) == pids
        client.kill()
        assert all_end(pids)
    squares = Work(name="square", function=work.square)
    assert list(pool.run(squares, [3])) == [(0, 9)]


def test_a_dead_worker_costs_its_cell_only_which_runs_again(
    pool: DaskPool, cluster: HandMade, tmp_path: Path
) -> None:
    """The other worker runs it; the results are complete, and each comes once."""
    release = tmp_path / "release"
    seen: dict[int, list[list[int]]] = {0: [], 1: []}

    def on_message(index: int, message: Any) -> None:
        seen[index].append(message)
        if all(seen.values()) and not release.exists():
            cell = seen[0][0][0]
            os.kill(_worker_of(cell, cluster), signal.SIGKILL)
            assert all_end(seen[0][0])
            release.touch()

    results = dict(pool.run(work.WAITING, [release, release], on_message))
    assert results.keys() == {0, 1}
    assert len(seen[1]) == 1
    assert results[1] == seen[1][0][1]
    assert results[0] == seen[0][-1][1]
    assert len(seen[0]) == 2


def _started(pool: DaskPool, path: Path, num: int) -> Iterator[tuple[int, list[int]]]:
    """Submit cells that wait for a file, and yield number and message of each."""
    found: list[list[int]] = []
    numbers = [
        pool.submit(work.WAITING, [path], on_message=found.append, on_end=lambda end: None)
        for _ in range(num)
    ]
    assert wait_until(lambda: len(found) == num)
    yield from zip(numbers, found, strict=True)


def _worker_of(cell: int, cluster: HandMade) -> int:
    """Return the process of the Dask worker that runs a cell: its grandparent."""

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    found = parent(parent(cell))
    assert found in cluster.pids()
    return found
