"""Nodes to measure between, wherever they are: hosts of an inventory, or a held network's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from netbench.commands.net.local import held_scenario
from netbench.commands.net.target import open_target
from netbench.errors import UsageError
from netbench.network.command import Run
from netbench.scenario import Scenario, load_scenario

LOCAL = "local"
"""The value of `--testbed` for a network that is held open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """Nodes to measure between: hosts of an inventory, or those of a held network.

    addresses: per node. pythons: per node, what runs the probe. shared_clock: on one kernel.
    """

    scenario: Scenario
    names: tuple[str, ...]
    addresses: tuple[tuple[str, ...], ...]
    pythons: tuple[str, ...]
    run: Run
    shared_clock: bool


def nodes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that is given scenario, inventory and testbed, for `open_nodes`."""
    for option in (
        click.option(
            "--testbed", type=click.Choice([LOCAL]), help="A network held open on this machine."
        ),
        click.option(
            "--inventory",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The hosts, in the order of the scenario's nodes (YAML).",
        ),
        click.argument("scenario", metavar="SCENARIO"),
    ):
        function = option(function)
    return function


@contextmanager
def open_nodes(scenario: str, inventory: Path | None, testbed: str | None) -> Iterator[Nodes]:
    """The nodes of a scenario, where the options say. Raises UsageError."""
    check_where(inventory, testbed)
    if inventory is not None:
        with open_target(scenario, inventory) as target:
            yield Nodes(
                scenario=target.scenario,
                names=target.names,
                addresses=target.addresses(),
                pythons=tuple(host.python for host in target.nodes),
                run=target.hosts.run,
                shared_clock=False,
            )
        return
    found = load_scenario(scenario)
    held = held_scenario(found)
    yield Nodes(
        scenario=found,
        names=held.node_names,
        addresses=tuple((address,) for address in held.addresses),
        pythons=(sys.executable,) * len(held.node_names),
        run=held.run,
        shared_clock=True,
    )


def check_where(inventory: Path | None, testbed: str | None) -> None:
    """Raises UsageError unless exactly one of the two options was given."""
    if (inventory is None) == (testbed is None):
        raise UsageError(
            "say where: --inventory FILE for your own hosts, or --testbed local for a network "
            "that `netbench net apply SCENARIO --testbed local` holds open; one of the two"
        )
