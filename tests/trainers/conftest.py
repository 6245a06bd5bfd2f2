"""Plans of the test's own making, and rank processes on loopback."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from netbench.plan import Layout, Plan, Stage, Transport, plan_to_json
from netbench.scenario.model import Link, Network, Workload

LOOPBACK = "127.0.0.1"


def make_plan(
    *,
    system: str = "dtfm",
    pp: int = 2,
    dp: int = 2,
    placement: Sequence[int] | None = None,
    num_rounds: int = 1,
    num_micro_batches: int = 4,
    forward_s: float = 0.001,
    activation_bytes: int = 40_000,
    gradient_bytes: int = 30_000,
    link: Link = Link(one_way_delay_s=0.0, bandwidth_bps=1e9),  # noqa: B008 (frozen)
    sharing: str = "pair",
    scale: float = 1.0,
    transport: Transport = Transport(),  # noqa: B008 (frozen)
    units: tuple[int, ...] = (),
    live_parameters: int = 0,
) -> Plan:
    """A small plan: one rank per node, all nodes in one region."""
    ranks = pp * dp
    stage = Stage(
        num_layers=2,
        forward_s=forward_s,
        backward_s=3 * forward_s,
        optimizer_s=0.002,
        parameters=gradient_bytes // 2,
        gradient_bytes=gradient_bytes,
    )
    return Plan(
        scenario="test",
        variant=system,
        system=system,
        layout=Layout(pp=pp, dp=dp),
        scheduler="identity",
        seed=0,
        placement=tuple(placement or range(ranks)),
        device_nodes=tuple(range(ranks)),
        node_names=tuple(f"n{i}" for i in range(ranks)),
        network=Network(
            regions=("here",),
            links=((link,),),
            node_regions=(0,) * ranks,
            sharing=sharing,
            nic_bps=(float("inf"),) * ranks,
        ),
        workload=Workload(layers=2 * pp, hidden=8, heads=1, sequence=8, batch=16),
        schedule="gpipe" if system == "dtfm" else "1f1b",
        data_parallel="reduce-broadcast" if system == "dtfm" else "ring",
        num_rounds=num_rounds,
        num_micro_batches=num_micro_batches,
        stages=(stage,) * pp,
        activation_bytes=activation_bytes,
        transport=transport,
        iterations=2,
        warmup_iterations=1,
        scale=scale,
        units=units,
        live_parameters=live_parameters,
    )


class RankProcesses:
    """The controller's side of the protocol, in small."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._connections = connections
        self._readers = [connection.makefile("r") for connection in connections]
        self.pids: list[int] = []

    def send(self, rank: int, /, **message: Any) -> None:
        self._connections[rank].sendall(json.dumps(message).encode() + b"\n")

    def receive(self, rank: int) -> dict[str, Any]:
        """The next message of one rank; {} when it has gone."""
        line = self._readers[rank].readline()
        message: dict[str, Any] = json.loads(line) if line else {}
        return message

    def all(self, event: str, /, **message: Any) -> list[dict[str, Any]]:
        """Send to all (unless empty), and expect `event` from all."""
        for rank in range(len(self._connections)):
            if message:
                self.send(rank, **message)
        answers = [self.receive(rank) for rank in range(len(self._connections))]
        assert [answer.get("event") for answer in answers] == [event] * len(answers), answers
        return answers

    def hang_up(self, rank: int) -> None:
        """Say no more to one rank, as a controller that has died; its last words can be read."""
        self._connections[rank].shutdown(socket.SHUT_WR)

    def wait_ended(self, rank: int) -> None:
        """Block until the process of one rank has ended."""
        try:
            process = os.pidfd_open(self.pids[rank])
        except ProcessLookupError:
            return
        assert select.select([process], [], [], 10)[0] == [process]
        os.close(process)

    def connect(self) -> None:
        """Let all meet on loopback."""
        for rank in range(len(self._connections)):
            self.send(
                rank,
                op="connect",
                rank=rank,
                world_size=len(self._connections),
                address=LOOPBACK,
                interface="lo",
                store=f"{LOOPBACK}:{self._port}",
                serve_store=rank == 0,
            )
        self.all("ready")

    @property
    def _port(self) -> int:
        if not hasattr(self, "_store_port"):
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                self._store_port: int = probe.getsockname()[1]
        return self._store_port

    def prepare(self, plan: Plan) -> str:
        """Prepare a plan on all ranks: its hash."""
        answers = self.all("prepared", op="prepare", plan=plan_to_json(plan))
        (hashed,) = {answer["plan_hash"] for answer in answers}
        members = {str(a["rank"]): a["address"] for a in answers if a["address"]}
        if members:
            self.all("met", op="meet", plan_hash=hashed, members=members, epoch=0, new=[])
        return str(hashed)

    def run(self, plan_hash: str, iteration: int) -> list[dict[str, Any]]:
        """One iteration on all ranks."""
        return self.all(
            "iteration",
            op="run",
            plan_hash=plan_hash,
            iteration=iteration,
            start_at=time.monotonic() + 0.02,
        )

    def close(self) -> None:
        for connection, reader in zip(self._connections, self._readers, strict=True):
            reader.close()
            connection.close()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Layers of the tests are small: a second thread would only wait for the first, busily."""
    import torch  # not for who collects these tests and runs others

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A fork server for the whole run: torch is imported once."""
    path = str(tmp_path_factory.mktemp("ranks") / "ranks.sock")
    server = subprocess.Popen([sys.executable, "-m", "netbench.trainers", "--fork-server", path])
    connect_to(path, server).close()
    yield path
    server.kill()
    server.wait()


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """Makes small plans: see `make_plan`."""
    return make_plan


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


def connect_to(path: str, server: subprocess.Popen[bytes] | None = None) -> socket.socket:
    """A connection to a fork server; waits until `server`, just started, listens."""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            assert server is not None, "the fork server has ended"
            assert server.poll() is None, "the fork server has ended"
            time.sleep(0.05)
        else:
            return connection
