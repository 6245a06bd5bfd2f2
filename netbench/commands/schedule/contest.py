"""Run many searches in parallel: each in its own process, on one core, with the full budget."""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from netbench.api.placement import Limits, search, warm_up
from netbench.commands.schedule.interruption import interruptible
from netbench.commands.schedule.search import step_text
from netbench.errors import PlanError, TestbedError
from netbench.pool import Pool, Work, cell_memory_bytes
from netbench.report.tables.schedule import FoundPlacement, SearchFailure

if TYPE_CHECKING:
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import Request
    from netbench.placement.problem import Improvement, Problem

MAX_CURVE = 60
"""Maximum number of points of a convergence curve, chosen evenly among the improvements."""

POLL_S = 0.2
"""Interval between looks at an interruption and at the searches' messages, seconds."""

OnStep = Callable[[int, int, str], None]
"""Takes the index of a search, its number of candidates so far, and its best as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """One scheduler with one seed."""

    scheduler: str
    seed: int


SearchResult = tuple[FoundPlacement, "Placed"] | SearchFailure
"""Figures and placement of a search, or why it found no placement."""


def run_searches(
    request: Request,
    searches: Sequence[Search],
    limits: Limits,
    on_step: OnStep,
    pool: Pool | None = None,
) -> Iterator[tuple[int, SearchResult]]:
    """Yield the result of every search with its index, as the searches end.

    pool: where they run, None = on the cores of this machine. All searches end when this iterator
    is closed, or by Ctrl-C. Raises TestbedError if a search's process is killed.
    """
    if pool is not None:
        items = [(request, one, limits) for one in searches]
        work = Work(
            name="search", function=search_cell, reports=True, memory_bytes=cell_memory_bytes()
        )
        return pool.run(work, items, lambda index, step: on_step(index, *step))
    return _run_here(request, searches, limits, on_step)


def search_cell(
    item: tuple[Request, Search, Limits], report: Callable[[Any], None]
) -> SearchResult:
    """Run one search in a cell. Its budget begins after its scheduler is loaded."""
    request, one, limits = item
    warm_up(one.scheduler)

    def on_step(step: Improvement) -> None:
        report((step.num_evaluated, step_text(one.scheduler, step)))

    return _result(request, one, limits, on_step)


def _run_here(
    request: Request, searches: Sequence[Search], limits: Limits, on_step: OnStep
) -> Iterator[tuple[int, SearchResult]]:
    for name in {one.scheduler for one in searches}:
        warm_up(name)
    context = multiprocessing.get_context("fork")
    cores = sorted(os.sched_getaffinity(0))[: len(searches)]
    free, steps, ended = context.Queue(), context.Queue(), context.RawValue(ctypes.c_bool, False)
    for core in cores:
        free.put(core)
    pool = ProcessPoolExecutor(
        len(cores), context, initializer=_start, initargs=(free, steps, ended)
    )
    with interruptible() as interrupted:
        interrupted()  # from here on Ctrl-C raises nothing in the pool: it would hang
        try:
            left: set[Future[tuple[int, SearchResult]]] = {
                pool.submit(_run, index, request, one, limits) for index, one in enumerate(searches)
            }
            while left:
                done, left = wait(left, POLL_S, FIRST_COMPLETED)
                if interrupted():
                    raise KeyboardInterrupt
                _pass_on(steps, on_step)
                for future in done:
                    yield future.result()
        except BrokenProcessPool as error:
            raise TestbedError(
                "the process of a search was killed (out of memory?); try fewer seeds"
            ) from error
        finally:
            ended.value = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pool.shutdown(cancel_futures=True)


_steps: Any = None
"""Queue on which a worker process reports its progress."""

_ended: Any = None
"""Flag of a worker process: true once no one waits for its result."""


def _start(free: Any, steps: Any, ended: Any) -> None:
    """Give this worker its own core, and leave interruptions to the parent process."""
    global _steps, _ended
    _steps, _ended = steps, ended
    os.sched_setaffinity(0, {free.get()})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(index: int, request: Request, one: Search, limits: Limits) -> tuple[int, SearchResult]:
    def on_step(step: Improvement) -> None:
        _steps.put((index, step.num_evaluated, step_text(one.scheduler, step)))

    limits = dataclasses.replace(limits, interrupted=lambda: bool(_ended.value))
    return index, _result(request, one, limits, on_step)


def _result(
    request: Request, one: Search, limits: Limits, on_step: Callable[[Improvement], None]
) -> SearchResult:
    """Search, and return the placement with its figures, or why there is none."""
    try:
        placed, answer = search(request, one.scheduler, one.seed, limits, on_step)
    except PlanError as error:
        return SearchFailure(scheduler=one.scheduler, seed=one.seed, reason=str(error))
    problem = request.problem()
    found = FoundPlacement(
        scheduler=one.scheduler,
        seed=one.seed,
        simulated_s=placed.simulated_s,
        cost_s=cost_s(problem, placed),
        search_s=placed.search_s,
        num_evaluated=placed.num_evaluated,
        curve=_curve(problem, answer.improvements, placed),
    )
    return found, placed


def cost_s(problem: Problem, placed: Placed) -> float | None:
    """DT-FM's cost of a placement; None with tensor parallelism, which it does not model."""
    from netbench.placement.dtfm.cost import grid_cost_s
    from netbench.placement.dtfm.units import units_of

    if problem.tp > 1:
        return None
    units = units_of(problem)
    unit = np.full(problem.num_devices, -1)
    unit[units.devices[:, 0]] = np.arange(len(units.devices))
    # A device that cannot hold every stage may be missing from the cost's units.
    return None if (unit[placed.grid] < 0).any() else grid_cost_s(units.links, unit[placed.grid])


def _curve(
    problem: Problem, steps: Sequence[Improvement], placed: Placed
) -> tuple[tuple[float, float], ...]:
    """Return (seconds searched, simulated seconds of the best so far) at chosen steps.

    The curve of a scheduler that minimises another quantity may rise.
    """
    chosen = np.unique(np.linspace(0, len(steps) - 1, MAX_CURVE).round().astype(int))
    points = []
    for step in (steps[index] for index in chosen if steps):
        same_layers = problem
        if step.stage_layers != problem.stage_layers and problem.with_layers is not None:
            same_layers = problem.with_layers(step.stage_layers)
        points.append((step.elapsed_s, float(same_layers.objective.times_s(step.grid[None])[0])))
    return (*points, (placed.search_s, placed.simulated_s))


def _pass_on(steps: Any, on_step: OnStep) -> None:
    while True:
        try:
            on_step(*steps.get_nowait())
        except queue.Empty:
            return
