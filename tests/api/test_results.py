"""Results of simulations and runs, from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import netbench as nb
from netbench.api import emulation
from netbench.cli import run
from netbench.errors import UsageError
from netbench.records import find_run
from tests import runs


def test_a_simulation_in_memory_is_what_the_command_records(tmp_path: Path) -> None:
    """The same rows, to the last digit; nothing is written by the first."""
    found = nb.simulate(nb.make_plans("gpt3-small", micro_batch=[1, 2]))
    assert found.path is None
    command = ["run", "gpt3-small", "--testbed", "sim", "--micro-batch", "1,2"]
    assert run([*command, "--results", str(tmp_path)]) == 0
    path = find_run(tmp_path, "gpt3-small")
    assert path is not None
    recorded = nb.open_run(path)
    assert recorded.path == path
    assert recorded.table.equals(found.table)
    assert [plan.workload for plan in recorded.plans] == [plan.workload for plan in found.plans]
    assert recorded.source == found.source == "simulated"


def test_a_recorded_run_has_tables_pictures_and_reasons(tmp_path: Path) -> None:
    """Published times and errors are those of the command's table."""
    path = runs.write_run(tmp_path, runs.CASE3_TIMES, reasons=["late start"])
    found = nb.open_run(path)
    assert found.reasons == ("late start",)
    table = found.table.set_index("system")
    assert table.loc["dtfm-random", "num_iterations"] == 4
    assert table.loc["dtfm-scheduled", "mean_s"] == pytest.approx(16.05)
    assert table.loc["dtfm-scheduled", "error"] == pytest.approx(16.05 / 18.87 - 1, abs=1e-3)
    assert len(found.iterations) == 15
    assert found.iterations.warmup.sum() == 5
    found.plot().save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")
    assert "NOT TRUSTWORTHY: late start." in found._repr_html_()


def test_an_emulation_refuses_what_it_cannot_run(tmp_path: Path) -> None:
    """Before anything is built or started."""
    labs = nb.load_scenario("example-two-labs")
    with pytest.raises(UsageError, match="no plans are given"):
        nb.emulate(labs, ())
    with pytest.raises(UsageError, match="a plan is of scenario gpt3-small"):
        nb.emulate(labs, nb.make_plans("gpt3-small"))
    with pytest.raises(UsageError, match="call simulate instead"):
        nb.emulate(labs, nb.make_plans(labs), target=nb.Target(testbed="sim"))
    assert list(tmp_path.iterdir()) == []


def test_an_emulation_runs_plans_at_one_scale_with_warm_ups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plans are those of `netbench run`; here the simulator records them: no kernel boots."""
    ran: list[nb.Plan] = []

    def record(display, scenario, plans, target, results):  # type: ignore[no-untyped-def]
        ran.extend(plans)
        simulator = nb.Target(testbed="sim")
        return run_recorded(display, scenario, plans, simulator, results)

    run_recorded = emulation.run_recorded
    monkeypatch.setattr(emulation, "run_recorded", record)
    plans = nb.make_plans("case3", systems=["dtfm-scheduled", "megatron-p8"])
    found = nb.emulate(nb.load_scenario("case3"), plans, iterations=3, results=tmp_path)
    assert [(plan.iterations, plan.warmup_iterations, plan.scale) for plan in ran] == [
        (4, 1, 1000.0)
    ] * 2
    assert found.path is not None
    assert found.path.is_relative_to(tmp_path)
    ran.clear()
    systems = ["megatron-p8", "megatron-t8"]
    plans = nb.make_plans("case2", layers=24, batch=1024, systems=systems)
    nb.emulate(nb.load_scenario("case2"), plans, results=tmp_path)
    assert [plan.scale for plan in ran] == [1000.0, 200.0]


def test_choices_are_one_value_or_several() -> None:
    """Names and numbers alike; an unknown name suggests the nearest."""
    one = nb.make_plans("case3", systems="zero3", layers=32)
    assert [(plan.variant, plan.workload.layers) for plan in one] == [("zero3", 32)]
    several = nb.make_plans("case3", systems=("zero3", "ddp"), seeds=[1, 2])
    assert [plan.variant for plan in several] == ["zero3", "ddp"]
    with pytest.raises(nb.NetbenchError, match="zero3"):
        nb.make_plans("case3", systems="zero")
