"""Commands in a guest kernel, for benchmarks and tests, and nodes for the commands in it."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from netbench.errors import TestbedError
from netbench.network.shaping.segments import windows
from netbench.scenario.model import Network
from netbench.testbed import namespaces, shaping
from netbench.testbed.guest.boot import EVENTS_DEVICE, HANG_S, boot_command, run_to_end, write_init
from netbench.testbed.interface import NodeAddress
from netbench.testbed.lifetime import Scratch
from netbench.testbed.machine.capabilities import Capabilities


def run_in_guest(
    machine: Capabilities,
    argv: Sequence[str],
    *,
    virtual_time: bool = True,
    memory_bytes: int = 2 << 30,
    timeout_s: float = HANG_S,
) -> tuple[int, str]:
    """Run a command as root in a guest. Return its exit status and output, both streams.

    timeout_s: wall seconds. Raises TestbedError if there is no kernel, or no end in time.
    """
    if machine.guest_kernel is None or machine.guest_tmpdir is None:
        raise TestbedError("the guest kernel is not built; run: netbench kernel build")
    with Scratch() as scratch:
        init = scratch / "init"
        # Its own folder of temporary files: both see /tmp, and neither sees the other's locks.
        own = "export TMPDIR=/dev/shm/scratch\nmkdir $TMPDIR\n"
        line = f"{shlex.join(argv)} > {EVENTS_DEVICE} 2>&1"
        write_init(init, f'{own}{line}\necho "exit status $?" > {EVENTS_DEVICE}')
        # Console and events go to one pipe: the console tells why a guest did not start.
        command = boot_command(
            machine.guest_kernel, init, memory_bytes, events=1, virtual_time=virtual_time
        )
        code, console = run_to_end(command, machine.guest_tmpdir, timeout_s)
    if code is None:
        raise TestbedError(f"the guest did not end within {timeout_s:g} s:\n{console}")
    output, mark, status = console.rpartition("exit status ")
    if not mark:
        raise TestbedError(f"the guest ended before its command did:\n{console[-2000:]}")
    return int(status.split()[0]), output


@contextmanager
def shaped_nodes(names: Sequence[str], network: Network) -> Iterator[tuple[NodeAddress, ...]]:
    """Provide nodes on a network in which TCP acts. Needs root and a private /run: in a guest."""
    nodes = namespaces.node_addresses(names)
    namespaces.build(nodes, network.mtu_bytes, windows=windows(network))
    try:
        reached = namespaces.namespace_nodes(nodes)
        shaping.tune(reached, nodes, network, 1.0)
        namespaces.remember_windows(nodes)
        shaping.shape(reached, nodes, network, 1.0)
        yield nodes
    finally:
        namespaces.remove(nodes)
