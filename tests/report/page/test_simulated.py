"""Simulated beside published: complete, up to date, and no error hidden."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from netbench.commands.reproduce.simulated import TableRow, rows_of, simulate_tasks, tasks_of
from netbench.errors import RecordError
from netbench.report.page.simulated import (
    COLUMNS,
    LAYOUTS,
    TIMES,
    differences,
    simulated_settings,
    table_path,
    table_text,
)
from tests.simulations import tables_to_write, write

RESULTS = Path("results")

Rows = list[dict[str, str]]


def rows_in(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def published_rows() -> list[dict[str, str]]:
    """The rows of both files of iteration times; the second is of one system."""
    folder = RESULTS / "published"
    engine = rows_in(folder / "deepspeed_pp_iteration_times.csv")
    return [
        *rows_in(folder / "published_iteration_times.csv"),
        *({**row, "system": "deepspeed-pp-random-nodes"} for row in engine),
    ]


@pytest.fixture(scope="module")
def tables() -> dict[str, list[TableRow]]:
    return tables_to_write()


def test_every_published_time_has_a_simulated_one_beside_it() -> None:
    """All 666, in the order of the published files, with the error that follows."""
    published = published_rows()
    found = rows_in(table_path(RESULTS, TIMES))
    assert len(found) == 666
    for row, time in zip(found, published, strict=True):
        assert {name: row[name] for name in ("case", "system", "layers", "batch", "seed")} == {
            name: time[name] for name in ("case", "system", "layers", "batch", "seed")
        }
        published_s, simulated_s = float(time["iteration_s"]), float(row["simulated_s"])
        assert float(row["published_s"]) == published_s
        assert float(row["error"]) == pytest.approx(simulated_s / published_s - 1, abs=6e-5)


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != LAYOUTS])
def test_the_committed_tables_are_what_the_simulator_says(
    name: str, tables: dict[str, list[TableRow]]
) -> None:
    """A sample of each: the first row of every column of systems. `.ci/run` compares all rows.
    Layouts are searched: see `tests/commands/reproduce/test_layouts.py`."""
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


def test_what_does_not_differ_is_simulated_once(tables: dict[str, list[TableRow]]) -> None:
    """Seeds of a placement that is not random are repetitions."""
    published = published_rows()
    plans = {
        (row["case"], row["system"], row["layers"], row["batch"],
         row["seed"] if "random" in row["system"] else "")
        for row in published
    }  # fmt: skip
    assert len(tasks_of({TIMES: tables[TIMES]})) == len(plans) == 252 + 2 * 9 * 11


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
