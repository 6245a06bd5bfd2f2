"""`netbench explain` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import RunStore
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate
from netbench.workload.costs import pflop_per_iteration
from tests.runs import ENVIRONMENT

CaptureFixture = pytest.CaptureFixture[str]


def typed(capsys: CaptureFixture, *args: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `netbench explain ...`."""
    code = run(["explain", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def case3(variant: str = "dtfm-scheduled") -> Plan:
    return build_plan(
        load_scenario("case3"),
        variant,
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )


def record(results: Path, *plans: Plan) -> None:
    """A run of `plans` that has not finished anything yet."""
    with RunStore.create(
        results,
        scenario="case3",
        created=datetime(2026, 1, 2, 3, 4, 5),
        command=["netbench", "run", "case3"],
        environment=ENVIRONMENT,
    ) as store:
        for plan in plans:
            store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))


def test_a_scenario_is_explained_by_its_first_setting(capsys: CaptureFixture) -> None:
    """Time and PFLOPS, losses, breakdown, critical path and links."""
    code, out, _ = typed(capsys, "case3")
    plan = case3()
    iteration_s = simulate(plan).iteration_s
    assert code == 0
    assert f"{iteration_s:.4g} s per iteration" in out
    assert f"{pflop_per_iteration(plan.workload) / iteration_s:.3g} PFLOPS" in out
    for head in ("Largest losses", "Where a rank's time goes", "Critical path", "Busiest links"):
        assert head in out
    assert "from Ohio to Virginia at 1.12Gbit" in out
    assert "worst: the rank that waits longest" in out


def test_json_has_unrounded_figures_of_every_rank(capsys: CaptureFixture) -> None:
    """Every rank's causes sum to the iteration."""
    code, out, _ = typed(capsys, "case3", "--system", "megatron-p8", "--batch", "2048", "--json")
    found = json.loads(out)
    assert (code, found["variant"]) == (0, "megatron-p8")
    assert len(found["breakdown"]["by_rank_s"]) == 64
    for row in found["breakdown"]["by_rank_s"]:
        assert sum(row) == pytest.approx(found["iteration_s"], rel=1e-12)
    assert 1 <= len(found["losses"]) <= 3
    assert found["links"][0]["utilisation"] >= found["links"][1]["utilisation"] > 0


def test_iterations_with_random_passes_have_a_range(capsys: CaptureFixture) -> None:
    """Eight pipelines share the NICs of case 1, none those of case 3."""
    for case, meet in (("case1", True), ("case3", False)):
        _, out, _ = typed(capsys, case, "--system", "megatron-p8", "--json")
        found = json.loads(out)
        shortest_s, longest_s = found["range_s"]
        assert shortest_s <= found["iteration_s"] <= longest_s
        assert (shortest_s < longest_s) is meet
        _, out, _ = typed(capsys, case, "--system", "megatron-p8")
        assert ("median of 3 iterations whose passes take random times" in out) is meet


def test_the_plan_is_the_one_that_is_simulated_by_run(capsys: CaptureFixture) -> None:
    """Its hash can be compared with that of `netbench run case3 --testbed sim`."""
    _, out, _ = typed(capsys, "case3")
    assert run(["run", "case3", "--testbed", "sim", "--dry-run"]) == 0
    assert out.splitlines()[0] == f"plan {capsys.readouterr().out.splitlines()[0]}"


def test_a_file_without_a_plan_is_an_error(capsys: CaptureFixture, tmp_path: Path) -> None:
    """The message names the file and what is wrong in it."""
    path = tmp_path / "plan.json"
    path.write_text("{}")
    code, _, err = typed(capsys, str(path))
    assert code == 2
    assert f"{path}: plan: schema_version is None" in err


def test_ranks_that_are_alike_have_one_column(capsys: CaptureFixture) -> None:
    """zero3 has no worst rank; its loss names the ring's slowest hop."""
    _, out, _ = typed(capsys, "case3", "--system", "zero3")
    assert "every rank" in out
    assert "worst" not in out
    assert "in a ring of 64 ranks, whose slowest hop goes from Ohio to Virginia" in out


def test_a_plan_file_is_explained(capsys: CaptureFixture, tmp_path: Path) -> None:
    """The file is the output of `plan_to_json`."""
    plan = case3("zero3")
    (tmp_path / "plan.json").write_text(plan_to_json(plan))
    code, out, _ = typed(capsys, str(tmp_path / "plan.json"))
    assert code == 0
    assert out.startswith(f"plan {plan_hash(plan)}")


def test_a_recorded_plan_is_found_by_its_hash(capsys: CaptureFixture, tmp_path: Path) -> None:
    """The first digits are enough."""
    plan, other = case3("zero3"), case3("megatron-p8")
    record(tmp_path, plan, other)
    code, out, _ = typed(capsys, plan_hash(plan)[:6], "--results", str(tmp_path))
    assert code == 0
    assert out.startswith(f"plan {plan_hash(plan)}")


def test_a_plan_that_exceeds_memory_is_warned_about(capsys: CaptureFixture, tmp_path: Path) -> None:
    """gpt3-small without recomputation keeps the activations of 64 sequences.

    The warning uses the given file, whatever its scenario is called.
    """
    text = Path(load_scenario("gpt3-small").path).read_text()
    path = tmp_path / "small.yaml"
    changed = text.replace("recomputation: true", "recomputation: false")
    path.write_text(changed.replace("name: gpt3-small", "name: small"))
    code, out, _ = typed(capsys, str(path))
    assert code == 0
    assert "memory: dtfm-scheduled L12" in out
    assert "V100 has 16GB" in out


def test_trace_and_picture_do_not_change_standard_output(
    capsys: CaptureFixture, tmp_path: Path
) -> None:
    """Both are reported on standard error, so that standard output stays JSON."""
    trace, picture = tmp_path / "t.json", tmp_path / "t.png"
    options = ["--trace", str(trace), "--plot", str(picture), "--json"]
    code, out, err = typed(capsys, "gpt3-small", *options)
    assert code == 0
    assert json.loads(out)["scenario"] == "gpt3-small"
    assert json.loads(trace.read_text())["traceEvents"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "ui.perfetto.dev" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["csae3"], "did you mean case3"),
        (["case3", "--system", "zero4"], "did you mean zero3"),
        (["missing.json"], "missing.json: cannot be read"),
        (["abcd1234"], "no plan in RESULTS has a hash that begins with abcd1234"),
        (["HASH", "--layers", "32"], "is a plan, which fixes all settings"),
        (["case3", "--layers", "25"], "25 layers cannot be divided"),
        (["case3", "--plot", "nowhere/x.png"], "folder nowhere does not exist"),
    ],
)
def test_an_impossible_request_is_one_message(
    capsys: CaptureFixture, tmp_path: Path, args: list[str], message: str
) -> None:
    """The message suggests what to write; standard output stays empty."""
    plan = case3("zero3")
    record(tmp_path, plan)
    args = [plan_hash(plan) if word == "HASH" else word for word in args]
    code, out, err = typed(capsys, *args, "--results", str(tmp_path))
    assert code in (1, 2)
    assert out == ""
    assert message.replace("RESULTS", str(tmp_path)) in err
    assert len(err.splitlines()) == 1


def test_an_ambiguous_hash_asks_for_more_digits(capsys: CaptureFixture, tmp_path: Path) -> None:
    """The message lists the plans."""
    with RunStore.create(
        tmp_path,
        scenario="case3",
        created=datetime(2026, 1, 2, 3, 4, 5),
        command=["netbench", "run", "case3"],
        environment=ENVIRONMENT,
    ) as store:
        for hashed in ("abcdef000001", "abcdef000002"):
            store.append_plan(hashed, json.loads(plan_to_json(case3())))
    code, _, err = typed(capsys, "abcdef", "--results", str(tmp_path))
    assert code == 2
    assert "several plans begin with abcdef: abcdef000001, abcdef000002; give more digits" in err


def test_explaining_needs_neither_torch_nor_matplotlib() -> None:
    """Both are slow to load; matplotlib comes with --plot only."""
    code = (
        "import sys; from netbench.cli import run; run(['explain', 'gpt3-small']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'paramiko')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
