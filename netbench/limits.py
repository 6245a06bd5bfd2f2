"""Limits of input. They exceed every known model and network, and keep time and memory bounded.

`docs/scenarios.md` lists them. `netbench.units` limits each kind of quantity.
"""

import math
import os
from pathlib import Path

from netbench.errors import PlanError, UsageError
from netbench.units import format_bytes, parse_bytes

MAX_DEVICES = 10_000
"""Devices, and nodes, of a scenario."""

MAX_REGIONS = 256
MAX_LAYERS = 10_000
MAX_HIDDEN = 1_000_000
MAX_SEQUENCE = 10_000_000
MAX_BATCH = 1_000_000
MAX_QUEUE = 1_000_000_000
MAX_PARAMETERS = 10_000_000_000_000
"""Embedding parameters."""

MAX_SEED = 2**32 - 1
"""Range of numpy's Mersenne twister."""

MAX_SCALE = 1e6
MAX_ITERATIONS = 100_000
MAX_EVALUATIONS = 1_000_000
MAX_SEARCHES = 1_000
"""Searches per scheduler of a comparison."""

MAX_PLANS = 10_000
"""Plans of one command."""

MAX_POINTS = 100_000
"""Points of a sweep, times systems."""

POINTER_BYTES = 8
LINK_BYTES = 200
"""Memory of a link between regions."""

MAX_FACTOR = 1e6
"""Factor on a bandwidth or a delay."""

MAX_CHANGES = 100_000
"""Changes of a trace of links."""

MEMORY_VARIABLE = "NETBENCH_MEMORY"
"""Environment variable with the memory that a command may use, e.g. 8GB."""

SMALL_BYTES = 2**28
"""Estimates below this are not compared with the memory limit."""

_num_processes = 1


def share_memory(num_processes: int) -> None:
    """Divide the memory limit among this many processes, of which this is one."""
    global _num_processes
    _num_processes = num_processes


def memory_limit_bytes() -> float:
    """Return the limit of `MEMORY_VARIABLE`, else the available memory of this machine."""
    given = memory_variable_bytes()
    return (available_memory_bytes() if given is None else given) / _num_processes


def memory_variable_bytes() -> float | None:
    """Return the value of `MEMORY_VARIABLE`, or None. Raises UsageError."""
    given = os.environ.get(MEMORY_VARIABLE)
    try:
        return parse_bytes(given) if given else None
    except ValueError as error:
        raise UsageError(f"{MEMORY_VARIABLE}: {error}") from None


def available_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Return `MemAvailable` of /proc/meminfo, bytes, or infinity if the file lacks it."""
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return math.inf


def check_memory(needed_bytes: float, what: str) -> None:
    """Raise PlanError if an estimate exceeds the memory limit. what: the subject, in the plural."""
    if needed_bytes > SMALL_BYTES and needed_bytes > (limit_bytes := memory_limit_bytes()):
        raise PlanError(
            f"{what} need at least {format_bytes(needed_bytes, 3)} of memory; the limit is "
            f"{format_bytes(limit_bytes, 3)}; choose fewer devices, layers or micro-batches, or "
            f"set {MEMORY_VARIABLE}"
        )
