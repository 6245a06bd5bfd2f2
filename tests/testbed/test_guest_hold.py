"""A network held open in the guest kernel, from the command line: real time, real terminals."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netbench.testbed.hold import NUM_LINES, find_held
from netbench.units import parse_bandwidth
from tests.testbed.processes import guests_of, left_after_a_while

pytestmark = pytest.mark.guest

PATIENCE_S = 120.0
NETBENCH = (sys.executable, "-m", "netbench.cli")
SCENARIO = """
name: {name}
regions: [Campus, Garage]
nodes:
  - {{region: Campus, count: 2, device: V100}}
  - {{region: Garage, count: 2, device: V100}}
network:
  sharing: trunk
  inside: {{one_way_delay: 1ms, bandwidth: 100Mbit}}
  links:
    - {{between: [Campus, Garage], one_way_delay: 40ms, bandwidth: 20Mbit}}
devices: {{V100: {{flops: 10TFLOPS, memory: 16GB, source: made up}}}}
workload: {{layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}}
"""


class Holder:
    """A process that holds a network of its own name."""

    def __init__(self, directory: Path) -> None:
        self.name = f"held-{os.getpid()}-{time.monotonic_ns()}"
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        scenario = directory / f"{self.name}.yaml"
        scenario.write_text(SCENARIO.format(name=self.name))
        self.process = subprocess.Popen(
            [*NETBENCH, "net", "apply", str(scenario), "--testbed", "local:guest-real"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(self.scratch), "PYTHONUNBUFFERED": "1"},
        )
        self.printed = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if "Ctrl-C" in line:
                return
        raise AssertionError(self.printed)

    def shell(self, *words: str, stdin: str = "") -> tuple[int, str, str]:
        """`netbench net shell` from a script."""
        done = subprocess.run(
            [*NETBENCH, "net", "shell", "--network", self.name, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Exit status, and what it printed after the signal."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, rest


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    """A network is held; whoever held it is ended."""
    found = Holder(tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


def test_commands_run_in_nodes_from_scripts(holder: Holder) -> None:
    """Names resolve, delays are those of the scenario, streams and status are the command's."""
    assert "guest-real" in holder.printed
    status, printed, _ = holder.shell("node0", "--", "ping", "-c", "3", "node3")
    assert status == 0
    assert "PING node3 (10.77.0.4)" in printed
    least_ms = float(re.findall(r"min/avg/max\S* = ([\d.]+)/", printed)[0])
    assert 80.0 <= least_ms < 100.0
    assert holder.shell("1", "sh", "-c", "cat; echo bad >&2; exit 7", stdin="good\n") == (
        7,
        "good\n",
        "bad\n",
    )
    assert holder.shell("node2", "hostname")[:2] == (0, "node2\n")
    assert "via 10.77.0.5 dev eth0" in holder.shell("node0", "ip", "route", "get", "10.77.0.3")[1]


def test_watch_shows_what_is_on_its_way(holder: Holder) -> None:
    """100 packets/s of 1042 bytes across, which their region's router sends; none inside."""
    ping = ("ping", "-i", "0.01", "-s", "1000", "node3")
    argv = [*NETBENCH, "net", "shell", "--network", holder.name, "node0", "--", *ping]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as pinging:
        assert pinging.stdout is not None
        assert pinging.stdout.readline().startswith("PING node3")
        scenario = holder.scratch.parent / f"{holder.name}.yaml"
        where = [str(scenario), "--testbed", "local", "--once", "--interval", "3s"]
        done = subprocess.run(
            [*NETBENCH, "net", "watch", *where],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
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
        assert 0.5 < now_bps / (100 * 1042 * 8) < 1.05  # a busy machine sends fewer


def test_a_line_is_there_again_after_long_input(holder: Holder) -> None:
    """More than a serial line holds, on every line twice: all of it arrives."""
    held, text = find_held(holder.name), "long input\n" * 2000
    for _ in range(2 * NUM_LINES):
        assert held.run(0, ["wc", "-c"], text) == (0, f"{len(text)}\n", "")


def test_a_shell_on_a_terminal_is_one(holder: Holder) -> None:
    """Of this terminal's size, with a prompt; Ctrl-C ends what runs in it, not the shell."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["SHELL"], os.environ["PS1"] = "/bin/sh", "in $(hostname)> "
        os.execv(sys.executable, [*NETBENCH, "net", "shell", "--network", holder.name, "node1"])
    printed = b""

    def until(wanted: bytes) -> None:
        nonlocal printed
        while wanted not in printed:
            assert select.select([terminal], [], [], PATIENCE_S)[0], printed
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


def test_after_sigkill_nothing_is_left(holder: Holder) -> None:
    """No process, no name, no file; and who was in a node is told."""
    inside = subprocess.Popen(
        [
            *NETBENCH,
            "net",
            "shell",
            "--network",
            holder.name,
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
    guests = guests_of(holder.process.pid)
    assert len(guests) == 1
    assert holder.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert left_after_a_while(holder.process.pid, guests) == []
    assert "has gone" in inside.communicate(timeout=PATIENCE_S)[1]
    assert inside.returncode == 1
    assert holder.name not in Path("/proc/net/unix").read_text()
    assert list(holder.scratch.iterdir()) == []


def test_ctrl_c_ends_the_network(holder: Holder) -> None:
    """Exit code 0: that is how it ends. Then there is nothing to enter."""
    guests = guests_of(holder.process.pid)
    status, rest = holder.end(signal.SIGINT)
    assert (status, "Traceback" in rest) == (0, False)
    assert f"{holder.name} is gone" in rest
    assert left_after_a_while(holder.process.pid, guests) == []
    status, _, errors = holder.shell("node0")
    assert status == 2
    assert "is held open" in errors


def test_a_guest_that_dies_is_reported(holder: Holder) -> None:
    """Kill the guest, not the holder: exit code 1, the console's last lines."""
    (guest,) = guests_of(holder.process.pid)
    os.kill(guest, signal.SIGKILL)
    rest, _ = holder.process.communicate(timeout=PATIENCE_S)
    assert holder.process.returncode == 1
    assert "ended unexpectedly" in rest
    assert "  | " in rest
