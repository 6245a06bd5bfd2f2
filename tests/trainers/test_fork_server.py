"""The fork server: requests it refuses, and what happens when it dies."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netbench.plan.experiment import rank_modules
from netbench.plan.model import Layout, Plan
from tests.trainers.rank_processes import PATIENCE_S, RankProcesses, connect_to


def test_the_first_message_must_ask_for_a_fork(fork_server: str) -> None:
    """Anything else is answered with an error and the end of the connection."""
    ranks = RankProcesses([connect_to(fork_server)])
    ranks.send(0, op="connect")
    answer = ranks.receive(0)
    assert answer["event"] == "error"
    assert "must be op fork" in answer["message"]
    assert ranks.receive(0) == {}
    ranks.close()


def test_a_missing_namespace_is_reported(fork_server: str) -> None:
    """The path is in the message, and the server goes on."""
    ranks = RankProcesses([connect_to(fork_server)])
    ranks.send(0, op="fork", rank=3, netns="/nowhere/n3")
    answer = ranks.receive(0)
    assert answer["event"] == "error"
    assert answer["rank"] == 3
    assert "/nowhere/n3" in answer["message"]
    ranks.close()


def test_every_rank_is_a_process_of_its_own(start_ranks: Callable[[int], Any]) -> None:
    """Three ranks, three processes, none of them this one or the server."""
    pids = start_ranks(3).pids
    assert len(set(pids)) == 3
    parents = {Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split()[1] for p in pids}
    assert len(parents) == 1
    assert os.getpid() not in pids


def test_ranks_end_with_their_server(tmp_path: Path) -> None:
    """SIGKILL the server: its ranks are killed by the kernel, whatever they were doing."""
    path = str(tmp_path / "ranks.sock")
    server = subprocess.Popen([sys.executable, "-m", "netbench.trainers", "--fork-server", path])
    ranks = RankProcesses([connect_to(path, server)])
    try:
        ranks.send(0, op="fork", rank=0, netns=None)
        started = ranks.receive(0)
        assert started["event"] == "started"
        rank = os.pidfd_open(started["pid"])
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    # A pidfd is readable once its process has ended.
    assert select.select([rank], [], [], PATIENCE_S)[0] == [rank]
    os.close(rank)
    ranks.close()


def test_a_connection_that_asks_for_nothing_harms_nobody(
    fork_server: str, start_ranks: Callable[[int], Any]
) -> None:
    """Connect and leave; the next one is served."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(fork_server)
    assert len(start_ranks(1).pids) == 1


@pytest.mark.parametrize(
    ("fields", "imported"),
    [
        ({"system": "megatron", "layout": Layout(tp=2, dp=2)}, set()),
        ({"system": "zero3"}, set()),
        (
            {"system": "megatron", "layout": Layout(tp=2, dp=2), "compute": "cpu"},
            {"torch.distributed.tensor"},
        ),
        ({"system": "fsdp", "compute": "cpu"}, {"torch.distributed.fsdp", "torch._dynamo"}),
    ],
)
def test_only_plans_that_need_them_import_dtensors_and_fsdp(
    plan_of: Callable[..., Plan], fields: dict[str, Any], imported: set[str]
) -> None:
    """Each takes a second of CPU."""
    heavy = {"torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo"}
    modules = ["netbench.trainers.fork_server", *rank_modules(plan_of(**fields))]
    script = (
        "import importlib, sys\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    found = heavy & set(done.stdout.split())
    assert imported <= found
    assert imported or not found
