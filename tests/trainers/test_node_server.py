"""The node server as a process of its own: what it starts ends with it, and is told otherwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0

DAEMON = """\
import json, os, subprocess, sys
print(json.dumps({"netbench": "iteration", "iteration_s": 1.0}), flush=True)
subprocess.run(["sh", "-c", "env -i setsid sleep 86400 & echo $! > %s; exit"], check=True)
sys.exit(3)
"""
"""A script that leaves a process without a parent, with a session and an environment of its own,
which keeps its output open."""

UNKILLABLE = """\
import os, subprocess
from netbench.trainers import node_server
node_server.END_S = 0.2
victim = subprocess.Popen(["sleep", "86400"])
kill = os.kill
os.kill = lambda pid, number: None
stays = node_server._kill_descendants()
kill(victim.pid, 9)
print(stays == [victim.pid])
"""


class Server:
    """A node server, and the messages to and from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        words = [sys.executable, "-m", "netbench.trainers", "--node-server", str(folder), "lo"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.hello = self.receive()["hello"]

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def await_event(self, event: str) -> dict[str, Any]:
        """Return the next message of this kind from a rank."""
        while True:
            message = self.receive()
            if "text" in message and json.loads(message["text"]).get("event") == event:
                return message

    def start_script(self, rank: int, script: str) -> None:
        """Start a script of Python as a rank."""
        order = {"script": True, "option": "--command", "modules": [], "environment": {}}
        self.send(op="start", rank=rank, **order)
        self.await_event("started")
        argv = [sys.executable, "-c", script]
        what = {"argv": argv, "environment": {**os.environ}, "directory": "/"}
        self.send(op="line", rank=rank, text=json.dumps({"op": "start", **what}))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server")
    yield made
    made.process.kill()
    made.process.wait()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(pid: int) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while is_alive(pid) and time.monotonic() < end_s:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize("how", ["end", "input", "signal"])
def test_a_process_that_a_script_has_left_ends_with_the_server(
    server: Server, tmp_path: Path, how: str
) -> None:
    """The script itself is known to have ended, although its output is still open."""
    server.start_script(0, DAEMON % (tmp_path / "pid"))
    message = server.await_event("ended")
    assert json.loads(message["text"])["status"] == 3
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    if how == "end":
        server.send(op="end", id=1)
    elif how == "input":
        assert server.process.stdin is not None
        server.process.stdin.close()
    else:
        server.process.send_signal(signal.SIGTERM)
    assert ended(pid)
    server.process.wait(PATIENCE_S)
    assert not server.folder.exists()


def test_a_process_that_cannot_be_killed_is_reported() -> None:
    """It is not waited for longer than the deadline."""
    found = subprocess.run(
        [sys.executable, "-c", UNKILLABLE], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert found.stdout == "True\n", found.stderr


def test_a_rank_that_cannot_be_started_is_reported(server: Server) -> None:
    """With what the system says."""
    order = {"script": True, "option": "--command", "modules": [], "environment": {}}
    server.send(op="start", rank=4, **order)
    server.await_event("started")
    what = {"argv": ["/no/such/program"], "environment": {**os.environ}, "directory": "/"}
    server.send(op="line", rank=4, text=json.dumps({"op": "start", **what}))
    message = server.await_event("output")
    assert message["rank"] == 4
    assert "/no/such/program" in json.loads(message["text"])["text"]
