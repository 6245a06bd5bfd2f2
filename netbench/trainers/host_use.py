"""Measure what the processes of a run use on a host; standard library only.

CPU seconds are read from counters. Memory is sampled once per `INTERVAL_S`, for its peak is asked
for. `nvidia-smi` runs all the time where it is present, and prints the memory of every GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

INTERVAL_S = 1.0
"""Interval of samples, seconds."""

NVIDIA_SMI = "nvidia-smi"
QUERY = (
    "--query-gpu=index,memory.used",
    "--format=csv,noheader,nounits",
    f"--loop={round(INTERVAL_S)}",
)
"""Arguments of `nvidia-smi`: a line `index, MiB in use` per GPU and interval."""

MIB = 1 << 20

PROC = Path("/proc")


class HostUse:
    """CPU, memory and GPU memory since the last `take`.

    processes: returns the processes that count, of which those of this object do not.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._own: set[int] = set()
        self._lock = threading.Lock()
        self._since_s = time.monotonic()
        self._cpu_s = self._read_cpu_s()
        self._memory_bytes = 0
        self._gpus: dict[int, int] = {}
        self._gpu_bytes: int | None = None

    def watch(self) -> None:
        """Sample from now on, in threads of this process."""
        threading.Thread(target=self._sample, daemon=True).start()
        if (path := shutil.which(NVIDIA_SMI)) is not None:
            threading.Thread(target=self._follow_gpus, args=(path,), daemon=True).start()

    def take(self) -> dict[str, Any]:
        """Return what was used since the last call, and begin anew.

        seconds: the time between both calls. cpu_s: of the processes. memory_bytes: most memory in
        use on the host. gpu_memory_bytes: most memory in use on any of its GPUs; None without GPUs.
        """
        now_s, cpu_s = time.monotonic(), self._read_cpu_s()
        with self._lock:
            used = {
                "seconds": now_s - self._since_s,
                "cpu_s": sum(max(0.0, s - self._cpu_s.get(pid, 0.0)) for pid, s in cpu_s.items()),
                "memory_bytes": max(self._memory_bytes, memory_bytes()),
                "gpu_memory_bytes": self._gpu_bytes,
            }
            self._since_s, self._cpu_s = now_s, cpu_s
            self._memory_bytes = 0
            self._gpu_bytes = max(self._gpus.values(), default=None)
        return used

    def _sample(self) -> None:
        while True:
            with self._lock:
                self._memory_bytes = max(self._memory_bytes, memory_bytes())
            time.sleep(INTERVAL_S)

    def _follow_gpus(self, path: str) -> None:
        with (
            suppress(OSError),
            subprocess.Popen(
                [path, *QUERY],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as process,
        ):
            assert process.stdout is not None
            self._own.add(process.pid)
            for line in process.stdout:
                with suppress(ValueError):  # e.g. "0, [N/A]"
                    index, used_mib = line.decode(errors="replace").split(",")
                    self._take_gpu(int(index), int(used_mib) * MIB)

    def _take_gpu(self, index: int, used_bytes: int) -> None:
        with self._lock:
            self._gpus[index] = used_bytes
            self._gpu_bytes = max(self._gpu_bytes or 0, used_bytes)

    def _read_cpu_s(self) -> Mapping[int, float]:
        pids = set(self._processes()) - self._own
        return {pid: cpu_s for pid in pids if (cpu_s := _cpu_s(pid)) is not None}


def memory_bytes() -> int:
    """Return the memory of this host that is not available to a new process, bytes."""
    lines = (PROC / "meminfo").read_text().splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return 1024 * (kib["MemTotal"] - kib["MemAvailable"])


def _cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of a process and of its children that have ended; None if it has."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
