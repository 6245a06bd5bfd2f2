"""The SSH transport: a real sshd in every node's namespace, reached with paramiko.

What a cluster run does, on one machine. Keys are made for the run and thrown away with it; host
keys are checked against a known_hosts file written here, and an unknown one is refused.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import paramiko

from netbench.errors import TestbedError
from netbench.testbed.namespaces import namespace_path
from netbench.testbed.packages import find_command
from netbench.testbed.transport import COMMAND_TIMEOUT_S, Channel, NodeAddress

CONNECT_TIMEOUT_S = 30.0
SSHD_START_S = 20.0
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


class SshTransport:
    """Commands and ranks over SSH, one connection per node, opened when first needed."""

    def __init__(
        self, nodes: Sequence[NodeAddress], scratch: Path, environment: Mapping[str, str]
    ) -> None:
        self._nodes = nodes
        self._scratch = scratch
        self._environment = environment
        self._clients: dict[int, paramiko.SSHClient] = {}
        sshd = find_command("sshd")
        if sshd is None:
            raise TestbedError("--ssh needs sshd; install the Debian package openssh-server")
        self._prepare_keys()
        self._mask_accounts()
        self._servers = [self._start_server(str(sshd), node) for node in nodes]

    def _prepare_keys(self) -> None:
        for name in ("host_key", "client_key"):
            path = self._scratch / name
            _checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
        host_key = (self._scratch / "host_key.pub").read_text().split()[:2]
        lines = [" ".join([node.address, *host_key]) for node in self._nodes]
        (self._scratch / "known_hosts").write_text("\n".join(lines) + "\n")

    def _mask_accounts(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name, text in (("passwd", PASSWD), ("shadow", SHADOW)):
            mask = self._scratch / name
            mask.write_text(text.format(scratch=self._scratch))
            _checked(["mount", "--bind", str(mask), f"/etc/{name}"])

    def _start_server(self, sshd: str, node: NodeAddress) -> subprocess.Popen[bytes]:
        config = self._scratch / "sshd_config"
        config.write_text(SSHD_CONFIG.format(scratch=self._scratch))
        listen = ["-o", f"ListenAddress={node.address}"]
        inside = ["nsenter", f"--net={namespace_path(node.index)}", "--"]
        return subprocess.Popen(
            [*inside, sshd, "-D", "-e", "-f", str(config), *listen],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str, str]:
        channel = self._open(node)
        channel.settimeout(timeout_s)
        try:
            channel.exec_command(self._command(argv))
            channel.sendall(stdin.encode())
            channel.shutdown_write()
            stdout = channel.makefile("rb").read().decode()
            stderr = channel.makefile_stderr("rb").read().decode()
            return channel.recv_exit_status(), stdout, stderr
        except (OSError, paramiko.SSHException) as error:
            raise TestbedError(
                f"{self._nodes[node].name}: no answer within {timeout_s:g} s from: "
                f"{' '.join(argv)} ({error or type(error).__name__})"
            ) from error
        finally:
            channel.close()

    def start_rank(self, node: int, rank: int) -> Channel:
        channel = self._open(node)
        channel.exec_command(self._command([sys.executable, "-m", "netbench.trainers"]))
        return SshChannel(channel)

    def _command(self, argv: Sequence[str]) -> str:
        """One shell word per argument: nothing reaches the remote shell unquoted."""
        path = os.pathsep.join(sys.path)
        assignments = [f"{key}={value}" for key, value in sorted(self._environment.items())]
        return shlex.join(["env", f"PYTHONPATH={path}", *assignments, *argv])

    def _open(self, node: int) -> paramiko.Channel:
        client = self._clients.get(node) or self._connect(self._nodes[node])
        self._clients[node] = client
        link = client.get_transport()
        if link is None or not link.is_active():
            raise TestbedError(f"{self._nodes[node].name}: the SSH connection was lost")
        return link.open_session(timeout=CONNECT_TIMEOUT_S)

    def _connect(self, node: NodeAddress) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        client.load_host_keys(str(self._scratch / "known_hosts"))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        deadline = time.monotonic() + SSHD_START_S
        while True:
            try:
                client.connect(
                    node.address,
                    username="root",
                    key_filename=str(self._scratch / "client_key"),
                    look_for_keys=False,
                    allow_agent=False,
                    timeout=CONNECT_TIMEOUT_S,
                )
            except paramiko.ssh_exception.NoValidConnectionsError as error:
                if time.monotonic() > deadline:
                    raise TestbedError(f"{node.name}: sshd does not listen: {error}") from error
                time.sleep(0.1)
            except (OSError, paramiko.SSHException) as error:
                raise TestbedError(f"{node.name} ({node.address}): SSH failed: {error}") from error
            else:
                return client

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.wait(timeout=10.0)


class SshChannel:
    """A rank's channel over one SSH session."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._reader = channel.makefile("r")
        self._said_why = False

    def send(self, line: str) -> None:
        try:
            self._channel.sendall(line.encode() + b"\n")
        except OSError as error:
            raise TestbedError(f"a rank has gone: {error}") from error

    def receive(self) -> str | None:
        line: str = self._reader.readline()
        if line:
            return line
        return None if self._said_why else self._last_words()

    def _last_words(self) -> str | None:
        """What a rank that ended wrote to stderr, as an error message; None when nothing."""
        self._said_why = True
        words = self._channel.makefile_stderr("r").read().strip().splitlines()[-3:]
        return json.dumps({"event": "error", "message": " | ".join(words)}) if words else None

    def close(self) -> None:
        self._channel.close()


def _checked(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
