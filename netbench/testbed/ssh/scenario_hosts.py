"""Hosts of an inventory that play the nodes of a scenario: host i is node i."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from netbench.errors import UsageError
from netbench.network.nodes import all_or_error, at_once
from netbench.network.probing.measure import Endpoints
from netbench.network.remote.agent.messages import Owner
from netbench.network.remote.deployer import Machine
from netbench.network.remote.fleet import Fleet, this_owner
from netbench.network.remote.runs import known_runs
from netbench.network.shaping.program import Program, compile_program
from netbench.scenario import Scenario
from netbench.scenario.model import Network
from netbench.scenario.sharing import num_routers
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import Inventory, ssh_ports
from netbench.testbed.ssh.machines import Hosts

ADDRESS_DEADLINE_S = 120.0
"""Deadline for all hosts to report their own address, seconds: a login on a chain of jump hosts."""

UNKNOWN_INTERFACE = "INTERFACE"
"""Placeholder for an interface that only the host knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioHosts:
    """The hosts of a scenario's nodes, and the connections to them.

    exempt_ports: TCP ports of SSH, which must never be shaped (`Program.exempt_ports`).
    """

    scenario: Scenario
    inventory: Inventory
    nodes: tuple[Host, ...]
    hosts: Hosts
    exempt_ports: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hosts, by node."""
        return tuple(host.name for host in self.nodes)

    def addresses(self) -> tuple[tuple[str, ...], ...]:
        """See `data_addresses`."""
        return data_addresses(self.nodes, self.hosts)

    def endpoints(self) -> Endpoints:
        """Return the hosts as nodes to measure between. Asks those without a data address."""
        return Endpoints(
            addresses=self.addresses(),
            nodes=self.hosts.nodes,
            python=tuple(host.python for host in self.nodes),
            shared_clock=False,
        )

    def fleet(self, step: Callable[[str], None] = lambda name: None) -> Fleet:
        """Return the hosts as a fleet; `step` as `Fleet` has it. Close it after use."""
        return fleet_of(self.inventory, self.nodes, self.hosts, step)

    def offline_programs(self) -> dict[str, Program]:
        """Compile every host's tc configuration without contacting one, by name of the host.

        Raises UsageError where the inventory does not give a data address.
        """
        unknown = [host.name for host in self.nodes if not host.data_addresses]
        if unknown:
            raise UsageError(
                f"{self.inventory.path}: {', '.join(unknown)}: no `data_address:`, which "
                "--offline needs; add it, or leave --offline away and the hosts are asked"
            )
        addresses = [host.data_addresses for host in self.nodes]
        return {
            host.name: compile_program(
                self.scenario.network,
                node,
                addresses,
                host.interface or UNKNOWN_INTERFACE,
                exempt_ports=self.exempt_ports,
            )
            for node, host in enumerate(self.nodes)
        }


@contextmanager
def open_scenario_hosts(scenario: Scenario, inventory: Inventory) -> Iterator[ScenarioHosts]:
    """Take the first hosts of the inventory, one per node. Connects when a host is first needed.

    Raises UsageError where they do not fit.
    """
    nodes = hosts_of(scenario.name, scenario.network, inventory)
    with Hosts(nodes, inventory.known_hosts) as hosts:
        yield ScenarioHosts(
            scenario=scenario,
            inventory=inventory,
            nodes=nodes,
            hosts=hosts,
            exempt_ports=ssh_ports(nodes),
        )


def hosts_of(name: str, network: Network, inventory: Inventory) -> tuple[Host, ...]:
    """Return the first hosts of an inventory, for all nodes. Raises UsageError where they do not
    fit. name: of the scenario."""
    if num_routers(network):
        raise UsageError(
            f"{name}: regions joined by trunks need a router each, which machines of an "
            'inventory do not have; take sharing "class", or a local testbed'
        )
    return inventory.first(network.num_nodes)


def fleet_of(
    inventory: Inventory,
    nodes: Sequence[Host],
    hosts: Hosts,
    step: Callable[[str], None] = lambda name: None,
) -> Fleet:
    """Return hosts of an inventory as a fleet. nodes: in the order of `hosts`."""
    machines = [
        Machine(
            name=host.name,
            node=node,
            root=node.as_root,
            python=host.python,
            addresses=host.data_addresses,
            interface=host.interface,
            agent_path=host.agent_path,
        )
        for host, node in zip(nodes, hosts.nodes, strict=True)
    ]
    return Fleet(machines, owner=owner_of(inventory), step=step)


def owner_of(inventory: Inventory) -> Owner:
    """Return this user, and a new session: it may clear what runs with the inventory have left."""
    return this_owner(known_runs(inventory.path))


def data_addresses(nodes: Sequence[Host], hosts: Hosts) -> tuple[tuple[str, ...], ...]:
    """Return each node's addresses on the network to shape, for `compile_programs`.

    hosts: connections to the same nodes. Hosts whose inventory entry has no address are asked, all
    at once. Raises NetworkError that names every host that did not answer.
    """
    asked = {
        node: hosts[node].own_address for node, host in enumerate(nodes) if not host.data_addresses
    }
    own = all_or_error(at_once(asked, ADDRESS_DEADLINE_S), "asking for addresses")
    return tuple(host.data_addresses or (own[node],) for node, host in enumerate(nodes))
