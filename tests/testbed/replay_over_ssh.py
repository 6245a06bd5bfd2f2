"""Traces played on machines with a real sshd each: run in a guest in virtual time, as root, with
/run private.

`python -m tests.testbed.replay_over_ssh` exits with 1 and says what was wrong, or with 0. The
machines are namespaces: their clocks are one, so the offsets that are measured must be nothing.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from netbench.errors import NetworkError
from netbench.network.nodes import Channel
from netbench.network.remote import deployer
from netbench.network.remote.deployer import Machine
from netbench.network.remote.facts import settings
from netbench.network.remote.fleet import ARM_LEASE_S, Fleet
from netbench.network.traces import replay as replaying
from netbench.network.traces.trace import Replay, ReplayStep, compile_replays, write_trace
from netbench.scenario.model import Link
from netbench.testbed.interface import NodeAddress
from netbench.testbed.namespaces import NamespaceNode, build, node_addresses
from netbench.testbed.ssh.local_sshd import SshServers
from netbench.testbed.ssh.machines import Hosts
from tests.testbed.inside_replay import (
    CHANGES,
    DST,
    FAR,
    NAMES,
    NEAR,
    SRC,
    Stream,
    check_packets,
    check_played,
    network,
)

SCRATCH, TEMPORARY = Path("/run/scratch"), Path("/run/tmp")
SLACK_S = 3.0
"""The dead-man looks once a second, and then has to work."""

SCENARIO = f"""\
name: four
regions: [a, b]
nodes:
  - {{region: a, count: 2, device: V100}}
  - {{region: b, count: 2, device: V100}}
network:
  sharing: pair
  inside: {{one_way_delay: {NEAR.one_way_delay_s}s, bandwidth: {NEAR.bandwidth_bps / 1e6:g}Mbit}}
  links:
    - {{between: [a, b], one_way_delay: 5ms, bandwidth: {FAR.bandwidth_bps / 1e6:g}Mbit}}
devices: {{V100: {{flops: 10TFLOPS, memory: 16GB, source: made up}}}}
workload: {{layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}}
"""


class Watched:
    """Fleets whose replays tell when they started, and what they took for the nodes' clocks."""

    def __init__(self, servers: SshServers) -> None:
        self._servers = servers
        self.start_s = 0.0
        self.clocks: list[tuple[float, float]] = []
        self._play, self._clock = replaying.play, replaying._clock
        replaying.play = self._watched_play  # type: ignore[assignment]
        replaying._clock = self._watched_clock

    def _watched_play(self, channels, steps, started):  # type: ignore[no-untyped-def]
        def start(at_s: float) -> None:
            self.start_s = at_s
            started(at_s)

        return self._play(channels, steps, start)

    def _watched_clock(self, channel: Channel) -> tuple[float, float]:
        found = self._clock(channel)
        self.clocks.append(found)
        return found

    def fleet(self, hosts: Hosts) -> Fleet:
        machines = [
            Machine(
                name=h.name,
                python=h.python,
                addresses=h.data_addresses,
                node=node,
                root=node.as_root,
            )
            for h, node in zip(self._servers.hosts, hosts.nodes, strict=True)
        ]
        return Fleet(machines)


def replays_of(nodes: Sequence[NodeAddress]) -> dict[int, Replay]:
    addresses = [(node.address,) for node in nodes]
    return dict(enumerate(compile_replays(network("pair"), CHANGES, addresses, "eth0")))


def is_shaped(node: int) -> bool:
    return "6e62:" in NamespaceNode(node).run(("tc", "qdisc", "show", "dev", "eth0")).stdout


def left() -> Iterator[str]:
    """Yield remains of a replay that has ended; there should be none."""
    yield from (f"node {node} is shaped" for node in range(len(NAMES)) if is_shaped(node))
    time.sleep(1.0)  # of virtual time: what has something to do has done it
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    lines = listed.stdout.splitlines()
    yield from (f"left: {line}" for line in lines if "agent.zip" in line or line == "tc -batch -")


def check_in_time(nodes: Sequence[NodeAddress], watched: Watched, hosts: Hosts) -> Iterator[str]:
    """Packets see each change within a millisecond; clocks are found to be one."""
    replays, stream, said = replays_of(nodes), Stream(), list[str]()
    with watched.fleet(hosts) as fleet:
        programs = [replay.program for replay in replays.values()]
        options = settings(network("pair"), CHANGES)
        fleet.apply(programs, options, lease_s=ARM_LEASE_S, release=False)
        until_s = time.monotonic() + 8.0
        sending = threading.Thread(target=stream.flow, args=(nodes[SRC], nodes[DST], until_s))
        sending.start()
        played = fleet.replay(replays, said.append)
        sending.join()
        yield from said
        fleet.clear("session")
    for node, found in played.items():
        if found.late_s:
            yield from check_played(f"host {node}", {0: found})
    if [len(found.late_s) for found in played.values()] != [5, 5, 0, 0]:
        yield f"steps: {played}"
    for offset_s, error_s in watched.clocks:
        print(f"clock: {offset_s * 1e6:.0f} us off, +- {error_s * 1e6:.0f} us")
        if abs(offset_s) > error_s or error_s > 0.01:
            yield f"clock: {offset_s} +- {error_s}"
    if len(watched.clocks) != len(nodes):
        yield f"{len(watched.clocks)} clocks"
    last_s = watched.start_s + CHANGES[-1].time_s + 0.4
    in_time = [number for number, sent_s in enumerate(stream.sent_s) if sent_s < last_s]
    cut = Stream(
        sent_s=stream.sent_s[: len(in_time)],
        came_s={n: s for n, s in stream.came_s.items() if n < len(in_time)},
    )
    link = Link(one_way_delay_s=FAR.one_way_delay_s, bandwidth_bps=FAR.bandwidth_bps)
    yield from check_packets("ssh", cut, link, watched.start_s)
    yield from left()


def check_refused(nodes: Sequence[NodeAddress], watched: Watched, hosts: Hosts) -> Iterator[str]:
    """A step that tc refuses stops all at once; the message has host, time and line."""
    replays = replays_of(nodes)
    wrong = "qdisc change dev eth0 parent 6e62:77 netem delay 1ms limit 9\n"
    steps = (replays[1].steps[0], ReplayStep(time_s=1.0, text=wrong))
    late = (*replays[0].steps, ReplayStep(time_s=600.0, text=replays[0].steps[0].text))
    replays |= {1: replace(replays[1], steps=steps), 0: replace(replays[0], steps=late)}
    with watched.fleet(hosts) as fleet:
        programs = [replay.program for replay in replays.values()]
        fleet.apply(programs, {}, lease_s=ARM_LEASE_S, release=False)
        began_s = time.monotonic()
        try:
            fleet.replay(replays, print)
            yield "nothing was refused"
        except NetworkError as error:
            words = f"on 1 of 4 hosts:\n  {NAMES[1]}: at 1 s: tc refused `{wrong.strip()}`: "
            if words not in str(error):
                yield f"refused: {error}"
        if time.monotonic() - began_s > 60.0:
            yield "the other host was waited for"
        fleet.clear("session")
    yield from left()


class Controller:
    """`netbench net replay` in a process of its own."""

    def __init__(self, servers: SshServers) -> None:
        (SCRATCH / "four.yaml").write_text(SCENARIO)
        (SCRATCH / "trace.csv").write_text(write_trace(CHANGES, ("a", "b")))
        head = f"ssh: {{user: root, key: {SCRATCH}/ssh/client_key, agent: false, "
        head += f"python: {sys.executable}, known_hosts: {servers.known_hosts}}}\nhosts:\n"
        hosts = [f"  - {{name: {h.name}, address: {h.address}}}\n" for h in servers.hosts]
        (SCRATCH / "hosts.yaml").write_text(head + "".join(hosts))
        files = [
            f"{SCRATCH}/four.yaml",
            f"{SCRATCH}/trace.csv",
            f"--inventory={SCRATCH}/hosts.yaml",
        ]
        command = [sys.executable, "-u", "-m", "netbench", "net", "replay", *files]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def await_shaped(self) -> None:
        while not all(is_shaped(node) for node in range(len(NAMES))):
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.5)


def check_command(servers: SshServers) -> Iterator[str]:
    """From the command line: what it prints, and nothing stays."""
    controller = Controller(servers)
    printed, _ = controller.process.communicate(timeout=300.0)
    wanted = ("5 changes, the last one at 2.5s", "4 of 4 hosts are as they were", "n0 ")
    if controller.process.returncode or any(words not in printed for words in wanted):
        yield f"command: {controller.process.returncode}: {printed}"
    print(printed)
    yield from left()


def check_killed(servers: SshServers) -> Iterator[str]:
    """A controller that is killed: agents stop at once, machines clear themselves."""
    controller = Controller(servers)
    controller.await_shaped()
    time.sleep(1.5)
    controller.process.kill()
    controller.process.wait()
    time.sleep(1.0)
    if not all(is_shaped(node) for node in range(len(NAMES))):
        yield "cleared before the lease had ended"
    time.sleep(ARM_LEASE_S + SLACK_S)
    yield from left()


def main() -> None:
    """Build, serve, check."""
    TEMPORARY.mkdir()
    SCRATCH.mkdir()
    (SCRATCH / "ssh").mkdir()
    deployer.FOLDERS = (str(TEMPORARY),)
    nodes = node_addresses(NAMES)
    build(nodes, 1500)
    servers = SshServers(nodes, SCRATCH / "ssh")
    watched = Watched(servers)
    problems: list[str] = []
    with Hosts(servers.hosts, [servers.known_hosts]) as hosts:
        problems += [f"in time: {x}" for x in check_in_time(nodes, watched, hosts)]
        problems += [f"refused: {x}" for x in check_refused(nodes, watched, hosts)]
    problems += [f"command: {x}" for x in check_command(servers)]
    problems += [f"killed: {x}" for x in check_killed(servers)]
    servers.close()
    print("\n".join(problems) or "all as planned", flush=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
