"""`netbench require SCENARIO --efficiency 0.8`: find the worst network that is good enough."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console

from netbench import units
from netbench.api.sweeps import WHERE, Base
from netbench.api.vary import write_factor
from netbench.commands.explore.options import base_options
from netbench.commands.options import QuantityType
from netbench.commands.output import heading, print_line, print_warning, wide_console
from netbench.commands.pool import dask_option, open_pool
from netbench.commands.run.simulation import warn_of_impairments
from netbench.plan.memory import memory_warnings
from netbench.plan.model import Plan
from netbench.plan.what_if import Amount, ideal_network, with_bandwidth, with_delay
from netbench.pool import Pool, in_order
from netbench.progress import track
from netbench.report.numbers import flops_unit, pflops_text, seconds_text
from netbench.report.tables.grid import Grid, rich_table
from netbench.report.tables.sweep import TOO_BIG
from netbench.scenario.model import Network
from netbench.workload.costs import pflop_per_iteration

if TYPE_CHECKING:
    from netbench.explain.threshold import Limit

PER_DECADE = 4
"""Number of networks tried per factor of ten before the limit is narrowed."""

BANDWIDTHS_BPS = (1e6, 1e12)
DELAYS_S = (10.0, 1e-6)
FACTORS = (1e-3, 1e3)
"""Worst and best network tried, besides the ideal one."""

DIGITS = 3
"""Significant digits of limits."""

Change = Callable[[Network, Amount, str], Network]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedQuantity:
    """Quantity of the network whose limit is searched.

    points: values from worst to best, the last one ideal. up: limits are rounded up, so that they
    still keep the throughput. write: formats a value.
    """

    head: str
    change: Change
    points: tuple[float, ...]
    relative: bool
    up: bool
    write: Callable[[float], str]

    def plan(self, plan: Plan, value: float, links: str) -> Plan:
        return _changed(plan, self.change, Amount(value=value, relative=self.relative), links)


def _changed(plan: Plan, change: Change, amount: Amount, links: str) -> Plan:
    return dataclasses.replace(plan, network=change(plan.network, amount, links))


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitSearch:
    """Search of one limit of a plan, which a process can carry out on its own.

    fractions: of the throughput on the ideal network, at `points`. ideal_s: seconds there.
    """

    plan: Plan
    change: Change
    relative: bool
    links: str
    points: tuple[float, ...]
    fractions: tuple[float, ...]
    wanted: float
    ideal_s: float


def narrow(search: LimitSearch) -> "Limit":
    """Narrow one limit by simulation."""
    from netbench.explain.threshold import find_limit
    from netbench.simulator.parallel import time_plan  # numba: only when asked for

    def fraction_at(value: float) -> float:
        amount = Amount(value=value, relative=search.relative)
        plan = _changed(search.plan, search.change, amount, search.links)
        return search.ideal_s / time_plan(plan).iteration_s

    return find_limit(search.points, search.fractions, search.wanted, fraction_at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """Limits of one system. ideal_s, now_s: seconds on the ideal and on the present network.
    memory: the warning if the plan does not fit."""

    system: str
    pflop: float
    ideal_s: float
    now_s: float
    limits: "tuple[Limit, ...]"
    memory: str = ""

    @property
    def fraction(self) -> float:
        return self.ideal_s / self.now_s


def parse_efficiency(text: str) -> float:
    """Parse a fraction above 0 and up to 1, e.g. `0.8` or `80%`."""
    try:
        efficiency = units.parse_percent(text) if text.endswith("%") else float(text)
    except ValueError:
        efficiency = math.nan
    if not 0 < efficiency <= 1:
        raise ValueError(f'"{text}" is not above 0 and up to 1; write e.g. 0.8 or 80%')
    return efficiency


@click.command()
@base_options
@click.option(
    "--efficiency",
    required=True,
    type=QuantityType("FRACTION", parse_efficiency),
    help="Fraction of the ideal network's throughput to keep, e.g. 0.8.",
)
@click.option(
    "--factor",
    is_flag=True,
    help="Search a factor on every link's value, instead of one value for all.",
)
@dask_option
def command(base: Base, efficiency: float, factor: bool, dask: str | None) -> None:
    """Find the lowest bandwidth and the highest one-way delay with which SCENARIO keeps a fraction
    of its throughput on the ideal network.

    The ideal network has zero delay and infinite bandwidth on every link and NIC; only the hosts'
    own limits stay. Each limit is searched with the other quantity unchanged.
    """
    console = wide_console()
    quantities = _quantities(factor)
    with open_pool(dask) as pool:
        requirements = _requirements(console, base, quantities, efficiency, pool)
    console.print(heading(base.scenario))
    print_line(
        console,
        f"{base.describe()}; to keep: {efficiency:.4g} of the throughput on the ideal network",
    )
    console.print()
    console.print(rich_table(_grid(requirements, quantities)))
    console.print()
    console.print(
        "simulated. ideal: zero delay and infinite bandwidth on every link and NIC. of ideal: "
        "throughput now / on the ideal network. Delays are one way. Each limit applies to "
        f"{WHERE[base.links]}, as one {'factor on' if factor else 'value for'} all of them; the "
        "other quantity and all other links are as they are now. Limits are exact to 0.1% and "
        "rounded to the safe side.",
        style="dim",
    )
    for requirement in requirements:
        if requirement.memory:
            print_warning(console, f"{TOO_BIG} memory", requirement.memory)
    for line in _remarks(requirements, quantities, efficiency):
        print_line(console, line)


def _quantities(factor: bool) -> tuple[SearchedQuantity, ...]:
    """Bandwidth and delay to search. factor: search factors on the links' values."""
    down, up = FACTORS
    bandwidths, delays = ((down, up), (up, down)) if factor else (BANDWIDTHS_BPS, DELAYS_S)
    return (
        SearchedQuantity(
            head="lowest bandwidth",
            change=with_bandwidth,
            points=(*_geometric(*bandwidths), math.inf),
            relative=factor,
            up=True,
            write=write_factor if factor else lambda rate: units.format_bandwidth(rate, DIGITS),
        ),
        SearchedQuantity(
            head="highest delay",
            change=with_delay,
            points=(*_geometric(*delays), 0.0),
            relative=factor,
            up=False,
            write=write_factor if factor else lambda delay: units.format_time(delay, DIGITS),
        ),
    )


def _requirements(
    console: Console,
    base: Base,
    quantities: tuple[SearchedQuantity, ...],
    wanted: float,
    pool: Pool | None,
) -> list[Requirement]:
    """Simulate all points of all systems, then narrow each limit."""
    from netbench.simulator.parallel import (  # numba: only when asked for
        LocalPool,
        simulation_work,
        time_plans,
    )

    plans = [base.plan(system) for system in base.systems]
    grid = [
        variant
        for plan in plans
        for variant in (
            dataclasses.replace(plan, network=ideal_network(plan.network)),
            plan,
            *(
                quantity.plan(plan, value, base.links)
                for quantity in quantities
                for value in quantity.points
            ),
        )
    ]
    warn_of_impairments(console, plans)
    describe = pool.describe if pool is not None else None
    times = track(console, time_plans(grid, pool), len(grid), "simulated networks", describe)
    times_s = iter([timing.iteration_s for timing in times])
    baselines, searches = [], []
    for plan in plans:
        ideal_s, now_s = next(times_s), next(times_s)
        baselines.append((ideal_s, now_s))
        searches += [
            LimitSearch(
                plan=plan,
                change=quantity.change,
                relative=quantity.relative,
                links=base.links,
                points=quantity.points,
                fractions=tuple(ideal_s / next(times_s) for _ in quantity.points),
                wanted=wanted,
                ideal_s=ideal_s,
            )
            for quantity in quantities
        ]
    work = dataclasses.replace(simulation_work(narrow), max_batch=1)
    limits = in_order((pool or LocalPool()).run(work, searches))
    return [
        Requirement(
            system=plan.variant,
            pflop=pflop_per_iteration(plan.workload),
            ideal_s=ideal_s,
            now_s=now_s,
            limits=tuple(itertools.islice(limits, len(quantities))),
            memory="".join(memory_warnings(plan, base.scenario)),
        )
        for plan, (ideal_s, now_s) in zip(plans, baselines, strict=True)
    ]


def _grid(requirements: list[Requirement], quantities: tuple[SearchedQuantity, ...]) -> Grid:
    unit, factor = flops_unit(found.pflop / found.ideal_s for found in requirements)
    rows = [
        (
            requirement.system + TOO_BIG * bool(requirement.memory),
            seconds_text(requirement.ideal_s),
            pflops_text(requirement.pflop / requirement.ideal_s * factor),
            seconds_text(requirement.now_s),
            f"{requirement.fraction:.1%}",
            *(
                _limit_text(limit, quantity)
                for limit, quantity in zip(requirement.limits, quantities, strict=True)
            ),
        )
        for requirement in requirements
    ]
    head = (
        "System",
        "ideal s",
        f"ideal {unit}",
        "now s",
        "of ideal",
        *(q.head for q in quantities),
    )
    return Grid(head=head, rows=tuple(rows))


def _limit_text(limit: "Limit", quantity: SearchedQuantity) -> str:
    if limit.value is None:
        return "none"
    if limit.unbounded:
        return f"{'below' if quantity.up else 'above'} {quantity.write(limit.value)}"
    return quantity.write(_rounded(limit.value, quantity.up))


def _remarks(
    requirements: list[Requirement], quantities: tuple[SearchedQuantity, ...], wanted: float
) -> list[str]:
    """Explain limits that do not exist, are already met, or are not monotone."""
    lines = []
    for requirement in requirements:
        if requirement.fraction >= wanted:
            lines.append(
                f"{requirement.system}: the present network is good enough "
                f"({requirement.fraction:.1%})."
            )
        for limit, quantity in zip(requirement.limits, quantities, strict=True):
            what = f"{requirement.system}, {quantity.head}"
            if limit.value is None:
                best = "unlimited bandwidth" if quantity.up else "zero delay"
                lines.append(
                    f"{what}: none; even {best} on these links alone gives "
                    f"{limit.best_fraction:.1%}."
                )
            after = ""
            if limit.value is not None:
                stay = "stays" if limit.lasting else "does not stay"
                after = f"; on networks better than the limit it {stay} at {wanted:.4g} or above"
            for dip in limit.dips:
                lines.append(
                    f"{what}: not monotone, throughput falls from {dip.worse_fraction:.1%} at "
                    f"{quantity.write(dip.worse)} to {dip.better_fraction:.1%} at "
                    f"{quantity.write(dip.better)}{after}."
                )
    return lines


def _geometric(first: float, last: float) -> list[float]:
    """Geometric progression between two values, with `PER_DECADE` steps per decade."""
    num = round(abs(math.log10(last / first)) * PER_DECADE)
    return [first * (last / first) ** (i / num) for i in range(num + 1)]


def _rounded(value: float, up: bool) -> float:
    """Round up or down to `DIGITS` significant digits."""
    if value == 0 or math.isinf(value):
        return value
    power = math.floor(math.log10(value)) - DIGITS + 1
    mantissa = value / 10.0**power
    return float(f"{math.ceil(mantissa) if up else math.floor(mantissa)}e{power}")
