"""Plans and links of a scenario that `netbench sweep` and `netbench require` vary."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from netbench.commands.options import (
    SETTING_OPTIONS,
    aliased_option,
    placement_seed_option,
    split_names,
)
from netbench.plan.build import build_plan
from netbench.plan.checks import check_micro_batch
from netbench.plan.model import Plan
from netbench.plan.what_if import LINKS, changed_links, check_links, default_links
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting
from netbench.units import format_bandwidth, format_time

WHERE = {
    "between": "links between regions",
    "inside": "links inside regions",
    "all": "all links and NICs",
}
"""Values of `--links` in words."""

DIGITS = 3
"""Significant digits of delays and bandwidths."""

NOTHING: Mapping[str, bool] = {}

Command = Callable[..., Any]


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


def base_options(function: Command) -> Command:
    """Add the options of a command whose first argument is a `Base`."""
    options = (
        click.argument("scenario"),
        aliased_option(
            "--systems",
            "--system",
            metavar="NAME,...",
            help="Systems, comma-separated.  [default: the scenario's]",
        ),
        *SETTING_OPTIONS,
        placement_seed_option,
        click.option(
            "--links",
            type=click.Choice(LINKS),
            help="Links that change: between regions, inside regions, or all links and NICs.  "
            "[default: between; with one region: all]",
        ),
    )

    @functools.wraps(function)
    def command(*, scenario: str, systems: str | None, links: str | None, **others: Any) -> Any:
        found = load_scenario(scenario)
        sweep = found.sweep
        asked = {field.name: others.pop(field.name) for field in dataclasses.fields(Setting)}
        base = Base(
            scenario=found,
            systems=split_names(systems) or sweep.default_variants,
            setting=sweep.first_setting(**asked),
            links=links or default_links(found.network),
            micro_batch=asked["micro_batch"],
        )
        check_links(found.network, base.links)
        return function(base, **others)

    for option in reversed(options):
        command = option(command)
    return command


def _extent(values: Sequence[float], write: Callable[[float, int], str]) -> str:
    """Format one value or a range, e.g. `1ms` or `1ms..11ms`."""
    ends = dict.fromkeys((write(min(values), DIGITS), write(max(values), DIGITS)))
    return "..".join(ends)
