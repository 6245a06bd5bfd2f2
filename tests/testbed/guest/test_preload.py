"""The preload library, compiled once."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.testbed.guest import cache as shim
from netbench.testbed.guest.cache import ensure_shim


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "answer.c"
    file.write_text("int answer(void) { return 42; }\n")
    return file


def test_the_library_is_compiled_once_and_again_when_its_source_changes(source: Path) -> None:
    """It loads; it is named after what it was made from."""
    first = ensure_shim(source)
    assert first is not None
    assert ctypes.CDLL(str(first)).answer() == 42
    made_ns = first.stat().st_mtime_ns
    assert ensure_shim(source) == first
    assert first.stat().st_mtime_ns == made_ns
    source.write_text("int answer(void) { return 43; }\n")
    second = ensure_shim(source)
    assert second is not None
    assert ctypes.CDLL(str(second)).answer() == 43
    assert sorted(first.parent.iterdir()) == sorted([first, second])


def test_a_library_that_was_changed_is_compiled_again(source: Path) -> None:
    """It would be loaded into every rank."""
    first = ensure_shim(source)
    assert first is not None
    made = first.read_bytes()
    first.write_bytes(made + b"changed")
    again = ensure_shim(source)
    assert again is not None
    assert again.read_bytes() == made


def test_a_source_the_compiler_refuses_leaves_nothing(source: Path) -> None:
    """The compiler's message is in the error."""
    source.write_text("nonsense\n")
    with pytest.raises(TestbedError, match="cannot compile"):
        ensure_shim(source)
    assert list((source.parent / "cache" / "netbench" / "shim").iterdir()) == []


def test_without_a_compiler_there_is_none(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is slower without it, and as right."""
    monkeypatch.setattr(shim, "find_command", lambda name: None)
    assert ensure_shim(source) is None


def test_without_a_source_there_is_none(source: Path) -> None:
    """A package stripped of its C file still runs."""
    assert ensure_shim(source.with_name("absent.c")) is None


# A thread of gloo may release the last tensor while Python ends, which then aborts the process,
# with the library or without. Ranks end with `os._exit`, and so does this.
EXCHANGE = """
import os
import sys
import torch
import torch.distributed as dist
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
sizes = [1, 7, 40, 41, 32767, 32768, 32769, 65536, 100_000, 3_000_000, 1, 1]
for size in sizes * 3:
    data = (torch.arange(size) % 251).to(torch.uint8)
    if rank == 0:
        dist.send(data, 1)
        dist.recv(data.zero_(), 1)
    else:
        found = torch.zeros(size, dtype=torch.uint8)
        dist.recv(found, 0)
        assert torch.equal(found, data), size
        dist.send(found, 0)
    dist.barrier()
peer, count = 1 - rank, 200
for size in (1, 50, 2000, 9000, 20_000):  # many small messages at once, both ways
    received = [torch.zeros(size, dtype=torch.uint8) for _ in range(count)]
    sent = [torch.full((size,), i % 251, dtype=torch.uint8) for i in range(count)]
    works = [dist.irecv(data, peer) for data in received]
    works += [dist.isend(data, peer) for data in sent]
    for work in works:
        work.wait()
    assert all(torch.equal(*pair) for pair in zip(received, sent)), size
# Descriptors of closed connections are used again.
dist.destroy_process_group()
dist.init_process_group("gloo", init_method="file://" + store + "-2", rank=rank, world_size=2)
total = torch.ones(5000)
dist.all_reduce(total)
assert torch.equal(total, torch.full((5000,), 2.0))
os._exit(0)
"""


@pytest.mark.parametrize("wake_bytes", [{}, {"NETBENCH_WAKE_BYTES": "32768"}])
def test_gloo_gets_all_of_every_message(tmp_path: Path, wake_bytes: dict[str, str]) -> None:
    """Sizes are around the limits at which the library has gloo wake. A last piece that it never
    hears of would leave both ranks waiting for ever."""
    library = ensure_shim()
    assert library is not None
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "GLOO_SOCKET_IFNAME": "lo",
        **wake_bytes,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", EXCHANGE, str(rank), str(tmp_path / "store")], env=environment
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(120.0) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
