"""Simulate a scenario on a grid of networks and workload sizes."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from netbench.api.plans import SettingChoices, as_scenario, as_tuple
from netbench.api.results import grid_html
from netbench.api.vary import NETWORK_VARIABLES, Variable, parse_vary
from netbench.errors import PlanError, UsageError
from netbench.limits import LINK_BYTES, MAX_POINTS, check_memory
from netbench.plan.build import build_plan
from netbench.plan.checks import check_micro_batch
from netbench.plan.memory import memory_warnings
from netbench.plan.model import Plan
from netbench.plan.what_if import (
    Amount,
    changed_links,
    check_links,
    default_links,
    with_bandwidth,
    with_delay,
)
from netbench.pool import Pool
from netbench.report.pictures.picture import Picture
from netbench.report.tables.sweep import (
    SweepPoint,
    SweepResult,
    sweep_csv_grid,
    sweep_figure,
    sweep_grids,
)
from netbench.scenario import Scenario
from netbench.scenario.model import Prices, Setting
from netbench.units import format_bandwidth, format_time
from netbench.workload.costs import pflop_per_iteration

if TYPE_CHECKING:
    from pandas import DataFrame

    from netbench.simulator.parallel import Timing

WHERE = {
    "between": "links between regions",
    "inside": "links inside regions",
    "all": "all links and NICs",
}
"""Values of `--links` in words."""

DIGITS = 3
"""Significant digits of delays and bandwidths."""

NOTHING: Mapping[str, bool] = {}

Progress = Callable[[Iterator["Timing"], int], Iterable["Timing"]]
"""Passes the given number of results on, and may show how many have come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """Systems in one setting of a scenario, and the links that vary.

    micro_batch: the size that every system must have, if one was asked for.
    """

    scenario: Scenario
    systems: tuple[str, ...]
    setting: Setting
    links: str
    micro_batch: int | None = None

    @staticmethod
    def of(
        scenario: Scenario,
        systems: Sequence[str] = (),
        links: str | None = None,
        **setting: Unpack[SettingChoices],
    ) -> Base:
        """Fill in the scenario's defaults. Raises UsageError for links that it does not have."""
        base = Base(
            scenario=scenario,
            systems=tuple(systems) or scenario.sweep.default_variants,
            setting=scenario.sweep.first_setting(**setting),
            links=links or default_links(scenario.network),
            micro_batch=setting.get("micro_batch"),
        )
        check_links(scenario.network, base.links)
        return base

    def plan(self, system: str, **sizes: Any) -> Plan:
        """Plan one iteration at full size. sizes: layers, batch, micro_batch to replace. Raises
        PlanError also if the system chooses another micro-batch."""
        setting = dataclasses.replace(self.setting, **sizes)
        plan = build_plan(self.scenario, system, setting)
        check_micro_batch(plan, sizes.get("micro_batch", self.micro_batch))
        return plan

    def describe(self, varied: Mapping[str, bool] = NOTHING) -> str:
        """Describe what all points share. varied: name of each variable -> whether by factors."""
        setting = self.setting
        sizes = {"layers": f"L{setting.layers}", "batch": f"B{setting.batch}"}
        if setting.micro_batch is not None:
            sizes["micro-batch"] = f"m{setting.micro_batch}"
        words = [" ".join(text for name, text in sizes.items() if name not in varied)]
        words += [f"network {setting.network}"] if setting.network else []
        if len(self.systems) == 1:  # elsewhere each column or line has its system's name
            words.insert(0, self.systems[0])
        return ", ".join([*filter(None, words), self._describe_links(varied)])

    def _describe_links(self, varied: Mapping[str, bool]) -> str:
        """Describe the links that vary, with the values that stay or that factors multiply."""
        links = changed_links(self.plan(self.systems[0]).network, self.links)
        extents = {
            "delay": _extent([link.one_way_delay_s for link in links], format_time) + " one way",
            "bandwidth": _extent([link.bandwidth_bps for link in links], format_bandwidth),
        }
        now = [
            f"1x = {text}" if name in varied else text
            for name, text in extents.items()
            if varied.get(name, True)
        ]
        return f"{WHERE[self.links]}{': ' if now else ''}{', '.join(now)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A simulated grid, not `netbench.scenario.model.Sweep`. result: its axes and points."""

    result: SweepResult

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """Return every point, systems fastest, then the last variable."""
        return self.result.points

    @property
    def table(self) -> DataFrame:
        """Return a row per point.

        Columns: a column per variable (bandwidth_bps, one_way_delay_s or their `_factor`, batch,
        ...), system, iteration_s, bound_s (compute alone), pflops, efficiency (bound_s /
        iteration_s), million_usd ($ per million samples or sequences on the spot market, NaN
        without prices), problem (why there is no time), memory (why the plan does not fit).
        """
        import pandas as pd

        names = sweep_csv_grid(self.result).head
        axes = self.result.axes
        rows = [
            (
                *(axis.values[i] for axis, i in zip(axes, point.at, strict=True)),
                *(getattr(point, name) for name in names[len(axes) :]),
            )
            for point in self.points
        ]
        return pd.DataFrame(rows, columns=list(names))

    def plot(self) -> Picture:
        """Draw seconds over the first variable, a line per system and value of the others.

        Raises UsageError for too many lines.
        """
        return Picture(figure=sweep_figure(self.result))

    def _repr_html_(self) -> str:
        tables = "".join(
            f"<p><b>{html.escape(title)}</b></p>" * bool(title) + grid_html(grid)
            for title, grid in sweep_grids(self.result)
        )
        return f"<p>{html.escape(self.result.setting)}</p>{tables}"


def sweep(
    scenario: Scenario | str,
    vary: Mapping[str, str],
    *,
    systems: str | Sequence[str] = (),
    links: str | None = None,
    **setting: Unpack[SettingChoices],
) -> Sweep:
    """Simulate every combination of values of the variables, on all cores.

    vary: name of a variable (bandwidth, delay, batch, micro-batch, layers) -> its values: a list
    ("1Gbit,5Gbit"), factors ("0.5x,2x") or a geometric range ("0.1x..10x:9").
    systems: none = the scenario's. links: between, inside or all; None = between regions, if there
    are several. setting: the setting to start from.
    Raises ValueError for values that cannot be read, UsageError for too many points.
    """
    base = Base.of(as_scenario(scenario), as_tuple(systems), links, **setting)
    return Sweep(
        result=simulate_grid(base, [parse_vary(f"{name}={text}") for name, text in vary.items()])
    )


def check_grid(base: Base, variables: Sequence[Variable]) -> None:
    """Raise UsageError for an impossible grid, before anything is simulated."""
    names = [variable.name for variable in variables]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--vary {name} is given twice; put all values into one")
    sizes = [len(variable.values) for variable in variables]
    num_points = math.prod(sizes) * len(base.systems)
    if num_points > MAX_POINTS:
        raise UsageError(
            f"the grid has {num_points} points; expected at most {MAX_POINTS}; give fewer values"
        )
    num_links = len(base.scenario.network.regions) ** 2
    check_memory(LINK_BYTES * num_points * num_links, f"{num_points} networks")


def simulate_grid(
    base: Base,
    variables: Sequence[Variable],
    progress: Progress = lambda timings, total: timings,
    on_plans: Callable[[Sequence[Plan]], None] = lambda plans: None,
    pool: Pool | None = None,
    prices: Prices | None = None,
) -> SweepResult:
    """Simulate all points, and price them where prices are known.

    pool: where, None = on all cores of this machine. on_plans: called with the plans before they
    are simulated. prices: None = those of the scenario. Raises PlanError if no point can be
    planned, and like `check_grid`.
    """
    from netbench.cost.bill import SPOT, bill
    from netbench.explain.breakdown import bound_s  # numba: only when something is simulated
    from netbench.simulator.parallel import time_plans

    check_grid(base, variables)
    cells = list(_cells(base, variables))
    plans = [plan for _, plan in cells if plan is not None]
    if not plans:
        raise PlanError(f"no point of the grid can be planned: {cells[0][0].problem}")
    on_plans(plans)
    timings = iter(progress(time_plans(plans, pool), len(plans)))

    def million_usd(plan: Plan, iteration_s: float) -> float:
        if not prices and not base.scenario.prices:
            return math.nan
        return bill(base.scenario, plan, prices, iteration_s=iteration_s).million_usd(SPOT)

    points = []
    for point, plan in cells:
        if plan is None:
            points.append(point)
            continue
        iteration_s = next(timings).iteration_s
        points.append(
            dataclasses.replace(
                point,
                iteration_s=iteration_s,
                bound_s=bound_s(plan),
                pflop=pflop_per_iteration(plan.workload),
                million_usd=million_usd(plan, iteration_s),
            )
        )
    return SweepResult(
        title=base.scenario.title or base.scenario.name,
        setting=base.describe({variable.name: variable.relative for variable in variables}),
        axes=tuple(variables),
        systems=base.systems,
        points=tuple(points),
    )


def _cells(base: Base, variables: Sequence[Variable]) -> Iterator[tuple[SweepPoint, Plan | None]]:
    """Yield the points of the grid without times, each with its plan, None where there is none.

    Systems vary fastest, then the last variable.
    """
    plans: dict[tuple[str, tuple[tuple[str, int], ...]], tuple[Plan | PlanError, str]] = {}
    for at in itertools.product(*(range(len(variable.values)) for variable in variables)):
        chosen = {
            v.name: Amount(value=v.values[i], relative=v.relative)
            for v, i in zip(variables, at, strict=True)
        }
        sizes = tuple(
            (name.replace("-", "_"), round(amount.value))
            for name, amount in chosen.items()
            if name not in NETWORK_VARIABLES
        )
        for system in base.systems:
            if (system, sizes) not in plans:
                plans[system, sizes] = _plan(base, system, dict(sizes))
            plan, memory = plans[system, sizes]
            if isinstance(plan, PlanError):
                yield SweepPoint(at=at, system=system, problem=str(plan)), None
            else:
                point = SweepPoint(at=at, system=system, memory=memory)
                yield point, _on(plan, chosen, base.links)


def _plan(base: Base, system: str, sizes: Mapping[str, int]) -> tuple[Plan | PlanError, str]:
    """Plan of a point, or the error for sizes that fit no layout, and the warning on memory."""
    try:
        plan = base.plan(system, **sizes)
    except PlanError as error:
        return error, ""
    return plan, "".join(memory_warnings(plan, base.scenario))


def _on(plan: Plan, chosen: Mapping[str, Amount], links: str) -> Plan:
    """Replace the plan's network by that of a point."""
    network = plan.network
    if "bandwidth" in chosen:
        network = with_bandwidth(network, chosen["bandwidth"], links)
    if "delay" in chosen:
        network = with_delay(network, chosen["delay"], links)
    return dataclasses.replace(plan, network=network)


def _extent(values: Sequence[float], write: Callable[[float, int], str]) -> str:
    """Format one value or a range, e.g. `1ms` or `1ms..11ms`."""
    ends = dict.fromkeys((write(min(values), DIGITS), write(max(values), DIGITS)))
    return "..".join(ends)
