"""A traced run in the guest kernel, from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netbench.records import Run, find_run, read_run
from netbench.testbed.guest.boot import HANG_S
from netbench.timelines import read_timeline, trace_path

pytestmark = pytest.mark.guest


def run_two_labs(results: Path, *options: str) -> Run:
    """Return a run of `dtfm-scheduled` on the smallest scenario."""
    command = [sys.executable, "-m", "netbench", "run", "example-two-labs", *options]
    command += ["--systems", "dtfm-scheduled", "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    path = find_run(results, "example-two-labs")
    assert path is not None
    return read_run(path)


def test_a_traced_iteration_takes_as_long_as_untraced(tmp_path: Path) -> None:
    """The last iteration is traced: within 10 us of that of another run, of seconds. What it says
    ends with it, and each of four ranks has its 8 micro-batches and its share of the collectives.
    """
    *_, untraced = run_two_labs(tmp_path / "untraced").records
    found = run_two_labs(tmp_path / "traced", "--trace")
    *_, traced = found.records
    traced_s, path = traced.iteration_s, found.path
    assert traced_s == pytest.approx(untraced.iteration_s, abs=1e-5)
    (key,) = found.plans
    timeline = read_timeline(trace_path(path.parent, key))
    assert timeline.iteration_s == traced_s
    assert max(piece.end_s for piece in timeline.slices) == pytest.approx(traced_s, abs=1e-4)
    for rank in range(4):
        kinds = [piece.kind for piece in timeline.slices if piece.rank == rank]
        assert [kinds.count(kind) for kind in ("forward", "backward", "collective")] == [8, 8, 2]
