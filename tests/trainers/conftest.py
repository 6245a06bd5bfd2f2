"""Small plans, and rank processes on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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


def forked(server: str, count: int) -> RankProcesses:
    """Ranks of this server that have said `started`."""
    connections = [connect_to(server) for _ in range(count)]
    ranks = RankProcesses(connections)
    for rank in range(count):
        ranks.send(rank, op="fork", rank=rank, netns=None)
    ranks.pids = [answer["pid"] for answer in ranks.all("started")]
    return ranks


@pytest.fixture
def start_ranks(fork_server: str) -> Iterator[Callable[[int], RankProcesses]]:
    """Start n ranks that have said `started` and are not connected yet."""
    opened: list[RankProcesses] = []

    def start(count: int) -> RankProcesses:
        opened.append(forked(fork_server, count))
        return opened[-1]

    yield start
    for ranks in opened:
        ranks.close()


Lend = Callable[[int], AbstractContextManager[RankProcesses]]


@contextmanager
def lending(server: str, connect: Callable[[RankProcesses, int], None]) -> Iterator[Lend]:
    """Lend n connected ranks, which do not start again for the next test unless one fails."""
    opened: list[RankProcesses] = []
    free: dict[int, RankProcesses] = {}

    @contextmanager
    def lend(count: int) -> Iterator[RankProcesses]:
        ranks = free.pop(count, None)
        if ranks is None:
            ranks = forked(server, count)
            opened.append(ranks)
            connect(ranks, count)
        yield ranks
        free[count] = ranks

    yield lend
    for ranks in opened:
        ranks.close()


@pytest.fixture(scope="module")
def lend_ranks(fork_server: str) -> Iterator[Lend]:
    """See `lending`."""
    with lending(fork_server, lambda ranks, count: ranks.connect()) as lend:
        yield lend


@pytest.fixture(scope="module")
def lend_gpu_ranks(fork_server: str) -> Iterator[Lend]:
    """Lend ranks that compute on GPUs."""
    from tests.trainers.gpus import device_orders  # imports torch

    with lending(fork_server, lambda ranks, count: ranks.connect(device_orders(count))) as lend:
        yield lend
