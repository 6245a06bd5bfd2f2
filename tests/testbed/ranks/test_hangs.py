"""Detection of hangs, with real processes of this machine and a fake clock."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netbench.testbed.ranks.hangs import (
    BUSY_S,
    QUIET_S,
    Activity,
    Process,
    Watch,
    read_bytes,
    read_processes,
)

DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo: 3053504  141231    0    0    0     0          0         0  3053504  141231
    v0:      66       1    0    0    0     0          0         0     1448       1
"""


class Ranks:
    """Four ranks whose kernel says what the test wants."""

    def __init__(self) -> None:
        self.now = Activity(
            at_s=0.0,
            num_bytes=0,
            processes={10 + r: Process(session=1, state="S", cpu_s=0.0) for r in range(4)},
        )
        self.watch = Watch(range(10, 14), lambda rank: f"rank {rank}", 0.0, lambda: self.now)

    def after(self, seconds: float, num_bytes: int = 0) -> None:
        self.now = dataclasses.replace(
            self.now, at_s=self.now.at_s + seconds, num_bytes=self.now.num_bytes + num_bytes
        )

    def set(self, rank: int, state: str = "S", more_cpu_s: float = 0.0) -> None:
        found = self.now.processes[10 + rank]
        process = dataclasses.replace(found, state=state, cpu_s=found.cpu_s + more_cpu_s)
        self.now = dataclasses.replace(
            self.now, processes={**self.now.processes, 10 + rank: process}
        )


def test_ranks_that_only_wait_are_hung_after_the_limit() -> None:
    """Not before; all that are missing are listed, for nothing tells them apart."""
    ranks = Ranks()
    ranks.after(QUIET_S - 1)
    assert ranks.watch.check([1, 2]) == ""
    ranks.after(1)
    said = ranks.watch.check([1, 2])
    assert (
        said
        == "nothing was sent for 120 s; all awaited ranks are waiting themselves: rank 1, rank 2"
    )


def test_bytes_are_a_sign_of_life_but_probes_of_a_full_receiver_are_not() -> None:
    """A link of 1 kbit/s carries 15 kB in that time; four connections that are stuck 528 bytes."""
    slow, stuck = Ranks(), Ranks()
    for _ in range(8):
        slow.after(30.0, 3750)
        stuck.after(30.0, 4 * 33)
        assert slow.watch.check([0]) == ""
        said = stuck.watch.check([0])
    assert "nothing was sent for 240 s" in said


def test_one_that_computes_gets_longer() -> None:
    """Real layers take their time; one that never ends is named, beside those who wait for it."""
    ranks = Ranks()
    for _ in range(int(BUSY_S / 30) - 1):
        ranks.after(30.0)
        ranks.set(2, "R", more_cpu_s=29.0)
        ranks.set(1, "S", more_cpu_s=0.5)  # polls
        assert ranks.watch.check([0, 1, 2, 3]) == ""
    ranks.after(30.0)
    ranks.set(2, "R", more_cpu_s=29.0)
    said = ranks.watch.check([0, 1, 2, 3])
    assert said == "nothing was sent for 600 s; computing all the time: rank 2"


def test_devices_that_sleep_are_given_that_time() -> None:
    """A virtual device sleeps for what it computes."""
    ranks = Ranks()
    ranks.watch = Watch(range(10, 14), str, 1000.0, lambda: ranks.now)
    ranks.after(QUIET_S + 999)
    assert ranks.watch.check([0]) == ""
    ranks.after(1)
    assert ranks.watch.check([0])


def test_bytes_are_counted_on_all_interfaces(tmp_path: Path) -> None:
    """Received ones, of a file as the kernel writes it."""
    path = tmp_path / "dev"
    path.write_text(DEV)
    assert read_bytes(path) == 3053504 + 66
    assert read_bytes() >= 0


@pytest.fixture
def processes() -> Iterator[dict[str, int]]:
    """One that computes for ever, one that is stopped, one that sleeps."""
    programs = {"busy": "while True: pass", "stopped": "input()", "asleep": "input()"}
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", f"print(flush=True)\n{text}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for name, text in programs.items()
    }
    for process in started.values():
        assert process.stdout is not None
        process.stdout.readline()
    started["stopped"].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, started["stopped"].pid, os.WSTOPPED | os.WNOWAIT)
    yield {name: process.pid for name, process in started.items()}
    for process in started.values():
        process.kill()
        process.communicate()


def test_real_processes_show_what_they_do(processes: dict[str, int]) -> None:
    """State and processor time as the kernel has them, once the busy one has used more."""
    deadline_s = time.monotonic() + 120.0
    while (before := read_processes())[processes["asleep"]].state != "S":
        assert time.monotonic() < deadline_s
        select.select([], [], [], 0.05)
    start_s = before[processes["busy"]].cpu_s
    while (found := read_processes())[processes["busy"]].cpu_s < start_s + 0.2:
        assert time.monotonic() < deadline_s
        select.select([], [], [], 0.05)
    assert found[processes["busy"]].state == "R"
    assert found[processes["stopped"]].state == "T"
    assert found[processes["asleep"]] == before[processes["asleep"]]
    assert found[processes["busy"]].session == processes["busy"]
