"""`netbench run --dask` with a client or scheduler that is killed: what is kept and left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from netbench.records import find_run, read_run
from tests.distributed.processes import START_S, HandMade, all_end, wait_until

SCENARIO = "case3"
SWEEP = ("--systems", "dtfm-random,megatron", "--layers", "24,32", "--batch", "1024,2048")
SEEDS = ",".join(map(str, range(1, 41)))


def netbench(*words: str, results: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "netbench", "run", SCENARIO, "--results", str(results), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def recorded(results: Path) -> set[str]:
    path = find_run(results, SCENARIO)
    return {record.plan_hash for record in read_run(path).records} if path else set()


@pytest.mark.parametrize("victim", ["client", "scheduler"])
def test_nothing_recorded_is_lost_nothing_runs_on_and_resume_completes(
    victim: str, tmp_path: Path
) -> None:
    with closing(HandMade(tmp_path, 2)) as cluster:
        cluster.wait()
        words = ["--testbed", "sim", "--seeds", SEEDS, *SWEEP, "--dask", cluster.address]
        with netbench(*words, results=tmp_path) as run:
            assert wait_until(lambda: bool(recorded(tmp_path)) or run.poll() is not None)
            assert run.poll() is None
            cells = [pid for pid in cluster.pids() if _is_cell(pid)]
            assert cells
            victims = {"client": run.pid, "scheduler": cluster.scheduler.pid}
            os.kill(victims[victim], signal.SIGKILL)
            before = recorded(tmp_path)
            assert all_end(cells)
            output = run.communicate(timeout=START_S)[0]
    path = find_run(tmp_path, SCENARIO)
    assert path is not None
    plans = set(read_run(path).plans)
    assert before <= recorded(tmp_path) < plans
    if victim == "scheduler":
        assert run.returncode == 1
        assert "the Dask scheduler at" in output
        assert "continue with --resume" in output
        assert "Traceback" not in output
    with netbench("--testbed", "sim", "--resume", results=tmp_path) as again:
        output = again.communicate(timeout=START_S)[0]
    assert again.returncode == 0, output
    assert recorded(tmp_path) == plans
    assert len(read_run(path).records) == len(plans)


def test_a_local_cluster_ends_with_a_killed_command(tmp_path: Path) -> None:
    words = ["--testbed", "sim", "--seeds", SEEDS, *SWEEP, "--dask", "local:2"]
    with netbench(*words, results=tmp_path) as run:
        assert wait_until(lambda: bool(recorded(tmp_path)) or run.poll() is not None)
        assert run.poll() is None
        below = [process.pid for process in psutil.Process(run.pid).children(recursive=True)]
        assert any(_is_cell(pid) for pid in below)
        run.kill()
        assert all_end(below)


def test_an_interrupted_command_leaves_nothing_and_no_traceback(tmp_path: Path) -> None:
    words = ["--testbed", "sim", "--seeds", SEEDS, *SWEEP, "--dask", "local:2"]
    with netbench(*words, results=tmp_path) as run:
        assert wait_until(lambda: bool(recorded(tmp_path)) or run.poll() is not None)
        below = [process.pid for process in psutil.Process(run.pid).children(recursive=True)]
        os.killpg(run.pid, signal.SIGINT)
        start_s = time.monotonic()
        output = run.communicate(timeout=START_S)[0]
        assert run.returncode == 130, output
        assert "Traceback" not in output
        assert all_end(below)
        assert time.monotonic() < start_s + START_S


def _is_cell(pid: int) -> bool:
    try:
        return "netbench.distributed.cells" in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
