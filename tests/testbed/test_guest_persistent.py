"""A persistent network in the guest kernel, from the command line: real time, real terminals."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netbench.testbed.guest.boot import HANG_S
from netbench.testbed.persistent.client import find_persistent
from netbench.testbed.persistent.daemon import NUM_LINES
from netbench.units import parse_bandwidth
from tests.testbed.applied_network import NETBENCH, Daemon
from tests.testbed.processes import guests_of, left_after_a_while

pytestmark = pytest.mark.guest


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A persistent network, until the test ends."""
    found = Daemon(tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


def test_commands_run_in_nodes_from_scripts(daemon: Daemon) -> None:
    """Names resolve, delays are those of the scenario, streams and status are the command's."""
    assert "guest-real" in daemon.printed
    least_ms = {}
    for name, address in (("node1", "10.77.0.2"), ("node3", "10.77.0.4")):
        status, printed, _ = daemon.shell("node0", "--", "ping", "-c", "5", "-i", "0.2", name)
        assert status == 0
        assert f"PING {name} ({address})" in printed
        least_ms[name] = float(re.findall(r"min/avg/max\S* = ([\d.]+)/", printed)[0])
    assert least_ms["node1"] >= 2.0
    assert least_ms["node3"] >= 80.0
    # One crossing more, or in place of one inside the region, would add 40 ms or more.
    assert least_ms["node3"] - least_ms["node1"] < 78.0 + 39.0
    assert daemon.shell("1", "sh", "-c", "cat; echo bad >&2; exit 7", stdin="good\n") == (
        7,
        "good\n",
        "bad\n",
    )
    assert daemon.shell("node2", "hostname")[:2] == (0, "node2\n")
    assert "via 10.77.0.5 dev eth0" in daemon.shell("node0", "ip", "route", "get", "10.77.0.3")[1]


def test_watch_shows_what_is_on_its_way(daemon: Daemon) -> None:
    """100 packets/s of 1042 bytes across, which their region's router sends; none inside."""
    ping = ("ping", "-i", "0.01", "-s", "1000", "node3")
    argv = [*NETBENCH, "net", "shell", "--network", daemon.name, "node0", "--", *ping]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as pinging:
        assert pinging.stdout is not None
        assert pinging.stdout.readline().startswith("PING node3")
        scenario = daemon.scratch.parent / f"{daemon.name}.yaml"
        where = [str(scenario), "--testbed", "local", "--once", "--interval", "3s"]
        done = subprocess.run(
            [*NETBENCH, "net", "watch", *where],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        pinging.terminate()
        pinging.communicate()
    assert done.returncode == 0, done.stderr
    rows = [re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()[1:]]
    assert len(rows) == 4 + 2
    carried = {(src, dst): now for src, dst, now, *_ in rows}
    assert carried["node0", "node1"] == "0bit"
    assert [row[3:5] for row in rows if row[0] == "router of Campus"] == [["20Mbit", "0"]]
    for router, dsts in (("Campus", "node2, node3"), ("Garage", "node0, node1")):
        now_bps = parse_bandwidth(carried[f"router of {router}", dsts])
        # A busy machine sends fewer, and counts an interval that is a little too short.
        assert 0.13 < now_bps / (100 * 1042 * 8) < 1.5


def test_a_line_is_there_again_after_long_input(daemon: Daemon) -> None:
    """More than a serial line holds, on every line twice: all of it arrives."""
    opened, text = find_persistent(daemon.name), "long input\n" * 2000
    for _ in range(2 * NUM_LINES):
        assert opened.nodes[0].run(["wc", "-c"], text) == (0, f"{len(text)}\n", "")


def test_a_shell_on_a_terminal_is_one(daemon: Daemon) -> None:
    """It has this terminal's size and a prompt; Ctrl-C ends the running command, not the shell."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["SHELL"], os.environ["PS1"] = "/bin/sh", "in $(hostname)> "
        os.execv(sys.executable, [*NETBENCH, "net", "shell", "--network", daemon.name, "node1"])
    printed = b""

    def until(wanted: bytes) -> None:
        nonlocal printed
        while wanted not in printed:
            assert select.select([terminal], [], [], HANG_S)[0], printed
            printed += os.read(terminal, 1 << 16)
        printed = b""

    until(b"in node1> ")
    os.write(terminal, b"ping node0\r")
    until(b"bytes from")
    os.write(terminal, b"\x03")
    until(b"in node1> ")
    os.write(terminal, b"exit 5\r")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)


def test_after_sigkill_nothing_is_left(daemon: Daemon) -> None:
    """No process, no name, no file; and who was in a node is told."""
    inside = subprocess.Popen(
        [
            *NETBENCH,
            "net",
            "shell",
            "--network",
            daemon.name,
            "node0",
            "sh",
            "-c",
            "echo; sleep 600",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert inside.stdout is not None
    assert inside.stdout.readline() == "\n"
    guests = guests_of(daemon.process.pid)
    assert len(guests) == 1
    assert daemon.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert left_after_a_while(daemon.process.pid, guests) == []
    assert "has gone" in inside.communicate(timeout=HANG_S)[1]
    assert inside.returncode == 1
    assert daemon.name not in Path("/proc/net/unix").read_text()
    assert list(daemon.scratch.iterdir()) == []


def test_ctrl_c_ends_the_network(daemon: Daemon) -> None:
    """Exit code 0: that is how it ends. Then there is nothing to enter."""
    guests = guests_of(daemon.process.pid)
    status, rest = daemon.end(signal.SIGINT)
    assert (status, "Traceback" in rest) == (0, False)
    assert f"{daemon.name} is gone" in rest
    assert left_after_a_while(daemon.process.pid, guests) == []
    status, _, errors = daemon.shell("node0")
    assert status == 2
    assert "no persistent network is open" in errors


def test_a_guest_that_dies_is_reported(daemon: Daemon) -> None:
    """Kill the guest, not the daemon: exit code 1, the console's last lines."""
    (guest,) = guests_of(daemon.process.pid)
    os.kill(guest, signal.SIGKILL)
    rest, _ = daemon.process.communicate(timeout=HANG_S)
    assert daemon.process.returncode == 1
    assert "ended unexpectedly" in rest
    assert "  | " in rest
