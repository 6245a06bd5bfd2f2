"""Tables of `netbench schedule`: one placement, or all schedulers side by side."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from netbench.report.numbers import TimeSummary, percent_text, seconds_text, spread_text
from netbench.report.tables.grid import Grid

LISTED = "identity"
"""The placement that follows the order in which nodes are listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPlacement:
    """Result of one search. simulated_s: an iteration with its placement. cost_s: DT-FM's cost of
    the placement, None if undefined. search_s, num_evaluated: duration and candidates of the
    search. curve: (seconds of search, simulated seconds of the best so far), in order of time."""

    scheduler: str
    seed: int
    simulated_s: float
    cost_s: float | None
    search_s: float
    num_evaluated: int
    curve: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchFailure:
    """A search without a result, and the reason."""

    scheduler: str
    seed: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """All searches of a comparison, in the order of the schedulers. bound_s: lower bound of an
    iteration, None if not known. emulated: times of the placements that ran, by scheduler."""

    found: tuple[FoundPlacement, ...]
    bound_s: float | None
    refused: tuple[SearchFailure, ...] = ()
    emulated: tuple[tuple[str, TimeSummary], ...] = ()

    def by_scheduler(self) -> dict[str, list[FoundPlacement]]:
        """The searches of each scheduler."""
        groups: dict[str, list[FoundPlacement]] = {}
        for one in self.found:
            groups.setdefault(one.scheduler, []).append(one)
        return groups

    def ranking(self) -> list[str]:
        """Schedulers from the lowest mean to the highest."""
        means = {
            name: statistics.fmean(one.simulated_s for one in group)
            for name, group in self.by_scheduler().items()
        }
        return sorted(means, key=lambda name: means[name])


def gap_text(simulated_s: float, bound_s: float | None) -> str:
    """`+12.3%`: the distance above the bound."""
    return "-" if bound_s is None else percent_text(simulated_s / bound_s - 1)


def placed_grid(
    scheduler: str,
    simulated_s: float,
    listed_s: float,
    bound_s: float | None,
    *,
    same_layers: bool = True,
) -> Grid:
    """A placement, the listed order of nodes, and the lower bound.

    same_layers: whether stages have the same layers in both; if not, the bound holds for the first.
    """
    times_s = {LISTED: listed_s} | {scheduler: simulated_s}
    rows = [
        (
            name,
            seconds_text(times_s[name]),
            percent_text(times_s[name] / listed_s - 1),
            gap_text(times_s[name], bound_s if same_layers or name == scheduler else None),
        )
        for name in dict.fromkeys((scheduler, LISTED))
    ]
    if bound_s is not None:
        below = percent_text(bound_s / listed_s - 1)
        rows.append(("lower bound", seconds_text(bound_s), below, ""))
    head = ("Placement", "simulated s", f"vs {LISTED}", "above bound")
    return Grid(head=head, rows=tuple(rows))


def contest_grid(contest: Contest) -> Grid:
    """A row per scheduler, in the given order."""
    emulated = dict(contest.emulated)
    with_emulated = ("emulated s",) if emulated else ()
    rows = []
    for name, group in contest.by_scheduler().items():
        times_s = [one.simulated_s for one in group]
        mean_s = statistics.fmean(times_s)
        costs_s = [one.cost_s for one in group if one.cost_s is not None]
        ran = (spread_text(emulated[name]) if name in emulated else "-",) if emulated else ()
        rows.append(
            (
                name,
                seconds_text(statistics.fmean(costs_s)) if costs_s else "-",
                *map(seconds_text, (mean_s, min(times_s), max(times_s))),
                gap_text(mean_s, contest.bound_s),
                *ran,
                f"{statistics.fmean(one.search_s for one in group):.1f}",
                f"{round(statistics.fmean(one.num_evaluated for one in group)):,}",
            )
        )
    head = (
        "Scheduler", "cost s", "simulated s", "min", "max", "above bound",
        *with_emulated, "search s", "candidates",
    )  # fmt: skip
    return Grid(head=head, rows=tuple(rows))


def contest_csv_grid(contest: Contest) -> Grid:
    """A row per search, unrounded."""
    rows = [
        (
            one.scheduler, str(one.seed), repr(one.simulated_s),
            "" if one.cost_s is None else repr(one.cost_s),
            "" if contest.bound_s is None else repr(contest.bound_s),
            repr(one.search_s), str(one.num_evaluated),
        )
        for one in contest.found
    ]  # fmt: skip
    head = (
        "scheduler", "seed", "simulated_s", "dtfm_cost_s", "bound_s", "search_s", "num_evaluated",
    )  # fmt: skip
    return Grid(head=head, rows=tuple(rows))


def winners(contest: Contest) -> Sequence[tuple[str, FoundPlacement]]:
    """The best two schedulers, each with its best search."""
    groups = contest.by_scheduler()
    return [
        (name, min(groups[name], key=lambda one: one.simulated_s)) for name in contest.ranking()[:2]
    ]
