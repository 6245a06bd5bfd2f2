"""Machines that go and come during emulations, against simulations under the same trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netbench.records import Run, find_run, read_run
from netbench.report.tables.churn import interrupted_plans
from netbench.report.tables.run import run_markdown
from netbench.testbed.guest.boot import HANG_S

pytestmark = pytest.mark.guest

SCENARIO = """\
name: {name}
regions: [West, East]
nodes: [{{region: West, count: 2, device: Slow}}, {{region: East, count: 2, device: Fast}}]
network:
  inside: {{one_way_delay: 0.3ms, bandwidth: 1Gbit}}
  links: [{{between: [West, East], one_way_delay: 30ms, bandwidth: 80Mbit}}]
devices:
{text}
"""

SWARM = """\
  Slow: {throughput: {mine: 100}}
  Fast: {throughput: {mine: 300}, step: 2, host_factor: 0.5}
workload: {model: mine, parameters: 16M, tensors: 20, batch: 18000, micro_batch: 20}
sweep: {variants: [hivemind-swarm-m0]}
"""
"""A round of about 25 s, of which 3 s are averaging."""

DILOCO = """\
  Slow: {flops: 2TFLOPS, memory: 16GB, source: made up}
  Fast: {flops: 2TFLOPS, memory: 16GB, source: made up}
workload: {layers: 4, hidden: 256, heads: 8, sequence: 512, batch: 16}
sweep: {variants: [diloco-h8]}
"""
"""A round of about 2 s, of which 1.7 s are an outer step."""


def emulate(folder: Path, name: str, text: str, churn: str, iterations: int) -> Run:
    (folder / f"{name}.yaml").write_text(SCENARIO.format(name=name, text=text), encoding="utf-8")
    (folder / "churn.csv").write_text(f"time_s,node,event\n{churn}", encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "netbench", "run", f"{name}.yaml", "--faithful",
            "--churn", "churn.csv", "--iterations", str(iterations), "--results", str(folder),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    path = find_run(folder, name)
    assert path is not None
    return read_run(path)


def test_a_swarm_goes_on_as_simulated(tmp_path: Path) -> None:
    """Two machines go, the first the leader of the group, and one comes back."""
    run = emulate(tmp_path, "swarm", SWARM, "30,0,go\n60,0,come\n200,3,go\n", 12)
    (found,) = interrupted_plans(run).values()
    assert run.reasons == ()
    assert found.num_interruptions == 2
    assert [record.peers for record in run.records[:4]] == [4, 3, 3, 4]
    assert run.records[-1].peers == 3
    assert found.difference == pytest.approx(0.0, abs=0.05)
    assert "hivemind-swarm-m0, interrupted" in run_markdown(run)


def test_diloco_takes_the_outer_step_again_without_a_rank(tmp_path: Path) -> None:
    """The first machine goes in the middle of the outer step, and comes back for another round; the
    second goes between outer steps."""
    run = emulate(tmp_path, "diloco", DILOCO, "1.2,0,go\n8,0,come\n15.7,2,go\n", 72)
    (found,) = interrupted_plans(run).values()
    assert run.reasons == ()
    rounds = [record for record in run.records if record.samples]
    assert len(rounds) == 9
    assert [record.peers for record in rounds[:2]] == [3, 3]
    assert {record.peers for record in rounds} == {3, 4}
    assert rounds[0].iteration_s > rounds[1].iteration_s + 0.5  # done again
    assert found.difference == pytest.approx(0.0, abs=0.05)
