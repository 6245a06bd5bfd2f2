"""What `netbench net` commands are about: a scenario's network, and the machines to give it to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from netbench.errors import UsageError
from netbench.network.command import all_or_error, at_once
from netbench.network.queues import num_routers
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.inventory import SSH_PORT, Host, Inventory, load_inventory
from netbench.testbed.ssh import Hosts

ADDRESS_DEADLINE_S = 120.0
"""For all hosts to say their own address, seconds: a login on each of a chain of jump hosts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A scenario's nodes, and the host that plays each: host i is node i.

    exempt_ports: TCP ports that must never be shaped (`Program.exempt_ports`): SSH's.
    """

    scenario: Scenario
    inventory: Inventory
    nodes: tuple[Host, ...]
    hosts: Hosts
    exempt_ports: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the hosts, by node."""
        return tuple(host.name for host in self.nodes)

    def addresses(self) -> tuple[tuple[str, ...], ...]:
        """See `data_addresses`."""
        return data_addresses(self.nodes, self.hosts)


def data_addresses(nodes: Sequence[Host], hosts: Hosts) -> tuple[tuple[str, ...], ...]:
    """Per node, its addresses on the network to shape, for `compile_programs`.

    hosts: reaches the same nodes. Asks those whose inventory entry has none, all at once. Raises
    NetworkError naming every host that did not answer.
    """
    asked = {
        node: partial(hosts.own_address, node)
        for node, host in enumerate(nodes)
        if not host.data_addresses
    }
    own = all_or_error(at_once(asked, ADDRESS_DEADLINE_S), "asking for addresses")
    return tuple(host.data_addresses or (own[node],) for node, host in enumerate(nodes))


@contextmanager
def open_target(scenario: str, inventory: Path) -> Iterator[Target]:
    """Read both files and take one host per node. Connects when a host is first needed.

    Raises UsageError where they do not fit.
    """
    found, machines = load_scenario(scenario), load_inventory(inventory)
    if num_routers(found.network):
        raise UsageError(
            f"{found.name}: regions joined by trunks need a router each, which machines of an "
            'inventory do not have; take sharing "class", or a local testbed'
        )
    nodes = machines.first(len(found.nodes))
    if len(nodes) < len(machines.hosts):
        click.echo(
            f"{found.name} has {len(nodes)} nodes: the first {len(nodes)} of "
            f"{len(machines.hosts)} hosts are used",
            err=True,
        )
    with Hosts(nodes, machines.known_hosts) as hosts:
        yield Target(
            scenario=found,
            inventory=machines,
            nodes=nodes,
            hosts=hosts,
            exempt_ports=_ssh_ports(nodes),
        )


def _ssh_ports(nodes: Sequence[Host]) -> tuple[int, ...]:
    """Ports at which the hosts, and those on the way to them, take SSH; always its own, 22."""
    ports = {SSH_PORT}
    for node in nodes:
        host: Host | None = node
        while host is not None:
            ports.add(host.port)
            host = host.jump
    return tuple(sorted(ports))
