"""`netbench collective`, as a person types it; without a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.collective import check_fits
from netbench.errors import PlanError
from netbench.plan.collective import CollectivePlan, uniform_network
from netbench.records import Run, find_run, read_run
from netbench.report.collective import bus_factor
from tests.commands import two_nodes

CaptureFixture = pytest.CaptureFixture[str]

NETWORK = ["--delay", "10ms", "--rate", "1Gbit"]
MIB = 1 << 20


def simulator(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[CollectivePlan]:
    """Put a simulator in place that always says `seconds`; the plans it was asked for."""
    asked: list[CollectivePlan] = []

    def simulate_collective(plan: CollectivePlan) -> float:
        asked.append(plan)
        return seconds

    monkeypatch.setattr("netbench.simulator.simulate_collective", simulate_collective)
    return asked


def recorded(results: Path, scenario: str = "collective-uniform") -> Run:
    path = find_run(results, scenario)
    assert path is not None
    return read_run(path)


def test_a_simulated_op_is_recorded_and_tabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """4 ranks, 64 MiB in half a second: 1.074 Gbit/s, and 1.611 on the bus of an all-reduce."""
    asked = simulator(monkeypatch, 0.5)
    command = ["collective", "all-reduce", "--nodes", "4", "--bytes", "64MiB", "--mtu", "9001"]
    assert run([*command, *NETWORK, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    (plan,) = asked
    assert (plan.payload_bytes, plan.network.mtu_bytes) == (64 * MIB, 9001)
    assert plan.network.link(0, 3).one_way_delay_s == 0.01
    (record,) = recorded(tmp_path).records
    assert (record.system, record.variant, record.source) == (
        "collective",
        "all-reduce",
        "simulated",
    )
    assert record.iteration_s == 0.5
    printed = capsys.readouterr().out
    assert "20ms round trip" in printed
    assert "1.074Gbit" in printed
    assert "1.611Gbit" in printed


def test_several_ops_and_sizes_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size by size, each op once however often it is named."""
    simulator(monkeypatch, 0.5)
    command = ["collective", "p2p", "reduce", "p2p", "--nodes", "2", "--bytes", "1MiB,2MiB"]
    assert run([*command, *NETWORK, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    plans = recorded(tmp_path).plans.values()
    assert [(plan["op"], plan["payload_bytes"]) for plan in plans] == [
        ("p2p", MIB),
        ("reduce", MIB),
        ("p2p", 2 * MIB),
        ("reduce", 2 * MIB),
    ]


def test_a_run_of_collectives_is_tabled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Under its own name, in every form; as a run of the scenario it is refused."""
    simulator(monkeypatch, 0.5)
    command = ["collective", "all-reduce", "--nodes", "4", "--bytes", "64MiB", "--testbed", "sim"]
    assert run([*command, "--scenario", "case3", "--results", str(tmp_path)]) == 0
    table = ["table", "collective-case3", "--results", str(tmp_path)]
    for form in ("rich", "markdown", "csv"):
        capsys.readouterr()
        assert run([*table, "--format", form]) == 0
        assert "1.611Gbit" in capsys.readouterr().out
    path = find_run(tmp_path, "collective-case3")
    assert path is not None
    assert run(["table", "case3", "--run", str(path)]) == 2
    assert "a run of collective-case3, not of case3" in capsys.readouterr().err
    assert run([*table, "--plot", str(tmp_path / "x.png")]) == 2
    assert "has no picture" in capsys.readouterr().err


def test_a_scenario_lends_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first nodes; the run is not mistaken for one of the scenario."""
    asked = simulator(monkeypatch, 0.5)
    command = ["collective", "p2p", "--nodes", "3", "--bytes", "1MiB", "--testbed", "sim"]
    assert run([*command, "--scenario", "example-two-labs", "--results", str(tmp_path)]) == 0
    assert asked[0].network.link(0, 2).one_way_delay_s == 0.008
    assert find_run(tmp_path, "example-two-labs") is None
    assert recorded(tmp_path, "collective-example-two-labs").records[0].scenario == (
        "example-two-labs"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--bytes", "64"], 'has no unit; write e.g. "64MiB"'),
        (["--delay", "10"], 'has no unit; write e.g. "10ms"'),
        (["--rate", "0Gbit"], "a bandwidth must be positive"),
        (["--mtu", "100"], "is not in the range 576<=x<=65535"),
        (["--testbed", "moon"], 'unknown testbed "moon"'),
        (["--nodes", "1"], "expected at least 2"),
        (["--nodes", "5000"], "5000 nodes; expected at most 4096"),
        (["--iterations", "0"], "is not in the range x>=1"),
        (["--warmup", "-1"], "is not in the range x>=0"),
        (["--backend", "nccl"], "nccl needs GPUs"),
        (["--scenario", "case3"], "leave out --delay, --rate"),
        (["--bytes", "1GiB"], "give --bytes 114MiB or less"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: list[str], says: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Exit code 2, what was found and what to do."""
    command = ["collective", "p2p", "--nodes", "2", "--bytes", "1MiB", *NETWORK]
    assert run([*command, "--results", str(tmp_path), *options]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_it_says_what_to_give(capsys: CaptureFixture) -> None:
    """Either of the two ways."""
    assert run(["collective", "p2p", "--nodes", "2", "--bytes", "1MiB", "--delay", "1ms"]) == 2
    assert "give --delay and --rate" in capsys.readouterr().err


def test_the_network_of_a_file_is_recorded_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder of results, wherever the file is."""
    simulator(monkeypatch, 0.5)
    scenario, results = two_nodes.write(tmp_path), tmp_path / "results"
    command = ["collective", "p2p", "--nodes", "2", "--bytes", "1MiB", "--scenario", scenario]
    assert run([*command, "--testbed", "sim", "--results", str(results)]) == 0
    (folder,) = results.iterdir()
    assert folder.name.startswith("collective-two-nodes-2")


@pytest.mark.parametrize(("op", "factor"), [("all-reduce", 1), ("sharded-ps", 3.25)])
def test_the_limit_counts_what_a_rank_holds(op: str, factor: float) -> None:
    """4 ranks: the largest payload that is told to fit does, a MiB more does not."""

    def plan(size_mib: int) -> CollectivePlan:
        return CollectivePlan(
            op=op,
            num_nodes=4,
            payload_bytes=size_mib * MIB,
            backend="gloo",
            network=uniform_network(4, one_way_delay_s=0.001, bandwidth_bps=1e9),
            iterations=1,
            warmup_iterations=0,
        )

    most_mib = int(120e6 / factor / MIB)
    check_fits(plan(most_mib))
    with pytest.raises(PlanError, match=f"give --bytes {most_mib}MiB or less"):
        check_fits(plan(most_mib + 1))


@pytest.mark.parametrize(
    ("op", "num_ranks", "factor"),
    [
        ("all-reduce", 8, 1.75),
        ("all-gather", 8, 0.875),
        ("reduce-scatter", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("p2p", 2, 1.0),
    ],
)
def test_bus_bandwidth_is_nccl_tests(op: str, num_ranks: int, factor: float) -> None:
    """Its PERFORMANCE.md: 2 (n - 1) / n, (n - 1) / n, 1."""
    assert bus_factor(op, num_ranks) == factor
