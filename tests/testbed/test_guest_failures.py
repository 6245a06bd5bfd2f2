"""Ranks that fail on shaped links, in a guest kernel: named in time, nothing left, records kept."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.guest import run_in_guest
from netbench.records import Run, find_run, read_run
from netbench.scenario import load_scenario
from netbench.testbed.guest.boot import BOOTED, HANG_S
from netbench.testbed.lifetime import Scratch
from netbench.testbed.machine.capabilities import probe_machine
from netbench.testbed.namespaces import node_addresses
from netbench.testbed.ranks.hangs import QUIET_S, WATCH_S
from tests.testbed.processes import processes

pytestmark = pytest.mark.guest

PROGRAM = Path(__file__).with_name("failures_in_guest.py")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "ddp.py"


def hit(number: str, rank: int) -> dict[str, Any]:
    """Return the end of a session whose rank got a signal after its first iteration."""
    argv = [sys.executable, str(PROGRAM), number, str(rank)]
    status, output = run_in_guest(probe_machine(), argv)
    assert status == 0, output
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def test_a_warning_of_the_guest_kernel_is_on_its_console() -> None:
    """A guest that falls silent leaves nothing else. Notices (5) are not shown."""
    write = "echo '<4>a warning' > /dev/kmsg; echo '<5>a notice' > /dev/kmsg"
    status, output = run_in_guest(probe_machine(), ["sh", "-c", write])
    assert status == 0, output
    shown = output.rpartition(BOOTED)[2]
    assert "a warning" in shown
    assert "a notice" not in shown


def test_a_guest_leaves_the_temporary_folders_of_the_host_alone() -> None:
    """It sees the host's files and not its locks, so each folder there looks abandoned to it."""
    make = "from netbench.testbed.lifetime import Scratch\nwith Scratch() as path: print(path)"
    with Scratch() as of_the_host:
        status, output = run_in_guest(probe_machine(), [sys.executable, "-c", make])
        assert status == 0, output
        assert of_the_host.is_dir()
    assert Path(output.split()[-1]).parent != of_the_host.parent


def test_a_killed_rank_ends_the_session_within_seconds() -> None:
    """One message, the iteration before it kept, no rank left."""
    found = hit("SIGKILL", 2)
    assert found["message"].startswith("rank 2 on node2: was killed by SIGKILL, in iteration 1 of")
    assert found["finished"] == [0]
    assert found["elapsed_s"] < 10.0
    assert found["num_ranks"] == 4
    assert found["left"] == []


def test_a_stopped_rank_is_found_by_the_silence_on_the_links() -> None:
    """Virtual time runs ahead while all wait: minutes of it, seconds for who waits."""
    found = hit("SIGSTOP", 1)
    assert "stopped, by a signal or a debugger: rank 1 on node1, in iteration 1" in found["message"]
    assert "rank 0" not in found["message"]
    assert found["finished"] == [0]
    assert QUIET_S < found["elapsed_s"] < QUIET_S + 4 * WATCH_S
    assert found["left"] == []


def run(results: Path, script: str, *options: str) -> tuple[int, str, Run]:
    """Status, output and records of a run of a script on four nodes, in real time."""
    command = [sys.executable, "-m", "netbench", "run", "example-two-labs", *options]
    done = subprocess.run(
        [*command, "--testbed", "local:guest-real", "--command", script, "--results", str(results)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    path = find_run(results, "example-two-labs")
    assert path is not None, done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr, read_run(path)


def logs(found: Run) -> dict[str, str]:
    """Return the output of every rank, by the name of its file."""
    folder = found.path.parent / "output"
    return {path.name[13:]: path.read_text() for path in folder.iterdir()}


NAMED = """
import runpy, socket
name = socket.gethostname()
print(name, socket.gethostbyname(name), flush=True)
runpy.run_path({example!r}, run_name="__main__")
"""
"""Prints the node's host name and its address, then trains."""


@pytest.mark.parametrize("options", [(), pytest.param(("--ssh",), marks=pytest.mark.ssh)])
def test_a_script_trains_over_the_shaped_links(options: tuple[str, ...], tmp_path: Path) -> None:
    """Measured, slower than the link's delay allows at best, with losses and every rank's output.

    Gradients of 1 MiB cross from the Garage, at 50 Mbit/s: a ring sends 3/4 of them twice, 0.25 s.
    Every node has its own host name, which resolves to its address.
    """
    script = shlex.join([sys.executable, "-c", NAMED.format(example=str(EXAMPLE))])
    status, output, found = run(tmp_path, script, "--iterations", "3", *options)
    # 3: finished, but two cores may not keep up with real time.
    assert status in (0, 3), output
    assert [record.warmup for record in found.records] == [True, False, False, False]
    assert {record.source for record in found.records} == {"measured"}
    bound_s = 2 * 0.75 * 512 * 513 * 4 * 8 / 50e6
    for record in found.records:
        assert record.iteration_s > bound_s
        assert record.loss is not None
    assert sorted(logs(found)) == [f"rank-{rank}.log" for rank in range(4)]
    assert all('"netbench": "iteration"' in text for text in logs(found).values())
    assert "command" in output
    nodes = node_addresses([node.name for node in load_scenario("example-two-labs").nodes])
    for node in nodes:
        assert logs(found)[f"rank-{node.index}.log"].startswith(f"{node.name} {node.address}\n")


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", ""),
        # Piece by piece: what is more than all memory would be refused at once.
        ("hoard = [bytearray(1 << 26) for _ in range(1 << 10)]", " (out of memory: the kernel k"),
    ],
)
def test_a_script_that_dies_leaves_its_iterations_its_output_and_nothing_else(
    act: str, cause: str, tmp_path: Path
) -> None:
    """Status 1; one message with rank, node, cause and its last words; no guest lives on."""
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, signal, time\n"
        "for iteration in range(3):\n"
        "    print(json.dumps({'netbench': 'iteration', 'iteration_s': 1.25, 'loss': 1.0}))\n"
        "    if os.environ['RANK'] == '3' and iteration == 1:\n"
        "        print('about to die')\n"
        f"        {act}\n"
        "    if iteration == 1:\n"
        "        time.sleep(1000)\n"
    )
    status, output, found = run(tmp_path / "results", f"{sys.executable} {script}")
    assert status == 1
    assert f"rank 3 on node3: was killed by SIGKILL{cause}" in output, output
    assert "  | about to die" in output
    assert "--resume" in output
    assert [record.iteration_s for record in found.records] == [1.25, 1.25]
    assert logs(found)["rank-3.log"].endswith("about to die\n")
    assert not [args for *_, args in processes() if str(script) in args]
