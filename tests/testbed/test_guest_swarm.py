"""hivemind-swarm in virtual time, over links that windows limit, against the simulator."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from netbench.network.shaping.segments import goodput_ratio
from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.records import Record, Run, find_run, read_run
from netbench.systems.rounds import time_round
from netbench.testbed.guest.boot import HANG_S

pytestmark = pytest.mark.guest

PARAMETERS, LINK_BPS = 16_000_000, 80e6

SCENARIO = f"""\
name: swarm
regions: [West, East]
nodes:
  - {{region: West, count: 2, device: Slow, nic: 1Gbit}}
  - {{region: East, count: 2, device: Fast, nic: 500Mbit}}
network:
  sharing: nic
  inside: {{one_way_delay: 0.3ms, bandwidth: 1Gbit}}
  links: [{{between: [West, East], one_way_delay: 30ms, bandwidth: {LINK_BPS / 1e6:g}Mbit}}]
devices:
  Slow: {{throughput: {{mine: 100}}}}
  Fast: {{throughput: {{mine: 300}}, step: 2, host_factor: 0.5}}
workload: {{model: mine, parameters: {PARAMETERS}, tensors: 20, batch: 6000, micro_batch: 20}}
sweep: {{variants: [hivemind-swarm-m0]}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two rounds in a guest."""
    folder = tmp_path_factory.mktemp("swarm")
    (folder / "swarm.yaml").write_text(SCENARIO, encoding="utf-8")
    options = ("--faithful", "--iterations", "2", "--warmup", "0", "--results", str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "netbench", "run", str(folder / "swarm.yaml"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    path = find_run(folder, "swarm")
    assert path is not None
    return read_run(path)


def rounds(run: Run) -> tuple[Plan, tuple[Record, ...]]:
    (plan,) = run.plans.values()
    return plan_from_json(json.dumps(plan)), run.records


def test_one_connection_gets_the_rate_of_its_link(run: Run) -> None:
    """W / RTT, within 2%: the queue lets ten times as much pass."""
    checks = {
        (check["src"], *check["dsts"]): check
        for probe in run.probes
        for check in probe.result["checks"]
        if check["quantity"] == "goodput_bps" and check["kind"] == "link"
    }
    far = [check for (src, dst), check in checks.items() if src // 2 != dst // 2]
    assert len(far) == 2
    for check in far:
        assert check["measured"] == pytest.approx(LINK_BPS * goodput_ratio(1500), rel=0.02)


def test_a_round_takes_as_long_as_simulated(run: Run) -> None:
    """Within 5%; communication within 20%: with few pieces, the round trips in which the last of
    them return, which formulas leave out, count."""
    plan, records = rounds(run)
    found = time_round(plan)
    assert len(records) == 2
    for record in records:
        assert record.iteration_s == pytest.approx(found.round_s, rel=0.05)
    mean_s = sum(record.iteration_s for record in records) / len(records)
    assert mean_s - found.compute_s == pytest.approx(found.communication_s, rel=0.20)


def test_peers_send_what_the_plan_says(run: Run) -> None:
    """4 (n - 1) / n bytes per parameter, headers of packets of 64 KiB, and acknowledgements."""
    _, records = rounds(run)
    payload = 4 * PARAMETERS * 3 / 4
    for sent in records[0].sent_bytes:
        assert payload <= sent <= 1.03 * payload
