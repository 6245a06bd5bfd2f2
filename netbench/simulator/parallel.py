"""Simulate many plans at once, on the cores of this machine."""

import os
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from typing import TypeVar

import numba
import numpy as np

from netbench.errors import TestbedError
from netbench.limits import share_memory
from netbench.plan.model import Plan
from netbench.simulator.iteration import simulate

Item = TypeVar("Item")
Result = TypeVar("Result")

FEW = 8
"""Fewer plans than this are simulated in this process: starting others takes longer."""

CHUNKS_PER_WORKER = 16
"""Portions of plans per worker: large enough to be cheap, small enough to balance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Result of a simulation, as sent between processes. iteration_s, phases: seconds."""

    iteration_s: float
    phases: dict[str, float]


def time_plan(plan: Plan) -> Timing:
    """Simulate one plan."""
    simulation = simulate(plan)
    return Timing(iteration_s=simulation.iteration_s, phases=simulation.phases)


def time_plans(plans: Sequence[Plan], num_workers: int | None = None) -> Iterator[Timing]:
    """Simulate `plans`, in their order. num_workers: processes, None = one per core.

    The first plan is simulated in this process before this returns. That compiles or loads the
    kernel, and forked workers inherit it. Raises the errors of `simulate`, and TestbedError when a
    worker dies.
    """
    if num_workers is None:
        num_workers = len(os.sched_getaffinity(0))
    first, rest = [time_plan(plan) for plan in plans[:1]], plans[1:]
    if num_workers == 1 or len(rest) < FEW:
        return chain(first, map(time_plan, rest))
    return chain(first, in_workers(time_plan, rest, num_workers))


def library_versions() -> dict[str, str]:
    """Return the versions of libraries that can change a simulated figure, for its record."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def in_workers(
    function: Callable[[Item], Result], items: Sequence[Item], num_workers: int | None = None
) -> Iterator[Result]:
    """Return the results of `function` for `items`, in their order.

    function: a function of a module. num_workers: processes, None = one per core. Raises the errors
    of `function`, and TestbedError when a worker dies.
    """
    cores = len(os.sched_getaffinity(0)) if num_workers is None else num_workers
    num_workers = max(1, min(cores, len(items)))
    pool = ProcessPoolExecutor(num_workers, get_context("fork"), _start_worker, (num_workers,))
    try:
        chunk = max(1, len(items) // (num_workers * CHUNKS_PER_WORKER))
        yield from pool.map(function, items, chunksize=chunk)
    except BrokenProcessPool as error:
        raise TestbedError(
            "a process that simulated plans was killed (out of memory?); earlier records are kept; "
            "continue with --resume"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(num_workers: int) -> None:
    """Ignore interruptions, which the parent handles; do not inherit its handler of SIGTERM."""
    share_memory(num_workers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
