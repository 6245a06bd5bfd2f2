"""Machines for commands: an sshd on loopback for each, and an address of its own to measure at."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.sshd_here import Sshd

OWN = f"127.{os.getpid() // 200 % 200 + 1}.{os.getpid() % 200 + 1}"
"""Addresses that no other run of these tests has."""


@contextmanager
def machines(folder: Path, *names: str) -> Iterator[Path]:
    """Their inventory file."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Sshd(folder / name)) for name in names]
        known_hosts = folder / "known_hosts"
        known_hosts.write_text("".join(server.known_hosts.read_text() for server in servers))
        lines = [
            f"  - {{name: {name}, address: {server.address}, port: {server.port}, "
            f"key: {server.folder / 'client_key'}, data_address: {OWN}.{number}}}"
            for number, (name, server) in enumerate(zip(names, servers, strict=True), 1)
        ]
        head = f"ssh: {{known_hosts: {known_hosts}, agent: false, user: {getpass.getuser()}}}"
        path = folder / "hosts.yaml"
        path.write_text("\n".join([head, "hosts:", *lines]) + "\n")
        yield path
