"""Searches for a placement, from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import netbench as nb
from netbench.api.placement import parse_budget
from netbench.errors import UsageError
from netbench.placement.file import read_placed


def test_a_placement_is_saved_as_the_command_line_reads_it(tmp_path: Path) -> None:
    """Same devices, same simulated time, no faster than the bound."""
    labs = nb.load_scenario("example-two-labs")
    found = nb.place(labs, evaluations=5)
    found.save(tmp_path / "placement.json")
    read = read_placed(tmp_path / "placement.json", labs)
    assert read.plan().placement == found.plan.placement
    assert nb.simulate(found.plan).table.mean_s.item() == found.simulated_s
    assert found.bound_s is not None
    assert found.bound_s <= found.simulated_s
    assert sorted(found.table.device) == [0, 1, 2, 3]
    assert "<table>" in found._repr_html_()


def test_an_unknown_scheduler_is_one_message() -> None:
    """With the nearest name."""
    with pytest.raises(UsageError, match="did you mean dtfm"):
        nb.place("example-two-labs", scheduler="dtfn")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", '"5" has no unit; write e.g. 5s or 5min'),
        ("1ms", "is not a search time of 100ms or more"),
        ("soon", "is not a"),
    ],
)
def test_a_budget_without_a_unit_says_which_are_missing(text: str, message: str) -> None:
    """Seconds or minutes could be meant."""
    with pytest.raises(ValueError, match=message):
        parse_budget(text)
