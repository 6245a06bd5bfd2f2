"""A trace played in a held network, from the inside: one process, one clock, all nodes.

`python -m netbench.testbed.replay_session`, started in one of its nodes; from there it enters the
others. The first line of stdin is the request: network, node names, changes (`request`). Then it
talks as the agent's `replay` does. When stdin ends, it is hung up on or a step fails, the nodes get
back what they had.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from netbench.errors import NetbenchError
from netbench.network import agent, netlink
from netbench.network.apply import apply
from netbench.network.trace import Change, Replay, compile_replays
from netbench.plan.serial import network_from_json, network_to_json
from netbench.scenario.model import Network
from netbench.testbed import namespaces
from netbench.testbed.hold_session import held_addresses
from netbench.testbed.shaping import programs, read, tune
from netbench.testbed.transport import NodeAddress


class _HungUp(Exception):
    """The line to the controller was dropped."""


def request(network: Network, names: Sequence[str], changes: Sequence[Change]) -> str:
    """The first line of stdin. network, names: of the held network."""
    about = {"network": network_to_json(network), "node_names": list(names)}
    return json.dumps({**about, "changes": [asdict(change) for change in changes]})


def replay(network: Network, nodes: Sequence[NodeAddress], changes: Sequence[Change]) -> None:
    """Play the changes as stdin says; whatever happens, the nodes are as before in the end.

    Raises AgentError for a step that was not loaded, NetworkError.
    """
    own = programs(nodes, network, 1.0)
    addresses = [(node.address,) for node in nodes]
    replays = compile_replays(network, changes, addresses, nodes[0].interface)
    names = {node.name: node for node in nodes}
    try:
        tune(namespaces.run, nodes, network, 1.0, changes)
        apply([r.program for r in replays], namespaces.run, read=read, former=own)
        agent.serve_steps(steps_of(replays, nodes, changes), lambda name: start_in(names[name]))
        sys.stdin.read()
    except Exception as error:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _say({"error": str(error)})
        raise
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        apply(own, namespaces.run, read=read)
        tune(namespaces.run, nodes, network, 1.0)


def steps_of(
    replays: Sequence[Replay], nodes: Sequence[NodeAddress], changes: Sequence[Change]
) -> list[tuple[float, dict[str, str]]]:
    """Every time of a change, and what which node loads then, by its name."""
    texts: dict[float, dict[str, str]] = {change.time_s: {} for change in changes}
    for node, found in zip(nodes, replays, strict=True):
        for step in found.steps:
            texts[step.time_s][node.name] = step.text
    return sorted(texts.items())


def start_in(node: NodeAddress) -> subprocess.Popen[bytes]:
    """A `tc -batch` in a node."""
    with netlink.inside(namespaces.namespace_path(node.index)):
        return agent.start_batch()


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _hang_up(*_: object) -> None:
    raise _HungUp("hung up")


def main() -> int:
    """0, or 1 after an error was said."""
    signal.signal(signal.SIGHUP, _hang_up)
    job = json.loads(sys.stdin.readline())
    network = network_from_json(job["network"])
    changes = tuple(Change(**change) for change in job["changes"])
    try:
        replay(network, held_addresses(network, job["node_names"]), changes)
    except (agent.AgentError, NetbenchError, _HungUp, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
