"""A real sshd on a loopback address of this machine, for as long as a test lasts. No guest.

Run by root it lives in a mount namespace of its own, where the accounts are others and /run/sshd
is there: nothing of the real /etc or /run changes. Run by anyone else it lets in only that user.
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from netbench.testbed.machine.packages import find_command
from netbench.testbed.ssh.host import Host
from tests.ports import free_port

START_S = 120.0

CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
UsePAM no
StrictModes no
UseDNS no
PidFile none
SetEnv PATH={folder}/bin:{path}
{more}"""

MASKED = """\
set -e
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
mount --bind {folder}/passwd /etc/passwd
mount --bind {folder}/shadow /etc/shadow
{also}
exec "$@"
"""


class Sshd:
    """One server. `worker` is a user that has to use sudo: the script in `folder`/bin.

    more: lines of its sshd_config. also: what root does in the mount namespace first.
    """

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", more: str = "", also: str = ""
    ) -> None:
        sshd = find_command("sshd")
        if sshd is None:
            pytest.skip("sshd is not installed (make ssh-packages)")
        folder.mkdir()
        self.folder, self.address, self.port = folder, address, free_port(address)
        self.is_root = os.geteuid() == 0
        self.worker = "worker" if self.is_root else getpass.getuser()
        for name in ("host_key", "client_key"):
            make_key(folder / name)
        (folder / "bin").mkdir()
        path = os.environ.get("PATH", os.defpath)
        config = CONFIG.format(folder=folder, path=path, more=more)
        (folder / "sshd_config").write_text(config)
        self.known_hosts = folder / "known_hosts"
        self.trust(self.known_hosts)
        options = ["-o", f"ListenAddress={address}", "-o", f"Port={self.port}"]
        command = [str(sshd), "-D", "-e", "-f", str(folder / "sshd_config"), *options]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._masked(also), *command], stdin=subprocess.DEVNULL, stderr=log
            )
        self._await()

    def __enter__(self) -> Sshd:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _masked(self, also: str) -> list[str]:
        """Return the command that starts sshd in its own mount namespace, for root."""
        if not self.is_root:
            if also:
                pytest.skip("needs root, to mount")
            return []
        names = ("root", "worker")
        accounts = [f"{name}:x:0:0::{self.folder}:/bin/sh" for name in names]
        accounts.append("sshd:x:65530:65534::/run/sshd:/usr/sbin/nologin")
        (self.folder / "passwd").write_text("\n".join(accounts) + "\n")
        shadow = [f"{name}:*:19000:0:99999:7:::\n" for name in (*names, "sshd")]
        (self.folder / "shadow").write_text("".join(shadow))
        script = MASKED.format(folder=self.folder, also=also)
        return ["unshare", "--mount", "sh", "-c", script, "sh"]

    def _await(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection((self.address, self.port), timeout=1.0).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        said = self.log.read_text()
        self.stop()
        if "unshare" in said:
            pytest.skip(f"root may not make a mount namespace here: {said.strip()}")
        pytest.fail(f"sshd did not start: {said}")

    def trust(self, known_hosts: Path, public_key: Path | None = None) -> None:
        """Write a known_hosts that has this server's key, or another."""
        public = (public_key or self.folder / "host_key.pub").read_text().split()[:2]
        known_hosts.write_text(f"[{self.address}]:{self.port} {' '.join(public)}\n")

    def host(self, **changes: object) -> Host:
        """Return how to log in, with changes."""
        login: dict[str, object] = {
            "name": "here",
            "address": self.address,
            "port": self.port,
            "user": getpass.getuser(),
            "keys": (self.folder / "client_key",),
            "use_agent": False,
        }
        return Host(**{**login, **changes})  # type: ignore[arg-type]

    def stop(self) -> None:
        """End the server, and its sessions' connections with it."""
        self.process.kill()
        self.process.wait()


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> None:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)


def write_script(path: Path, text: str) -> None:
    """An executable."""
    path.write_text(text)
    path.chmod(0o755)
