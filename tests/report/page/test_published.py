"""Published figures: every printed efficiency follows from the published times."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from netbench.errors import RecordError
from netbench.report.page import published
from netbench.report.page.published import (
    CASES,
    PUBLISHED_MODEL,
    efficiencies,
    iteration_times,
    load,
    reproduced,
    sample,
    settings,
)
from netbench.scenario.model import Workload
from netbench.workload.costs import pflop_per_iteration

Times = dict[str, Decimal]
Estimator = Callable[[str, Times], Decimal]


def printed_cells() -> list[tuple[str, str, Decimal, Decimal, Times]]:
    """(where, system, printed, work, times by seed) of every cell, read without pandas' floats."""
    folder = Path("results/published")

    def rows(name: str) -> list[list[str]]:
        return [line.split(",") for line in (folder / name).read_text().splitlines()[1:]]

    work = {(layers, batch): Decimal(pflop) for layers, batch, pflop in rows(WORK)}
    times: dict[tuple[str, ...], Times] = {}
    for case, system, _, layers, batch, seed, seconds in rows(TIMES):
        times.setdefault((case, system, layers, batch), {})[seed] = Decimal(seconds)
    return [
        (f"{case} {system} L{layers} B{batch}", system, Decimal(printed), work[layers, batch],
         times[case, system, layers, batch])
        for case, system, _, layers, batch, printed in rows(PFLOPS)
    ]  # fmt: skip


WORK = "published_pflop_per_iteration.csv"
TIMES = "published_iteration_times.csv"
PFLOPS = "published_pflops.csv"


def mean(times: Times) -> Decimal:
    return sum(times.values(), Decimal()) / len(times)


def by_column(system: str, times: Times) -> Decimal:
    """An independent version of `published.estimator`, with exact decimals."""
    return mean(times) if system == "zero3" or len(times) == 1 else times["2022"]


def always_the_mean(system: str, times: Times) -> Decimal:
    return mean(times)


def always_2022(system: str, times: Times) -> Decimal:
    return times.get("2022", mean(times))


def always_the_best(system: str, times: Times) -> Decimal:
    return min(times.values())


def failures(estimator: Estimator) -> list[str]:
    """Cells that the estimator does not reproduce to the last printed digit."""
    return [
        where
        for where, system, printed, work, times in printed_cells()
        if (work / estimator(system, times)).quantize(Decimal("0.001"), ROUND_HALF_UP) != printed
    ]


def test_every_printed_efficiency_is_reproduced_to_its_last_digit() -> None:
    """All 207 cells, in exact decimals and in the floats of the tables."""
    assert len(printed_cells()) == 207
    assert failures(by_column) == []
    assert reproduced() == (207, 207)


@pytest.mark.parametrize(
    ("estimator", "at_least"), [(always_the_mean, 128), (always_2022, 17), (always_the_best, 119)]
)
def test_no_other_estimator_reproduces_the_tables(estimator: Estimator, at_least: int) -> None:
    """One estimator for all columns misses many cells: the comparison can fail."""
    assert len(failures(estimator)) >= at_least


def test_each_system_has_an_estimator_that_alone_fits_its_columns() -> None:
    """The mean does not explain dtfm and megatron columns; seed 2022 does not explain zero3's."""
    assert any("dtfm" in where for where in failures(always_the_mean))
    assert any("megatron" in where for where in failures(always_the_mean))
    assert any("zero3" in where for where in failures(always_2022))
    assert not any("zero3" in where for where in failures(always_the_mean))


def test_published_work_agrees_with_the_formula() -> None:
    """All nine printed values are within 0.0165% of 96 B s L h^2 (1 + s/6h)."""
    work = load("published_pflop_per_iteration")
    assert len(work) == 9
    for row in work.itertuples():
        formula = pflop_per_iteration(
            Workload(layers=row.layers, batch=row.batch, heads=16, **PUBLISHED_MODEL)  # type: ignore[arg-type]
        )
        assert row.pflop == pytest.approx(formula, rel=0.000165)


def test_the_tables_are_complete() -> None:
    """666 times in 252 settings of a system; 207 efficiencies, all with their times and work."""
    assert len(iteration_times()) == 666
    assert len(settings()) == 252
    assert set(settings()["case"]) == set(CASES)
    assert not efficiencies()[["mean_s", "pflop", "pflops"]].isna().any(axis=None)


def test_a_sample_is_the_published_times_of_one_setting() -> None:
    """Case 3, dtfm-scheduled, L24 B1024: 19.06, 18.92 and 18.63 s were printed."""
    found = sample("case3", "dtfm-scheduled", 24, 1024)
    assert found is not None
    assert found.mean_s == pytest.approx((19.06 + 18.92 + 18.63) / 3)
    assert (found.min_s, found.max_s, found.num) == (18.63, 19.06, 3)


@pytest.mark.parametrize(
    "key", [("mine", "zero3", 24, 1024), ("case3", "ddp", 24, 1024), ("case3", "zero3", 6, 1024)]
)
def test_unpublished_settings_have_no_sample(key: tuple[str, str, int, int]) -> None:
    """An unknown scenario, variant or setting is not an error."""
    assert sample(*key) is None


def test_missing_data_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names the file and the remedy."""
    monkeypatch.setattr(published, "data_folder", lambda name: tmp_path)
    with pytest.raises(RecordError, match=r"p2p_under_tc\.csv: cannot be read.*reinstall"):
        load("p2p_under_tc")


def test_data_is_found_inside_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel carries the files in netbench/_data/published (pyproject.toml)."""
    packaged = tmp_path / "netbench" / "_data" / "published"
    packaged.mkdir(parents=True)
    monkeypatch.setattr(
        published, "__file__", str(tmp_path / "netbench" / "report" / "page" / "x.py")
    )
    assert published.data_folder("published") == packaged
    packaged.rmdir()
    assert published.data_folder("published") == tmp_path / "results" / "published"
