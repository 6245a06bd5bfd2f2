"""What of a scenario `netbench sweep` and `netbench require` ask about: one slice, some links."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from netbench.commands.live import heading
from netbench.plan import Plan, full_size_plan
from netbench.plan.what_if import LINKS, changed_links, check_links, default_links
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting
from netbench.units import format_bandwidth, format_time

WHERE = {
    "between": "links between regions",
    "inside": "links inside regions",
    "all": "all links and NICs",
}
"""A choice of links in words."""

DIGITS = 3

NOTHING: Mapping[str, bool] = {}

Command = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """Some systems in one setting of a scenario, and which links are in question."""

    scenario: Scenario
    systems: tuple[str, ...]
    setting: Setting
    links: str

    @property
    def heading(self) -> str:
        """Of the scenario."""
        return heading(self.scenario)

    def plan(self, system: str, **sizes: Any) -> Plan:
        """One iteration at full size. sizes: layers, batch, micro_batch; else the setting's."""
        setting = dataclasses.replace(self.setting, **sizes)
        return full_size_plan(self.scenario, system, setting)

    def describe(self, varied: Mapping[str, bool] = NOTHING) -> str:
        """What is the same at all points. varied: name of what is not -> whether by factors."""
        setting = self.setting
        sizes = {"layers": f"L{setting.layers}", "batch": f"B{setting.batch}"}
        if setting.micro_batch is not None:
            sizes["micro-batch"] = f"m{setting.micro_batch}"
        words = [" ".join(text for name, text in sizes.items() if name not in varied)]
        words += [f"network {setting.network}"] if setting.network else []
        return ", ".join([*filter(None, words), self._describe_links(varied)])

    def _describe_links(self, varied: Mapping[str, bool]) -> str:
        """The links in question, and what of them stays, or is 1x."""
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


SETTING_OPTIONS = (
    click.option("--layers", type=int, help="Model depth.  [default: the scenario's first]"),
    click.option(
        "--batch",
        type=int,
        help="Global batch size, in sequences.  [default: the scenario's first]",
    ),
    click.option(
        "--micro-batch",
        type=int,
        help="Micro-batch size, in sequences.  [default: the scenario's first]",
    ),
    click.option(
        "--network", help="One of the scenario's networks.  [default: the scenario's first]"
    ),
)
"""Of one setting of a scenario's slice."""


def base_options(function: Command) -> Command:
    """Options of a command that is given a `Base` first."""
    options = (
        click.argument("scenario"),
        click.option("--systems", "--system", help="Comma-separated.  [default: the scenario's]"),
        *SETTING_OPTIONS,
        click.option(
            "--seed", type=int, help="Of random placements.  [default: the scenario's first]"
        ),
        click.option(
            "--links",
            type=click.Choice(LINKS),
            help="Which links change: between regions, inside regions, or all and the NICs.  "
            "[default: between; in one region: all]",
        ),
    )

    @functools.wraps(function)
    def command(*, scenario: str, systems: str | None, links: str | None, **others: Any) -> Any:
        found = load_scenario(scenario)
        sweep = found.sweep
        asked = {field.name: others.pop(field.name) for field in dataclasses.fields(Setting)}
        base = Base(
            scenario=found,
            systems=tuple(dict.fromkeys(systems.split(","))) if systems else sweep.default_variants,
            setting=sweep.first_setting(**asked),
            links=links or default_links(found.network),
        )
        check_links(found.network, base.links)
        return function(base, **others)

    for option in reversed(options):
        command = option(command)
    return command


def _extent(values: Sequence[float], write: Callable[[float, int], str]) -> str:
    """`1ms`, or `1ms..11ms`."""
    ends = dict.fromkeys((write(min(values), DIGITS), write(max(values), DIGITS)))
    return "..".join(ends)
