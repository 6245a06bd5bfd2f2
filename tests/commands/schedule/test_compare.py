"""`netbench schedule compare SCENARIO` on the command line."""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from netbench.api import emulation
from netbench.api.emulation import Display, Target
from netbench.cli import run
from netbench.placement.bounds import bound
from netbench.placement.bounds.bound import Bound, lower_bounds
from netbench.placement.file import read_placed
from netbench.placement.problem import Budget, Problem
from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.records import read_run
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate
from tests import four_nodes

CaptureFixture = pytest.CaptureFixture[str]
HOSTS = Path("hosts.yaml")

COMPARE = ("schedule", "compare")
SEARCHES = ("--schedulers", "identity,random,random-1000", "--seeds", "3", "--evaluations", "200")


def test_every_scheduler_has_a_row_for_its_searches(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Rows have mean, minimum and maximum of the searches in the CSV; identity searches once."""
    scenario, path = four_nodes.write(tmp_path), tmp_path / "searches.csv"
    assert run([*COMPARE, scenario, *SEARCHES, "--csv", str(path)]) == 0
    searches = list(csv.DictReader(path.read_text().splitlines()))
    assert [(row["scheduler"], row["seed"]) for row in searches] == [
        ("identity", "7"),
        *((name, seed) for name in ("random", "random-1000") for seed in ("7", "8", "9")),
    ]
    assert float(searches[0]["simulated_s"]) == four_nodes.listed_placement_s(scenario)
    best_s = four_nodes.best_placement_s(scenario)
    assert [float(row["simulated_s"]) for row in searches[4:]] == pytest.approx([best_s] * 3)
    lines = capsys.readouterr().out.splitlines()
    for name in ("identity", "random", "random-1000"):
        times_s = [float(row["simulated_s"]) for row in searches if row["scheduler"] == name]
        (cells,) = [line.split() for line in lines if line.split()[:1] == [name]]
        expected = (statistics.fmean(times_s), min(times_s), max(times_s))
        assert cells[2:5] == [f"{time_s:#.4g}" for time_s in expected]
        gap = expected[0] / float(searches[0]["bound_s"]) - 1
        assert float(cells[5].rstrip("%")) == pytest.approx(100 * gap, abs=0.06)


def test_the_random_placements_are_the_published_maps(tmp_path: Path) -> None:
    """They equal variant dtfm-random, seed by seed."""
    scenario, path = four_nodes.write(tmp_path), tmp_path / "searches.csv"
    options = ["--schedulers", "random", "--seeds", "3", "--csv", str(path)]
    assert run([*COMPARE, scenario, *options]) == 0
    loaded = load_scenario(scenario)
    for row in csv.DictReader(path.read_text().splitlines()):
        plan = build_plan(
            loaded,
            "dtfm-random",
            Setting(layers=2, batch=64, seed=int(row["seed"])),
            Execution(iterations=2, warmup_iterations=1),
        )
        assert float(row["simulated_s"]) == simulate(plan).iteration_s


def test_the_best_placement_is_kept_and_drawn(tmp_path: Path) -> None:
    """Both pictures are written; the file has the best placement of all searches."""
    scenario = four_nodes.write(tmp_path)
    files = {name: tmp_path / name for name in ("best.json", "over-time.png", "map.png")}
    options = [
        "-o",
        files["best.json"],
        "--plot",
        files["over-time.png"],
        "--map",
        files["map.png"],
    ]
    assert run([*COMPARE, scenario, *SEARCHES, *map(str, options)]) == 0
    placed = read_placed(files["best.json"], load_scenario(scenario))
    assert placed.simulated_s == pytest.approx(four_nodes.best_placement_s(scenario))
    for name in ("over-time.png", "map.png"):
        assert files[name].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("schedulers", "message"),
    [("identity,dftm", "did you mean dtfm"), ("identity,identity", '"identity" is given twice')],
)
def test_schedulers_are_checked_before_any_searches(
    schedulers: str, message: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2."""
    assert run([*COMPARE, four_nodes.write(tmp_path), "--schedulers", schedulers]) == 2
    assert message in capsys.readouterr().err


def test_a_search_that_fails_says_why(tmp_path: Path, capsys: CaptureFixture) -> None:
    """An impossible layout is one message without the traceback of a process."""
    assert run([*COMPARE, four_nodes.write(tmp_path), "--layers", "3", *SEARCHES]) == 2
    assert "3 layers" in capsys.readouterr().err


def test_schedulers_without_a_placement_are_named_and_others_go_on(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """identity and random put rank 0 on a device that is too small; some of 1,000 draws fit.

    If no scheduler finds a placement, the command fails with the first reason.
    """
    scenario, best = four_nodes.write(tmp_path, first="23MB"), tmp_path / "best.json"
    assert run([*COMPARE, scenario, *SEARCHES, "-o", str(best)]) == 0
    out = capsys.readouterr().out
    too_small = "ignores memory: 1 of 4 devices cannot hold the stage that it gives them"
    assert f"identity found no placement (seed 7): identity {too_small}" in out
    assert f"random found no placement (seed 7, 8, 9): random {too_small}" in out
    placed = read_placed(best, load_scenario(scenario))
    assert (placed.scheduler, 0 in placed.grid[:, 1]) == ("random-1000", True)
    assert run([*COMPARE, scenario, "--schedulers", "identity,random", "--seeds", "2"]) == 2
    assert f"identity {too_small}" in " ".join(capsys.readouterr().err.split())


def test_the_bound_is_searched_no_longer_than_a_scheduler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All bounds together get the budget of one search, or 20 s if candidates are limited."""
    budgets_s: list[float] = []

    def recording(
        problems: Sequence[Problem], budget: Budget, progress: Callable[[float], None]
    ) -> tuple[Bound, ...]:
        budgets_s.append(budget.seconds)
        return lower_bounds(problems, dataclasses.replace(budget, seconds=0.1), progress)

    monkeypatch.setattr(bound, "lower_bounds", recording)
    scenario = four_nodes.write(tmp_path)
    for limits in (["--budget", "250ms"], ["--evaluations", "8"]):
        options = ["--schedulers", "identity,netbench", "--seeds", "1", *limits]
        assert run([*COMPARE, scenario, *options]) == 0
    assert budgets_s == [0.25, 20.0]


@pytest.mark.parametrize(
    ("where", "target"),
    [
        ((), Target()),
        (("--inventory", "hosts.yaml", "--replace"), Target(inventory=HOSTS, replace=True)),
    ],
)
def test_the_best_two_are_emulated_as_a_run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: CaptureFixture,
    where: tuple[str, ...],
    target: Target,
) -> None:
    """Their plans run as those of `netbench run`, here or on hosts; in this test in the simulator.

    They share one scale, and the table shows the times of those two only.
    """
    asked = target
    ran: list[Plan] = []

    def on_simulator(
        display: Display, scenario: Scenario, plans: Sequence[Plan], target: Target, results: Path
    ) -> Path:
        assert target == asked
        ran.extend(plans)
        return run_recorded(display, scenario, plans, Target(testbed="sim"), results)

    run_recorded = emulation.run_recorded
    monkeypatch.setattr(emulation, "run_recorded", on_simulator)
    scenario = four_nodes.write(tmp_path)
    options = ("--emulate", *where, "--results", str(tmp_path / "results"))
    assert run([*COMPARE, scenario, *SEARCHES, *options]) == 0
    assert [(plan.scheduler, plan.iterations, plan.warmup_iterations) for plan in ran] == [
        ("random-1000", 3, 1),
        ("random", 3, 1),
    ]
    assert len({plan.scale for plan in ran}) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.startswith(("id", "random"))}
    assert rows["identity"][6] == "-"
    for name in ("random-1000", "random"):
        assert rows[name][6] == rows[name][3]  # the best search, simulated both times
    (folder,) = (tmp_path / "results").iterdir()
    assert len(read_run(folder).records) == 2
