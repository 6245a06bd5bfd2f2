"""The persistent network of a scenario: find it, read it back, measure in it, read counters."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from netbench.errors import NetworkError, RecordError, TestbedError, UsageError
from netbench.network.probing.measure import Endpoints
from netbench.network.probing.usage import Counters
from netbench.network.shaping import netlink
from netbench.network.shaping.apply import ReadBack, read_back
from netbench.network.shaping.program import Program
from netbench.scenario import Scenario
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.interface import NodeAddress
from netbench.testbed.machine.capabilities import Capabilities, probe_machine
from netbench.testbed.machine.choose import Choice, choose_persistent, network_doubt
from netbench.testbed.namespaces import namespace_path
from netbench.testbed.persistent.client import PersistentNetwork, find_persistent
from netbench.testbed.persistent.session import network_addresses
from netbench.testbed.shaping import programs

END_S = 10.0
"""Deadline for the process that reads the counters to end, seconds."""

ReadCounters = Callable[[], dict[int, Counters | Exception]]
"""Read the counters of all nodes: node -> counters, or why they could not be read."""


def choose_testbed(testbed: str) -> tuple[Choice, Capabilities]:
    """Choose where a network is opened; build the guest kernel if `local` needs it.

    testbed: one of `choose.PERSISTENT_REQUESTS`. Raises UsageError, TestbedError.
    """
    machine = probe_machine()
    if testbed == "local" and not (machine.is_root and machine.has_netem):
        ensure_kernel()
        machine = probe_machine()
    return choose_persistent(testbed, machine), machine


def warning(testbed: str, scenario: Scenario) -> str:
    """Say why a testbed may not deliver a scenario's network, or why nobody knows; else ""."""
    try:
        return network_doubt(testbed, scenario.network)
    except RecordError as error:
        return str(error)


def find_network(scenario: Scenario) -> PersistentNetwork:
    """Find the persistent network of a scenario. Raises UsageError if its nodes are others now."""
    network = find_persistent(scenario.name)
    if network.network.node_regions != scenario.network.node_regions:
        raise UsageError(
            f"{scenario.name} has {len(scenario.nodes)} nodes, but is open with others "
            f"({len(network.node_names)}): the file has changed; open it again"
        )
    return network


def nodes_of(scenario: Scenario) -> tuple[NodeAddress, ...]:
    """Return the nodes and routers that a scenario has on this machine."""
    return network_addresses(scenario.network, [node.name for node in scenario.nodes])


def programs_of(scenario: Scenario) -> dict[str, Program]:
    """Compile the tc configuration of each of `nodes_of`, by name. Raises NetworkError."""
    nodes = nodes_of(scenario)
    names = [node.name for node in nodes]
    return dict(zip(names, programs(nodes, scenario.network, 1.0), strict=True))


def read_back_scenario(scenario: Scenario) -> dict[str, ReadBack]:
    """Compare the nodes and routers of a persistent network with the scenario, by name."""
    network, planned = find_network(scenario), programs_of(scenario)
    found = read_back([*planned.values()], network.nodes)
    return dict(zip(planned, found, strict=True))


def persistent_endpoints(network: PersistentNetwork) -> Endpoints:
    """Return the nodes of a persistent network as nodes to measure between."""
    return Endpoints(
        addresses=tuple((address,) for address in network.addresses),
        nodes=network.nodes,
        python=sys.executable,
    )


@contextmanager
def open_counters(
    network: PersistentNetwork, nodes: Sequence[NodeAddress]
) -> Iterator[ReadCounters]:
    """Start a process in the network that reads all counters, until the context ends.

    nodes: with the routers. Raises TestbedError, as each reading does, if the network has gone.
    """
    files = [str(namespace_path(node.index)) for node in nodes]
    argv = (sys.executable, "-m", netlink.__name__, nodes[0].interface, *files)
    with network.nodes[0].open(argv, "the reading of counters") as channel:

        def read() -> dict[int, Counters | Exception]:
            channel.send("")
            line = channel.receive()
            if line is None:
                channel.finish(END_S)
                raise TestbedError("the reading of counters ended")
            answers = zip(nodes, json.loads(line), strict=True)
            return {
                node.index: NetworkError(answer["error"])
                if "error" in answer
                else Counters(**answer)
                for node, answer in answers
            }

        yield read
