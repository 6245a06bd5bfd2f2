"""`netbench reproduce --simulate`, and what `reproduce` must not load without the option."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.reproduce import simulated
from netbench.commands.reproduce.simulated import Task, Transfer, rows_of, simulate_tasks, tasks_of
from netbench.plan.benchmark import CollectivePlan
from netbench.plan.model import Plan
from netbench.report.page.simulated import COLUMNS, TRANSFERS, differences, table_path, table_text
from netbench.simulator import simulate, simulate_collective
from tests.simulations import found_layouts, published_mean, tables_to_write, write

CaptureFixture = pytest.CaptureFixture[str]


def pretend(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Replace the simulator by one that returns the published times, times `factor`."""

    def simulate_tasks(tasks: Sequence[Task]) -> Iterator[tuple[Task, float]]:
        for task in tasks:
            yield task, factor * published_mean(task)

    monkeypatch.setattr(simulated, "simulate_tasks", simulate_tasks)
    monkeypatch.setattr(simulated, "plan_tables", tables_to_write)
    monkeypatch.setattr(simulated, "layout_rows", found_layouts)


def test_everything_is_written_by_one_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Tables, pictures and pages; each task simulated once."""
    pretend(monkeypatch, 1.0)
    assert run(["reproduce", "--simulate", "--results", str(tmp_path)]) == 0
    pictures = ("published", "dp-scaling", "multicloud-scaling", "multicloud-cost")
    assert {path.name for path in (tmp_path / "simulated").iterdir()} == {
        *(f"{name}.csv" for name in COLUMNS),
        *(f"{name}.{suffix}" for name in pictures for suffix in ("png", "svg")),
    }
    for picture in (tmp_path / "simulated").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert "83.04 → 83.04 (0.0%)" in (tmp_path / "case5.md").read_text()
    num_tasks = len(tasks_of(tables_to_write()))
    assert f"{num_tasks} simulations written" in capsys.readouterr().out


def test_check_names_the_lines_that_are_stale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Within 0.1% a table is up to date; beyond, exit code 1, and nothing is written."""
    arguments = ["reproduce", "--simulate", "--results", str(tmp_path)]
    pretend(monkeypatch, 1.0)
    assert run(arguments) == 0
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    pretend(monkeypatch, 1.0008)
    assert run([*arguments, "--check"]) == 0
    capsys.readouterr()
    pretend(monkeypatch, 1.002)
    assert run([*arguments, "--check"]) == 1
    printed = capsys.readouterr()
    assert "line 2: case1,megatron-p8,24,1024,,24.34,24.34,0.0000; simulated again:" in printed.out
    assert "iteration_times.csv is out of date; write it with: make simulate" in printed.err
    assert "(666 differences)" in printed.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == files


def test_check_fails_if_nothing_was_simulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """An empty folder is out of date."""
    pretend(monkeypatch, 1.0)
    assert run(["reproduce", "--simulate", "--check", "--results", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert printed.count("is out of date; write it with: make simulate") == len(COLUMNS)
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_written_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Exit code 1."""
    pretend(monkeypatch, 1.0)
    table_path(tmp_path, TRANSFERS).mkdir(parents=True)
    assert run(["reproduce", "--simulate", "--results", str(tmp_path)]) == 1
    assert "p2p_under_tc.csv: cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "code", "unused"), [("", 0, set()), ("'--check',", 1, {"matplotlib"})]
)
def test_pages_are_regenerated_without_the_simulator(
    tmp_path: Path, option: str, code: int, unused: set[str]
) -> None:
    """Neither numba nor torch: it takes seconds, and no compiler. A check draws no pictures."""
    write(tmp_path)
    script = (
        "import sys\nfrom netbench.cli import run\n"
        f"assert run(['reproduce', {option} '--results', {str(tmp_path)!r}]) == {code}\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "netbench.report.page.pages" in loaded
    assert not loaded & ({"numba", "torch", "netbench.simulator"} | unused)


def test_every_kind_of_task_is_simulated_and_returned_with_its_time() -> None:
    """On several processes, in any order; the times equal those of direct calls."""
    tables = tables_to_write()
    chosen = [table[index].tasks for table in tables.values() for index in (0, -1)]
    tasks = tuple(dict.fromkeys(task for cell in chosen for task in cell))
    times = dict(simulate_tasks(tasks))
    assert set(times) == set(tasks)
    for task, seconds in times.items():
        if isinstance(task, Plan):
            assert seconds == simulate(task).iteration_s
        elif isinstance(task, CollectivePlan):
            assert seconds == simulate_collective(task)


def test_a_transfer_takes_its_bytes_over_the_rate_of_the_link() -> None:
    """Without delay, of jumbo frames: 8949 bytes of 9015 are payload; 64 MiB at 1 Gbit/s. Where
    there is delay, one over a connection that was idle takes longer than the next."""
    cells = tables_to_write()[TRANSFERS]
    tasks = tasks_of({TRANSFERS: cells})
    times = dict(simulate_tasks(tasks))
    for task, seconds in times.items():
        if not isinstance(task, Transfer):
            continue
        plan = task.plan
        link = plan.network.link(0, 1)
        wire_s = 8 * plan.payload_bytes / link.bandwidth_bps * 9015 / 8949
        if link.one_way_delay_s < 1e-4 and link.bandwidth_bps < 5e9:
            assert seconds == pytest.approx(wire_s, rel=2e-3)
        assert seconds >= wire_s - 2**-30  # to the nearest tick of the simulator's clock
        if link.one_way_delay_s > 9e-3 and plan.backend == "gloo":
            assert seconds > times[plan]


def test_a_table_is_compared_row_by_row_with_the_committed_one() -> None:
    """All transfers, not a sample: they are cheap to simulate."""
    cells = tables_to_write()[TRANSFERS]
    times = dict(simulate_tasks(tasks_of({TRANSFERS: cells})))
    wanted = table_text(TRANSFERS, rows_of(cells, times))
    found = table_path(Path("results"), TRANSFERS).read_text(encoding="utf-8")
    assert differences(found, wanted) == []
