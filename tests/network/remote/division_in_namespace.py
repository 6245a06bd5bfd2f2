"""Divide two hosts into nodes, and remove them: run by `test_division_in_namespace` as root.

`division_in_namespace AGENT OVERLAY` has a network of its own. A host is a namespace with its own
/run and /dev/shm, and a veth to the other host.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netbench.network.remote.facts import Facts
from netbench.testbed.cluster.players import divisions
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import Inventory

AGENT, OVERLAY = sys.argv[1], sys.argv[2]
PATIENCE_S = 30.0
NOBODY = 65534
HOLD = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && echo ready && exec cat"
ECHO = """\
import socket, sys
with socket.create_server((sys.argv[1], 7)) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as peer:
            while data := peer.recv(65536):
                peer.sendall(data)
"""
ASK = """\
import socket, sys
with socket.create_connection((sys.argv[1], 7), timeout=5) as peer:
    peer.sendall(bytes(1 << 16))
    left = 1 << 16
    while left:
        left -= len(peer.recv(left))
print(sys.stdin.read(), "answered")
"""


class OneHost:
    """A host: namespaces that a process keeps."""

    def __init__(self, address: str) -> None:
        self.address = address
        pipe = subprocess.PIPE
        unshare = ["unshare", "--net", "--mount", "--", "sh", "-c", HOLD]
        self.process = subprocess.Popen(unshare, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def command(self, *argv: str) -> list[str]:
        return ["nsenter", f"--target={self.process.pid}", "--net", "--mount", "--", *argv]

    def run(self, *argv: str, stdin: str = "") -> str:
        done = subprocess.run(
            self.command(*argv), input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout

    def ask(self, operation: str, **fields: Any) -> Any:
        owner = {"name": "a@b", "pid": 1, "session": "s", "runs": []}
        request = json.dumps({"owner": owner, "interface": "eth0", **fields}) + "\n"
        argv = self.command(sys.executable, "-I", "-S", AGENT, operation)
        done = subprocess.run(argv, input=request, capture_output=True, text=True, check=False)
        answer = json.loads(done.stdout)
        return answer.get("ok", answer)

    def enter(
        self, namespace: str, *argv: str, prefix: Sequence[str] = ()
    ) -> tuple[list[str], str]:
        """Return a command that runs in the namespace of a node, and its first line of input."""
        request = {"namespace": namespace, "argv": argv, "environment": {"PATH": "/usr/bin:/bin"}}
        command = self.command(*prefix, sys.executable, "-I", "-S", AGENT, "enter")
        return command, json.dumps(request) + "\n"

    def state(self) -> dict[str, str]:
        """Return everything that a division changes, or leaves behind."""
        return {
            "links": " ".join(link["ifname"] for link in json.loads(self.run("ip", "-j", "link"))),
            "addresses": self.run("ip", "-o", "addr"),
            "routes": self.run("ip", "route", "show", "table", "all"),
            "namespaces": self.run("ip", "netns", "list"),
            "files": self.run("find", "/run", "/dev/shm", "-name", "*netbench*"),
            "forwarding": self.run("cat", "/proc/sys/net/ipv4/conf/eth0/forwarding"),
        }


@contextmanager
def listening(host: OneHost, namespace: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a node."""
    argv, request = host.enter(namespace, sys.executable, "-S", "-c", ECHO, address)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(request)
        server.stdin.flush()
        assert server.stdout.readline() == "listening\n"
        yield server
        server.kill()


def ask_from(host: OneHost, namespace: str, address: str) -> str:
    """Send full frames to a server, and return what a command printed that also read its input."""
    return entered(host, namespace, sys.executable, "-S", "-c", ASK, address)


def entered(host: OneHost, namespace: str, *argv: str, prefix: Sequence[str] = ()) -> str:
    """Run a command in a node, and return what it printed. prefix: of the agent's command."""
    command, request = host.enter(namespace, *argv, prefix=prefix)
    done = subprocess.run(
        command, input=request + "the rest", capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip() + done.stderr.strip()


def main() -> None:
    hosts = [OneHost("192.168.7.1"), OneHost("192.168.7.2")]
    ends = [str(host.process.pid) for host in hosts]
    link = ["type", "veth", "peer", "name", "eth0", "netns", ends[1]]
    subprocess.run(["ip", "link", "add", "eth0", "netns", ends[0], *link], check=True)
    for host in hosts:
        # Its IPv6 addresses change while they are tentative.
        host.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        host.run("ip", "link", "set", "lo", "up")
    before = [host.state() for host in hosts]
    logins = [Host(name=f"h{i}", address="", user="", nodes=2) for i in range(2)]
    inventory = Inventory(path=Path("x"), hosts=tuple(logins), known_hosts=(), overlay=OVERLAY)
    owner = {"session": "s", "runs": []}
    facts = {
        index: Facts.read(host.ask("facts", peers=[], settings=[]), (host.address,), (), owner)
        for index, host in enumerate(hosts)
    }
    names = ["netbench-00000001", "netbench-00000002"]
    made = divisions(inventory, logins, names, facts, 1500)
    for index, host in enumerate(hosts):
        assert "lease" in host.ask("arm", lease_s=60.0)
        again = host.ask("divide", lease_s=60.0, division=made[index])
        assert "lease" in again, again
    addresses = {int(n): a for part in made.values() for n, a in part["nodes"].items()}
    with listening(hosts[1], "netbench-00000002-3", addresses[3]) as server:
        for index, node in ((0, 0), (0, 1), (1, 2)):
            found = ask_from(hosts[index], f"{names[index]}-{node}", addresses[3])
            assert found == "the rest answered", (node, found)
        user = ["env", f"SUDO_UID={NOBODY}", f"SUDO_GID={NOBODY}"]
        status = entered(hosts[0], f"{names[0]}-0", "cat", "/proc/self/status", prefix=user)
        assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}\n" in status, status
        assert re.search(r"CapEff:\t0+\nCapBnd", status), status
        mtu = json.loads(hosts[0].run("ip", "-n", f"{names[0]}-0", "-j", "link", "show", "eth0"))
        assert mtu[0]["mtu"] == (1450 if OVERLAY == "vxlan" else 1500)
        refused = hosts[0].ask("divide", lease_s=60.0, division=made[0])
        assert "has its nodes already" in refused["error"], refused
        # A lease that ends ends the processes of the nodes too.
        assert "lease" in hosts[1].ask("beat", lease_s=1.0)
        server.wait(PATIENCE_S)
    assert hosts[0].ask("clear", scope="session")["notes"] == []
    end_s = time.monotonic() + PATIENCE_S
    while hosts[1].state() != before[1] and time.monotonic() < end_s:
        time.sleep(0.1)
    assert [host.state() for host in hosts] == before, [host.state() for host in hosts]
    gone = ask_from(hosts[0], f"{names[0]}-0", addresses[3])
    assert "the namespace netbench-00000001-0 has gone" in gone, gone
    print("as before")


if __name__ == "__main__":
    main()
