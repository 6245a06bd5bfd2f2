"""One message about what went wrong, whatever came first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.testbed.ranks.failures import (
    Failure,
    count_oom_kills,
    describe_status,
    explain,
    failure_of,
)


def name(rank: int) -> str:
    return f"rank {rank} on ohio-{rank}"


def said(*failures: Failure, num_oom_kills: int = 0) -> str:
    return explain(failures, name, "iteration 3", num_oom_kills)[0]


LOST = Failure(rank=0, what="Connection closed by peer", is_secondary=True)
KILLED = Failure(rank=5, what="was killed by SIGKILL")


def test_the_cause_is_named_even_if_it_comes_last() -> None:
    """Ranks that only lost a connection are counted."""
    assert said(LOST, KILLED) == (
        "rank 5 on ohio-5: was killed by SIGKILL, in iteration 3; 1 other then lost a connection"
    )


def test_what_a_rank_says_first_is_its_reason() -> None:
    """The end of its channel afterwards adds nothing."""
    memory = Failure(rank=1, what="out of memory: 8 GB")
    assert said(memory, Failure(rank=1, what="ended without a message")) == (
        "rank 1 on ohio-1: out of memory: 8 GB, in iteration 3"
    )


def test_every_cause_is_listed_up_to_a_limit() -> None:
    """And each once, with who gave it."""
    text = said(*(Failure(rank=rank, what=f"reason {rank}") for rank in range(20)))
    assert text.count(": reason") == 8
    assert text.endswith("rank 7 on ohio-7: reason 7; and 12 more, in iteration 3")
    causes = [Failure(rank=rank, what="no such file") for rank in range(20)]
    assert said(KILLED, *(c for c in causes if c.rank != 5)) == (
        "rank 5 on ohio-5: was killed by SIGKILL; rank 0 on ohio-0, rank 1 on ohio-1, rank 2 on "
        "ohio-2, rank 3 on ohio-3, rank 4 on ohio-4, rank 6 on ohio-6, rank 7 on ohio-7, rank 8 on "
        "ohio-8 and 11 more: no such file, in iteration 3"
    )


def test_ranks_with_one_cause_are_named_by_number() -> None:
    """Whoever complained first."""
    causes = [Failure(rank=rank, what="no such file") for rank in (2, 0, 1)]
    assert said(*causes) == (
        "rank 0 on ohio-0, rank 1 on ohio-1, rank 2 on ohio-2: no such file, in iteration 3"
    )


def test_a_lost_connection_that_nobody_caused_is_told_as_it_is() -> None:
    """E.g. the network between them was taken away."""
    assert said(LOST).startswith("rank 0 on ohio-0: Connection closed by peer")


def test_the_kernel_that_killed_for_memory_is_named_only_where_it_can_have() -> None:
    """A rank that SIGKILL ended, and the kernel's count that rose."""
    assert "out of memory: the kernel killed 2" in said(KILLED, num_oom_kills=2)
    assert "memory" not in said(KILLED)
    assert "memory" not in said(Failure(rank=1, what="was killed by SIGSEGV"), num_oom_kills=2)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40"),
    ],
)
def test_a_status_is_told_as_a_person_would(program: str, expected: str) -> None:
    """Statuses of real processes."""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert describe_status(done.returncode) == expected


def test_a_rank_that_ended_well_does_not_complain() -> None:
    """Nor does an answer; the end of a channel does."""
    assert failure_of(1, {"event": "ended", "status": 0}) is None
    assert failure_of(1, {"event": "ready"}) is None
    assert failure_of(1, None) == Failure(rank=1, what="ended without a message")


def test_the_count_of_the_kernel_is_found(tmp_path: Path) -> None:
    """In its own file."""
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 12\noom_kill 7\noom_kill_x 9\n")
    assert count_oom_kills(vmstat, tmp_path / "none") == 7


def test_a_kernel_that_does_not_count_is_read_by_its_log(tmp_path: Path) -> None:
    """A machine that ran out of memory and a control group that did; without a log, none."""
    vmstat, log = tmp_path / "vmstat", tmp_path / "kmsg"
    vmstat.write_text("nr_free_pages 12\n")
    log.write_text(
        "6,339,5140900,-;NET: Registered protocol family 10\n"
        "3,340,5690716,-;Out of memory: Killed process 141 (python) total-vm:1740344kB\n"
        "3,341,5690717,-;Memory cgroup out of memory: Killed process 142 (python) total-vm:9kB\n"
    )
    assert count_oom_kills(vmstat, log) == 2
    assert count_oom_kills(vmstat, tmp_path / "none") == 0


def test_the_log_of_this_kernel_is_read_to_its_end() -> None:
    """Without waiting for what is yet to come; where it may not be read, there is nothing."""
    assert count_oom_kills(Path(os.devnull)) >= 0
