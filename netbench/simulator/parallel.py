"""Simulate many plans at once, on the cores of this machine."""

import os
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from typing import Any, TypeVar

import numba
import numpy as np

from netbench.errors import PlanError, TestbedError
from netbench.limits import share_memory
from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.pool import OnMessage, Pool, Work, cell_memory_bytes, ignore, in_order
from netbench.scenario import load_scenario
from netbench.simulator.iteration import simulate

Item = TypeVar("Item")
Result = TypeVar("Result")

FEW = 8
"""Fewer plans than this are simulated in this process: starting others takes longer."""

CHUNKS_PER_WORKER = 16
"""Portions of plans per worker: large enough to be cheap, small enough to balance."""

BATCH = 100
"""Most plans per cell elsewhere: about two seconds for 64 devices, a hundred times its start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Result of a simulation, as sent between processes. iteration_s, phases: seconds."""

    iteration_s: float
    phases: dict[str, float]


def time_plan(plan: Plan) -> Timing:
    """Simulate one plan."""
    simulation = simulate(plan)
    return Timing(iteration_s=simulation.iteration_s, phases=simulation.phases)


def warm_up() -> None:
    """Compile or load the simulator, for processes that are forked from this one."""
    scenario = load_scenario("example-two-labs")
    time_plan(build_plan(scenario, "megatron", scenario.sweep.first_setting()))


def predict_s(plan: Plan) -> float | None:
    """Return the seconds per iteration of a plan, or None if it cannot be simulated, or has churn
    (`netbench.cost.churn`)."""
    if plan.churn:
        return None
    try:
        return time_plan(plan).iteration_s
    except PlanError:
        return None


def time_plans(plans: Sequence[Plan], pool: Pool | None = None) -> Iterator[Timing]:
    """Simulate `plans`, and return their results in the same order. See `each_timing`."""
    return in_order(each_timing(plans, pool))


def each_timing(plans: Sequence[Plan], pool: Pool | None = None) -> Iterator[tuple[int, Timing]]:
    """Simulate `plans`, and yield the index and result of each as they end.

    pool: where, None = on all cores of this machine. Raises the errors of `simulate`, and
    TestbedError when a worker dies.
    """
    return (pool or LocalPool()).run(simulation_work(time_plan), plans)


def simulation_work(function: Callable[[Any], Any]) -> Work:
    """Return the work of a function that simulates plans."""
    return Work(
        name="simulate",
        function=function,
        max_batch=BATCH,
        memory_bytes=cell_memory_bytes(),
        warm=warm_up,
    )


class LocalPool:
    """Processes of this machine, as a `netbench.pool.Pool`. num_workers: None = one per core.

    Work that reports runs in this process, one item after the other.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self._num_workers = num_workers or len(os.sched_getaffinity(0))

    def describe(self) -> str:
        """Return "": the workers are alike."""
        return ""

    def run(
        self, work: Work, items: Sequence[Any], on_message: OnMessage = ignore
    ) -> Iterator[tuple[int, Any]]:
        """Yield the index and the result of every item, in their order.

        The first item is computed in this process before this returns. That compiles or loads the
        simulator, and forked workers inherit it.
        """
        if work.reports:
            return enumerate(
                work.function(item, partial(on_message, index)) for index, item in enumerate(items)
            )
        first, rest = [work.function(item) for item in items[:1]], items[1:]
        if self._num_workers == 1 or len(rest) < FEW:
            return enumerate(chain(first, map(work.function, rest)))
        return enumerate(chain(first, in_workers(work.function, rest, self._num_workers)))


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
