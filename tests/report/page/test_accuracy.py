"""Errors of the simulator: their means, and the reasons for the largest ones."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from netbench.report.page.accuracy import (
    FAR,
    NOT_FITTED,
    REASONS,
    ReasonsForm,
    absolute_and_mean_error,
    accuracy,
    far_columns,
    far_markdown,
    order_text,
    orders,
)
from netbench.report.page.published import CASES
from netbench.report.page.simulated import all_settings, simulated_settings
from netbench.scenario.source import read_source
from netbench.scenario.validate import validate
from tests.simulations import Seconds, off_by, published_mean, write

RESULTS = Path("results")


def settings_of(results: Path, seconds: Seconds = published_mean) -> pd.DataFrame:
    settings = simulated_settings(write(results, seconds))
    assert settings is not None
    return settings


def test_accuracy_is_the_mean_of_absolute_errors(tmp_path: Path) -> None:
    """+20% in one of nine settings is 20/9 = 2.2%; the other systems are exact."""
    off = off_by(1.2, scenario="case3", variant="zero3", layers=24, batch=1024)
    rows = {row[0]: row[1:] for row in accuracy(settings_of(tmp_path, off)).rows}
    assert rows["zero3"][2] == "2.2%"
    assert rows["zero3"][6] == "0.7%"
    assert rows["dtfm-random"][:6] == ("0.0%",) * 6
    assert rows["all"][2] == "0.4%"
    assert rows["megatron-p8-random"][:2] == ("-", "-")


def test_errors_of_opposite_sign_cancel_in_the_mean_error_only(tmp_path: Path) -> None:
    """-10% and +10% in three of nine settings each: 6.7% absolute, 0% in the mean."""
    fast = off_by(0.9, scenario="case1", variant="zero3", layers=24)
    slow = off_by(1.1, scenario="case1", variant="zero3", layers=32)
    settings = settings_of(tmp_path, lambda task: fast(task) * slow(task) / off_by(1.0)(task))
    zero3 = settings[(settings["case"] == "case1") & (settings["system"] == "zero3")]
    assert absolute_and_mean_error(zero3) == "6.7% / 0.0%"


def test_every_large_error_is_listed_with_its_reason(tmp_path: Path) -> None:
    """By system and case; without a reason in the file, the reason is not known."""
    far = off_by(1 - FAR - 0.01, scenario="case1", variant="megatron-p8", batch=2048)
    settings = settings_of(tmp_path, far)
    path = tmp_path / "simulated" / REASONS
    path.write_text("reasons: [{cases: [case1], systems: [zero3], reason: Not this.}]")
    (column,) = far_columns(tmp_path, settings)
    assert (column.case, column.system, column.num) == ("case1", "megatron-p8", 9)
    assert [setting for setting, _ in column.errors] == ["L24 B2048", "L32 B2048", "L40 B2048"]
    assert column.reason == "The reason is not known."
    path.write_text("reasons: [{cases: [case1], systems: [megatron-p8], reason: A NIC.}]")
    assert far_markdown(list(far_columns(tmp_path, settings))) == (
        "- **megatron-p8** ([case 1](case1.md): 3 of 9, -16.0%): A NIC."
    )


def test_cases_that_share_a_reason_share_a_line(tmp_path: Path) -> None:
    """The line has the range of the errors of each case."""
    far = off_by(1.2, variant="zero3", batch=2048)
    farther = off_by(1.25, scenario="case2", variant="zero3", layers=40, batch=2048)
    settings = settings_of(tmp_path, lambda task: far(task) * farther(task) / published_mean(task))
    text = " ".join(far_markdown(list(far_columns(tmp_path, settings))).split())
    assert (
        "([case 1](case1.md): 3 of 9, +20.0%; [case 2](case2.md): 3 of 9, +20.0% to +50.0%; "
        in text
    )
    assert text.count("The reason is not known.") == 1


def test_an_error_below_the_limit_is_not_listed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, off_by(1 + FAR - 0.001, scenario="case1"))
    assert list(far_columns(tmp_path, settings)) == []


def test_the_committed_reasons_name_existing_cases_and_systems() -> None:
    """A typo would hide a reason."""
    form = validate(read_source(RESULTS / "simulated" / REASONS), ReasonsForm)
    settings = simulated_settings(RESULTS)
    assert settings is not None
    for reason in form.reasons:
        assert set(reason.cases) <= set(settings["case"])
        assert set(reason.systems) <= set(settings["system"])
    assert set(NOT_FITTED) <= set(settings["system"])


def test_pairs_of_systems_count_where_their_published_times_differ() -> None:
    """By hand: a and b are too close; a beats c and is simulated slower; b beats c."""
    rows = [
        ("case1", "a", 24, 1024, 10.0, 13.0),
        ("case1", "b", 24, 1024, 10.2, 11.0),
        ("case1", "c", 24, 1024, 12.0, 12.0),
        ("case1", "a", 32, 1024, 10.0, 10.0),  # alone in its setting
        ("case2", "a", 24, 1024, 10.0, 10.0),
    ]
    columns = ["case", "system", "layers", "batch", "published_s", "simulated_s"]
    (found,) = orders(pd.DataFrame(rows, columns=columns))
    assert (found.case, found.num_right, found.num) == ("case1", 1, 2)
    assert found.wrong == (("a", "c"),)
    assert order_text([found]) == "1 of 2 pairs (50.0%)"


def test_the_order_of_the_published_systems_is_no_worse_than_it_was() -> None:
    """All tables of the repository: see "Who wins" in results/README.md."""
    settings = all_settings(RESULTS)
    assert settings is not None
    found = orders(settings)
    right, num = sum(each.num_right for each in found), sum(each.num for each in found)
    assert {each.case for each in found} == {*CASES, "fluidstack2"}
    assert right / num > 0.91
