"""Runs on a cluster of machines, as they are typed: run in a guest, as root, /run private.

`python -m tests.testbed.cluster_in_guest SCENARIO...` prints a line of JSON for each: its name, and
what was not as it must be. Expects virtual time.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from netbench.commands.run.observer import STEPS
from netbench.errors import EXIT_NOT_TRUSTWORTHY
from netbench.network.remote.deployer import FOLDERS
from netbench.records import Run, read_run
from netbench.testbed.cluster.certificate import FOLDER
from netbench.testbed.cluster.code import RUN_VARIABLE
from netbench.testbed.interface import STORE_PORT
from netbench.testbed.namespaces import INTERFACE
from tests.testbed.safety_controllers import Controller
from tests.testbed.safety_in_guest import SCRATCH, Lab, expect, play, said

RESULTS = SCRATCH / "results"

HOST_SECONDS = 60.0
"""Within this, hosts are as they were, whatever happens to the controller."""

SCRIPT = SCRATCH / "script.py"
REPORTS = """\
import json, os, subprocess, sys, time
rank = int(os.environ["RANK"])
subprocess.run(["sh", "-c", "setsid sleep 86400 & exit"], check=True)
for index in range(int(os.environ["NETBENCH_ITERATIONS"])):
    {body}
    time.sleep(2.0)
    print(json.dumps({{"netbench": "iteration", "iteration_s": 2.0 + rank / 10}}), flush=True)
"""
"""A script that trains nothing, and needs no torch. It leaves a grandchild, which has a session of
its own and keeps the script's output open."""

LOUD = """\
for number in range(40):
        line = f"{rank}." * 20000
        print(line, file=sys.stderr if number % 2 else sys.stdout, flush=True)
    sys.stderr.write(10 * 1024 * (1023 * "e" + "\\n") if rank else "")
"""
"""The second rank also writes 10 MiB to standard error."""

SECOND = "10.77.9.1/16"
"""Second address of a machine."""

ONE = """\
name: one
regions: [Campus]
nodes: [{{region: Campus, count: 1, device: V100, nic: 25Mbit}}]
network: {{sharing: nic, inside: {{one_way_delay: 1ms, bandwidth: 25Mbit}}}}
devices:{}"""

ENVIRONMENT = """\
print("interface", os.environ["GLOO_SOCKET_IFNAME"], "of", os.environ["NETBENCH_NODE"])
"""


SHARED = {"routes": "shared-routes", "vxlan": "shared-vxlan"}
"""Overlay -> part of two machines with two nodes each."""


class Cluster(Lab):
    """Machines with a script to run, in the folder of this process."""

    def __init__(self) -> None:
        super().__init__()
        for overlay, part in SHARED.items():
            self.inventories[part] = self.machines.inventory([0, 1], 2, overlay)
            (SCRATCH / f"{part}.yaml").write_text((SCRATCH / "west.yaml").read_text())

    def run(
        self,
        *options: str,
        scenario: str = "two",
        host: str = "alpha",
        body: str = "pass",
        script: str = str(SCRIPT),
        inventory: Path | None = None,
    ) -> Controller:
        """Start `netbench run` with a script on two machines, or those of an inventory."""
        SCRIPT.write_text(REPORTS.format(body=body))
        where = ["--inventory", str(inventory or self.inventories["two"]), "--replace"]
        what = ["--command", f"{sys.executable} -S {script}", "--results", str(RESULTS / host)]
        words = ["run", f"{SCRATCH}/{scenario}.yaml", *where, *what, *options]
        return self._controller(host, *words)

    def on_part(self, part: str, *options: str, host: str = "alpha") -> Controller:
        """Start `netbench run` with a script on the machines of a part."""
        return self.run(*options, scenario=part, host=host, inventory=self.inventories[part])

    def trainers(self, inventory: Path) -> Controller:
        """Start `netbench run` with trainers."""
        words = ["run", f"{SCRATCH}/two.yaml", "--systems", "megatron", "--replace"]
        results = ["--results", str(RESULTS / "alpha")]
        return self._controller("alpha", *words, "--inventory", str(inventory), *results)

    def _controller(self, host: str, *words: str) -> Controller:
        self._num_controllers += 1
        return Controller(SCRATCH / f"output{self._num_controllers}", host, *words)

    def running(self, iterations: int = 100, part: str = "two") -> Controller:
        """Start a run of many iterations; two are finished when this returns."""
        controller = self.on_part(part, "--iterations", str(iterations))
        controller.await_output("iteration 1")
        return controller

    def ends(self, controller: Controller, status: int) -> Iterator[str]:
        """Yield what is wrong when the controller has ended, and the hosts had some time."""
        yield from expect(controller.end(), status, f"status of {controller.output}")
        yield from self.changed()

    def command(self, *words: str, host: str = "alpha", part: str = "two") -> Controller:
        """Start a command that takes an inventory."""
        return self._controller(host, *words, "--inventory", str(self.inventories[part]))

    def pids(self, node: int, name: str) -> list[int]:
        """Return the processes of a machine whose command line contains a word."""
        return [
            pid
            for pid in self.machines.processes(node)
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def signal(self, node: int, name: str, number: signal.Signals) -> None:
        """Send a signal to such processes of a machine."""
        self.machines.send(self.pids(node, name), number)

    def kill(self, node: int, name: str) -> None:
        self.signal(node, name, signal.SIGKILL)


def newest(host: str = "alpha") -> Run:
    """Return the newest run of a controller."""
    return read_run(max((RESULTS / host).iterdir(), key=lambda path: path.stat().st_mtime_ns))


def a_run_ends_well(lab: Cluster) -> Iterator[str]:
    """Its records are those of the scripts, and nothing is left."""
    controller = lab.run("--iterations", "2")
    yield from lab.ends(controller, 0)
    yield from said(controller, "hosts: nothing is left on 2 of 2 hosts")
    times = [record.iteration_s for record in newest().records]
    yield from expect(times, [2.1, 2.1, 2.1], "iteration times")
    yield from expect(newest().sessions[0].environment.mode, "cluster", "testbed")
    for record in newest().records:
        hosts = [(sample.host, sample.gpu_memory_bytes) for sample in record.hosts]
        yield from expect(hosts, [("host0", None), ("host1", None)], "samples of hosts")
        least = min(min(sample.seconds, sample.memory_bytes) for sample in record.hosts)
        yield from expect(least > 0, True, "time and memory were measured")
    yield from said(controller, "busy", "host0", "host1", "most memory in use on the host")


def output_is_whole(lab: Cluster) -> Iterator[str]:
    """40 lines of 40 kB from each rank, on both streams, and 10 MiB: none is torn, none blocks."""
    controller = lab.run("--iterations", "1", body=LOUD)
    yield from lab.ends(controller, 0)
    folder = newest().path.parent / "output"
    for rank in range(2):
        (path,) = folder.glob(f"*-rank-{rank}.log")
        lines = [line for line in path.read_text().splitlines() if line.startswith(f"{rank}.")]
        yield from expect({*lines}, {f"{rank}." * 20000}, "kinds of lines")
        yield from expect(len(lines), 80, "lines")
        errors = path.read_text().count("\n" + 1023 * "e")
        yield from expect(errors, 2 * 10240 * rank, "lines of the 10 MiB")


def interrupted(lab: Cluster) -> Iterator[str]:
    """Ctrl-C, and again while hosts are cleared: they are as they were when the command has ended.

    Finished iterations are kept.
    """
    yield from _interrupted(lab, 130, signal.SIGINT, signal.SIGINT)


def terminated(lab: Cluster) -> Iterator[str]:
    yield from _interrupted(lab, 143, signal.SIGTERM)


def _interrupted(lab: Cluster, status: int, *numbers: signal.Signals) -> Iterator[str]:
    controller = lab.running()
    for number in numbers:
        controller.signal(number)
        time.sleep(0.01)  # all is done that waits for nothing
    yield from expect(controller.end(), status, "status")
    yield from lab.changed()
    yield from said(controller, "hosts: nothing is left on 2 of 2 hosts")
    num_finished = len(newest().records)
    yield from expect(num_finished >= 2, True, "finished iterations are kept")


def controller_killed(lab: Cluster) -> Iterator[str]:
    """Nobody is left to clear: ranks end with the connection, the network with its lease."""
    controller = lab.running()
    controller.kill()
    time.sleep(5.0)
    left = [lab.pids(node, "script.py") for node in (0, 1)]
    yield from expect(left, [[], []], "ranks that outlived the controller")
    time.sleep(HOST_SECONDS - 5.0)
    yield from lab.changed()
    yield from expect(len(newest().records) >= 2, True, "finished iterations are kept")


def rank_killed(lab: Cluster) -> Iterator[str]:
    controller = lab.running()
    lab.kill(1, "script.py")
    yield from lab.ends(controller, 1)
    yield from said(controller, "rank 1 on host1: was killed by SIGKILL")


def rank_stopped(lab: Cluster) -> Iterator[str]:
    """The other rank has done its iterations long before."""
    controller = lab.running(iterations=10)
    lab.signal(1, "script.py", signal.SIGSTOP)
    yield from lab.ends(controller, 1)
    yield from said(controller, "stopped, by a signal or a debugger: rank 1 on host1")


def node_server_killed(lab: Cluster) -> Iterator[str]:
    """Ranks die with it, and the host is named."""
    controller = lab.running()
    lab.kill(1, RUN_VARIABLE)
    yield from lab.ends(controller, 1)
    yield from said(controller, "host1: its node server has ended")


def sshd_killed(lab: Cluster) -> Iterator[str]:
    controller = lab.running()
    lab.machines.stop_sshd(1)
    yield from expect(controller.end(), 1, "status")
    yield from said(controller, "host1: its node server has ended", "host1: unknown:")
    time.sleep(HOST_SECONDS)
    lab.machines.start_sshd(1)
    yield from lab.changed()


def power_lost(lab: Cluster) -> Iterator[str]:
    """It does not close its connections."""
    yield from lost(lab, lab.running(), "rank 1 on host1: host1: silent for 1")


def power_lost_at_the_probe(lab: Cluster) -> Iterator[str]:
    """The other host's probe waits for minutes; the run does not."""
    controller = lab.run("--iterations", "1")
    controller.await_output("verifying the network")
    yield from lost(lab, controller, "host1: silent for 1")


def lost(lab: Cluster, controller: Controller, *words: str) -> Iterator[str]:
    """Cut the power of a host: it is named within 20 s."""
    lab.machines.lose(1)
    began_s = time.monotonic()
    yield from expect(controller.end(), 1, "status")
    took_s = time.monotonic() - began_s
    yield from expect(took_s < 20.0, True, f"within 20 s; it took {took_s:.1f} s")
    yield from said(controller, *words, "it has lost power", "host1: unknown:")
    lab.machines.boot(1)
    yield from lab.changed()


def host_frozen(lab: Cluster) -> Iterator[str]:
    """A virtual machine is paused; it ends its ranks when it comes back."""
    controller = lab.running()
    lab.machines.signal(1, signal.SIGSTOP, lambda name: True)
    yield from expect(controller.end(), 1, "status")
    yield from said(controller, "host1: silent for 1", "host1: unknown:")
    lab.machines.signal(1, signal.SIGCONT, lambda name: True)
    time.sleep(HOST_SECONDS)
    yield from lab.changed()


def cable_out(lab: Cluster) -> Iterator[str]:
    controller = lab.running()
    with lab.machines.unplugged(1):
        yield from expect(controller.end(), 1, "status")
        time.sleep(HOST_SECONDS)
    yield from said(controller, "host1: silent for 1")
    yield from lab.changed()


def two_runs(lab: Cluster) -> Iterator[str]:
    """The second is told who has the hosts; the third is interrupted while it looks at them, and
    its owner cleans up after it. The first does not notice."""
    first = lab.running(iterations=10)
    second = lab.run("--iterations", "2", host="beta")
    yield from expect(second.end(), 1, "status of the second")
    yield from said(second, "eth0 is shaped by root@alpha")
    third = lab.run("--iterations", "2", host="beta")
    third.await_output(STEPS["hosts"])
    third.signal(signal.SIGINT)
    yield from expect(third.end() in (1, 130), True, "the third has ended")
    cleaner = lab.command("runs", "clean", host="beta")
    yield from expect(cleaner.end(), 0, "status of the cleaner")
    yield from lab.ends(first, 0)
    times = [record.iteration_s for record in newest().records]
    yield from expect(times, [2.1] * 11, "iterations of the first")


def rank_never_starts(lab: Cluster) -> Iterator[str]:
    """The script is on one host only."""
    there = lab.machines.root(0) / "tmp" / "only-here.py"
    there.write_text(REPORTS.format(body="pass"))
    controller = lab.run("--iterations", "2", script="/tmp/only-here.py")
    yield from expect(controller.end(), 1, "status")
    there.unlink()
    yield from said(controller, "rank 1 on host1: ended with status 2", "/tmp/only-here.py")
    yield from lab.changed()


def unlike_interfaces(lab: Cluster) -> Iterator[str]:
    """Each host has a docker0 with the same address; one has two NICs in one subnet, and its
    interface has another name."""
    for node in (0, 1):
        lab.machines.run(node, "ip", "link", "add", "docker0", "type", "bridge")
        lab.machines.run(node, "ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        lab.machines.run(node, "ip", "link", "set", "docker0", "up")
    lab.machines.rename(1, INTERFACE, "ens5")
    lab.machines.second_nic(1, "eth1")
    controller = lab.run("--iterations", "1", body=ENVIRONMENT)
    yield from expect(controller.end(), 0, f"status of {controller.output}")
    for rank, name in enumerate((INTERFACE, "ens5")):
        (path,) = (newest().path.parent / "output").glob(f"*-rank-{rank}.log")
        yield from expect(f"interface {name} of" in path.read_text(), True, f"interface of {rank}")
    lab.machines.run(1, "ip", "link", "del", "eth1")
    lab.machines.rename(1, "ens5", INTERFACE)
    for node in (0, 1):
        lab.machines.run(node, "ip", "link", "del", "docker0")
    yield from lab.changed()


def a_machine_twice(lab: Cluster) -> Iterator[str]:
    """Under another name and address."""
    lab.machines.run(0, "ip", "addr", "add", SECOND, "dev", INTERFACE)
    lab.machines.start_sshd_at(0, SECOND[:-3])
    text = lab.inventories["two"].read_text()
    first, second = (host.address for host in lab.machines.hosts[:2])
    twice = SCRATCH / "twice.yaml"
    twice.write_text(text.replace(f"{second}}}", f"{SECOND[:-3]}}}"))
    known = lab.machines.known_hosts
    known.write_text(known.read_text().replace(f"{first} ", f"{first},{SECOND[:-3]} "))
    controller = lab.run(inventory=twice)
    yield from expect(controller.end(), 1, "status")
    yield from said(controller, "host1: is the same machine as node 0")
    lab.kill(0, f"ListenAddress={SECOND[:-3]}")
    lab.machines.run(0, "ip", "addr", "del", SECOND, "dev", INTERFACE)
    yield from lab.changed()


def unlike_versions(lab: Cluster) -> Iterator[str]:
    """Trainers need one version of torch; scripts of a user need none."""
    text = lab.inventories["two"].read_text()
    for node, version in ((0, "2.5.1"), (1, "2.6.0")):
        folder = SCRATCH / f"python{node}"
        about = folder / f"torch-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        python = folder / "python"
        real = Path(lab.machines.hosts[0].python).resolve()
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {real} "$@"\n')
        python.chmod(0o755)
        host = lab.machines.hosts[node]
        text = text.replace(f"{host.address}}}", f"{host.address}, python: {python}}}")
    inventory = SCRATCH / "versions.yaml"
    inventory.write_text(text)
    controller = lab.trainers(inventory)
    yield from expect(controller.end(), 1, "status")
    yield from said(
        controller,
        "the hosts need torch, in one version, and one version of Python",
        "torch 2.5.1",
        "torch 2.6.0",
    )
    yield from lab.changed()


def no_netem(lab: Cluster) -> Iterator[str]:
    refuse = "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2"
    with lab.machines.wrapped_tc(1, "*netem*", refuse):
        controller = lab.run()
        yield from expect(controller.end(), 1, "status")
    yield from said(controller, "host1: kernel", "has no netem", "try `modprobe sch_netem`")
    yield from lab.changed()


def disk_full(lab: Cluster) -> Iterator[str]:
    """Nothing fits into any folder for temporary files, and nothing is started."""
    with lab.machines.full(1, *FOLDERS):
        controller = lab.run()
        yield from expect(controller.end(), 1, "status")
    yield from said(controller, "the hosts cannot run this; nothing was changed", "host1:")
    yield from lab.changed()


def one_host(lab: Cluster) -> Iterator[str]:
    """A world of one has no network: it runs, and says that no link was measured."""
    text = (SCRATCH / "two.yaml").read_text()
    (SCRATCH / "one.yaml").write_text(ONE.format(text.partition("devices:")[2]))
    controller = lab.run("--iterations", "1", scenario="one")
    yield from lab.ends(controller, EXIT_NOT_TRUSTWORTHY)
    yield from said(controller, "nothing is left on 1 of 1 host", "no link was measured")


def hosts_are_examined(lab: Cluster) -> Iterator[str]:
    """The Python of these machines has no torch, so that only scripts run there."""
    controller = lab.command("doctor")
    yield from lab.ends(controller, 1)
    yield from said(
        controller,
        "error host0, host1:",
        "cannot import torch (ModuleNotFoundError",
        "warning host1: eth0 has a root qdisc that is not netbench's",
        f"2 hosts, ordered pairs: all 2 passed, at port {STORE_PORT}",
    )


def port_in_use(lab: Cluster) -> Iterator[str]:
    """It is found before anything is changed."""
    listen = f"import socket, time; s = socket.create_server(('', {STORE_PORT})); time.sleep(3600)"
    lab.machines.start(1, sys.executable, "-S", "-c", listen)
    time.sleep(5.0)
    for start in (partial(lab.command, "doctor"), lab.run):
        controller = start()
        yield from expect(controller.end(), 1, "status")
        yield from said(controller, f"host1: port {STORE_PORT} is in use; `ss -tlnp")
    lab.kill(1, "create_server")
    yield from lab.changed()


def full_frames_lost(lab: Cluster) -> Iterator[str]:
    """A bridge on the way has a smaller MTU, and says nothing."""
    lab.machines.limit_frames(1, mtu_bytes=1400, max_segments=1)
    for start in (partial(lab.command, "doctor"), lab.run):
        controller = start()
        yield from expect(controller.end(), 1, "status")
        yield from said(controller, "reaches host1, but full frames are lost (no answer within 5 s")
    lab.machines.limit_frames(1, mtu_bytes=1500, max_segments=65535)
    yield from lab.changed()


def what_is_left_is_ended(lab: Cluster) -> Iterator[str]:
    """A folder and a process of a run that ended badly; a process of nobody's run stays."""
    folder = f"{FOLDER}0123456789abcdef"
    (lab.machines.root(1) / folder[1:]).mkdir()
    lab.machines.start(1, "env", f"{RUN_VARIABLE}=0123456789abcdef", "sleep", "3600")
    lab.machines.start(1, "sleep", "7200")
    time.sleep(1.0)
    controller = lab.command("runs", "clean")
    yield from expect(controller.end(), 0, "status")
    yield from said(controller, "host0 nothing", "host1 nothing")
    yield from expect(len(lab.pids(1, "7200")), 1, "processes of nobody's run")
    lab.kill(1, "7200")
    yield from lab.changed()


def hosts_of_several_nodes(lab: Cluster) -> Iterator[str]:
    """Two nodes each, joined by routes: examined, and used by one run at a time."""
    part = SHARED["routes"]
    examined = lab.command("doctor", part=part)
    yield from expect(examined.end(), 1, "status of doctor: there is no torch")
    yield from said(examined, "2 hosts with 4 nodes, ordered pairs: all 12 passed")
    yield from lab.changed()
    first = lab.on_part(part, "--iterations", "4")
    first.await_output("iteration 1")
    second = lab.on_part(part, "--iterations", "2", host="beta")
    yield from expect(second.end(), 1, "status of the second")
    yield from said(second, "eth0 is shaped by root@alpha")
    yield from lab.ends(first, 0)
    yield from said(first, "hosts: nothing is left on 2 of 2 hosts")
    times = [record.iteration_s for record in newest().records]
    yield from expect(times, [2.3] * 5, "iteration times")


def controller_of_several_nodes_killed(lab: Cluster) -> Iterator[str]:
    """Joined by VXLAN, with a rank that is stopped: nodes go when the leases of the hosts end."""
    controller = lab.running(part=SHARED["vxlan"])
    lab.signal(1, "script.py", signal.SIGSTOP)
    controller.kill()
    time.sleep(HOST_SECONDS)
    yield from lab.changed()


def rank_of_several_nodes_killed(lab: Cluster) -> Iterator[str]:
    """Both ranks of the host are killed, and either may be told first, or both."""
    controller = lab.running(part=SHARED["vxlan"])
    lab.kill(1, "script.py")
    yield from lab.ends(controller, 1)
    yield from said(controller, " on host1/")
    yield from said(controller, ": was killed by SIGKILL")
    yield from said(controller, "hosts: nothing is left on 2 of 2 hosts")


SCENARIOS: dict[str, Callable[[Cluster], Iterator[str]]] = {
    function.__name__: function
    for function in (
        a_run_ends_well, output_is_whole, interrupted, controller_killed, rank_killed,
        rank_stopped, node_server_killed, sshd_killed, power_lost, power_lost_at_the_probe,
        host_frozen, cable_out, two_runs, hosts_are_examined, port_in_use, full_frames_lost,
        what_is_left_is_ended, hosts_of_several_nodes, controller_of_several_nodes_killed,
        rank_of_several_nodes_killed, terminated, rank_never_starts, unlike_interfaces,
        a_machine_twice, unlike_versions, no_netem, disk_full, one_host,
    )
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(play(Cluster(), SCENARIOS))
