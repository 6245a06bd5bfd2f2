"""Looking at the host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from netbench.limits import available_memory_bytes
from netbench.testbed.machine.capabilities import (
    allows_executable_mappings,
    failed_step,
    guest_tmpdir,
    probe_machine,
)


def test_probing_leaves_the_hosts_network_as_it_was() -> None:
    """The native probe makes its interfaces in a namespace of its own."""
    before = sorted(Path("/sys/class/net").iterdir())
    machine = probe_machine()
    assert sorted(Path("/sys/class/net").iterdir()) == before
    assert machine.num_cores == len(os.sched_getaffinity(0))
    assert machine.has_netem == (machine.netem_error == "")


def test_the_step_that_failed_is_named() -> None:
    """A shell trace ends with what the failing command said."""
    trace = "+ ip link add nb0 type bridge\n+ tc qdisc add netem\nError: kind is unknown.\n"
    assert failed_step(trace) == "tc qdisc add netem: Error: kind is unknown."
    assert failed_step("unshare: Operation not permitted") == "unshare: Operation not permitted"


def test_a_directory_that_cannot_be_written_holds_no_guest(tmp_path: Path) -> None:
    """An absent or read-only directory allows no mapping; an ordinary one does."""
    assert allows_executable_mappings(tmp_path)
    assert not allows_executable_mappings(tmp_path / "absent")
    assert guest_tmpdir((tmp_path / "absent", tmp_path)) == tmp_path
    assert guest_tmpdir((tmp_path / "absent",)) is None


def test_a_small_memory_directory_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's 64 MB /dev/shm loses to a roomier place, and wins where there is none."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    free = {small: 64 << 20, large: 8 << 30}

    class Usage:
        def __init__(self, path: Path) -> None:
            self.free = free[path]

    monkeypatch.setattr(shutil, "disk_usage", Usage)
    assert guest_tmpdir((small, large)) == large
    free[large] = 1 << 20
    assert guest_tmpdir((small, large)) == small


def test_available_memory_is_read_in_bytes(tmp_path: Path) -> None:
    """The kernel counts in KiB."""
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 8 kB\nMemAvailable:    5 kB\n")
    assert available_memory_bytes(file) == 5 * 1024
