"""Measure a device of a host: the process of `trainers.calibrate`, started by a node server."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from netbench.errors import TestbedError
from netbench.testbed.cluster.certificate import clean
from netbench.testbed.cluster.code import RUN_VARIABLE
from netbench.testbed.cluster.server import BEAT_INTERVAL_S, END_S, START_S, start_server
from netbench.testbed.runs.calibration import DeviceProcess
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import Inventory
from netbench.testbed.ssh.machines import Hosts

NO_INTERFACE = "lo"
"""Nothing is shaped."""


@contextmanager
def open_host_bench(
    inventory: Inventory, host: Host, device: str, threads: int
) -> Iterator[DeviceProcess]:
    """Start a process that measures `device` (cpu or cuda) on a host of the inventory.

    It ends with the context, and its files are deleted. Needs neither root nor tc. Raises
    TestbedError if the host cannot be reached or has no such device, or if anything stays there.
    """
    token, over = secrets.token_hex(8), threading.Event()
    with Hosts([host], inventory.known_hosts) as hosts:
        server = start_server(hosts[0], host.python, host.name, token, NO_INTERFACE)

        def beat() -> None:
            while not over.wait(BEAT_INTERVAL_S):
                server.beat()

        threading.Thread(target=beat, daemon=True).start()
        try:
            server.hello(START_S)
            environment = {RUN_VARIABLE: token}
            channel = server.start(0, script=True, option="--calibrate", environment=environment)
            yield DeviceProcess(channel, device, threads)
        finally:
            over.set()
            with suppress(TestbedError):  # it has ended
                server.ask("end", END_S)
            server.close()
            left = clean(hosts, [0], {}, [token])[0]
    if not left.is_good:
        raise TestbedError(f"{host.name}: this is left there: {left}; `netbench runs clean`")
