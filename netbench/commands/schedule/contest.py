"""Many searches side by side: each in a process of its own, on one core, with its own budget."""

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

from netbench.commands.schedule.interruption import interruptible
from netbench.commands.schedule.request import Limits
from netbench.commands.schedule.search import search, step_text, warm_up
from netbench.errors import PlanError, TestbedError
from netbench.report.schedule import Found, Refused

if TYPE_CHECKING:
    from netbench.placement.problem import Problem, Step
    from netbench.simulator.placement_file import Placed
    from netbench.simulator.scheduling import Request

MAX_CURVE = 60
"""Points of a search's curve: of better candidates than all before, evenly chosen."""

POLL_S = 0.2

OnSaid = Callable[[int, str], None]
"""Takes which search it is, and what it has found so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A search to do."""

    scheduler: str
    seed: int


Ended = tuple[Found, "Placed"] | Refused
"""What a search came to: its figures and the placement; or nothing, where none that it looked at
is possible."""


def run_entries(
    request: Request, entries: Sequence[Entry], limits: Limits, on_said: OnSaid
) -> Iterator[tuple[int, Ended]]:
    """Every search with its index, as they end. on_said: told how far each is.

    All end when this is closed, or by Ctrl-C. Raises TestbedError when one is ended from outside.
    """
    for name in {entry.scheduler for entry in entries}:
        warm_up(name)
    context = multiprocessing.get_context("fork")
    cores = sorted(os.sched_getaffinity(0))[: len(entries)]
    free, said, ended = context.Queue(), context.Queue(), context.RawValue(ctypes.c_bool, False)
    for core in cores:
        free.put(core)
    pool = ProcessPoolExecutor(
        len(cores), context, initializer=_start, initargs=(free, said, ended)
    )
    with interruptible() as interrupted:
        interrupted()  # now nothing is raised inside of the pool: its threads would wait for ever
        try:
            left: set[Future[tuple[int, Ended]]] = {
                pool.submit(_run, index, request, entry, limits)
                for index, entry in enumerate(entries)
            }
            while left:
                done, left = wait(left, POLL_S, FIRST_COMPLETED)
                if interrupted():
                    raise KeyboardInterrupt
                _pass_on(said, on_said)
                for future in done:
                    yield future.result()
        except BrokenProcessPool as error:
            raise TestbedError(
                "a process that searched was ended from outside (out of memory?); try fewer seeds"
            ) from error
        finally:
            ended.value = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pool.shutdown(cancel_futures=True)


_said: Any = None
"""Of a worker: where it says how far it is."""

_ended: Any = None
"""Of a worker: whether nobody waits for its answer any more."""


def _start(free: Any, said: Any, ended: Any) -> None:
    """A core for this worker alone; an interruption is left to the parent, which says so."""
    global _said, _ended
    _said, _ended = said, ended
    os.sched_setaffinity(0, {free.get()})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(index: int, request: Request, entry: Entry, limits: Limits) -> tuple[int, Ended]:
    def on_step(step: Step) -> None:
        _said.put((index, step_text(entry.scheduler, step)))

    try:
        limits = dataclasses.replace(limits, interrupted=lambda: bool(_ended.value))
        placed, answer = search(request, entry.scheduler, entry.seed, limits, on_step)
    except PlanError as error:
        return index, Refused(scheduler=entry.scheduler, seed=entry.seed, reason=str(error))
    problem = request.problem()
    found = Found(
        scheduler=entry.scheduler,
        seed=entry.seed,
        simulated_s=placed.simulated_s,
        cost_s=cost_s(problem, placed),
        search_s=placed.search_s,
        num_evaluated=placed.num_evaluated,
        curve=_curve(problem, answer.steps, placed),
    )
    return index, (found, placed)


def cost_s(problem: Problem, placed: Placed) -> float | None:
    """DT-FM's cost of a placement; None with tensor parallelism, of which it knows nothing."""
    from netbench.placement.dtfm_cost import grid_cost_s
    from netbench.placement.units import units_of

    if problem.tp > 1:
        return None
    units = units_of(problem)
    unit = np.full(problem.num_devices, -1)
    unit[units.devices[:, 0]] = np.arange(len(units.devices))
    # A device that cannot hold every stage may be none of the cost's units.
    return None if (unit[placed.grid] < 0).any() else grid_cost_s(units.links, unit[placed.grid])


def _curve(
    problem: Problem, steps: Sequence[Step], placed: Placed
) -> tuple[tuple[float, float], ...]:
    """Simulated seconds of the best so far over the seconds of the search. A scheduler that
    minimises something else may get worse on the way."""
    chosen = np.unique(np.linspace(0, len(steps) - 1, MAX_CURVE).round().astype(int))
    points = []
    for step in (steps[index] for index in chosen if steps):
        own = problem
        if step.stage_layers != problem.stage_layers and problem.with_layers is not None:
            own = problem.with_layers(step.stage_layers)
        points.append((step.elapsed_s, float(own.objective.times_s(step.grid[None])[0])))
    return (*points, (placed.search_s, placed.simulated_s))


def _pass_on(said: Any, on_said: OnSaid) -> None:
    while True:
        try:
            on_said(*said.get_nowait())
        except queue.Empty:
            return
