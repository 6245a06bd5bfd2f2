"""Machines for the safety tests: made of namespaces of a guest, run as root with /run private.

Each has a network, processes, temporary folders and a state folder of its own, and a real sshd; it
can be broken like a machine. Its first process does not reap, as that of many a container.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from netbench.network.remote.deployer import FOLDERS
from netbench.network.shaping import netlink
from netbench.testbed.interface import NodeAddress
from netbench.testbed.machine.packages import find_command
from netbench.testbed.namespaces import (
    BRIDGE,
    CONTROLLER_ADDRESS,
    INTERFACE,
    NETNS_DIRECTORY,
    SUBNET,
    namespace_path,
    node_addresses,
)
from netbench.testbed.ssh.local_sshd import SshServers, listens

NUM_NODES = 8
NAMES = tuple(f"host{node}" for node in range(NUM_NODES))
STATE = "/run/netbench"
TIMER = "netbench-timer"
SYSCTLS = Path("/proc/sys/net/ipv4")
TCP_LISTEN = "0A"
"""In /proc/net/tcp."""

PATIENCE_S = 60.0
TC, SSHD = find_command("tc"), find_command("sshd")

FORMER = (
    "true",
    "tc qdisc add dev eth0 root handle 8001: pfifo limit 77",
    "sysctl -qw net.ipv4.tcp_rmem='4096 99999 5000000'",
    "tc qdisc add dev eth0 root handle 8003: fq_codel limit 500 target 3ms ce_threshold 2ms noecn",
    "sysctl -qw net.ipv4.tcp_wmem='4096 16384 900000000'; ip link set eth0 gso_max_segs 40",
    "tc qdisc add dev eth0 root handle 8005: fq maxrate 900mbit limit 500",
    "ip link set eth0 gso_max_segs 3; "
    "tc qdisc add dev eth0 root handle 8006: tbf rate 99mbit burst 15000 latency 33ms",
    "sysctl -qw net.ipv4.tcp_tso_rtt_log=4",
)
"""Changes to each machine that a person made before netbench."""

BOOT = """\
set -e
for folder in {folders}; do mount -t tmpfs -o size=4m tmpfs $folder; done
mkdir -p {state}
mount -t tmpfs -o size=512k,mode=700 tmpfs {state}
{sshd} &
exec sleep infinity
"""

WRAPPER = """\
#!/bin/sh
text=
case "$*" in *-batch*) text=$(cat) ;; esac
real() {{ printf '%s\\n' "$text" | {tc} "$@"; }}
case "$* $text" in {pattern}) if {when}; then {action}; fi ;; esac
real "$@"
"""
"""A `tc` that does something else where what it is asked for matches a pattern."""


class Machines(SshServers):
    """Eight of them, or `count`, on a bridge; the controller is on it too.

    Each sshd takes few logins at a time.
    """

    def __init__(self, scratch: Path, count: int = NUM_NODES) -> None:
        self.scratch = scratch
        self._firsts: dict[int, int] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        scratch.mkdir()
        assert TC is not None
        shutil.copy(TC, scratch / "tc")
        self._bridge()
        addresses = node_addresses([f"host{node}" for node in range(count)])
        for node in addresses:
            _plug_in(node)
        super().__init__(addresses, scratch)

    def _bridge(self) -> None:
        address = f"{CONTROLLER_ADDRESS}/{SUBNET.prefixlen}"
        _ip(
            f"link add {BRIDGE} type bridge",
            f"link set {BRIDGE} up",
            f"addr add {address} dev {BRIDGE}",
        )

    def _start(self, sshd: str, node: NodeAddress) -> subprocess.Popen[bytes]:
        server = shlex.join(self._sshd(node))
        script = BOOT.format(folders=" ".join(FOLDERS), state=STATE, sshd=server)
        inside = ["nsenter", f"--net={namespace_path(node.index)}", "--", "unshare"]
        alone = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return subprocess.Popen(
            [*inside, *alone, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _sshd(self, node: NodeAddress) -> list[str]:
        listen = ["-o", f"ListenAddress={node.address}"]
        few = ["-o", "MaxStartups=3"]
        return [str(SSHD), "-D", "-e", "-f", str(self.scratch / "sshd_config"), *listen, *few]

    def inventory(self, nodes: Sequence[int], shared_by: int = 1, overlay: str = "routes") -> Path:
        """An inventory file of some. shared_by: number of nodes on each."""
        name = f"hosts{nodes[0]}-{nodes[-1]}"
        name += f"-{shared_by}-{overlay}" if shared_by > 1 else ""
        path = self.scratch / f"{name}.yaml"
        lines = [f"ssh: {{user: root, key: {self.scratch}/client_key, agent: false,"]
        # Not that of an environment in /tmp, where machines have nothing but their own.
        python = Path(self.hosts[0].python).resolve()
        lines.append(f"  python: {python}, known_hosts: {self.known_hosts}}}")
        lines += [f"overlay: {overlay}", "hosts:"]
        more = f", nodes: {shared_by}" if shared_by > 1 else ""
        for host in (self.hosts[node] for node in nodes):
            lines.append(f"  - {{name: {host.name}, address: {host.address}{more}}}")
        path.write_text("\n".join(lines) + "\n")
        return path

    def run(self, node: int, *argv: str, stdin: str = "") -> str:
        """Run a command in the machine's network and return its output."""
        with netlink.inside(namespace_path(node)):
            done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"host{node}: {argv}: {done.stderr}"
        return done.stdout

    def start(self, node: int, *argv: str) -> subprocess.Popen[bytes]:
        """Start a command on the machine."""
        process = subprocess.Popen([*self._inside(node), *argv])
        self._started.append(process)
        return process

    def execute(self, node: int, *argv: str) -> str:
        """Run a command on the machine and return its output."""
        return subprocess.run(
            [*self._inside(node), *argv], stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def _inside(self, node: int) -> list[str]:
        return ["nsenter", f"--target={self._first(node)}", "--mount", "--pid", "--net", "--"]

    def processes(self, node: int) -> dict[int, str]:
        """Return the live processes of a machine: number (the guest's own) -> name."""
        first = self._first(node)
        space = Path(f"/proc/{first}/ns/pid").readlink()
        found = {}
        for pid, (name, state, _) in _processes().items():
            with suppress(OSError):
                if state != "Z" and Path(f"/proc/{pid}/ns/pid").readlink() == space:
                    found[pid] = name
        del found[first]
        return found

    def send(self, pids: Sequence[int], number: signal.Signals) -> None:
        """Send a signal to processes, of which some may have ended."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal(self, node: int, number: signal.Signals, is_meant: Callable[[str], bool]) -> None:
        """To all processes of a machine with such names."""
        self.send([pid for pid, name in self.processes(node).items() if is_meant(name)], number)

    def root(self, node: int) -> Path:
        """The machine's files, as the machine sees them."""
        return Path(f"/proc/{self._first(node)}/root")

    def _first(self, node: int) -> int:
        """The machine's first process: the child of `unshare`."""
        parent = self._servers[node].pid
        if parent not in self._firsts:
            found = (pid for pid, (_, _, above) in _processes().items() if above == parent)
            self._firsts[parent] = next(found)
        return self._firsts[parent]

    def snapshot(self, node: int) -> dict[str, str]:
        """Return everything that netbench may change, to the byte, or leave behind."""
        root, first = self.root(node), self._first(node)
        left = [str(path) for folder in FOLDERS for path in root.glob(f"{folder[1:]}/netbench*")]
        left += [path.name for path in root.glob(f"{STATE[1:]}/*")]  # this guest may take its mount
        left += [str(path) for path in root.glob("dev/shm/netbench")]
        left += [path.name for path in NETNS_DIRECTORY.glob("netbench-*")]
        left += [name for name in self.processes(node).values() if not is_sshd(name)]
        lines = f"qdisc show dev {INTERFACE}\nfilter show dev {INTERFACE}\n"
        link = self.run(node, "ip", "-d", "link", "show", "dev", INTERFACE)
        sockets = [
            line.split()[1]
            for kind in ("tcp", "tcp6", "udp", "udp6", "raw")
            for line in Path(f"/proc/{first}/net/{kind}").read_text().splitlines()[1:]
            if not kind.startswith("tcp") or line.split()[3] == TCP_LISTEN
        ]
        return {
            "qdiscs": self.run(node, "tc", "-batch", "-", stdin=lines),
            "links": " ".join(re.findall(r"(?m)^\d+: ([^:@]+)", self.run(node, "ip", "link"))),
            "routes": self.run(node, "ip", "route"),
            "gso_max_segs": " ".join(re.findall(r"gso_max_segs (\d+)", link)),
            "listening": " ".join(sorted(sockets)),
            "left behind": " ".join(sorted(left)),
            **self._sysctls(node),
        }

    def _sysctls(self, node: int) -> dict[str, str]:
        with netlink.inside(namespace_path(node)):
            files = [*SYSCTLS.glob("tcp_*"), *SYSCTLS.glob("ip_*")]
            files += SYSCTLS.glob("conf/*/forwarding")
            return {str(file.relative_to(SYSCTLS)): file.read_text() for file in sorted(files)}

    def is_shaped(self, node: int) -> bool:
        return "6e62: root" in self.run(node, "tc", "qdisc", "show", "dev", INTERFACE)

    # Breaking them.

    @contextmanager
    def wrapped_tc(
        self, node: int, pattern: str, action: str, when: str = "true"
    ) -> Iterator[None]:
        """Do `action` before each call of `tc` whose arguments or input match a shell pattern."""
        script = self.scratch / f"tc{node}"
        tc = self.scratch / "tc"
        script.write_text(WRAPPER.format(tc=tc, pattern=pattern, action=action, when=when))
        script.chmod(0o755)
        inside = ["nsenter", f"--target={self._first(node)}", "--mount", "--pid", "--"]
        subprocess.run([*inside, "mount", "--bind", script, str(TC)], check=True)
        try:
            yield
        finally:
            # Lazily: a script that ends may still be open.
            subprocess.run([*inside, "umount", "-l", str(TC)], check=True)

    @contextmanager
    def gate(
        self, node: int, pattern: str, first: str = "true", when: str = "true"
    ) -> Iterator[Gate]:
        """`tc` waits in front of what matches, after it has done `first`, until the gate opens."""
        gate = Gate(self.scratch / f"gate{node}")
        with self.wrapped_tc(node, pattern, f"{first}; {gate.wait}", when):
            try:
                yield gate
            finally:
                gate.open()

    @contextmanager
    def full(self, node: int, *folders: str) -> Iterator[None]:
        """Nothing more fits into these."""
        files = [self.root(node) / folder[1:] / "fill" for folder in folders]
        for file in files:
            with suppress(OSError), file.open("wb", buffering=0) as stream:
                while stream.write(bytes(1 << 16)):
                    pass
        try:
            yield
        finally:
            for file in files:
                file.unlink()

    @contextmanager
    def unplugged(self, node: int) -> Iterator[None]:
        """Its cable is out: packets vanish."""
        _ip(f"link set v{node} down")
        try:
            yield
        finally:
            _ip(f"link set v{node} up")

    def rename(self, node: int, old: str, new: str) -> None:
        """Give an interface of the machine another name."""
        for change in (("down",), ("name", new)):
            self.run(node, "ip", "link", "set", old, *change)
        self.run(node, "ip", "link", "set", new, "up")

    def second_nic(self, node: int, name: str) -> None:
        """Plug in another interface of the machine, in the same subnet."""
        space = namespace_path(node).name
        _ip(
            f"link add w{node} type veth peer name {name} netns {space}",
            f"link set w{node} master {BRIDGE} up",
        )
        self.run(node, "ip", "link", "set", name, "up")
        self.run(node, "ip", "addr", "add", f"{SUBNET[2048 + node]}/16", "dev", name)

    def limit_frames(self, node: int, mtu_bytes: int, max_segments: int) -> None:
        """Let the bridge drop longer frames of the machine; it passes on those of several segments
        whatever their length."""
        _ip(f"link set v{node} mtu {mtu_bytes}")
        for at in (node - 1, node):
            self.run(at, "ip", "link", "set", INTERFACE, "gso_max_segs", str(max_segments))

    def end_sessions(self, node: int) -> None:
        """All that was started over SSH and is not the timer ends at once."""
        self.signal(node, signal.SIGKILL, lambda name: not is_sshd(name) and name != TIMER)

    def stop_sshd(self, node: int) -> None:
        """With the connections of its sessions. Its port is free when this returns."""
        self.signal(node, signal.SIGKILL, is_sshd)
        # A killed process keeps its sockets until the kernel has run it once more.
        await_that(lambda: not any(map(is_sshd, self.processes(node).values())), "sshd ended")

    def start_sshd(self, node: int) -> None:
        """After `stop_sshd`."""
        self.start(node, *self._sshd(self._nodes[node]))
        self._await_all()

    def start_sshd_at(self, node: int, address: str) -> None:
        """Let the machine take SSH at another of its addresses, beside its own."""
        other = dataclasses.replace(self._nodes[node], address=address)
        self.start(node, *self._sshd(other))
        await_that(lambda: listens(other), "sshd listens")

    def lose(self, node: int) -> None:
        """Its processes, its memory and its network end, as when the power fails."""
        _ip(f"link set v{node} down")  # first: nothing says good-bye
        os.kill(self._first(node), signal.SIGKILL)
        # `nsenter` stops when its command is stopped, and a namespace ends when no dead process of
        # it waits for its parent.
        for process in self._started:
            process.send_signal(signal.SIGCONT)
        self._servers[node].wait()
        _ip(f"link del v{node}", f"netns del {namespace_path(node).name}")

    def boot(self, node: int) -> None:
        """A lost machine comes back. It takes SSH when this returns."""
        address = self._nodes[node]
        _plug_in(address)
        self._servers[node] = self._start(str(SSHD), address)
        self._await_all()


class Gate:
    """A point where a command waits. `wait`: shell words that wait there."""

    def __init__(self, path: Path) -> None:
        self._fifo, self._reached = path, path.with_suffix(".reached")
        self._reached.unlink(missing_ok=True)
        self._fifo.unlink(missing_ok=True)
        os.mkfifo(self._fifo)
        self.wait = f"touch {self._reached}; read _ < {self._fifo} || true"

    def await_reached(self) -> None:
        await_that(self._reached.exists, "a gate is reached")

    def open(self) -> None:
        """Let who waits go on, and whoever comes later."""
        with suppress(FileNotFoundError):  # is open
            writer = os.open(self._fifo, os.O_RDWR)
            self._fifo.unlink()
            os.close(writer)


def is_sshd(name: str) -> bool:
    return name.startswith("sshd")


def await_that(is_so: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Until it is; TimeoutError when it is not for so long."""
    end = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {patience_s:g} s: {what}")
        time.sleep(0.05)


def _processes() -> dict[int, tuple[str, str, int]]:
    """All of the guest: number -> name, state, parent."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = file.read_text().rpartition(")")
            found[int(file.parent.name)] = name.partition("(")[2], rest[1], int(rest.split()[1])
    return found


def _plug_in(node: NodeAddress) -> None:
    """A network namespace with an interface on the bridge, as `FORMER` has it."""
    name, other = namespace_path(node.index).name, f"v{node.index}"
    mac = f"02:00:00:00:00:{node.index:02x}"
    _ip(
        f"netns add {name}",
        f"link add {other} type veth peer name {INTERFACE} address {mac} netns {name}",
        f"link set {other} master {BRIDGE} up",
    )
    script = f"""ip link set lo up; ip link set {INTERFACE} up
        ip addr add {node.address}/{SUBNET.prefixlen} dev {INTERFACE}
        {FORMER[node.index % len(FORMER)]}"""
    with netlink.inside(namespace_path(node.index)):
        subprocess.run(["sh", "-ec", script], check=True)


def _ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
