"""A testbed with a real sshd in every node's namespace: a cluster run, on one machine.

Keys are made for the run and thrown away with it. Host keys are checked against a known_hosts file
that is written here.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from netbench.errors import TestbedError
from netbench.network.nodes import Channel, Node
from netbench.testbed.interface import NodeAddress
from netbench.testbed.local import SCRATCH, LocalTestbed
from netbench.testbed.machine.packages import find_command
from netbench.testbed.namespaces import checked, kill_all, named_command, namespace_path
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.machines import Hosts
from netbench.testbed.ssh.nodes import HostChannel

SSHD_START_S = 120.0
"""Deadline for a node's sshd to accept a connection, by the session's clock, seconds."""

SSHD_CONFIG = """\
HostKey {scratch}/host_key
AuthorizedKeysFile {scratch}/client_key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
UseDNS no
PidFile none
MaxStartups 200
MaxSessions 64
"""

PASSWD = """\
root:x:0:0:root:{scratch}:/bin/sh
sshd:x:65530:65534::/run/sshd:/usr/sbin/nologin
"""
SHADOW = "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n"
"""Accounts as the session's sshd sees them: root is not locked and has no slow start-up files.
Bind mounts, seen only inside the session's private mount namespace."""


class SshServers:
    """An sshd per node, running until `close`. Needs root and private mounts."""

    def __init__(self, nodes: Sequence[NodeAddress], scratch: Path) -> None:
        self._nodes = nodes
        self._scratch = scratch
        sshd = find_command("sshd")
        if sshd is None:
            raise TestbedError("--ssh needs sshd; install the Debian package openssh-server")
        self._prepare_keys()
        self._mask_accounts()
        (scratch / "sshd_config").write_text(SSHD_CONFIG.format(scratch=scratch))
        self._servers = [self._start(str(sshd), node) for node in nodes]
        self._await_all()

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Login of every node."""
        return tuple(
            Host(
                name=node.name,
                address=node.address,
                user="root",
                keys=(self._scratch / "client_key",),
                use_agent=False,
                python=sys.executable,
                data_addresses=(node.address,),
                interface=node.interface,
            )
            for node in self._nodes
        )

    @property
    def known_hosts(self) -> Path:
        """File with the host key of every node."""
        return self._scratch / "known_hosts"

    def close(self) -> None:
        """End the servers. Processes of their sessions may continue."""
        kill_all(self._servers)

    def _prepare_keys(self) -> None:
        for name in ("host_key", "client_key"):
            path = self._scratch / name
            checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
        host_key = (self._scratch / "host_key.pub").read_text().split()[:2]
        lines = [" ".join([node.address, *host_key]) for node in self._nodes]
        self.known_hosts.write_text("\n".join(lines) + "\n")

    def _mask_accounts(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name, text in (("passwd", PASSWD), ("shadow", SHADOW)):
            mask = self._scratch / name
            mask.write_text(text.format(scratch=self._scratch))
            checked(["mount", "--bind", str(mask), f"/etc/{name}"])

    def _start(self, sshd: str, node: NodeAddress) -> subprocess.Popen[bytes]:
        listen = ["-o", f"ListenAddress={node.address}"]
        command = [sshd, "-D", "-e", "-f", str(self._scratch / "sshd_config"), *listen]
        inside = ["nsenter", f"--net={namespace_path(node.index)}", "--"]
        return subprocess.Popen(
            [*inside, *named_command(node, command)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _await_all(self) -> None:
        deadline = time.monotonic() + SSHD_START_S
        for node, server in zip(self._nodes, self._servers, strict=True):
            while not listens(node):
                if server.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise TestbedError(f"{node.name} ({node.address}): sshd does not listen")
                time.sleep(0.1)


class SshTestbed(LocalTestbed):
    """Nodes of this machine, reached as those of a cluster would be."""

    def _start(self) -> None:
        self._servers = SshServers(self._with_routers, SCRATCH)
        self._hosts = Hosts(self._servers.hosts, [self._servers.known_hosts])

    @property
    def _reached(self) -> Sequence[Node]:
        return self._hosts.nodes

    def start_rank(self, node: int, rank: int) -> Channel:
        environment = {**self._ranks.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        assignments = [f"{key}={value}" for key, value in sorted(environment.items())]
        # sshd passes no environment.
        return RankChannel(self._hosts[node].open(["env", *assignments, *self._ranks.command]))

    def close(self) -> None:
        with closing(self._servers):
            self._hosts.close()


class RankChannel:
    """A rank's channel. The last message of a rank that failed is the end of its stderr."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self._ended = False

    def send(self, line: str) -> None:
        self._channel.send(line)

    def receive(self) -> str | None:
        line = self._channel.receive()
        if line is not None or self._ended:
            return line
        self._ended = True
        words = self._channel.last_words()
        return json.dumps({"event": "error", "message": words}) if words else None

    def close(self) -> None:
        self._channel.close()


def listens(node: NodeAddress) -> bool:
    """Return whether something accepts connections at the node's port of SSH."""
    try:
        socket.create_connection((node.address, 22), timeout=1.0).close()
    except OSError:
        return False
    return True
