"""Play a trace on a persistent network of this machine: one process, one clock, all nodes.

`replay_persistent` starts `python -m netbench.testbed.persistent.replay` in one node, and it enters
the others. The first line of its stdin is the request: network, node names, changes (`request`).
After it the protocol is that of the agent's `replay`. When stdin ends, the process gets SIGHUP or a
step fails, the nodes are restored.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from netbench.errors import NetbenchError, TestbedError
from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.replay import serve_steps, start_batch
from netbench.network.shaping import netlink
from netbench.network.shaping.apply import apply
from netbench.network.traces.replay import Played, Playing
from netbench.network.traces.trace import Change, Replay, ReplayStep, compile_replays
from netbench.plan.serial import network_from_json, network_to_json
from netbench.scenario.model import Network
from netbench.testbed import namespaces
from netbench.testbed.interface import NodeAddress
from netbench.testbed.persistent.channel import FrameChannel
from netbench.testbed.persistent.client import PersistentNetwork
from netbench.testbed.persistent.session import network_addresses
from netbench.testbed.shaping import programs, read, tune

POLL_S = 0.2
"""Interval of progress reports, seconds."""

BACK_S = 60.0
"""Deadline for restoring the nodes, seconds."""

RESTORE_S = 30.0
"""Time the session has to restore the nodes once this process was killed, seconds."""

SESSION = "netbench.testbed.persistent.replay"


def replay_persistent(
    network: PersistentNetwork,
    changes: Sequence[Change],
    progress: Callable[[str], None],
    end: Callable[[Played], None] = lambda played: None,
) -> Played:
    """Play a trace on all nodes and routers of a persistent network, then restore its links.

    end: called before the links are restored. `late_s` is of all nodes together, which share a
    clock. Raises NetworkError, TestbedError.
    """
    argv = (sys.executable, "-m", SESSION)
    times_s = sorted({change.time_s for change in changes})
    with network.nodes[0].open(argv, "the replay", patience_s=RESTORE_S) as channel:
        channel.send(request(network.network, network.node_names, changes))
        playing = Playing({0: channel}, {0: [ReplayStep(time_s=t, text="") for t in times_s]})
        try:
            played = _played(network, playing, progress)
            end(played)
        except BaseException:
            with suppress(TestbedError):  # the first error is the one to report
                _finish(channel, playing)
            raise
        _finish(channel, playing)
    return played


def _played(
    network: PersistentNetwork, playing: Playing, progress: Callable[[str], None]
) -> Played:
    while not playing.wait(POLL_S):
        progress(f"replaying on {len(network.node_names)} nodes: {playing.progress}")
    found = playing.result()[0]
    if isinstance(found, Exception):
        raise found
    return replace(found, clock_error_s=0.0)


def _finish(channel: FrameChannel, playing: Playing) -> None:
    channel.close()
    playing.wait(BACK_S)  # until then it reads the channel
    channel.finish(BACK_S)


class _HungUp(Exception):
    """The controller dropped the line."""


def request(network: Network, names: Sequence[str], changes: Sequence[Change]) -> str:
    """Return the first line of stdin. network, names: of the persistent network."""
    about = {"network": network_to_json(network), "node_names": list(names)}
    return json.dumps({**about, "changes": [asdict(change) for change in changes]})


def replay(network: Network, nodes: Sequence[NodeAddress], changes: Sequence[Change]) -> None:
    """Play the changes as stdin says, and always restore the nodes.

    Raises AgentError for a step that could not be loaded, NetworkError.
    """
    own = programs(nodes, network, 1.0)
    addresses = [(node.address,) for node in nodes]
    replays = compile_replays(network, changes, addresses, nodes[0].interface)
    names = {node.name: node for node in nodes}
    reached = namespaces.namespace_nodes(nodes)
    try:
        tune(reached, nodes, network, 1.0, changes)
        apply([r.program for r in replays], reached, read=read, former=own)
        serve_steps(steps_of(replays, nodes, changes), lambda name: start_in(names[name]))
        sys.stdin.read()
    except Exception as error:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        print(json.dumps({"error": str(error)}), flush=True)
        raise
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        apply(own, reached, read=read)
        tune(reached, nodes, network, 1.0)


def steps_of(
    replays: Sequence[Replay], nodes: Sequence[NodeAddress], changes: Sequence[Change]
) -> list[tuple[float, dict[str, str]]]:
    """Return the time of every step, with the text each node loads then, by its name."""
    texts: dict[float, dict[str, str]] = {change.time_s: {} for change in changes}
    for node, found in zip(nodes, replays, strict=True):
        for step in found.steps:
            texts[step.time_s][node.name] = step.text
    return sorted(texts.items())


def start_in(node: NodeAddress) -> subprocess.Popen[bytes]:
    """Start a `tc -batch` in a node."""
    with netlink.inside(namespaces.namespace_path(node.index)):
        return start_batch()


def _hang_up(*_: object) -> None:
    raise _HungUp("hung up")


def main() -> int:
    """Return 0, or 1 after an error was reported."""
    signal.signal(signal.SIGHUP, _hang_up)
    job = json.loads(sys.stdin.readline())
    network = network_from_json(job["network"])
    changes = tuple(Change(**change) for change in job["changes"])
    try:
        replay(network, network_addresses(network, job["node_names"]), changes)
    except (AgentError, NetbenchError, _HungUp, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
