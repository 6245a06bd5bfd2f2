"""Start Dask workers on the hosts of an inventory, and end them with the command."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from netbench.errors import NetbenchError, TestbedError
from netbench.network.nodes import at_once
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import load_inventory
from netbench.testbed.ssh.machines import Hosts
from netbench.testbed.ssh.nodes import HostChannel, HostNode

T = TypeVar("T")

START_S = 60.0
"""Deadline for a login, and for a worker to be started, seconds."""

LOOPBACK = "127.0.0.1"

GUARD = """\
import os, signal, subprocess, sys, threading
from importlib.util import find_spec
missing = [name for name in ("netbench", "distributed") if find_spec(name) is None]
if missing:
    sys.exit(f"{sys.executable} has no {' and no '.join(missing)}; install netbench[cluster] there")
words = [sys.executable, "-m", "dask", "worker", *sys.argv[1:]]
words += ["--nthreads", str(len(os.sched_getaffinity(0)))]
pipes = {"stdin": subprocess.DEVNULL, "stdout": sys.stderr}
worker = subprocess.Popen(words, **pipes, start_new_session=True)
def end():
    sys.stdin.read()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(worker.pid, number)
            worker.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            pass
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
print(worker.pid, flush=True)
sys.exit(worker.wait() != 0)
"""
"""Program for a host: start a worker with a thread per core, and end it when stdin ends, that is,
with the SSH connection, however the command ends."""


@contextmanager
def hosts_for_workers(inventory: Path) -> Iterator["WorkerHosts"]:
    """Log in to the hosts of an inventory. Raises TestbedError."""
    loaded = load_inventory(inventory)
    with Hosts(loaded.hosts, loaded.known_hosts) as hosts:
        yield WorkerHosts(loaded.hosts, hosts.nodes)


class WorkerHosts:
    """Hosts on which workers run."""

    def __init__(self, hosts: Sequence[Host], nodes: Sequence[HostNode]) -> None:
        self._hosts = tuple(hosts)
        self._nodes = tuple(nodes)

    @property
    def num_hosts(self) -> int:
        """Number of hosts, each with a worker."""
        return len(self._hosts)

    def scheduler_address(self) -> str:
        """Return the address of this machine at which the hosts reach it: that of our logins.

        Raises TestbedError for a host that cannot be reached, or does not say.
        """
        remote = {
            host.name: node
            for host, node in zip(self._hosts, self._nodes, strict=True)
            if not host.is_local
        }
        found = _each({name: _client_address(name, node) for name, node in remote.items()})
        addresses = sorted({*found.values()})
        if len(addresses) > 1:
            raise TestbedError(
                f"hosts see this machine at different addresses ({', '.join(addresses)}): start a "
                "scheduler that all can reach, and give --dask its address"
            )
        return addresses[0] if addresses else LOOPBACK

    @contextmanager
    def workers(self, scheduler: str) -> Iterator[None]:
        """Run a worker on each host. scheduler: its address. Raises TestbedError."""
        started: list[HostChannel] = []

        def start(host: Host, node: HostNode) -> None:
            words = [scheduler, "--name", host.name, "--no-nanny", "--memory-limit", "0"]
            words += ["--no-dashboard", "--death-timeout", f"{START_S:g}"]
            channel = node.open([host.python, "-c", GUARD, *words])
            started.append(channel)
            if channel.receive(START_S) is None:
                said = channel.last_words() or "it ended without a word"
                raise TestbedError(f"{host.name}: no Dask worker was started there: {said}")

        pairs = zip(self._hosts, self._nodes, strict=True)
        try:
            _each({host.name: partial(start, host, node) for host, node in pairs})
            yield
        finally:
            for channel in started:
                channel.close()


def _client_address(name: str, node: HostNode) -> Callable[[], str]:
    def ask() -> str:
        fields = node.run(["printenv", "SSH_CONNECTION"]).stdout.split()
        if not fields:
            raise TestbedError(f"{name}: does not say from which address we log in")
        return fields[0]

    return ask


def _each(tasks: dict[str, Callable[[], T]]) -> dict[str, T]:
    """Call a task per host, all at once. Raises TestbedError with the errors of all hosts."""
    results = at_once(tasks, 2 * START_S)
    wrong = {name: error for name, error in results.items() if isinstance(error, Exception)}
    if wrong:
        told = [
            str(error) if isinstance(error, NetbenchError) else f"{name}: {error!r}"
            for name, error in wrong.items()
        ]
        raise TestbedError("; ".join(told))
    return {name: result for name, result in results.items() if not isinstance(result, Exception)}
