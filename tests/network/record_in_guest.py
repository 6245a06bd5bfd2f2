"""Write the golden programs and what is read of them: `python -m tests.network.record_in_guest`.

Boots the guest kernel, loads each program of `shaping_cases` on an interface, and keeps its text,
`tc -s -j` of qdiscs and filters, `tc -d class show`, and what the kernel answers `netlink.read`. To
be looked at before it is committed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

from benchmarks.guest import run_in_guest
from netbench.network.shaping import netlink
from netbench.testbed.machine.capabilities import probe_machine
from tests.network.shaping_cases import CASES, kept_text

GOLDEN = Path(__file__).parents[1] / "golden" / "network"

SHOW = "qdisc show dev eth0\nfilter show dev eth0\n"


def output(*argv: str, stdin: str = "") -> str:
    return subprocess.run(argv, input=stdin, check=True, stdout=subprocess.PIPE, text=True).stdout


class RecordingSocket(socket.socket):
    """Keeps what comes. answers: of every `recv` of all of them."""

    answers: ClassVar[list[str]] = []

    def recv(self, size: int, flags: int = 0) -> bytes:
        answer = super().recv(size, flags)
        self.answers.append(answer.hex())
        return answer


def answers() -> list[str]:
    """Record the kernel's answers to `netlink.read`, in hexadecimal."""
    RecordingSocket.answers.clear()
    with patch.object(socket, "socket", RecordingSocket):
        netlink.read(Path("/proc/self/ns/net"), "eth0")
    return RecordingSocket.answers


def record(names: list[str]) -> None:
    """In the guest: load, show, take away."""
    output("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    for name in names:
        (GOLDEN / f"{name}.tc").write_text(kept_text(name))
        output("tc", "-batch", "-", stdin=kept_text(name))
        tables = output("tc", "-s", "-j", "-batch", "-", stdin=SHOW)
        (GOLDEN / f"{name}.tables.json").write_text(tables)
        classes = output("tc", "-d", "class", "show", "dev", "eth0")
        (GOLDEN / f"{name}.classes.txt").write_text(classes)
        (GOLDEN / f"{name}.netlink.json").write_text(json.dumps(answers(), indent=0) + "\n")
        output("tc", "qdisc", "del", "dev", "eth0", "root")


def main() -> int:
    """With names: in the guest. Without: on the host, all that have no golden files yet."""
    if sys.argv[1:]:
        record(sys.argv[1:])
        return 0
    names = [name for name in CASES if not (GOLDEN / f"{name}.netlink.json").exists()]
    argv = [sys.executable, "-m", "tests.network.record_in_guest", *names]
    status, printed = run_in_guest(probe_machine(), argv) if names else (0, "nothing is missing")
    print(printed)
    return status


if __name__ == "__main__":
    sys.exit(main())
