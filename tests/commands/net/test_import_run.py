"""`netbench net import --run`: the network that a run measured, as a scenario."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from netbench.cli import run
from netbench.plan.serial import plan_from_json
from netbench.records import Run, RunStore, read_run
from netbench.scenario import load_scenario
from netbench.scenario.load import scenarios_dir
from netbench.scenario.measured.replay import link_text
from netbench.scenario.model import BurstLoss, Link, Network
from tests.runs import ENVIRONMENT

RECORDED = scenarios_dir().parent / "results" / "recorded" / "case3-20261128-021313-0044"
"""A run of four plans on case 3."""

PROBED = RECORDED.with_name("case3-20261127-185545-7d22")
"""A run on case 3 with four probes."""

ECHO_BYTES = 98
"""A ping's frame: 56 bytes of data, 8 ICMP, 20 IP, 14 Ethernet."""


def figures(found: Run, quantity: str, regions: tuple[int, int]) -> list[float]:
    """Return the measured figures of links between two regions of 32 nodes each."""
    return [
        check["measured"]
        for probe in found.probes
        for check in probe.result["checks"]
        if check["kind"] == "link"
        and check["quantity"] == quantity
        and (check["src"] // 32, check["dsts"][0] // 32) == regions
    ]


def imported(tmp_path: Path, source: Path) -> Path:
    made = tmp_path / "again.yaml"
    assert run(["net", "import", "--run", str(source), "-o", str(made)]) == 0
    return made


def test_matrices_are_those_that_the_run_measured(tmp_path: Path) -> None:
    """By closed forms: an echo is its delay and its frame at 1/1000 of the rate; goodput is 8949 of
    9015 bytes of a frame at the MTU of 9001."""
    found = read_run(PROBED)
    network = load_scenario(str(imported(tmp_path, PROBED))).network
    delays_s, rates_bps = network.one_way_delay_s(), network.bandwidth_bps()
    asked_bps = load_scenario("case3").network.bandwidth_bps()
    assert network.num_nodes == 64
    for a in range(2):
        for b in range(2):
            src, dst = 32 * a, 32 * b + 1
            frame_s = ECHO_BYTES * 8 * 1000 / asked_bps[src, dst]
            delay_s = fmean(figures(found, "one_way_s", (a, b))) - frame_s
            assert delays_s[src, dst] == pytest.approx(delay_s, rel=1e-6)
            rate_bps = fmean(figures(found, "goodput_bps", (a, b))) * 1000 * 9015 / 8949
            assert rates_bps[src, dst] == pytest.approx(rate_bps, rel=1e-9)
    inside = np.arange(64) // 32
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):  # links not probed: the value of their class
        links = np.ix_(inside == a, inside == b)
        assert len(set(delays_s[links].ravel()) - {0.0}) == 1


def test_the_file_says_what_was_measured_where(tmp_path: Path) -> None:
    text = imported(tmp_path, PROBED).read_text()
    assert f"Network: 4 probes of run {PROBED.name}, which is not trustworthy." in text
    assert "Every link of a class has the value of the link that was probed." in text
    (line,) = [line for line in text.splitlines() if "from: Ohio, to: Virginia" in line]
    assert "# measured from node2 to node32: " in line
    assert "rate 1.12Gbit, means of 4" in line


def test_the_plans_are_those_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Same stages, so the simulation on the measured network is that on the asked one, to 0.2%."""
    made, results = imported(tmp_path, RECORDED), tmp_path / "results"
    words = ["--testbed", "sim", "--systems", "dtfm-scheduled,megatron-p8"]
    assert run(["run", str(made), *words, "--results", str(results)]) == 0
    again = read_run(next(results.iterdir()))
    before = read_run(RECORDED)
    by_variant = {plan["variant"]: key for key, plan in before.plans.items()}
    assert len(again.records) == 2
    for record in again.records:
        key = by_variant[record.variant]
        assert again.plans[record.plan_hash]["stages"] == before.plans[key]["stages"]
        assert record.iteration_s == pytest.approx(before.predictions[key], rel=2e-3)


def write_run(tmp_path: Path, checks: list[dict[str, Any]] | None, **environment: str) -> Path:
    """Write a run of one recorded plan with a probe of its own, or none."""
    plan = next(iter(read_run(RECORDED).plans.values()))
    with RunStore.create(
        tmp_path,
        scenario="case3",
        created=datetime(2026, 1, 2),
        command=["netbench"],
        environment=ENVIRONMENT,
    ) as store:
        store.append_plan("0", plan)
        if checks is not None:
            store.append_probe({"tolerance": 0.05, "checks": checks, "reasons": []})
    return store.path.parent


def check(quantity: str, measured: float | None, expected: float) -> dict[str, Any]:
    ends = {"kind": "link", "src": 0, "dsts": [40], "srcs": []}
    figures = {"quantity": quantity, "measured": measured, "expected": expected}
    return {**ends, **figures, "allowed": 1.0, "passed": True, "streams": 1}


def test_half_of_what_a_round_trip_is_longer_is_the_links(tmp_path: Path) -> None:
    """Hosts have clocks of their own: no one-way delay was measured. 22 ms were asked for, and
    26 ms found. What was not measured is as asked for, and the file says so."""
    source = write_run(tmp_path, [check("rtt_s", 0.026, 0.022), check("goodput_bps", None, 1e6)])
    made = imported(tmp_path, source)
    network = load_scenario(str(made)).network
    assert network.link(0, 40).one_way_delay_s == pytest.approx(0.013)
    assert network.link(40, 0).one_way_delay_s == 0.011
    assert network.link(0, 40).bandwidth_bps == 1.12e9
    lines = made.read_text().splitlines()
    (there,) = [line for line in lines if "from: Ohio, to: Virginia" in line]
    (back,) = [line for line in lines if "from: Virginia, to: Ohio" in line]
    assert "an echo there and back 26ms" in there
    assert there.endswith("; no goodput: its rate is as asked for")
    assert back.endswith("# not probed: as asked for")


@pytest.mark.parametrize("checks", [None, [], [check("rtt_s", None, 0.022)]])
def test_a_run_without_a_probe_is_an_error(
    checks: list[dict[str, Any]] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_run(tmp_path, checks)
    assert run(["net", "import", "--run", str(source)]) == 1
    error = capsys.readouterr().err
    assert ("has no probe: no network" if checks is None else "no probe measured a link") in error


def test_a_run_on_several_networks_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = RECORDED.parent.glob("gpt3-small-2*")
    assert run(["net", "import", "--run", str(source)]) == 2
    assert "is on several networks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to import; give FILEs, or a run with --run"),
        (["--run", "nowhere"], "nowhere is neither a run's folder nor a scenario"),
        (["--run", str(RECORDED), "a.csv"], "leave out FILEs"),
        (["--run", str(RECORDED), "--symmetric"], "--symmetric is for FILEs"),
    ],
)
def test_arguments_that_do_not_go_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["net", "import", *words]) == 2
    assert message in capsys.readouterr().err


def test_every_property_of_a_link_is_written(tmp_path: Path) -> None:
    """The text of a link is read as the same link."""
    link = Link(
        one_way_delay_s=0.0123456789,
        bandwidth_bps=987654321.5,
        jitter_s=0.001,
        jitter_distribution="pareto",
        jitter_correlation=0.25,
        jitter_reorders=True,
        bursts=BurstLoss(to_bad=0.01, to_good=0.3, loss_bad=0.9, loss_good=0.001),
        duplication=0.01,
        corruption=0.002,
        reordering=0.03,
        queue_packets=77,
    )
    unlimited = Link(one_way_delay_s=0.001, bandwidth_bps=math.inf, loss=0.02)
    path = tmp_path / "two.yaml"
    path.write_text(f"""\
regions: [A, B]
nodes: [{{region: A, device: V100}}, {{region: B, device: V100}}]
network:
  links:
    - {{from: A, to: B, {link_text(link)}}}
    - {{from: B, to: A, {link_text(unlimited)}}}
devices: {{V100: builtin}}
workload: {{layers: 2, hidden: 64, heads: 4, sequence: 32, batch: 4}}
""")
    network: Network = load_scenario(str(path)).network
    assert (network.link(0, 1), network.link(1, 0)) == (link, unlimited)


def test_the_recorded_run_is_what_the_tests_take_it_for() -> None:
    found = read_run(PROBED)
    (plan, *_) = (plan_from_json(json.dumps(plan)) for plan in found.plans.values())
    assert (len(found.probes), plan.scale, plan.network.mtu_bytes) == (4, 1000, 9001)
