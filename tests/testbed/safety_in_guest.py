"""Machines after failures of every kind: run in a guest, as root, /run private.

`python -m tests.testbed.safety_in_guest SCENARIO...` prints a line of JSON for each: its name, and
what was not as it must be. Expects virtual time: leases are waited for at no cost, and when one
process waits for another, all that others had to do is done.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from netbench.network.remote.deployer import FOLDERS
from netbench.network.remote.fleet import ARM_LEASE_S
from tests.testbed.safety_controllers import Controller
from tests.testbed.safety_machines import NAMES, NUM_NODES, STATE, TIMER, Machines, is_sshd

SCRATCH = Path("/run/safety")

ALL, TWO = list(range(NUM_NODES)), [0, 1]
WEST, EAST = ALL[:4], ALL[4:]
PARTS = {"two": TWO, "west": WEST, "east": EAST}
"""Machines that are shaped together. What one does to more than one other shows on four; all eight
are looked at, and each was left differently by a person."""

SLACK_S = 3.0
"""The dead-man looks once a second, and then has to work."""

SCENARIO = """\
name: {name}
regions: [Campus, Garage]
nodes:
  - {{region: Campus, count: {half}, device: V100, nic: 25Mbit}}
  - {{region: Garage, count: {half}, device: V100, nic: 25Mbit}}
network:
  sharing: nic
  inside: {{one_way_delay: 1ms, bandwidth: 25Mbit}}
  links:
    - {{between: [Campus, Garage], one_way_delay: 40ms, bandwidth: 20Mbit}}
devices: {{V100: {{flops: 10TFLOPS, memory: 16GB, source: made up}}}}
workload: {{layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}}
"""
"""Slow NICs: packets are kept small, which is a setting of the interface."""

# Calls of tc, with what they are given.
LOAD = "*'qdisc add dev eth0 root handle 6e62:'*"
UNLOAD = "*'del dev eth0 root handle 6e62:'*"
READ = "*-batch*'qdisc show dev eth0'*"
HANDLE = "'-j qdisc show dev eth0 '*"

HALF = f"printf '%s\\n' \"$text\" | head -n 4 | {SCRATCH}/tc -batch -"
IS_ARMED = f"ls {STATE}/*.lock > /dev/null 2>&1"
IS_LOADED = f"{SCRATCH}/tc qdisc show dev eth0 | grep -q 6e62:"


class Lab:
    """The machines, how they were, and controllers."""

    def __init__(self) -> None:
        self.machines = Machines(SCRATCH)
        for name, part in PARTS.items():
            text = SCENARIO.format(name=name, half=len(part) // 2)
            (SCRATCH / f"{name}.yaml").write_text(text)
        self.inventories = {name: self.machines.inventory(part) for name, part in PARTS.items()}
        self.before = [self.machines.snapshot(node) for node in ALL]
        self._num_controllers = 0

    def netbench(self, *arguments: str, part: str = "two", host: str = "alpha") -> Controller:
        """`netbench net COMMAND` with these machines."""
        command, *options = arguments
        self._num_controllers += 1
        output = SCRATCH / f"output{self._num_controllers}"
        inventory = str(self.inventories[part])
        words = [command, f"{SCRATCH}/{part}.yaml", "--inventory", inventory, *options]
        return Controller(output, host, "net", *words)

    def apply(self, *options: str, part: str = "two", host: str = "alpha") -> Controller:
        return self.netbench("apply", "--replace", *options, part=part, host=host)

    def hold(self, part: str = "two", host: str = "alpha") -> Controller:
        """Shaped and held when this returns."""
        controller = self.apply("--hold", part=part, host=host)
        controller.await_output("stays until Ctrl-C, which clears")
        return controller

    def changed(self, nodes: Sequence[int] = ALL) -> Iterator[str]:
        """Yield differences from the initial state, once all activity has ended."""
        time.sleep(1.0)
        for node in nodes:
            for key, value in self.machines.snapshot(node).items():
                former = self.before[node][key]
                if value != former:
                    yield f"{NAMES[node]}: {key}: {value!r}, was {former!r}"

    def shaped(self) -> list[int]:
        return [node for node in ALL if self.machines.is_shaped(node)]

    def repair(self) -> None:
        """For the next scenario, whatever this one has done."""
        for node in ALL:
            if list(self.changed([node])):
                self.machines.lose(node)
                self.machines.boot(node)


def others(*nodes: int, part: Sequence[int] = ALL) -> list[int]:
    return [node for node in part if node not in nodes]


def said(controller: Controller, *words: str) -> Iterator[str]:
    """Yield the expected texts that were not printed."""
    output = " ".join(controller.output.split())
    for wanted in words:
        if wanted not in output:
            yield f"not said: {wanted!r}, but: {controller.output}"


def expect(found: object, wanted: object, what: str) -> Iterator[str]:
    if found != wanted:
        yield f"{what}: {found}, expected {wanted}"


def controller_killed_while_arming(lab: Lab) -> Iterator[str]:
    """One machine is not armed yet: it goes on, and nobody comes."""
    with lab.machines.gate(1, HANDLE, when=IS_ARMED) as gate:
        controller = lab.apply()
        gate.await_reached()
        controller.kill()
    yield from expect(lab.shaped(), [], "shaped before all were armed")
    timers = [node for node in TWO if TIMER in lab.machines.processes(node).values()]
    yield from expect([n for n in [0] if n not in timers], [], "not armed")
    time.sleep(ARM_LEASE_S + SLACK_S)
    yield from lab.changed()


def controller_killed_while_loading(lab: Lab) -> Iterator[str]:
    """One machine goes on alone; on another the agent ends too, in the middle of it."""
    with lab.machines.gate(6, LOAD) as gate, lab.machines.gate(5, LOAD, first=HALF) as half:
        controller = lab.apply(part="east")
        gate.await_reached()
        half.await_reached()
        controller.kill()
        time.sleep(1.0)  # what the end of its connections ends has ended
        yield from expect(lab.shaped(), others(6, part=EAST), "shaped, one of them by half")
        lab.machines.end_sessions(5)
    time.sleep(SLACK_S)
    yield from expect(lab.shaped(), EAST, "shaped after the one had gone on")
    time.sleep(ARM_LEASE_S)
    yield from lab.changed()


def controller_killed_while_reading_back(lab: Lab) -> Iterator[str]:
    """All is there, but the lease is still that of the beginning."""
    with lab.machines.gate(1, READ, when=IS_LOADED) as gate:
        controller = lab.apply("--lease", "1h")
        gate.await_reached()
        controller.kill()
    yield from expect(lab.shaped(), TWO, "shaped")
    time.sleep(ARM_LEASE_S + SLACK_S)
    yield from lab.changed()


def controller_killed_while_holding(lab: Lab) -> Iterator[str]:
    """The last heartbeat was up to 5 s ago."""
    controller = lab.hold(part="west")
    time.sleep(ARM_LEASE_S / 3)
    controller.kill()
    time.sleep(ARM_LEASE_S / 2)
    yield from expect(lab.shaped(), WEST, "shaped before the lease had ended")
    time.sleep(ARM_LEASE_S / 2 + SLACK_S)
    yield from lab.changed()


def controller_killed_while_clearing(lab: Lab) -> Iterator[str]:
    """One machine goes on alone; on another the agent ends too, and its timer does the rest."""
    yield from expect(lab.apply("--lease", "90s", part="east").end(), 0, "apply")
    with lab.machines.gate(6, UNLOAD) as gate, lab.machines.gate(5, UNLOAD) as half:
        controller = lab.netbench("clear", part="east")
        gate.await_reached()
        half.await_reached()
        controller.kill()
        time.sleep(1.0)  # what the end of its connections ends has ended
        yield from expect(lab.shaped(), [5, 6], "shaped")
        lab.machines.run(5, "tc", "qdisc", "del", "dev", "eth0", "root", "handle", "6e62:")
        lab.machines.end_sessions(5)
    time.sleep(SLACK_S)
    yield from lab.changed(others(5))
    time.sleep(90.0)
    yield from lab.changed()


def ssh_cut_while_loading(lab: Lab) -> Iterator[str]:
    """The sshd of a machine ends with its sessions: the others are cleared at once."""
    with lab.machines.gate(1, LOAD) as gate:
        controller = lab.apply("--lease", "1h")
        gate.await_reached()
        lab.machines.stop_sshd(1)
        yield from expect(controller.end(), 1, "status")
    yield from said(
        controller,
        "shaping failed on 1 of 2 hosts: host1 (root@10.77.0.2:22): no connection",
        "not cleared: host1; what was changed there ends with its lease, in 30s at most",
    )
    yield from lab.changed([0])
    time.sleep(ARM_LEASE_S + SLACK_S)
    lab.machines.start_sshd(1)
    yield from lab.changed()


def ssh_cut_while_holding(lab: Lab) -> Iterator[str]:
    """The others are held on, until it is certain that the one has cleared itself."""
    controller = lab.hold(part="west")
    lab.machines.stop_sshd(3)
    time.sleep(ARM_LEASE_S - 1.0)  # the one was renewed when holding began, and is about to go
    yield from expect(lab.shaped(), WEST, "held until it is certain that one has gone")
    yield from expect(controller.end(), 1, "status")
    yield from said(
        controller,
        "host3 (root@10.77.0.4:22): no connection: Connection refused; it clears itself in 2",
        "host3 was not cleared, and does it itself within 30 s",
        "3 of 4 hosts are as they were",
        "holding failed on 1 of 4 hosts: host3 (root@10.77.0.4:22): no connection",
    )
    lab.machines.start_sshd(3)
    yield from lab.changed()


def ssh_cut_while_extending(lab: Lab) -> Iterator[str]:
    """It got the long lease, and could not say so: nobody is told that it ends soon."""
    with lab.machines.gate(1, HANDLE, when=IS_LOADED) as gate:
        controller = lab.apply("--lease", "1h")
        gate.await_reached()
        lab.machines.stop_sshd(1)
        yield from expect(controller.end(), 1, "status")
    yield from said(controller, "`beat` failed on 1 of 2 hosts: host1 (root@10.77.0.2:22): no conn")
    yield from said(controller, "not cleared: host1; what was changed there ends with its lease")
    yield from said(controller, "in 1h at most")
    yield from lab.changed([0])
    time.sleep(ARM_LEASE_S + SLACK_S)
    yield from expect(lab.shaped(), [1], "shaped")
    clear = lab.netbench("clear")
    yield from expect(clear.end(), 1, "clear")
    yield from said(clear, "host1 not cleared host1 (root@10.77.0.2:22): no connection")
    lab.machines.start_sshd(1)
    yield from expect(lab.netbench("clear").end(), 0, "clear")
    yield from lab.changed()


def cable_cut_while_holding(lab: Lab) -> Iterator[str]:
    """Packets vanish, and nothing says so."""
    controller = lab.hold()
    with lab.machines.unplugged(1):
        yield from expect(controller.end(), 1, "status")
    yield from said(
        controller,
        "host1: no answer within 15 s; it clears itself in",
        "holding failed on 1 of 2 hosts: host1: no answer within 15 s",
        "1 of 2 hosts are as they were",
    )
    # Its sshd has not heard that the connection has gone, and finds out only after hours.
    lab.machines.stop_sshd(1)
    lab.machines.start_sshd(1)
    yield from lab.changed()


def temporary_folder_full(lab: Lab) -> Iterator[str]:
    """The agent goes elsewhere."""
    with lab.machines.full(1, "/tmp"):
        controller = lab.apply("--lease", "1h")
        yield from expect(controller.end(), 0, "status")
        yield from said(controller, "warning host1: /tmp has only 0B left")
        yield from expect(lab.shaped(), TWO, "shaped")
        yield from expect(lab.netbench("clear").end(), 0, "clear")
    yield from lab.changed()


def all_temporary_folders_full(lab: Lab) -> Iterator[str]:
    with lab.machines.full(1, *FOLDERS):
        controller = lab.apply()
        yield from expect(controller.end() != 0, True, "failed")
    yield from said(controller, "error host1: no room for the agent: /tmp: No space left on device")
    yield from said(controller, "nothing was changed")
    yield from lab.changed()


def state_folder_full(lab: Lab) -> Iterator[str]:
    """Before, and while the machine is held: what is not recorded is not changed."""
    with lab.machines.full(1, STATE):
        controller = lab.apply()
        yield from expect(controller.end(), 1, "status")
        yield from said(controller, "failed on 1 of 2 hosts: host1: cannot write /run/netbench/")
    yield from said(controller, "No space left on device")
    yield from lab.changed()
    controller = lab.hold()
    with lab.machines.full(1, STATE):
        yield from expect(controller.end(), 1, "status")
        yield from said(controller, "holding failed on 1 of 2 hosts: host1: cannot write")
        yield from said(controller, "2 of 2 hosts are as they were")
    yield from lab.changed()


def tc_fails_on_the_third(lab: Lab) -> Iterator[str]:
    words = 'echo "Error: out of order." >&2; echo "Command failed -:5" >&2; exit 1'
    with lab.machines.wrapped_tc(2, LOAD, f"{HALF}; {words}"):
        controller = lab.apply("--lease", "1h", part="west")
        yield from expect(controller.end(), 1, "status")
    yield from said(controller, "shaping failed on 1 of 4 hosts: host2: tc refused `")
    yield from said(controller, "`: Error: out of order.")
    yield from lab.changed()


def machine_restarted(lab: Lab) -> Iterator[str]:
    """Its processes, state and network are new; the others are cleared."""
    controller = lab.hold(part="east")
    lab.machines.lose(5)
    lab.machines.boot(5)
    yield from expect(controller.end(), 1, "status")
    yield from said(controller, "holding failed on 1 of 4 hosts: host5: eth0 is not armed")
    yield from lab.changed()


def machine_lost(lab: Lab) -> Iterator[str]:
    """It does not come back; the others are held as long as it might be shaped."""
    controller = lab.hold()
    lab.machines.lose(1)
    yield from expect(controller.end(), 1, "status")
    yield from said(controller, "holding failed on 1 of 2 hosts: host1: no answer within 15 s")
    yield from said(controller, "host1 was not cleared", "1 of 2 hosts are as they were")
    yield from lab.changed([0])
    lab.machines.boot(1)
    yield from lab.changed()


def second_controller(lab: Lab) -> Iterator[str]:
    """Refused, and told who has it, until that one has ended or its lease has."""
    first = lab.hold()
    for host in ("beta", "alpha"):
        second = lab.apply(host=host)
        yield from expect(second.end(), 1, "status of the second")
        yield from said(second, "error host0, host1: eth0 is shaped by root@alpha (pid ")
    refused = lab.netbench("clear", host="beta")
    yield from expect(refused.end(), 1, "clear")
    yield from said(refused, "shaped by root@alpha (pid")
    yield from expect(lab.shaped(), TWO, "shaped")
    first.signal(signal.SIGTERM)
    yield from expect(first.end(), 143, "status of the first")
    yield from lab.changed()
    yield from expect(lab.apply("--lease", "40s").end(), 0, "apply")
    yield from expect(lab.apply(host="beta").end(), 1, "before the lease has ended")
    time.sleep(40.0 + SLACK_S)
    yield from lab.changed()
    yield from expect(lab.apply(host="beta").end(), 0, "after it has")
    yield from expect(lab.netbench("clear", host="beta").end(), 0, "clear")
    yield from lab.changed()


def both_at_once(lab: Lab) -> Iterator[str]:
    """One gets all machines, or none does."""
    both = [lab.apply(host=host) for host in ("alpha", "beta")]
    ends = [controller.end() for controller in both]
    if ends == [0, 0]:
        yield "both have them"
    for controller, host, end in zip(both, ("beta", "alpha"), ends, strict=True):
        if end != 0:
            yield from said(controller, f"eth0 is shaped by root@{host} (pid ")
    yield from expect(lab.shaped(), TWO if 0 in ends else [], "shaped")
    yield from expect(lab.netbench("clear", "--force").end(), 0, "clear")
    yield from lab.changed()


def frozen_before(lab: Lab) -> Iterator[str]:
    """Its kernel takes connections, its sshd says nothing."""
    lab.machines.signal(1, signal.SIGSTOP, is_sshd)
    controller = lab.apply()
    status = controller.end()
    lab.machines.signal(1, signal.SIGCONT, lambda name: True)
    yield from expect((status != 0, controller.age_s < 60.0), (True, True), "failed, in time")
    yield from said(controller, "host1: (root@10.77.0.2:22): its sshd gave no answer within 30 s")
    yield from lab.changed()


def frozen_while_holding(lab: Lab) -> Iterator[str]:
    """All of it, its timer too, for longer than the lease: it clears itself when it wakes up."""
    controller = lab.hold()
    began_s = controller.age_s
    lab.machines.signal(1, signal.SIGSTOP, lambda name: True)
    yield from expect(controller.end(), 1, "status")
    yield from expect(controller.age_s - began_s < 120.0, True, f"in time: {controller.age_s}")
    yield from said(controller, "holding failed on 1 of 2 hosts: host1: no answer within 15 s")
    yield from lab.changed([0])
    yield from expect(lab.shaped(), [1], "shaped")
    lab.machines.signal(1, signal.SIGCONT, lambda name: True)
    time.sleep(SLACK_S)
    yield from lab.changed()


def timer_killed(lab: Lab) -> Iterator[str]:
    """Another takes its place, although nobody has buried it."""
    controller = lab.hold()
    lab.machines.signal(1, signal.SIGKILL, lambda name: name == TIMER)
    time.sleep(ARM_LEASE_S)
    yield from expect(list(lab.machines.processes(1).values()).count(TIMER), 1, "timers")
    controller.kill()
    time.sleep(ARM_LEASE_S + SLACK_S)
    yield from lab.changed()


SCENARIOS: dict[str, Callable[[Lab], Iterator[str]]] = {
    scenario.__name__: scenario
    for scenario in (
        controller_killed_while_arming,
        controller_killed_while_loading,
        controller_killed_while_reading_back,
        controller_killed_while_holding,
        controller_killed_while_clearing,
        ssh_cut_while_loading,
        ssh_cut_while_extending,
        ssh_cut_while_holding,
        cable_cut_while_holding,
        temporary_folder_full,
        all_temporary_folders_full,
        state_folder_full,
        tc_fails_on_the_third,
        machine_restarted,
        machine_lost,
        second_controller,
        both_at_once,
        frozen_before,
        frozen_while_holding,
        timer_killed,
    )
}


L = TypeVar("L", bound=Lab)


def play(lab: L, scenarios: Mapping[str, Callable[[L], Iterator[str]]]) -> int:
    """Play the scenarios that the command line names."""
    for name in sys.argv[1:]:
        try:
            problems = list(scenarios[name](lab))
        except Exception:
            problems = [traceback.format_exc()]
        print(json.dumps({"scenario": name, "problems": problems}), flush=True)
        if problems:
            lab.repair()
    return 0


if __name__ == "__main__":
    sys.exit(play(Lab(), SCENARIOS))
