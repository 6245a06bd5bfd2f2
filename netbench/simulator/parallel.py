"""Many plans at once, over the cores of this machine."""

from __future__ import annotations

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
from netbench.plan.model import Plan
from netbench.simulator.simulate import simulate

Item = TypeVar("Item")
Result = TypeVar("Result")

FEW = 8
"""Plans that are simulated sooner in this process than others are started."""

CHUNKS_PER_WORKER = 16
"""Plans travel in so many portions: large enough to be cheap, small enough to balance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """What of a simulation travels between processes. iteration_s, phases: seconds."""

    iteration_s: float
    phases: dict[str, float]


def time_plan(plan: Plan) -> Timing:
    """Simulate one plan."""
    simulation = simulate(plan)
    return Timing(iteration_s=simulation.iteration_s, phases=simulation.phases)


def time_plans(plans: Sequence[Plan], num_workers: int | None = None) -> Iterator[Timing]:
    """Simulate `plans`, in their order. num_workers: processes, None = one per core.

    The first plan is simulated before this returns, in this process: it compiles the kernel, or
    loads it, and forked workers have it then. Raises what `simulate` raises, and TestbedError when
    a worker dies.
    """
    if num_workers is None:
        num_workers = len(os.sched_getaffinity(0))
    first, rest = [time_plan(plan) for plan in plans[:1]], plans[1:]
    if num_workers == 1 or len(rest) < FEW:
        return chain(first, map(time_plan, rest))
    return chain(first, in_workers(time_plan, rest, num_workers))


def library_versions() -> dict[str, str]:
    """What can change a simulated figure, for its record."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def in_workers(
    function: Callable[[Item], Result], items: Sequence[Item], num_workers: int | None = None
) -> Iterator[Result]:
    """What `function`, of a module, returns for each of `items`, in their order. num_workers:
    processes, None = one per core. Raises what it raises, and TestbedError when a worker dies."""
    cores = len(os.sched_getaffinity(0)) if num_workers is None else num_workers
    num_workers = max(1, min(cores, len(items)))
    pool = ProcessPoolExecutor(num_workers, get_context("fork"), initializer=_start_worker)
    try:
        chunk = max(1, len(items) // (num_workers * CHUNKS_PER_WORKER))
        yield from pool.map(function, items, chunksize=chunk)
    except BrokenProcessPool as error:
        raise TestbedError(
            "a process that simulated plans was ended from outside (out of memory?); "
            "what was recorded before is kept, continue with --resume"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave an interruption to the parent, which cancels; do not inherit its way to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
