"""`netbench run --testbed sim` on the command line."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.run.command import as_often_as_needed
from netbench.errors import UsageError
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution
from netbench.records import Run, find_run, read_run
from netbench.scenario import load_scenario
from netbench.scenario.model import UNMODELLED
from netbench.systems.megatron import Megatron
from netbench.testbed.effort import in_parts
from tests import runs
from tests.commands import two_nodes

CaptureFixture = pytest.CaptureFixture[str]


def recorded(results: Path, scenario: str) -> Run:
    path = find_run(results, scenario)
    assert path is not None
    return read_run(path)


def test_a_pipeline_of_two_takes_compute_and_two_transfers(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The one record is at scale 1, sums its phases, and is within 1% of the closed form."""
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
    assert "simulated iterations are all equal" in " ".join(printed.split())
    assert "a simulation: no network was shaped" in printed


def test_an_ideal_network_leaves_the_time_of_compute(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """With zero delay and infinite bandwidth, hosts' copies still take up to 3%."""
    scenario = two_nodes.write(tmp_path, "unlimited", "0ms")
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    (record,) = recorded(tmp_path, "two-nodes").records
    assert two_nodes.COMPUTE_S < record.iteration_s < 1.03 * two_nodes.COMPUTE_S


def test_many_plans_give_the_times_of_one_process(tmp_path: Path) -> None:
    """All 60 plans of a sweep are recorded in their order, with bit-identical times."""
    from netbench.plan.serial import plan_from_json
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
    """Every setting has its own row, so that no cell is the mean of two networks."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    assert run([*command, "--networks", "1ms,10ms-1Gbit", "--micro-batch", "2,4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    settings = [line[: line.index("dtfm")].strip() for line in lines if line.startswith("L12")]
    assert settings == [
        "L12 B64 m2 1ms",
        "L12 B64 m4 1ms",
        "L12 B64 m2 10ms-1Gbit",
        "L12 B64 m4 10ms-1Gbit",
    ]


def test_a_run_is_resumed_where_it_was_stopped(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Recorded iterations are kept; a lost one is simulated again with the same result."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    assert run([*command, "--micro-batch", "1,2,4"]) == 0
    before = recorded(tmp_path, "gpt3-small")
    lines = before.path.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if '"kind":"iteration"' in line)
    before.path.write_text("".join(lines[:last]))
    capsys.readouterr()
    assert run([*command, "--resume"]) == 0
    assert "2 iterations already recorded" in capsys.readouterr().out
    after = recorded(tmp_path, "gpt3-small")
    assert after.records == before.records
    assert len(after.sessions) == 2


def test_a_finished_run_is_not_run_again(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Its table is printed again, and its file does not change."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    assert run(command) == 0
    path = recorded(tmp_path, "gpt3-small").path
    before = path.read_text()
    capsys.readouterr()
    assert run([*command, "--resume"]) == 0
    out = capsys.readouterr().out
    assert "all iterations are finished" in out
    assert "dtfm-scheduled" in out
    assert path.read_text() == before


@pytest.mark.parametrize(("testbed", "says"), [("sim", "was emulated"), ("local", "was simulated")])
def test_a_run_does_not_mix_emulation_and_simulation(
    testbed: str, says: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """An emulated run cannot be resumed in the simulator, nor a simulated one on a testbed."""
    if testbed == "sim":
        runs.write_run(tmp_path, runs.CASE3_TIMES)
    else:
        assert run(["run", "case3", "--systems", "zero3", "--testbed", "sim",
                    "--results", str(tmp_path)]) == 0  # fmt: skip
    command = ["run", "case3", "--testbed", testbed, "--results", str(tmp_path), "--resume"]
    assert run(command) == 2
    assert says in capsys.readouterr().err


def test_a_run_of_an_earlier_trainer_is_not_resumed(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The plan it recorded is not the one that this netbench makes."""
    command = ["run", "example-two-labs", "--testbed", "sim", "--results", str(tmp_path)]
    assert run([*command, "--systems", "zero3"]) == 0
    path = recorded(tmp_path, "example-two-labs").path
    text = path.read_text()
    assert '"revision":1' in text
    path.write_text(text.replace('"revision":1', '"revision":0'))
    capsys.readouterr()
    assert run([*command, "--resume"]) == 2
    assert "whose trainers run zero3 differently" in capsys.readouterr().err


def test_a_whole_sweep_leaves_out_systems_without_a_trainer(
    capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a trainer for Megatron, its layouts are only simulated."""
    monkeypatch.setattr(Megatron, "trainer", "")
    assert run(["run", "case1", "--all", "--dry-run"]) == 0
    first, *plans = capsys.readouterr().out.splitlines()
    assert first.endswith("megatron-p8, megatron-t8, megatron-p2t4, megatron-p4t2")
    assert {line.split()[2] for line in plans} == {
        "deepspeed-pp-random-nodes", "dtfm-scheduled", "dtfm-random", "zero3",
    }  # fmt: skip
    assert run(["run", "case1", "--all", "--dry-run", "--testbed", "sim"]) == 0
    assert "megatron-t8" in capsys.readouterr().out


def test_a_micro_batch_that_a_system_replaces_is_named(capsys: CaptureFixture) -> None:
    """zero3 takes up to 4 sequences; what it does take is not named, nor are other systems."""
    command = ["run", "example-two-labs", "--testbed", "sim", "--dry-run"]
    assert run([*command, "--systems", "zero3,megatron", "--micro-batch", "1,2,4"]) == 0
    first, *plans = capsys.readouterr().out.splitlines()
    assert first == "micro-batch: zero3 chooses its own size: 4 sequences, not 1, 2"
    assert sum("megatron" in plan for plan in plans) == 3


def test_a_part_of_the_sweep_is_not_taken_for_all_of_it(capsys: CaptureFixture) -> None:
    """Three batches of the nine settings."""
    command = ["run", "case1", "--all", "--systems", "zero3", "--dry-run"]
    assert run([*command, "--layers", "32"]) == 0
    first, *plans = capsys.readouterr().out.splitlines()
    assert first == "--all: of the sweep, only what the other options choose"
    assert len(plans) == 3
    assert run(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == 9


@pytest.mark.parametrize("placement", [(), ("--placement", "default")])
def test_all_reduces_between_nodes_have_a_scale_of_their_own(
    placement: tuple[str, ...], capsys: CaptureFixture
) -> None:
    """Placed or not; a scale that is asked for is that of all."""
    command = ["run", "case2", "--fast", "--dry-run", *placement, "--layers", "24"]
    command += ["--batch", "1024", "--systems", "megatron-p8,megatron-t8"]
    for asked, scales in (((), ["1000", "200"]), (("--scale", "500"), ["500", "500"])):
        assert run([*command, *asked]) == 0
        plans = capsys.readouterr().out.splitlines()
        assert [plan.rpartition(" ")[2] for plan in plans] == scales


def test_zero3_is_emulated_matrix_by_matrix_if_asked(capsys: CaptureFixture) -> None:
    """At a scale at which the parts of its matrices are larger than what gloo adds."""
    command = ["run", "case3", "--fast", "--systems", "zero3", "--layers", "32", "--dry-run"]
    assert run(command) == 0
    merged = capsys.readouterr().out
    assert "last 10 layers gathered as one" in merged
    assert merged.endswith("scale 1000\n")
    assert run([*command, "--unmerged"]) == 0
    whole = capsys.readouterr().out
    assert "gathered as one" not in whole
    assert whole.endswith("scale 200\n")


def test_dry_run_simulates_nothing(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It prints the plans at scale 1 and creates no folder."""
    command = ["run", "case3", "--testbed", "sim", "--results", str(tmp_path), "--dry-run"]
    assert run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("0 + 1 iterations, scale 1") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_warning_comes_before_the_table(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A plan that does not fit into 10 MB is simulated nevertheless."""
    scenario = two_nodes.write(tmp_path)
    path = Path(scenario)
    path.write_text(path.read_text().replace("16GB", "10MB"))
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Box has 10MB" in printed
    assert printed.index("memory:") < printed.index("Setting")


def test_impairments_that_are_not_simulated_are_named_once(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Jitter, loss and duplication only change emulated runs."""
    scenario = two_nodes.write(tmp_path, delay="2ms, jitter: 1ms, loss: 1%, duplication: 1%")
    assert run(["run", scenario, "--testbed", "sim", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "network: duplication, jitter, loss: not simulated" in printed
    assert printed.count("not simulated") == 1
    assert "Setting" in printed


def test_limits_of_netem_are_named_before_a_run(
    tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warnings come before the kernel is built."""

    def stop() -> None:
        raise UsageError("no further")

    monkeypatch.setattr("netbench.api.emulation.ensure_kernel", stop)
    scenario = two_nodes.write(tmp_path, delay="2ms, jitter: {deviation: 1ms, correlation: 9%}")
    assert run(["run", scenario, "--results", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "network: A -> B: a jitter correlation of 9% does nothing" in printed
    assert "a jitter of 1ms does not fit a delay of 2ms" in printed


@pytest.mark.parametrize("place", ["", "below/it"])
def test_a_folder_of_runs_that_cannot_be_one_is_refused_before_anything_is_built(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """A boot and a warm-up are not spent on an iteration that has no place."""

    def stop() -> None:
        raise AssertionError("too late")

    monkeypatch.setattr("netbench.api.emulation.ensure_kernel", stop)
    file = tmp_path / "file"
    file.write_text("text")
    results = ["--results", str(file / place)]
    assert run(["run", two_nodes.write(tmp_path), *results]) == 2
    assert f"{file} is not a folder that this user may write" in capsys.readouterr().err
    words = ["--nodes", "2", "--bytes", "1MB", "--delay", "1ms", "--rate", "1Gbit", *results]
    assert run(["collective", "p2p", *words]) == 2
    assert f"{file} is not a folder that this user may write" in capsys.readouterr().err


def test_links_without_impairments_have_no_warning(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Delay and bandwidth are simulated."""
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
        (["--iterations", "0"], "is not in the range 1<=x<=100000"),
        (["--warmup", "-1"], "is not in the range 0<=x<=100000"),
        (["--ssh"], "leave out --ssh"),
        (["--scale", "10"], "simulates at full size"),
        (["--trace", "nowhere/x.json"], "folder nowhere does not exist"),
        (["--trace"], "--trace needs a file with --testbed sim"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: list[str], says: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2, and no file is created."""
    command = ["run", "case3", "--testbed", "sim", "--results", str(tmp_path)]
    assert run([*command, *options]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_tokens_outside_the_vocabulary(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """A model without embedding parameters has a vocabulary of 256."""
    tokens = tmp_path / "tokens.bin"
    words = ["--compute", "cpu", "--token-file", str(tokens), "--dry-run"]
    command = ["run", two_nodes.write(tmp_path), *words, "--results", str(tmp_path / "results")]
    tokens.write_bytes(b"\x07\x00" * 1025)
    assert run(command) == 0
    assert "computed on cpu" in capsys.readouterr().out
    tokens.write_bytes(b"\x07\x01" * 1025)
    assert run(command) == 2
    assert "token 0 is 263; the model knows 0 to 255" in capsys.readouterr().err


def test_a_local_run_has_no_timeline(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--timeline needs --testbed sim."""
    assert run(["run", "case3", "--timeline", str(tmp_path / "x.png")]) == 2
    assert "add --testbed sim" in capsys.readouterr().err


def test_emulated_traces_go_to_the_folder_of_the_run(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """A file name for --trace is therefore an error, before anything starts."""
    assert run(["run", "case3", "--trace", "x.json", "--results", str(tmp_path)]) == 2
    assert (
        "--trace x.json: traces of emulated iterations go to the run's folder"
        in capsys.readouterr().err
    )
    assert run(["run", "case3", "--command", "true", "--trace", "--results", str(tmp_path)]) == 2
    assert "netbench's own trainers only" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_traces_and_pictures_are_written(tmp_path: Path, capsys: CaptureFixture) -> None:
    """They show the first plan, or every plan if the name has {plan}."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    options = ["--trace", str(tmp_path / "one.json"), "--timeline", str(tmp_path / "{plan}.png")]
    assert run([*command, "--micro-batch", "2,4", *options]) == 0
    assert "traceEvents" in json.loads((tmp_path / "one.json").read_text())
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == [
        "dtfm-scheduled-L12-B64-m2-10ms-1Gbit-2022.png",
        "dtfm-scheduled-L12-B64-m4-10ms-1Gbit-2022.png",
    ]
    assert (tmp_path / pictures[0]).read_bytes().startswith(b"\x89PNG")


def test_a_run_names_the_search_for_a_faster_plan(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It searches the placement, where there are pipelines; `schedule` names the run in turn."""
    command = ["run", "gpt3-small", "--testbed", "sim", "--results", str(tmp_path)]
    assert run(command) == 0
    hint = "netbench schedule gpt3-small --system dtfm-scheduled;"
    assert hint in capsys.readouterr().out
    assert run(["run", "case5", *command[2:], "--systems", "zero3"]) == 0
    assert "netbench schedule case5 --layout auto" in capsys.readouterr().out
    assert run(["schedule", "gpt3-small", "--evaluations", "2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "run it with: netbench run gpt3-small --placement placement.json" in out
    assert "--layout auto" in out


def test_the_picture_of_a_run_is_that_of_its_table(tmp_path: Path) -> None:
    """`run --plot` draws what `table --plot` draws later, to the byte."""
    results = ["--results", str(tmp_path / "results")]
    command = ["gpt3-small", *results, "--plot"]
    assert run(["run", *command, str(tmp_path / "a.svg"), "--testbed", "sim"]) == 0
    assert run(["table", *command, str(tmp_path / "b.svg")]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_simulation_needs_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    """A fresh interpreter imports none of them."""
    script = (
        "import sys\nfrom netbench.cli import run\n"
        "assert run(['run', 'gpt3-small', '--testbed', 'sim', "
        f"'--results', {str(tmp_path)!r}]) == 0\nprint('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.splitlines()[-1].split()) & {"torch", "matplotlib", "paramiko"}


@pytest.mark.parametrize(
    ("congestion", "batch", "iterations"),
    [
        (UNMODELLED, 1024, (1, 0)),
        ("cubic", 1024, (1, 0)),  # in parts: its session begins with the shorter
        (UNMODELLED, 512, (1, 0)),
        ("cubic", 512, (2, 1)),
        (UNMODELLED, 64, (3, 1)),
    ],
)
def test_long_iterations_run_once_after_a_warm_up_where_tcp_acts(
    congestion: str, batch: int, iterations: tuple[int, int]
) -> None:
    choices = Choices(variants=["megatron-p8"], layers=[24], batch=[batch], seeds=[2022])
    (plan,) = build_plans(
        load_scenario("case3"), choices, Execution(iterations=3, warmup_iterations=1, scale=1000.0)
    )
    tcp = dataclasses.replace(plan.network.tcp, congestion=congestion)
    network = dataclasses.replace(plan.network, tcp=tcp)
    (made,) = in_parts([dataclasses.replace(plan, network=network)])
    found = as_often_as_needed(made)
    assert (found.iterations, found.warmup_iterations) == iterations
