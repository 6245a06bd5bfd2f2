"""Search where to put the ranks of a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from netbench import units
from netbench.api.plans import SettingChoices, as_scenario
from netbench.api.results import grid_html
from netbench.errors import PlanError, UsageError, nearest
from netbench.plan.memory import check_memory
from netbench.plan.model import Plan
from netbench.report.numbers import seconds_text
from netbench.report.pictures.picture import Picture
from netbench.report.tables.schedule import placed_grid
from netbench.scenario import Scenario, load_scenario
from netbench.units import counted

if TYPE_CHECKING:
    from pandas import DataFrame

    from netbench.placement.bounds.bound import Bound
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import Request
    from netbench.placement.problem import Answer, Budget, Improvement, Scheduler

DEFAULT_SYSTEM = "dtfm-scheduled"
DEFAULT_SCHEDULER = "netbench"
DEFAULT_BUDGET = "30s"

WARM_UP = 50
"""Candidates of a small scenario that a scheduler evaluates while it is compiled or loaded."""

Interrupted = Callable[[], bool]

OnStep = Callable[["Improvement"], None]


def never() -> bool:
    """Interruption of a search that cannot be interrupted."""
    return False


def parse_budget(text: str) -> float:
    """Parse a time in seconds, at least a tenth."""
    try:
        seconds = units.parse_time(text)
    except ValueError as error:
        if text.replace(".", "", 1).isdigit():
            raise ValueError(f'"{text}" has no unit; write e.g. {text}s or {text}min') from None
        raise ValueError(f"{error}") from None
    if seconds < 0.1:
        raise ValueError(f'"{text}" is not a search time of 100ms or more; write e.g. 30s or 2min')
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a search.

    evaluations: number of candidates; None = limited by time. interrupted: returns true once the
    search must end with its best result.
    """

    seconds: float
    evaluations: int | None = None
    interrupted: Interrupted = never

    def budget(self) -> Budget:
        """Budget of a search that begins now, without progress.

        A number of candidates replaces the time limit, so that every machine finds the same.
        """
        from netbench.placement.problem import Budget

        self.interrupted()  # from here on Ctrl-C ends the search
        if self.evaluations is None:
            return Budget(seconds=self.seconds, interrupted=self.interrupted)
        return Budget(evaluations=self.evaluations, interrupted=self.interrupted)

    def __str__(self) -> str:
        given = units.format_time(self.seconds)
        if self.evaluations is not None:
            given = counted(self.evaluations, "candidate")
        return f"{given}, interrupted" if self.interrupted() else given


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The best placement of a search. placed: with its request, search and lower bound."""

    placed: Placed

    @property
    def plan(self) -> Plan:
        """Return the plan with this placement, to simulate, explain or emulate."""
        return self.placed.plan()

    @property
    def simulated_s(self) -> float:
        """Return the simulated seconds of an iteration."""
        return self.placed.simulated_s

    @property
    def bound_s(self) -> float | None:
        """Return the lower bound on all placements with these layers per stage, seconds; None = not
        known."""
        return self.placed.bound_s

    @property
    def table(self) -> DataFrame:
        """Return a row per rank's device: pipeline, stage, node, region, device."""
        import pandas as pd

        placed, scenario = self.placed, self.placed.request.scenario
        device_nodes = scenario.device_nodes()
        rows = [
            {
                "pipeline": lane,
                "stage": stage,
                "device": int(device),
                "node": scenario.nodes[device_nodes[device]].name,
                "region": scenario.nodes[device_nodes[device]].region,
                "device_type": scenario.nodes[device_nodes[device]].device,
            }
            for lane, row in enumerate(placed.grid)
            for stage, device in enumerate(row)
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Picture:
        """Draw the placement on a map of the regions."""
        from netbench.report.pictures.placement_map import placement_figure

        one = self.placed
        note = f"{one.scheduler}, {seconds_text(one.simulated_s)} s per iteration, simulated"
        return Picture(figure=placement_figure(one.plan(), one.grid, note=note))

    def save(self, path: str | Path) -> None:
        """Write the file that `netbench run --placement` reads."""
        from netbench.files import write_file
        from netbench.placement.file import placed_text

        write_file(Path(path), placed_text(self.placed))

    def _repr_html_(self) -> str:
        placed, listed = self.placed, self.placed.request.listed()
        layers = tuple(stage.num_layers for stage in listed.stages)
        grid = placed_grid(
            placed.scheduler,
            placed.simulated_s,
            simulated_s(placed.request),
            placed.bound_s,
            same_layers=placed.stage_layers == layers,
        )
        return grid_html(grid)


def place(
    scenario: Scenario | str,
    system: str = DEFAULT_SYSTEM,
    *,
    scheduler: str = DEFAULT_SCHEDULER,
    budget: str = DEFAULT_BUDGET,
    evaluations: int | None = None,
    **setting: Unpack[SettingChoices],
) -> Placement:
    """Search the placement with the shortest simulated iteration, and a lower bound on all.

    budget: time of the search, e.g. "30s". evaluations: number of candidates instead, which every
    machine repeats. setting: what to place; its seed is that of the search.
    Raises UsageError for an unknown scheduler, PlanError for a system that cannot be placed.
    """
    found = as_scenario(scenario)
    seed = setting.get("seed")
    request = make_request(found, system, **setting)
    warm_up(scheduler)
    placed, _ = search(
        request,
        scheduler,
        found.sweep.default_seeds[0] if seed is None else seed,
        Limits(seconds=parse_budget(budget), evaluations=evaluations),
    )
    (placed,), _ = with_bounds([placed])
    return Placement(placed=placed)


def make_request(scenario: Scenario, system: str, **setting: Unpack[SettingChoices]) -> Request:
    """Return the request for a plan of a scenario; the seed of the setting is not used."""
    from netbench.placement.plan_problem import Request  # numba: only when something is placed

    return Request(
        scenario=scenario, variant=system, setting=scenario.sweep.first_setting(**setting)
    )


def find_scheduler(name: str) -> Scheduler:
    """Return the scheduler called `name`. Raises UsageError that suggests the nearest names."""
    from netbench.placement.schedulers import SCHEDULERS  # scipy, numba: not for --help

    if name not in SCHEDULERS:
        raise UsageError(f'unknown scheduler "{name}"; {nearest(name, SCHEDULERS)}')
    return SCHEDULERS[name]


def warm_up(name: str) -> None:
    """Compile or load scheduler `name` and the simulator, so that no search's budget pays for it.

    Processes forked from this one inherit the compiled code.
    """
    from netbench.placement.problem import Budget

    small = make_request(load_scenario("example-two-labs"), DEFAULT_SYSTEM).problem()
    find_scheduler(name)(small, 0, Budget(evaluations=WARM_UP))


def search(
    request: Request, name: str, seed: int, limits: Limits, on_step: OnStep | None = None
) -> tuple[Placed, Answer]:
    """Search with scheduler `name`. on_step: called with every better candidate."""
    from netbench.placement.file import Placed

    scheduler, problem = find_scheduler(name), request.problem()
    budget = dataclasses.replace(limits.budget(), progress=on_step)
    try:
        answer = scheduler(problem, seed, budget)
    except PlanError:
        check_memory(request.listed(), request.scenario)  # its error names the stage
        raise
    placed = Placed(
        request=request,
        scheduler=name,
        seed=seed,
        grid=answer.grid,
        stage_layers=answer.stage_layers,
        budget=str(limits),
        num_evaluated=answer.num_evaluated,
        search_s=answer.elapsed_s,
        simulated_s=math.nan,
    )
    return dataclasses.replace(placed, simulated_s=simulated_s(request, placed)), answer


def simulated_s(request: Request, placed: Placed | None = None) -> float:
    """Return simulated seconds per iteration with a placement, or with rank r on device r."""
    from netbench.simulator.iteration import simulate

    return simulate(placed.plan() if placed else request.listed()).iteration_s


def with_bounds(
    placed: Sequence[Placed],
    seconds: float | None = None,
    interrupted: Interrupted = never,
    on_bound: Callable[[float], None] | None = None,
) -> tuple[tuple[Placed, ...], Bound | None]:
    """Return the placements with their lower bounds, where a bound is known, and the lowest.

    One bound is searched for all placements with the same layers per stage. seconds: for all
    bounds together; None = the default of `netbench.placement.bounds.bound`. on_bound: called with
    every higher bound, seconds.
    """
    from netbench.placement.bounds.bound import SECONDS, lower_bounds
    from netbench.placement.problem import Budget

    by_layers = {one.stage_layers: one for one in placed}
    try:
        bounds = lower_bounds(
            [one.request.problem(layers) for layers, one in by_layers.items()],
            Budget(seconds=SECONDS if seconds is None else seconds, interrupted=interrupted),
            progress=on_bound,
        )
    except PlanError:  # a system without stages
        return tuple(placed), None
    bound_s = dict(zip(by_layers, (bound.seconds for bound in bounds), strict=True))
    found = tuple(dataclasses.replace(one, bound_s=bound_s[one.stage_layers]) for one in placed)
    return found, min(bounds, key=lambda bound: bound.seconds)
