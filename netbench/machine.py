"""Name of the machine that this process runs on. Imports only the standard library."""

import os
import platform
from pathlib import Path

from netbench.units import counted


def machine_name() -> str:
    """Describe this machine: processor, cores, memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{model}, {counted(os.cpu_count() or 1, 'core')}, {memory_bytes / 2**30:.0f} GiB"
