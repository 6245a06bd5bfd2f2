"""A traced run in the guest kernel, from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netbench.plan.timeline import read_timeline, trace_path
from netbench.records import find_run, read_run
from netbench.testbed.guest.boot import HANG_S

pytestmark = pytest.mark.guest


def test_a_traced_iteration_takes_as_long_as_another(tmp_path: Path) -> None:
    """The second of two is traced: within 0.1 ms of the first, of seconds; what it says ends with
    it, and every one of four ranks has its 8 micro-batches and its share of the collectives."""
    command = [sys.executable, "-m", "netbench", "run", "example-two-labs", "--trace"]
    options = ["--systems", "dtfm-scheduled", "--results", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path = find_run(tmp_path, "example-two-labs")
    assert path is not None
    found = read_run(path)
    untraced_s, traced_s = (record.iteration_s for record in found.records if not record.warmup)
    assert traced_s == pytest.approx(untraced_s, abs=1e-4)
    (key,) = found.plans
    timeline = read_timeline(trace_path(path.parent, key))
    assert timeline.iteration_s == traced_s
    assert max(piece.end_s for piece in timeline.slices) == pytest.approx(traced_s, abs=1e-4)
    for rank in range(4):
        kinds = [piece.kind for piece in timeline.slices if piece.rank == rank]
        assert [kinds.count(kind) for kind in ("forward", "backward", "collective")] == [8, 8, 2]
