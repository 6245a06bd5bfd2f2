"""`netbench require SCENARIO --efficiency 0.8`: how poor the network may be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console

from netbench import units
from netbench.commands.base import WHERE, Base, base_options
from netbench.commands.live import track, wide_console
from netbench.commands.quantity import Quantity
from netbench.commands.simulation import warn_of_disturbances
from netbench.commands.vary import write_factor
from netbench.plan import Plan
from netbench.plan.what_if import Amount, ideal_network, with_bandwidth, with_delay
from netbench.report.grid import Grid, rich_table
from netbench.report.tables import pflops_text, seconds_text
from netbench.scenario.model import Network
from netbench.workload.costs import pflop_per_iteration

if TYPE_CHECKING:
    from netbench.simulator.search import Limit

PER_DECADE = 4
"""Networks tried between a value and ten times it, before the limit is narrowed."""

BANDWIDTHS_BPS = (1e6, 1e12)
DELAYS_S = (10.0, 1e-6)
FACTORS = (1e-3, 1e3)
"""The worst and the best network tried, beside the ideal one."""

DIGITS = 3

Change = Callable[[Network, Amount, str], Network]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quest:
    """A limit to look for. points: from worst to best, the last one ideal. away: rounds a limit
    in the direction that keeps the share. write: a value as text."""

    head: str
    change: Change
    points: tuple[float, ...]
    relative: bool
    away: Callable[[float], float]
    write: Callable[[float], str]

    def plan(self, plan: Plan, value: float, links: str) -> Plan:
        amount = Amount(value=value, relative=self.relative)
        return dataclasses.replace(plan, network=self.change(plan.network, amount, links))


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Of one system. ideal_s, now_s: seconds on the ideal and on the present network."""

    system: str
    pflop: float
    ideal_s: float
    now_s: float
    limits: tuple[Limit, ...]

    @property
    def share(self) -> float:
        return self.ideal_s / self.now_s


def parse_share(text: str) -> float:
    """`0.8` or `80%`."""
    try:
        share = units.parse_percent(text) if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f'"{text}" is not a share above 0 and up to 1; write e.g. 0.8 or 80%')
    return share


@click.command()
@base_options
@click.option(
    "--efficiency",
    required=True,
    type=Quantity("SHARE", parse_share),
    help="Share of the throughput on the ideal network to keep, e.g. 0.8.",
)
@click.option("--factor", is_flag=True, help="Scale what every link has, instead of one value.")
def command(base: Base, efficiency: float, factor: bool) -> None:
    """Find the lowest bandwidth and the highest one-way delay with which SCENARIO keeps a share of
    its throughput on the ideal network.

    Ideal: the same plan with zero delay and infinite bandwidth on every link and NIC; only
    what the hosts themselves carry stays. Each limit is searched with the other quantity as it is.
    """
    console = wide_console()
    quests = _quests(factor)
    answers = _answers(console, base, quests, efficiency)
    console.print(base.heading)
    console.print(
        f"{base.describe()}; to keep: {efficiency:.4g} of the throughput on the ideal network",
        soft_wrap=True,
    )
    console.print()
    console.print(rich_table(_grid(answers, quests)))
    console.print()
    console.print(
        "simulated. ideal: zero delay and infinite bandwidth on every link and NIC. share: ideal "
        f"over now. Delays are one way. Each limit is of {WHERE[base.links]}"
        f"{', relative to what each has' if factor else ', the same for all of them'}, the other "
        "quantity and all other links as they are now; within 0.1%, rounded to keep the share.",
        style="dim",
    )
    for line in _remarks(answers, quests, efficiency):
        console.print(line, soft_wrap=True)


def _quests(factor: bool) -> tuple[Quest, ...]:
    """A bandwidth and a delay to look for. factor: on what each link has."""
    if factor:
        down, up = FACTORS
        return (
            Quest(
                head="lowest bandwidth",
                change=with_bandwidth,
                points=(*_geometric(down, up), math.inf),
                relative=True,
                away=_up,
                write=write_factor,
            ),
            Quest(
                head="highest delay",
                change=with_delay,
                points=(*_geometric(up, down), 0.0),
                relative=True,
                away=_down,
                write=write_factor,
            ),
        )
    return (
        Quest(
            head="lowest bandwidth",
            change=with_bandwidth,
            points=(*_geometric(*BANDWIDTHS_BPS), math.inf),
            relative=False,
            away=_up,
            write=lambda value: units.format_bandwidth(value, DIGITS),
        ),
        Quest(
            head="highest delay",
            change=with_delay,
            points=(*_geometric(*DELAYS_S), 0.0),
            relative=False,
            away=_down,
            write=lambda value: units.format_time(value, DIGITS),
        ),
    )


def _answers(
    console: Console, base: Base, quests: tuple[Quest, ...], wanted: float
) -> list[Answer]:
    """All points of all systems at once, over the cores; then each limit is narrowed here."""
    from netbench.simulator.parallel import time_plan, time_plans  # numba: only when asked for
    from netbench.simulator.search import find_limit

    plans = [base.plan(system) for system in base.systems]
    grid = [
        variant
        for plan in plans
        for variant in (
            dataclasses.replace(plan, network=ideal_network(plan.network)),
            plan,
            *(quest.plan(plan, value, base.links) for quest in quests for value in quest.points),
        )
    ]
    warn_of_disturbances(console, [plan.network for plan in plans])
    times = track(console, time_plans(grid), len(grid), "simulated networks")
    times_s = iter([timing.iteration_s for timing in times])
    answers = []
    for plan in plans:
        ideal_s, now_s = next(times_s), next(times_s)
        limits = []
        for quest in quests:
            shares = [ideal_s / next(times_s) for _ in quest.points]

            def share_of(
                value: float, quest: Quest = quest, plan: Plan = plan, ideal_s: float = ideal_s
            ) -> float:
                return ideal_s / time_plan(quest.plan(plan, value, base.links)).iteration_s

            limits.append(find_limit(quest.points, shares, wanted, share_of))
        answers.append(
            Answer(
                system=plan.variant,
                pflop=pflop_per_iteration(plan.workload),
                ideal_s=ideal_s,
                now_s=now_s,
                limits=tuple(limits),
            )
        )
    return answers


def _grid(answers: list[Answer], quests: tuple[Quest, ...]) -> Grid:
    rows = [
        (
            answer.system,
            seconds_text(answer.ideal_s),
            pflops_text(answer.pflop / answer.ideal_s),
            seconds_text(answer.now_s),
            f"{answer.share:.1%}",
            *(
                _limit_text(limit, quest)
                for limit, quest in zip(answer.limits, quests, strict=True)
            ),
        )
        for answer in answers
    ]
    head = ("System", "ideal s", "ideal PFLOPS", "now s", "share now", *(q.head for q in quests))
    return Grid(head=head, rows=tuple(rows))


def _limit_text(limit: Limit, quest: Quest) -> str:
    if limit.value is None:
        return "none"
    if limit.unbounded:
        return f"{'below' if quest.away is _up else 'above'} {quest.write(limit.value)}"
    return quest.write(quest.away(limit.value))


def _remarks(answers: list[Answer], quests: tuple[Quest, ...], wanted: float) -> list[str]:
    """What the figures alone would leave unsaid."""
    lines = []
    for answer in answers:
        if answer.share >= wanted:
            lines.append(f"{answer.system}: the present network already does ({answer.share:.1%}).")
        for limit, quest in zip(answer.limits, quests, strict=True):
            what = f"{answer.system}, {quest.head}"
            if limit.value is None:
                best = "unlimited bandwidth" if quest.away is _up else "zero delay"
                lines.append(
                    f"{what}: none; even {best} on these links alone gives {limit.best_share:.1%}."
                )
            after = ""
            if limit.value is not None:
                stay = "stays" if limit.lasting else "does not stay"
                after = f"; on better networks than the limit it {stay} at {wanted:.4g} or above"
            for dip in limit.dips:
                lines.append(
                    f"{what}: not monotone, the share falls from {dip.worse_share:.1%} at "
                    f"{quest.write(dip.worse)} to {dip.better_share:.1%} at "
                    f"{quest.write(dip.better)}{after}."
                )
    return lines


def _geometric(first: float, last: float) -> list[float]:
    """From one to the other, `PER_DECADE` a decade."""
    num = round(abs(math.log10(last / first)) * PER_DECADE)
    return [first * (last / first) ** (i / num) for i in range(num + 1)]


def _up(value: float) -> float:
    """The next number of `DIGITS` digits."""
    return _rounded(value, math.ceil)


def _down(value: float) -> float:
    return _rounded(value, math.floor)


def _rounded(value: float, direction: Callable[[float], int]) -> float:
    if value == 0 or math.isinf(value):
        return value
    power = math.floor(math.log10(value)) - DIGITS + 1
    return float(f"{direction(value / 10.0**power)}e{power}")
