"""`netbench run --testbed sim`, as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.errors import UsageError
from netbench.records import Run, find_run, read_run
from netbench.testbed import local
from tests.commands import two_nodes
from tests.report import runs

CaptureFixture = pytest.CaptureFixture[str]


def recorded(results: Path, scenario: str) -> Run:
    path = find_run(results, scenario)
    assert path is not None
    return read_run(path)


def test_a_pipeline_of_two_takes_compute_and_two_transfers(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """One record, simulated, at scale 1, whose phases sum to it; within 1% of the sum on paper."""
    scenario = two_nodes.write(tmp_path, "100Mbit")
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    found = recorded(tmp_path, "two-nodes")
    (record,) = found.records
    assert record.iteration_s == pytest.approx(two_nodes.iteration_s(100e6), rel=0.01)
    assert sum(record.phases.values()) == pytest.approx(record.iteration_s)
    assert (record.source, record.iteration, record.warmup) == ("simulated", 0, False)
    (session,) = found.sessions
    assert (session.environment.mode, session.environment.scale) == ("sim", 1.0)
    (plan,) = found.plans.values()
    assert (plan["scale"], plan["iterations"], plan["warmup_iterations"]) == (1.0, 1, 0)
    printed = capsys.readouterr().out
    assert f"{record.iteration_s:.4f}" in printed
    assert "repeats" in printed
    assert "a simulation: no network was shaped" in printed


def test_without_delay_and_limit_compute_remains(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Zero delay and infinite bandwidth are a network too; hosts' copies take 3% here."""
    scenario = two_nodes.write(tmp_path, "unlimited", "0ms")
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    (record,) = recorded(tmp_path, "two-nodes").records
    assert two_nodes.COMPUTE_S < record.iteration_s < 1.03 * two_nodes.COMPUTE_S


def test_many_plans_are_those_of_one_process(tmp_path: Path) -> None:
    """All 60 of a sweep over networks and micro-batches, in the order planned, to the bit."""
    from netbench.plan import plan_from_json
    from netbench.simulator import simulate

    assert run(["run", "gpt3-small", "--all", "--testbed", "sim", "--results", str(tmp_path)]) == 0
    found = recorded(tmp_path, "gpt3-small")
    assert len(found.records) == len(found.plans) == 60
    assert [record.plan_hash for record in found.records] == list(found.plans)
    for record in found.records[::13]:
        plan = plan_from_json(json.dumps(found.plans[record.plan_hash]))
        assert simulate(plan).iteration_s == record.iteration_s


def test_the_setting_names_networks_and_micro_batches(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """A row each: no cell is the mean of two networks."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    assert run([*command, "--networks", "1ms,10ms-1Gbit", "--micro-batch", "2,4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    settings = [line[: line.index("dtfm")].strip() for line in lines if "dtfm-scheduled" in line]
    assert settings == [
        "L12 B64 m2 1ms",
        "L12 B64 m4 1ms",
        "L12 B64 m2 10ms-1Gbit",
        "L12 B64 m4 10ms-1Gbit",
    ]


def test_a_run_is_resumed_where_it_was_stopped(tmp_path: Path, capsys: CaptureFixture) -> None:
    """What is there is not simulated again; what was lost comes back the same."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    assert run([*command, "--micro-batch", "1,2,4"]) == 0
    before = recorded(tmp_path, "gpt3-small")
    lines = before.path.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if '"kind":"iteration"' in line)
    before.path.write_text("".join(lines[:last]))
    capsys.readouterr()
    assert run([*command, "--resume"]) == 0
    assert "2 iterations there already" in capsys.readouterr().out
    after = recorded(tmp_path, "gpt3-small")
    assert after.records == before.records
    assert len(after.sessions) == 2


def test_a_finished_run_is_not_run_again(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Its table is printed again, and nothing is added to it."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    assert run(command) == 0
    path = recorded(tmp_path, "gpt3-small").path
    before = path.read_text()
    capsys.readouterr()
    assert run([*command, "--resume"]) == 0
    out = capsys.readouterr().out
    assert "all of it is finished" in out
    assert "dtfm-scheduled" in out
    assert path.read_text() == before


@pytest.mark.parametrize(("testbed", "says"), [("sim", "was emulated"), ("local", "was simulated")])
def test_sources_are_not_mixed_in_a_run(
    testbed: str, says: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """An emulated run is not continued by the simulator, nor the other way round."""
    if testbed == "sim":
        runs.write(tmp_path, runs.CASE3)
    else:
        assert run(["run", "case3", "--systems", "zero3", "--testbed", "sim",
                    "--results", str(tmp_path)]) == 0  # fmt: skip
    command = ["run", "case3", "--testbed", testbed, "--results", str(tmp_path), "--resume"]
    assert run(command) == 2
    assert says in capsys.readouterr().err


def test_a_whole_sweep_leaves_out_what_no_trainer_runs(
    capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were there none for Megatron, its layouts could only be simulated."""
    without = {key for key in local.TRAINED if key[0] != "megatron"}
    monkeypatch.setattr(local, "TRAINED", without)
    assert run(["run", "case1", "--all", "--dry-run"]) == 0
    first, *plans = capsys.readouterr().out.splitlines()
    assert first.endswith("megatron-p8, megatron-t8, megatron-p2t4, megatron-p4t2")
    assert {line.split()[2] for line in plans} == {"dtfm-scheduled", "dtfm-random", "zero3"}
    assert run(["run", "case1", "--all", "--dry-run", "--testbed", "sim"]) == 0
    assert "megatron-t8" in capsys.readouterr().out


def test_dry_run_simulates_nothing(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The plans, at scale 1, and no folder."""
    command = ["run", "case3", "--testbed", "sim", "--results", str(tmp_path), "--dry-run"]
    assert run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("0 + 1 iterations, scale 1") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_warned_of_before_the_table(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """2 layers of hidden 1024 in 10 MB; it is simulated all the same."""
    scenario = two_nodes.write(tmp_path)
    path = Path(scenario)
    path.write_text(path.read_text().replace("16GB", "10MB"))
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Box has 10MB" in printed
    assert printed.index("memory:") < printed.index("Setting")


def test_what_the_simulator_leaves_out_is_said_in_one_line(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Jitter and loss change an emulated run only; the table is there all the same."""
    scenario = two_nodes.write(tmp_path, delay="2ms, jitter: 1ms, loss: 1%, duplication: 1%")
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "network: duplication, jitter, loss: not simulated" in printed
    assert printed.count("not simulated") == 1
    assert "Setting" in printed


def test_what_netem_will_not_deliver_is_said_before_a_run(
    tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before anything is built or shaped for it."""

    def stop() -> None:
        raise UsageError("no further")

    monkeypatch.setattr("netbench.commands.run.ensure_kernel", stop)
    scenario = two_nodes.write(tmp_path, delay="2ms, jitter: {deviation: 1ms, correlation: 9%}")
    assert run(["run", scenario, "--results", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "network: A -> B: a jitter correlation of 9% does nothing" in printed
    assert "a jitter of 1ms does not fit a delay of 2ms" in printed


def test_nothing_is_said_of_links_that_only_delay(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The line is there for those who have something to lose."""
    scenario = two_nodes.write(tmp_path, delay="2ms")
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    assert "not simulated" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--systems", "megatron-p128"], "needs 128 pipeline stages"),
        (["--systems", "megatron-p3"], "cannot be divided into pipelines of 3"),
        (["--networks", "1ms"], 'has no network "1ms"'),
        (["--networks", "all"], "leave out --networks"),
        (["--micro-batch", "3"], "does not divide into micro-batches of 3"),
        (["--seeds", "-1"], "seed is -1; expected a whole number from 0"),
        (["--iterations", "0"], "is not in the range x>=1"),
        (["--warmup", "-1"], "is not in the range x>=0"),
        (["--ssh"], "leave out --ssh"),
        (["--scale", "10"], "simulates at full size"),
        (["--trace", "nowhere/x.json"], "no folder nowhere"),
        (["--trace"], "--trace needs a file with --testbed sim"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: list[str], says: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Exit code 2, what was found and what to do; nothing is left behind."""
    command = ["run", "case3", "--testbed", "sim", "--results", str(tmp_path)]
    assert run([*command, *options]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_tokens_that_the_model_does_not_know(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Before anything starts; bytes are what a model without embedding parameters knows."""
    tokens = tmp_path / "tokens.bin"
    words = ["--compute", "cpu", "--token-file", str(tokens), "--dry-run"]
    command = ["run", two_nodes.write(tmp_path), *words, "--results", str(tmp_path / "results")]
    tokens.write_bytes(b"\x07\x00" * 1025)
    assert run(command) == 0
    assert "computed on cpu" in capsys.readouterr().out
    tokens.write_bytes(b"\x07\x01" * 1025)
    assert run(command) == 2
    assert "token 0 is 263; the model knows 0 to 255" in capsys.readouterr().err


def test_pictures_are_of_simulations(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A local run has none to show."""
    assert run(["run", "case3", "--plot", str(tmp_path / "x.png")]) == 2
    assert "add --testbed sim" in capsys.readouterr().err


def test_traces_of_emulated_iterations_are_kept_in_the_run(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """So a file's name is refused, before anything starts."""
    assert run(["run", "case3", "--trace", "x.json", "--results", str(tmp_path)]) == 2
    assert "--trace x.json: traces of emulated iterations are kept" in capsys.readouterr().err
    assert run(["run", "case3", "--command", "true", "--trace", "--results", str(tmp_path)]) == 2
    assert "a script of yours has none to keep" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_traces_and_pictures_are_written(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The first plan's, or with {plan} in the name every plan's."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    options = ["--trace", str(tmp_path / "one.json"), "--plot", str(tmp_path / "{plan}.png")]
    assert run([*command, "--micro-batch", "2,4", *options]) == 0
    assert "traceEvents" in json.loads((tmp_path / "one.json").read_text())
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == [
        "dtfm-scheduled-L12-B64-m2-10ms-1Gbit-2022.png",
        "dtfm-scheduled-L12-B64-m4-10ms-1Gbit-2022.png",
    ]
    assert (tmp_path / pictures[0]).read_bytes().startswith(b"\x89PNG")


def test_a_simulation_needs_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    """In a fresh interpreter."""
    script = (
        "import sys\nfrom netbench.cli import run\n"
        "assert run(['run', 'gpt3-small', '--testbed', 'sim', "
        f"'--results', {str(tmp_path)!r}]) == 0\nprint('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.splitlines()[-1].split()) & {"torch", "matplotlib", "paramiko"}
