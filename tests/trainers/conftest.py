"""Small plans, and rank processes on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from netbench.plan.model import Plan
from tests.plans import small_plan
from tests.trainers.rank_processes import RankProcesses, connect_to


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Layers of the tests are small: a second thread would only wait for the first, busily."""
    import torch  # not for who collects these tests and runs others

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A fork server for the whole run: torch is imported once."""
    path = str(tmp_path_factory.mktemp("ranks") / "ranks.sock")
    command = [sys.executable, "-m", "netbench.trainers", "--fork-server", path]
    modules = ("netbench.trainers.layers.tensor", "netbench.trainers.systems.sharded")
    server = subprocess.Popen([*command, *modules])
    connect_to(path, server).close()
    yield path
    server.kill()
    server.wait()


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """Makes small plans: see `small_plan`."""
    return small_plan


@pytest.fixture
def start_ranks(fork_server: str) -> Iterator[Callable[[int], RankProcesses]]:
    """Start n ranks that have said `started` and are not connected yet."""
    opened: list[RankProcesses] = []

    def start(count: int) -> RankProcesses:
        connections = [connect_to(fork_server) for _ in range(count)]
        ranks = RankProcesses(connections)
        opened.append(ranks)
        for rank in range(count):
            ranks.send(rank, op="fork", rank=rank, netns=None)
        ranks.pids = [answer["pid"] for answer in ranks.all("started")]
        return ranks

    yield start
    for ranks in opened:
        ranks.close()
