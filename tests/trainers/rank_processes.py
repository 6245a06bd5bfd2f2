"""Rank processes on loopback, and the controller's side of their protocol."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from netbench.plan.model import Plan
from netbench.plan.serial import plan_to_json
from netbench.trainers.protocol import Message
from tests.ports import free_port

LOOPBACK = "127.0.0.1"
ATTEMPTS = 30

PATIENCE_S = 120.0
"""Deadline for what takes well under a second on a machine that does nothing else, seconds."""

Answers = list[dict[str, Any]]


def phases_add_up(answers: Answers) -> bool:
    """Check that the phases of every rank add up to its iteration, within 2 ms."""
    return all(
        abs(sum(answer["phases"].values()) - (answer["end_s"] - answer["start_s"])) < 0.002
        for answer in answers
    )


class RankProcesses:
    """The controller's side of the protocol, in small."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._connections = connections
        self._answers = [queue.SimpleQueue[dict[str, Any]]() for _ in connections]
        self.pids: list[int] = []
        for rank in range(len(connections)):
            threading.Thread(target=self._read, args=(rank,), daemon=True).start()

    def send(self, rank: int, /, **message: Any) -> None:
        self._connections[rank].sendall(json.dumps(message).encode() + b"\n")

    def receive(self, rank: int) -> dict[str, Any]:
        """The next message of one rank; {} when it has gone."""
        message = self._answers[rank].get()
        if not message:
            self._answers[rank].put({})  # for the next call
        return message

    def _read(self, rank: int) -> None:
        with suppress(OSError), self._connections[rank].makefile("r") as lines:
            for line in lines:
                message = json.loads(line)
                if message.get("event") == "arrived":
                    self.send(message["to"], op="arrived", rank=rank)
                else:
                    self._answers[rank].put(message)
        self._answers[rank].put({})

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
        assert select.select([process], [], [], PATIENCE_S)[0] == [process]
        os.close(process)

    def connect(self, devices: Sequence[Message | None] | None = None) -> None:
        """Let all meet on loopback. devices: of each rank's order to connect (`protocol`)."""
        store = f"{LOOPBACK}:{free_port(LOOPBACK)}"
        for rank in range(len(self._connections)):
            self.send(
                rank,
                op="connect",
                rank=rank,
                world_size=len(self._connections),
                address=LOOPBACK,
                interface="lo",
                store=store,
                serve_store=rank == 0,
                device=devices[rank] if devices else None,
            )
        self.all("ready")

    def prepare(self, plan: Plan) -> str:
        """Prepare a plan on all ranks: its hash."""
        answers = self.all("prepared", op="prepare", plan=plan_to_json(plan))
        (hashed,) = {answer["plan_hash"] for answer in answers}
        members = {str(a["rank"]): a["address"] for a in answers if a["address"]}
        if members:
            self.all("met", op="meet", plan_hash=hashed, members=members, epoch=0, new=[])
        return str(hashed)

    def run(self, plan_hash: str, iteration: int, *, trace: bool = False) -> list[dict[str, Any]]:
        """One iteration on all ranks."""
        return self.all(
            "iteration",
            op="run",
            plan_hash=plan_hash,
            iteration=iteration,
            start_at=time.monotonic() + 0.02,
            trace=trace,
        )

    def run_undisturbed(
        self, plan_hash: str, iteration: int, is_undisturbed: Callable[[Answers], bool]
    ) -> Answers:
        """Run one iteration again and again, until a busy machine has not delayed it.

        A delay can last as long as it likes, so tests state what an undisturbed iteration is. One
        that the code under test never reaches fails after `ATTEMPTS`.
        """
        for _ in range(ATTEMPTS):
            answers = self.run(plan_hash, iteration)
            if is_undisturbed(answers):
                return answers
        raise AssertionError(f"disturbed {ATTEMPTS} times: {answers}")

    def close(self) -> None:
        for connection in self._connections:
            with suppress(OSError):  # the other end was faster
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


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


def ended(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def end(processes: Iterable[int]) -> None:
    """Kill processes by their descriptors (`os.pidfd_open`), and close these. The numbers of those
    that have ended may belong to others."""
    for process in processes:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)
