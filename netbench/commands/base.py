"""What of a scenario `netbench sweep` and `netbench require` ask about: one slice, some links."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from netbench.plan import Plan, build_plan
from netbench.plan.what_if import LINKS, changed_links, check_links, default_links
from netbench.scenario import Scenario, load_scenario
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
    """One slice of a scenario. micro_batch: None = the workload's. network: of the sweep, or ""."""

    scenario: Scenario
    systems: tuple[str, ...]
    layers: int
    batch: int
    micro_batch: int | None
    network: str
    seed: int
    links: str

    @property
    def heading(self) -> str:
        """Name and title, for a `rich` console."""
        title = f": {self.scenario.title}" if self.scenario.title else ""
        return f"[bold]{self.scenario.name}[/bold]{title}"

    def plan(
        self,
        system: str,
        *,
        layers: int | None = None,
        batch: int | None = None,
        micro_batch: int | None = None,
    ) -> Plan:
        """One iteration at full size, of this slice where nothing else is said."""
        return build_plan(
            self.scenario,
            system,
            self.layers if layers is None else layers,
            self.batch if batch is None else batch,
            self.seed,
            iterations=1,
            warmup_iterations=0,
            scale=1.0,
            network=self.network,
            micro_batch=self.micro_batch if micro_batch is None else micro_batch,
        )

    def describe(self, varied: Mapping[str, bool] = NOTHING) -> str:
        """What is the same at all points. varied: name of what is not -> whether by factors."""
        sizes = {"layers": f"L{self.layers}", "batch": f"B{self.batch}"}
        if self.micro_batch is not None:
            sizes["micro-batch"] = f"m{self.micro_batch}"
        words = [" ".join(text for name, text in sizes.items() if name not in varied)]
        words += [f"network {self.network}"] if self.network else []
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


def base_options(function: Command) -> Command:
    """Options of a command that is given a `Base` first."""
    options = (
        click.argument("scenario"),
        click.option(
            "--systems", "--system", help="Comma-separated.  [default: the scenario's slice]"
        ),
        click.option("--layers", type=int, help="Model depth.  [default: the slice's first]"),
        click.option("--batch", type=int, help="Sequences.  [default: the slice's first]"),
        click.option("--micro-batch", type=int, help="Sequences.  [default: the slice's first]"),
        click.option("--network", help="Of the scenario's sweep.  [default: the slice's first]"),
        click.option(
            "--seed", type=int, help="Of random placements.  [default: the slice's first]"
        ),
        click.option(
            "--links",
            type=click.Choice(LINKS),
            help="Which links change: between regions, inside regions, or all and the NICs.  "
            "[default: between; in one region: all]",
        ),
    )

    @functools.wraps(function)
    def command(
        *,
        scenario: str,
        systems: str | None,
        layers: int | None,
        batch: int | None,
        micro_batch: int | None,
        network: str | None,
        seed: int | None,
        links: str | None,
        **others: Any,
    ) -> Any:
        found = load_scenario(scenario)
        sweep = found.sweep
        base = Base(
            scenario=found,
            systems=tuple(dict.fromkeys(systems.split(","))) if systems else sweep.default_variants,
            layers=sweep.default_layers[0] if layers is None else layers,
            batch=sweep.default_batch[0] if batch is None else batch,
            micro_batch=(
                next(iter(sweep.default_micro_batch), None) if micro_batch is None else micro_batch
            ),
            network=next(iter(sweep.default_networks), "") if network is None else network,
            seed=sweep.default_seeds[0] if seed is None else seed,
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
