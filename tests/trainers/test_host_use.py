"""Use of a host by processes, against the kernel's own account of processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netbench.trainers.host_use import MIB, HostUse, memory_bytes

BURN = """\
import sys, time
end_s = time.process_time() + float(sys.argv[1])
while time.process_time() < end_s:
    pass
print("done", flush=True)
sys.stdin.read()
"""

NVIDIA_SMI = """\
#!/bin/sh
echo "$@" > {arguments}
echo "0, 1000"
echo "1, 3000"
echo "1, 2000"
echo "2, [N/A]"
: > {told}
exec sleep 60
"""
"""A stand-in that prints what two GPUs have in use, once; a third does not say."""


def burning(seconds: float) -> subprocess.Popen[str]:
    """Start a process that computes for some seconds, then waits for the end of its input."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", BURN, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    return process


def test_cpu_seconds_are_those_of_the_processes_since_the_last_call() -> None:
    """The kernel accounts for them when the process has ended, in ticks of 10 ms."""
    pids: list[int] = []
    use = HostUse(lambda: pids)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with burning(0.4) as process:
        pids.append(process.pid)
        used, again = use.take(), use.take()
        process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used["cpu_s"] == pytest.approx(spent_s, abs=0.05)
    assert 0.35 < used["cpu_s"] < used["seconds"] + 0.02
    assert again["cpu_s"] <= 0.02
    assert again["seconds"] < used["seconds"]


def test_a_process_that_has_ended_does_not_count() -> None:
    use = HostUse(lambda: [2**22 + 1])
    assert use.take()["cpu_s"] == 0.0


def test_memory_in_use_is_what_a_new_process_cannot_have() -> None:
    """`free` computes it the same way; both change while they are read."""
    total, used, *_ = (int(word) for word in free_bytes())
    assert 0 < memory_bytes() < total
    assert memory_bytes() == pytest.approx(used, abs=total / 20)


def free_bytes() -> Iterator[str]:
    done = subprocess.run(["free", "-b"], capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Mem:")]
    total, _, _, _, _, available = line.split()[1:]
    yield total
    yield str(int(total) - int(available))


def test_gpu_memory_is_that_of_the_fullest_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak since the last call; then what was in use last."""
    stand_in, arguments, told = (tmp_path / name for name in ("nvidia-smi", "arguments", "told"))
    os.mkfifo(told)
    stand_in.write_text(NVIDIA_SMI.format(arguments=arguments, told=told))
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    use = HostUse(list)
    heard = threading.Event()
    take_gpu = use._take_gpu

    def take(index: int, used_bytes: int) -> None:
        take_gpu(index, used_bytes)
        if used_bytes == 2000 * MIB:
            heard.set()

    monkeypatch.setattr(use, "_take_gpu", take)
    use.watch()
    told.read_text()
    assert heard.wait(30)
    assert arguments.read_text().split() == [
        "--query-gpu=index,memory.used",
        "--format=csv,noheader,nounits",
        "--loop=1",
    ]
    assert use.take()["gpu_memory_bytes"] == 3000 * MIB
    assert use.take()["gpu_memory_bytes"] == 2000 * MIB
    (pid,) = use._own
    os.kill(pid, 15)


def test_without_gpus_there_is_no_gpu_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    use = HostUse(list)
    use.watch()
    assert use.take()["gpu_memory_bytes"] is None
