"""Tables of `netbench schedule`, with made-up searches."""

from __future__ import annotations

import pytest

from netbench.report.numbers import TimeSummary
from netbench.report.tables.schedule import (
    Contest,
    FoundPlacement,
    contest_grid,
    placed_grid,
    winners,
)


def found(
    scheduler: str, seed: int, simulated_s: float, cost_s: float | None = None
) -> FoundPlacement:
    return FoundPlacement(
        scheduler=scheduler,
        seed=seed,
        simulated_s=simulated_s,
        cost_s=cost_s,
        search_s=10.0 * seed,
        num_evaluated=1000 * seed,
    )


CONTEST = Contest(
    found=(
        found("identity", 1, 40.0, 60.0),
        found("dtfm", 1, 30.0, 50.0),
        found("dtfm", 2, 34.0, 52.0),
        found("netbench", 1, 26.0),
        found("netbench", 2, 25.0),
    ),
    bound_s=20.0,
)


def test_a_row_summarises_all_seeds() -> None:
    """Mean, minimum and maximum; the gap is that of the mean."""
    rows = {row[0]: row[1:] for row in contest_grid(CONTEST).rows}
    assert rows["dtfm"] == (
        "51.00", "32.00", "30.00", "34.00", "+60.0%", "15.0", "1,500",
    )  # fmt: skip
    assert rows["netbench"][:5] == ("-", "25.50", "25.00", "26.00", "+27.5%")


def test_only_schedulers_that_ran_have_emulated_times() -> None:
    """The others have a dash."""
    sample = TimeSummary(mean_s=26.0, min_s=25.5, max_s=26.5, num=2)
    grid = contest_grid(
        Contest(found=CONTEST.found, bound_s=None, emulated=(("netbench", sample),))
    )
    column = grid.head.index("emulated s")
    assert [row[column] for row in grid.rows] == ["-", "-", "26.00 ±0.50"]
    assert [row[column - 1] for row in grid.rows] == ["-"] * 3


def test_the_best_two_are_the_best_searches_of_the_best_means() -> None:
    """Not the two best searches, which may belong to one scheduler."""
    assert [(name, one.seed) for name, one in winners(CONTEST)] == [("netbench", 2), ("dtfm", 1)]


@pytest.mark.parametrize(("bound_s", "num_rows"), [(20.0, 3), (None, 2)])
def test_a_placement_is_compared_with_the_listed_one(bound_s: float | None, num_rows: int) -> None:
    """And with the bound, if there is one."""
    rows = placed_grid("netbench", 25.0, 40.0, bound_s).rows
    gap = ("+25.0%", "+100.0%") if bound_s else ("-", "-")
    assert rows[:2] == (
        ("netbench", "25.00", "-37.5%", gap[0]),
        ("identity", "40.00", "0.0%", gap[1]),
    )
    assert len(rows) == num_rows
    assert len(placed_grid("identity", 40.0, 40.0, None).rows) == 1


def test_a_bound_holds_for_its_layers_only() -> None:
    """A listed placement with other layers has no gap."""
    rows = placed_grid("netbench", 25.0, 40.0, 20.0, same_layers=False).rows
    assert [row[3] for row in rows] == ["+25.0%", "-", ""]
