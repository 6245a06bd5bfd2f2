"""The table of hosts, and times of several sources in one table."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from netbench.cli import run as command
from netbench.records import HostSample, read_run
from netbench.report.page.case import case_page
from netbench.report.tables.comparison import find_others
from netbench.report.tables.grid import markdown
from netbench.report.tables.hosts import hosts_grid
from netbench.report.tables.run import comparison_grid, render_run, run_markdown
from tests import runs

TIMES: runs.Times = {("dtfm-scheduled", 24, 1024, 2022): [17.0, 16.0, 18.0]}
LATER = datetime(2026, 1, 3)


def sample(host: str, cpu_s: float, gpu_memory_bytes: int | None = None) -> HostSample:
    return HostSample(
        host=host,
        seconds=20.0,
        cpu_s=cpu_s,
        sent_bytes=round(cpu_s * 1e8),
        memory_bytes=round(cpu_s * 1e9),
        gpu_memory_bytes=gpu_memory_bytes,
    )


HOSTS = [
    (sample("gpu-1", 99.0, 99), sample("cpu-2", 99.0)),  # the warm-up
    (sample("gpu-1", 20.0, 30_000_000_000), sample("cpu-2", 1.0)),
    (sample("gpu-1", 40.0, 20_000_000_000), sample("cpu-2", 2.0)),
]


def test_cores_and_bytes_are_means_and_memory_is_a_peak(tmp_path: Path) -> None:
    """Without the warm-up. 60 CPU seconds in 40 s are 1.5 cores."""
    grid = hosts_grid(read_run(runs.write_run(tmp_path, TIMES, hosts=HOSTS)))
    assert grid is not None
    assert grid.head == ("Host", "busy cores", "sent", "memory", "GPU memory")
    assert grid.rows == (
        ("gpu-1", "1.50", "3GB", "40GB", "30GB"),
        ("cpu-2", "0.07", "150MB", "2GB", "-"),
    )


def test_the_hosts_are_below_the_table_of_a_run(tmp_path: Path) -> None:
    found = read_run(runs.write_run(tmp_path, TIMES, hosts=HOSTS))
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(render_run(found))
    shown = console.export_text()
    assert "gpu-1  1.50   3GB   40GB   30GB" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "| gpu-1 |       1.50 |   3GB |   40GB |       30GB |" in run_markdown(found)


def test_a_run_on_this_machine_has_no_hosts(tmp_path: Path) -> None:
    found = read_run(runs.write_run(tmp_path, TIMES))
    assert hosts_grid(found) is None
    assert "Host" not in run_markdown(found)


def write_both(results: Path) -> tuple[Path, Path]:
    """Write an emulated run and a later measured one of twice the time."""
    emulated = runs.write_run(results, TIMES)
    twice = {key: [2 * s for s in seconds] for key, seconds in TIMES.items()}
    return emulated, runs.write_run(results, twice, source="measured", created=LATER)


@pytest.mark.parametrize("index", [0, 1])
def test_one_table_has_emulated_and_measured_times(tmp_path: Path, index: int) -> None:
    """Whichever run is printed; the error is of its own times."""
    found = read_run(write_both(tmp_path)[index])
    others = find_others(tmp_path, found)
    assert len(others) == 1
    grid = comparison_grid(found, others)
    (row,) = (dict(zip(grid.head, cells, strict=True)) for cells in grid.rows)
    columns = [head for head in grid.head if head.endswith(" s")]
    assert columns == ["published s", "emulated s", "measured s"]
    assert (row["emulated s"], row["measured s"]) == ("17.00 ±1.00", "34.00 ±2.00")
    assert row["error"] == ("-9.9%", "+80.2%")[index]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(render_run(found, others))
    assert "PFLOPS" in console.export_text()  # the last column is not cut off
    text = run_markdown(found, others)
    assert (
        f"- {('measured', 'emulated')[index]}: run {others[0].run_id}, the same settings." in text
    )


def test_a_measured_column_needs_measured_times(tmp_path: Path) -> None:
    """None are of these settings, or there is no such run."""
    path = runs.write_run(tmp_path, TIMES)
    found = read_run(path)
    assert find_others(tmp_path, found) == ()
    smaller: runs.Times = {("dtfm-scheduled", 24, 2048, 2022): [1.0, 2.0]}
    runs.write_run(tmp_path, smaller, source="measured", created=LATER)
    others = find_others(tmp_path, found)
    assert len(others) == 1
    assert "measured" not in markdown(comparison_grid(found, others))
    assert "measured" not in run_markdown(found, others)


def test_a_run_that_is_not_trusted_says_so_beside_another(tmp_path: Path) -> None:
    runs.write_run(tmp_path, TIMES, reasons=["late start"])
    measured = read_run(runs.write_run(tmp_path, TIMES, source="measured", created=LATER))
    (line,) = [
        line
        for line in run_markdown(measured, find_others(tmp_path, measured)).splitlines()
        if line.startswith("- emulated: run")
    ]
    assert line.endswith("the same settings; NOT TRUSTWORTHY, see netbench table --run.")


def test_the_command_prints_all_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_both(tmp_path)
    words = ["table", "case3", "--results", str(tmp_path), "--format", "markdown"]
    assert command(words) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "published s" in head
    assert "emulated s" in head
    assert "measured s" in head


def test_the_page_of_a_case_has_measured_runs_apart(tmp_path: Path) -> None:
    emulated, measured = map(read_run, write_both(tmp_path))
    text = case_page(tmp_path, "case3", [emulated, measured])
    first, _, second = text.partition("## Measured")
    assert "| emulated s |" in first
    assert "| measured s |" in second
    assert "The error is of the measured time." in " ".join(second.split())
    assert "## Measured" not in case_page(tmp_path, "case3", [emulated])
