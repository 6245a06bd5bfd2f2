"""`netbench collective` on the command line, without a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.collective import check_fits
from netbench.errors import PlanError
from netbench.plan.benchmark import CollectivePlan, uniform_network
from netbench.plan.collectives import COLLECTIVES
from netbench.records import Run, find_run, read_run
from tests.commands import two_nodes

CaptureFixture = pytest.CaptureFixture[str]

NETWORK = ["--delay", "10ms", "--rate", "1Gbit"]
MIB = 1 << 20


def simulator(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[CollectivePlan]:
    """Install a simulator that always returns `seconds`; return the list of its plans."""
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


def test_operations_are_separated_by_blanks_or_commas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Systems are elsewhere too; a wrong name lists the others."""
    network = ["--nodes", "2", "--bytes", "1MiB", "--delay", "1ms", "--rate", "1Gbit"]
    options = [*network, "--testbed", "sim", "--results", str(tmp_path)]
    assert run(["collective", "all-reduce,broadcast", "p2p", *options]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if "1MiB" in line] == [
        *("all-reduce", "broadcast", "p2p")
    ]
    assert run(["collective", "all-reduce,banana", *options]) == 2
    assert "'banana' is not one of" in capsys.readouterr().err


def test_a_simulated_operation_is_recorded_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """64 MiB in 0.5 s are 1.074 Gbit/s; the bus bandwidth of 4 ranks is 1.611 Gbit/s."""
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
    """Plans are ordered by size; an operation given twice runs once."""
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


def test_the_table_of_collectives_can_be_printed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """It is found under its own name, in every format, but not as a run of the scenario."""
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


def test_a_scenario_provides_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first nodes are taken; the run is not found as one of the scenario."""
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
        (["--nodes", "1"], "is not in the range 2<=x<=4096"),
        (["--nodes", "5000"], "is not in the range 2<=x<=4096"),
        (["--iterations", "0"], "is not in the range 1<=x<=100000"),
        (["--warmup", "-1"], "is not in the range 0<=x<=100000"),
        (["--backend", "nccl"], "nccl needs GPUs"),
        (["--scenario", "case3"], "leave out --delay, --rate"),
        (["--bytes", "1GiB"], "give --bytes 114MiB or less"),
        (["--replace"], "--replace is for the hosts of an inventory"),
        (["--inventory", "nowhere.yaml"], "nowhere.yaml"),
        (["--inventory", "nowhere.yaml", "--testbed", "sim"], "leave out --testbed"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: list[str], says: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2, and no file is created."""
    command = ["collective", "p2p", "--nodes", "2", "--bytes", "1MiB", *NETWORK]
    assert run([*command, "--results", str(tmp_path), *options]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_network_is_an_error(capsys: CaptureFixture) -> None:
    """The message names both ways to give one."""
    assert run(["collective", "p2p", "--nodes", "2", "--bytes", "1MiB", "--delay", "1ms"]) == 2
    assert "add --delay and --rate" in capsys.readouterr().err


def test_the_network_of_a_file_is_recorded_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes to the folder of results, wherever the file is."""
    simulator(monkeypatch, 0.5)
    scenario, results = two_nodes.write(tmp_path), tmp_path / "results"
    command = ["collective", "p2p", "--nodes", "2", "--bytes", "1MiB", "--scenario", scenario]
    assert run([*command, "--testbed", "sim", "--results", str(results)]) == 0
    (folder,) = results.iterdir()
    assert folder.name.startswith("collective-two-nodes-2")


@pytest.mark.parametrize(("op", "factor"), [("all-reduce", 1), ("sharded-ps", 3.25)])
def test_the_size_limit_counts_the_tensors_of_a_rank(op: str, factor: float) -> None:
    """The largest payload in the message fits, and 1 MiB more does not."""

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
    """Factors of nccl-tests' PERFORMANCE.md: 2 (n - 1) / n, (n - 1) / n, 1."""
    assert COLLECTIVES[op].bus_factor(num_ranks) == factor
