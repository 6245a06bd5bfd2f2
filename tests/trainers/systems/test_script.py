"""The process that runs a script on a node, as a controller sees it over standard streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from netbench.trainers.systems.steps.sitecustomize import PIPE


class Rank:
    """The process, and one script of Python."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "netbench.trainers", "--command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.receive()["event"] == "started"

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message; {} at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        message: dict[str, Any] = json.loads(line) if line else {}
        return message

    def start(self, script: str, directory: str = "/") -> int:
        """The script's process."""
        argv = [sys.executable, "-c", script]
        self.send(op="start", argv=argv, environment={"NAME": "value"}, directory=directory)
        answer = self.receive()
        assert answer["event"] == "running"
        return int(answer["pid"])

    def rest(self) -> list[dict[str, Any]]:
        """All that comes until the end."""
        return list(iter(self.receive, {}))


@pytest.fixture
def rank() -> Iterator[Rank]:
    started = Rank()
    with started.process:
        yield started
        started.process.kill()


def test_both_streams_are_passed_on_in_order_then_the_status(rank: Rank) -> None:
    """In the directory and with the environment that were asked for, and nothing else."""
    rank.start(
        "import os, sys\n"
        "print('directory', os.getcwd(), flush=True)\n"
        "print(os.environ.get('NAME'), os.environ.get('HOME'), file=sys.stderr, flush=True)\n"
        "sys.exit(7)",
        directory="/usr",
    )
    assert rank.rest() == [
        {"event": "output", "text": "directory /usr"},
        {"event": "output", "text": "value None"},
        {"event": "ended", "status": 7},
    ]


def test_what_is_no_text_and_lines_that_never_end_are_passed_on(rank: Rank) -> None:
    """A progress bar arrives in pieces; bytes that are not UTF-8 are replaced."""
    rank.start("import sys\nsys.stdout.buffer.write(b'\\xff\\n' + b'x' * 100_000)\n")
    texts = [message["text"] for message in rank.rest() if message["event"] == "output"]
    assert texts[0] == "\N{REPLACEMENT CHARACTER}"
    assert [len(text) for text in texts[1:]] == [65536, 100_000 - 65536]


def test_a_script_is_asked_to_end_before_it_is_killed(rank: Rank) -> None:
    """SIGTERM: it has its last word."""
    rank.start(
        "import os, signal\n"
        "def end(*_):\n"
        "    os.write(1, b'saved\\n')\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    assert rank.receive()["text"] == "ready"
    rank.send(op="stop")
    assert rank.rest() == [{"event": "output", "text": "saved"}, {"event": "ended", "status": 0}]


def close_input(rank: Rank) -> None:
    assert rank.process.stdin is not None
    rank.process.stdin.close()


@pytest.mark.parametrize("end", [lambda rank: rank.send(op="stop"), close_input])
def test_nothing_of_a_script_outlives_its_controller(
    rank: Rank, end: Callable[[Rank], None]
) -> None:
    """Nor what it started: one that ignores SIGTERM and holds the output open."""
    leader = rank.start(
        "import subprocess, sys, time\n"
        'child = "import signal, time; signal.signal(15, signal.SIG_IGN); "\\\n'
        "    \"print('ready', flush=True); time.sleep(1000)\"\n"
        "subprocess.Popen([sys.executable, '-c', child])\n"
        "time.sleep(1000)\n"
    )
    assert rank.receive()["text"] == "ready"
    end(rank)
    assert rank.process.wait(120.0) == 0
    assert not in_session(leader)


def in_session(leader: int) -> list[str]:
    """Processes of a session that live on; one that was killed may take a while to end."""
    deadline_s = time.monotonic() + 60.0
    while True:
        listed = subprocess.run(
            ["ps", "-s", str(leader), "-o", "stat=,args="],
            capture_output=True,
            text=True,
            check=False,
        )
        alive = [line for line in listed.stdout.splitlines() if not line.startswith("Z")]
        if not alive or time.monotonic() > deadline_s:
            return alive
        time.sleep(0.02)


def test_a_child_that_holds_the_output_does_not_hide_the_end(rank: Rank) -> None:
    """The script has ended; what it left behind has not, and is ended."""
    leader = rank.start("import subprocess; subprocess.Popen(['sleep', '1000'])")
    assert rank.rest() == [{"event": "ended", "status": 0}]
    rank.process.wait(120.0)
    assert not in_session(leader)


def test_a_directory_that_is_not_there_is_an_error(rank: Rank) -> None:
    """Said, not left to be guessed."""
    rank.send(op="start", argv=["true"], environment=dict(os.environ), directory="/no/where")
    answer = rank.receive()
    assert answer["event"] == "error"
    assert "/no/where" in answer["message"]


def test_a_step_comes_after_what_was_printed_before_it(rank: Rank) -> None:
    """Through two pipes."""
    script = (
        "import os\n"
        f"pipe = int(os.environ['{PIPE}'])\n"
        "for number in range(1000):\n"
        "    os.write(1, f'{number}\\n'.encode())\n"
        "    os.write(pipe, f'{number}\\n'.encode())\n"
    )
    argv = [sys.executable, "-S", "-c", script]  # without netbench's timer of optimizers
    rank.send(op="start", argv=argv, environment={}, directory="/")
    lines = steps = 0
    for message in rank.rest():
        lines += message["event"] == "output"
        if message["event"] == "step":
            assert message["iteration_s"] == steps < lines
            steps += 1
    assert lines == steps == 1000
