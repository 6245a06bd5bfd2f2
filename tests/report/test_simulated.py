"""Simulated beside published: complete, up to date, and no error hidden."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from netbench.commands.simulated import Cell, plan_tables, rows_of, simulate_tasks, tasks_of
from netbench.errors import RecordError
from netbench.report.grid import markdown
from netbench.report.simulated import (
    COLUMNS,
    FAR,
    LAYOUTS,
    TIMES,
    accuracy,
    beside_published,
    differences,
    far_columns,
    far_markdown,
    read_table,
    simulated_markdown,
    simulated_settings,
    table_path,
    table_text,
)
from tests.report.simulations import off_by, write

RESULTS = Path("results")

Rows = list[dict[str, str]]


def rows_in(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Cell]]:
    return plan_tables()


def test_every_published_time_has_a_simulated_one_beside_it() -> None:
    """All 585, in the order of the published file, with the error that follows."""
    published = rows_in(RESULTS / "published" / "published_iteration_times.csv")
    found = rows_in(table_path(RESULTS, TIMES))
    assert len(found) == 585
    for row, time in zip(found, published, strict=True):
        assert {name: row[name] for name in ("case", "system", "layers", "batch", "seed")} == {
            name: time[name] for name in ("case", "system", "layers", "batch", "seed")
        }
        published_s, simulated_s = float(time["iteration_s"]), float(row["simulated_s"])
        assert float(row["published_s"]) == published_s
        assert float(row["error"]) == pytest.approx(simulated_s / published_s - 1, abs=6e-5)


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != LAYOUTS])
def test_the_committed_tables_are_what_the_simulator_says(
    name: str, tables: dict[str, list[Cell]]
) -> None:
    """A sample of each: the first row of every column of systems. `.ci/run` compares all rows.
    Layouts are searched: see `tests/commands/test_simulated_layouts.py`."""
    committed = table_path(RESULTS, name).read_text(encoding="utf-8").splitlines()
    assert len(committed) == len(tables[name]) + 1
    key = 2 if name == TIMES else 1
    first: dict[str, int] = {}
    for index, line in enumerate(committed[1:]):
        first.setdefault(",".join(line.split(",")[:key]), index)
    cells = [tables[name][index] for index in first.values()]
    times = dict(simulate_tasks(tasks_of({name: cells})))
    found = "\n".join([committed[0], *(committed[index + 1] for index in first.values())])
    assert differences(found, table_text(name, rows_of(cells, times))) == []


def test_what_does_not_differ_is_simulated_once(tables: dict[str, list[Cell]]) -> None:
    """Seeds of a placement that is not random are repetitions."""
    published = rows_in(RESULTS / "published" / "published_iteration_times.csv")
    plans = {
        (row["case"], row["system"], row["layers"], row["batch"],
         row["seed"] if "random" in row["system"] else "")
        for row in published
    }  # fmt: skip
    assert len(tasks_of({TIMES: tables[TIMES]})) == len(plans) == 225 + 2 * 9 * 8


def test_times_that_another_processor_rounds_otherwise_are_no_difference() -> None:
    """0.1% is; so is any change of what was asked."""
    head = "system,layers,batch,seed,simulated_s\n"
    found = head + "zero3,24,1024,,100\n"
    assert differences(found, head + "zero3,24,1024,,100.09\n") == []
    (line,) = differences(found, head + "zero3,24,1024,,100.2\n")
    assert line == "line 2: zero3,24,1024,,100; simulated again: zero3,24,1024,,100.2"
    assert len(differences(found, head + "zero3,24,1025,,100\n")) == 1
    assert len(differences(found, head + "zero3,24,1024,2022,100\n")) == 1
    assert len(differences(found, found + "zero3,24,2048,,100\n")) == 1
    assert len(differences(found, found.replace("batch", "size"))) == 1
    assert len(differences("", found)) == 1


def test_an_error_may_differ_as_much_as_its_time() -> None:
    """It is rounded to a hundredth of a percent; a published time may not differ at all."""
    head = ",".join(COLUMNS[TIMES]) + "\n"
    row = "case1,zero3,24,1024,2022,14.69,{},{}\n"
    found = head + row.format("17.4989", "0.1912")
    assert differences(found, head + row.format("17.5100", "0.1920")) == []
    assert len(differences(found, head + row.format("17.4989", "0.1990"))) == 1
    assert len(differences(found, found.replace("14.69", "14.70"))) == 1


def test_accuracy_is_the_mean_of_errors_and_of_their_sizes(tmp_path: Path) -> None:
    """+20% in one of nine settings: 20/9 = 2.2% of each kind; the other systems are exact."""
    write(tmp_path, off_by(1.2, scenario="case3", variant="zero3", layers=24, batch=1024))
    settings = simulated_settings(tmp_path)
    assert settings is not None
    rows = {row[0]: row[1:] for row in accuracy(settings).rows}
    assert rows["zero3"][2] == "2.2% / +2.2% (9)"
    assert rows["zero3"][6] == "0.7% / +0.7% (27)"
    assert rows["dtfm-random"][:6] == (*["0.0% / +0.0% (9)"] * 5, "0.0% / +0.0% (18)")
    assert rows["all"][2] == "0.4% / +0.4% (45)"
    assert rows["megatron-p8-random"][:2] == ("-", "-")


def test_too_fast_and_too_slow_do_not_cancel(tmp_path: Path) -> None:
    """In the mean error they do, in the mean absolute error they must not."""
    fast = off_by(0.9, scenario="case1", variant="zero3", layers=24)
    slow = off_by(1.1, scenario="case1", variant="zero3", layers=32)
    write(tmp_path, lambda task: fast(task) * slow(task) / off_by(1.0)(task))
    settings = simulated_settings(tmp_path)
    assert settings is not None
    rows = {row[0]: row[1:] for row in accuracy(settings).rows}
    assert rows["zero3"][0] == "6.7% / +0.0% (9)"


def test_the_table_of_a_case_shows_both_times_and_the_error(tmp_path: Path) -> None:
    """Means over the seeds: 19.06, 18.92 and 18.63 s were printed; what is far out is bold."""
    write(tmp_path, off_by(1.2, scenario="case3", variant="dtfm-scheduled", batch=1024))
    settings = simulated_settings(tmp_path)
    assert settings is not None
    text = markdown(beside_published(settings, "case3"))
    assert "18.87 → 22.64 (**+20%**)" in text
    assert "32.45 → 32.45 (+0%)" in text
    assert "1325 → 1325 (+0%)" in text


def test_every_cell_that_is_far_out_is_listed_with_its_reason(tmp_path: Path) -> None:
    """By case and system; a reason that nobody knows is said to be unknown."""
    far = off_by(1 - FAR - 0.01, scenario="case1", variant="megatron-p8", batch=2048)
    write(tmp_path, far)
    path = tmp_path / "simulated" / "reasons.yaml"
    path.write_text("reasons: [{cases: [case1], systems: [zero3], reason: Not this.}]")
    settings = simulated_settings(tmp_path)
    assert settings is not None
    (column,) = far_columns(tmp_path, settings)
    assert (column.case, column.system, column.num) == ("case1", "megatron-p8", 9)
    assert [setting for setting, _ in column.cells] == ["L24 B2048", "L32 B2048", "L40 B2048"]
    assert column.reason == "Not known."
    path.write_text("reasons: [{cases: [case1], systems: [megatron-p8], reason: A NIC.}]")
    assert far_markdown(list(far_columns(tmp_path, settings))) == (
        "- A NIC.\n"
        "  - **case1, megatron-p8** (3 of 9): L24 B2048 -16.0%, L32 B2048 -16.0%, L40 B2048 -16.0%"
    )


def test_what_is_nearly_far_out_is_not_listed(tmp_path: Path) -> None:
    """The limit is a limit."""
    write(tmp_path, off_by(1 + FAR - 0.001, scenario="case1"))
    assert "None." in simulated_markdown(tmp_path)


def test_the_committed_reasons_name_what_exists() -> None:
    """Cases and systems are those of the published times: a typo would hide a reason."""
    from netbench.report.simulated import REASONS, ReasonsForm
    from netbench.scenario.source import read_source
    from netbench.scenario.validate import validate

    form = validate(read_source(RESULTS / "simulated" / REASONS), ReasonsForm)
    columns = {(row["case"], row["system"]) for row in rows_in(table_path(RESULTS, TIMES))}
    for reason in form.reasons:
        assert set(reason.cases) <= {case for case, _ in columns}
        assert set(reason.systems) <= {system for _, system in columns}


def test_before_anything_is_simulated_it_says_how(tmp_path: Path) -> None:
    """No table, no error."""
    assert read_table(tmp_path, TIMES) is None
    assert "netbench reproduce --simulate" in simulated_markdown(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("simulated_s", "measured_s", "has columns case, system.*measured_s.*write it with"),
        (",14.69,", ",14.70,", "rows are not the published times: write it with"),
        (",14.69,14.", ",14.69,fast", "cannot be read: .*fast"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """It is not printed."""
    path = table_path(write(tmp_path), TIMES)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(RecordError, match=message):
        simulated_settings(tmp_path)


def test_the_folder_says_what_is_in_it() -> None:
    """Every file, with its number of rows."""
    folder = RESULTS / "simulated"
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for path in folder.iterdir():
        if path.name != "README.md":
            (row,) = (row for row in rows if f"`{path.name}`" in row)
            assert path.suffix != ".csv" or f"| {len(rows_in(path))}" in row
