"""Accuracy of the simulator on the published settings, and the reasons for its largest errors.

An error is relative: simulated over published, both means over the seeds, minus 1.
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pandas as pd

from netbench.report.numbers import percent_text
from netbench.report.page.published import CASES, DEEPSPEED, case_name, setting_name
from netbench.report.page.simulated import FOLDER
from netbench.report.tables.grid import WIDTH, Grid, bullet
from netbench.scenario.schema import Section
from netbench.scenario.source import read_source
from netbench.scenario.validate import validate

FITTED, PREDICTED = ("case1", "case2"), ("case3", "case4", "case5")
"""Cases with rows that constants are fitted on (docs/calibration.md lists them), and without."""

NOT_FITTED = ("megatron-p8", "dtfm-random", DEEPSPEED)
"""Systems of `FITTED` on which no constant is fitted. Source: docs/calibration.md."""

FAR = 0.15
"""Relative error above which a setting is marked in the tables and needs a reason."""

REASONS = "reasons.yaml"
UNKNOWN = "The reason is not known."


def mean_absolute_error(settings: pd.DataFrame) -> float:
    """Mean over the settings of the absolute relative error."""
    return float(settings["error"].abs().mean())


def of_cases(settings: pd.DataFrame, cases: Sequence[str]) -> pd.DataFrame:
    """The settings of some cases."""
    return settings[settings["case"].isin(cases)]


def accuracy(settings: pd.DataFrame) -> Grid:
    """Mean absolute error by system and case."""
    groups = {
        **{case_name(case): (case,) for case in CASES},
        "cases 1-2, fitted": FITTED,
        "cases 3-5, predicted": PREDICTED,
    }
    by_system = [*settings.groupby("system"), ("all", settings)]
    rows = [
        (str(system), *(_error_text(of_cases(rows, cases)) for cases in groups.values()))
        for system, rows in by_system
    ]
    return Grid(head=("System", *groups), rows=tuple(rows))


def _error_text(settings: pd.DataFrame) -> str:
    return "-" if settings.empty else f"{100 * mean_absolute_error(settings):.1f}%"


def absolute_and_mean_error(settings: pd.DataFrame) -> str:
    """`7.8% / -7.5%`: the mean absolute error and the mean error."""
    return f"{_error_text(settings)} / {percent_text(float(settings['error'].mean()))}"


CLOSE = 0.03
"""Relative difference of published times up to which neither of two systems wins."""

RIGHT_ORDER_GOAL = 0.95
"""Fraction of pairs of systems that should be in the right order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Pairs of systems in the same setting whose published times differ by more than `CLOSE`.

    case: or scenario. num_right: of `num` pairs, those that the simulator puts in the same order.
    wrong: the system that wins but is not simulated so, and the other one, for each wrong pair.
    """

    case: str
    num: int
    wrong: tuple[tuple[str, str], ...]

    @property
    def num_right(self) -> int:
        return self.num - len(self.wrong)


def orders(settings: pd.DataFrame) -> tuple[Order, ...]:
    """Compare the systems of every setting, two by two. settings: case, layers, batch, system,
    published_s and simulated_s, means over the seeds. Cases with one system are left out."""
    found = []
    for case, rows in settings.groupby("case", sort=False):
        pairs = [
            tuple(sorted(pair, key=lambda row: row.published_s))
            for _, cells in rows.groupby(["layers", "batch"], sort=False)
            for pair in combinations(cells.itertuples(), 2)
        ]
        apart = [(a, b) for a, b in pairs if b.published_s > (1 + CLOSE) * a.published_s]
        wrong = tuple((a.system, b.system) for a, b in apart if a.simulated_s >= b.simulated_s)
        if apart:
            found.append(Order(case=str(case), num=len(apart), wrong=wrong))
    return tuple(found)


def order_text(found: Sequence[Order]) -> str:
    """`590 of 642 pairs (91.9%)`."""
    right, num = (sum(getattr(each, name) for each in found) for name in ("num_right", "num"))
    return f"{right} of {num} pairs ({right / num:.1%})"


def order_list(found: Sequence[Order]) -> str:
    """Right and all pairs by case, and the systems that wrong pairs have most often, wrapped."""
    names = Counter(name for each in found for pair in each.wrong for name in pair)
    cases = ", ".join(f"{each.num_right} of {each.num} in {each.case}" for each in found)
    worst = ", ".join(f"{name} ({num})" for name, num in names.most_common(3))
    wrong = f" Most often in a wrong pair: {worst}." if worst else ""
    return textwrap.fill(f"These are {cases}.{wrong}", WIDTH, break_on_hyphens=False)


class Reason(Section):
    """A reason why the simulator is far off for some systems in some cases."""

    cases: list[str]
    systems: list[str]
    reason: str


class ReasonsForm(Section):
    """The file `REASONS`."""

    reasons: list[Reason]


@dataclass(frozen=True, kw_only=True, slots=True)
class FarColumn:
    """The settings of one system in one case with an error above `FAR`.

    num: settings of the system in the case. errors: (setting, error), in printed order.
    """

    case: str
    system: str
    num: int
    errors: tuple[tuple[str, float], ...]
    reason: str


def far_columns(results: Path, settings: pd.DataFrame) -> Iterator[FarColumn]:
    """Yield every case and system with an error above `FAR`, in printed order."""
    path = results / FOLDER / REASONS
    reasons = validate(read_source(path), ReasonsForm).reasons if path.exists() else []
    for (case, system), rows in settings.groupby(["case", "system"], sort=False):
        far = rows[rows["error"].abs() > FAR]
        if far.empty:
            continue
        known = [r.reason for r in reasons if case in r.cases and system in r.systems]
        yield FarColumn(
            case=case,
            system=system,
            num=len(rows),
            errors=tuple(
                (setting_name(row.layers, row.batch), float(row.error)) for row in far.itertuples()
            ),
            reason=" ".join(" ".join(known).split()) or UNKNOWN,
        )


def far_markdown(columns: Sequence[FarColumn]) -> str:
    """A list of the systems and cases that share a reason, with the range of their errors."""
    groups: dict[tuple[str, str], list[FarColumn]] = {}
    for column in columns:
        groups.setdefault((column.reason, column.system), []).append(column)
    known_first = sorted(groups.items(), key=lambda item: item[0][0] == UNKNOWN)
    return "\n".join(
        bullet(f"**{system}** ({'; '.join(map(_errors_text, same))}): {reason}")
        for (reason, system), same in known_first
    )


def _errors_text(column: FarColumn) -> str:
    """`[case 2](case2.md): 8 of 9, -26.8% to -17.1%`."""
    errors = sorted(error for _, error in column.errors)
    ends = dict.fromkeys(percent_text(error) for error in (errors[0], errors[-1]))
    where = f"[{case_name(column.case)}]({column.case}.md)"
    return f"{where}: {len(column.errors)} of {column.num}, {' to '.join(ends)}"
