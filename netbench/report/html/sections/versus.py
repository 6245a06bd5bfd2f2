"""Section: two or more runs compared, with ratios and their significance.

Times are compared by their logarithms with Welch's t-test (Welch, 1947), which gives the ratio of
geometric means, its 95% confidence interval and a p-value. The p-values of all rows are adjusted
for their number (Holm, 1979). A sample is one iteration; where a row has several seeds, it is the
mean of a seed, because iterations of one placement are not independent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from netbench.report.html.charts import BLUE, GREY, NARROW, RED, Chart, compiled, rounded
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.numbers import or_dash, percent_text, seconds_text
from netbench.report.tables.comparison import Comparison, run_source
from netbench.report.tables.grid import Grid, table_of

LEVEL = 0.05
"""Adjusted p-value below which a difference is called significant."""

CONFIDENCE = 0.95

ROW = 30
"""Height of a row in the chart, pixels."""

RESULTS = {"faster": BLUE, "slower": RED, "not significant": GREY, "not tested": GREY}
"""Outcomes of a comparison, with their colours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRatio:
    """One row of two runs. ratio: of the times, second over first. low, high: its confidence
    interval; None if it cannot be tested. p: adjusted; None likewise. nums: samples of both."""

    name: str
    first_s: float
    second_s: float
    ratio: float
    low: float | None
    high: float | None
    p: float | None
    nums: tuple[int, int]

    @property
    def result(self) -> str:
        """Return one of `RESULTS`."""
        if self.p is None:
            return "not tested"
        if self.p >= LEVEL:
            return "not significant"
        return "slower" if self.ratio > 1 else "faster"


def build(studies: Sequence[Study]) -> list[Section]:
    """Return a section for each run after the first, which is the baseline."""
    return [
        section
        for other in studies[1:]
        if (section := _section(studies[0], other, len(studies) > 2)) is not None
    ]


def _section(first: Study, second: Study, several: bool) -> Section | None:
    found = ratios(first.rows, second.rows)
    only = sorted(_names(first.rows) ^ _names(second.rows))
    sources = [run_source(each.run) for each in (first, second)]
    return Section(
        key=f"{second.key}-versus",
        title=f"Comparison with {second.run.run_id}" if several else "Comparison of the two runs",
        template="versus.html",
        content={
            "first": {"name": first.run.run_id, "source": sources[0]},
            "second": {"name": second.run.run_id, "source": sources[1]},
            "grid": _grid(found),
            "only": only,
            "is_exact": sources == ["simulated", "simulated"],
            "level": LEVEL,
        },
        charts={"ratios": _chart(f"{second.key}-versus-chart", found)} if found else {},
    )


def _names(rows: Sequence[Comparison]) -> set[str]:
    return {_name(row) for row in rows if row.found}


def _name(row: Comparison) -> str:
    network = f" {row.network}" if row.network and row.network not in row.setting else ""
    return f"{row.scenario} {row.setting}{network}, {row.name}"


def ratios(first: Sequence[Comparison], second: Sequence[Comparison]) -> list[RunRatio]:
    """Compare the rows that both runs have."""
    others = {_key(row): row for row in second if row.found}
    pairs = [(row, others[_key(row)]) for row in first if row.found and _key(row) in others]
    found = [_ratio(row, other) for row, other in pairs]
    adjusted = holm([each.p for each in found if each.p is not None])
    p_values = iter(adjusted)
    return [each if each.p is None else replace(each, p=next(p_values)) for each in found]


def _key(row: Comparison) -> tuple[object, ...]:
    return row.name, row.network, row.workload, row.replicas


def _ratio(first: Comparison, second: Comparison) -> RunRatio:
    samples = [_samples(row) for row in (first, second)]
    logs = [[math.log(time_s) for time_s in some] for some in samples]
    means = [statistics.fmean(some) for some in logs]
    low, high, p = welch(*logs)
    return RunRatio(
        name=_name(first),
        first_s=math.exp(means[0]),
        second_s=math.exp(means[1]),
        ratio=math.exp(means[1] - means[0]),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        p=p,
        nums=(len(samples[0]), len(samples[1])),
    )


def _samples(row: Comparison) -> list[float]:
    """Return the iterations of a row, or the means of its seeds if there are several."""
    if len(row.times_s) == 1:
        return list(row.times_s[0])
    return [statistics.fmean(times_s) for times_s in row.times_s]


def welch(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float | None, float | None, float | None]:
    """Return the confidence interval of mean(second) - mean(first), and the p-value.

    All are None if either has fewer than two samples, or if neither varies: then the test has no
    estimate of chance.
    """
    if min(len(first), len(second)) < 2 or not (
        statistics.pvariance(first) or statistics.pvariance(second)
    ):
        return None, None, None
    from scipy import stats  # slow to import

    test = stats.ttest_ind(second, first, equal_var=False)
    interval = test.confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high), float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in the given order (Holm's step-down method)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, most = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = most
    return adjusted


def _grid(found: Sequence[RunRatio]) -> Grid:
    def interval(each: RunRatio) -> str:
        return "-" if each.low is None else f"{each.low:.3f} to {each.high:.3f}"

    columns: list[tuple[str, Any]] = [
        ("Row", lambda each: each.name),
        ("first, s", lambda each: seconds_text(each.first_s)),
        ("second, s", lambda each: seconds_text(each.second_s)),
        ("n", lambda each: " / ".join(map(str, each.nums))),
        ("ratio", lambda each: f"{each.ratio:.3f}"),
        ("change", lambda each: percent_text(each.ratio - 1)),
        ("95% interval", interval),
        ("p, adjusted", lambda each: or_dash(p_text, each.p)),
        ("second is", lambda each: each.result),
    ]
    return table_of(found, columns)


def p_text(p: float) -> str:
    """Return a p-value with two digits; very small ones as a bound."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def _chart(key: str, found: Sequence[RunRatio]) -> Chart:
    """Draw the ratio and its interval per row, beside a line at 1."""
    values = list(_values(found))
    results = [name for name in RESULTS if any(v["result"] == name for v in values)]
    ends = [value for each in found for value in (each.ratio, each.low, each.high, 1.0) if value]
    low, high = min(ends), max(ends)
    margin = max(0.01, 0.06 * (high - low))
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y(
            "row:N",
            sort=[each.name for each in found],
            title=None,
            axis=alt.Axis(labelLimit=alt.ExprRef(f"width < {NARROW} ? 150 : 260")),
        ),
        color=alt.Color(
            "result:N",
            sort=results,
            scale=alt.Scale(domain=results, range=[RESULTS[name] for name in results]),
            legend=alt.Legend(columns=alt.ExprRef(f"width < {NARROW} ? 1 : {len(results)}")),
        ),
    )
    scale = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    one = (
        alt.Chart(alt.InlineData(values=[{"x": 1}]))
        .mark_rule(strokeDash=[4, 3], strokeWidth=1)
        .encode(x=alt.X("x:Q", scale=scale))
    )
    extents = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=alt.X("ratio:Q", scale=scale, title="second run / first run", axis=alt.Axis(tickCount=6)),
        shape=alt.Shape(
            "result:N",
            sort=results,
            scale=alt.Scale(
                domain=list(RESULTS), range=["triangle-left", "triangle-right", "circle", "square"]
            ),
            legend=None,
        ),
        tooltip=[
            alt.Tooltip("row:N", title="row"),
            alt.Tooltip("ratio:Q", title="ratio", format=".4f"),
            alt.Tooltip("interval:N", title="95% interval"),
            alt.Tooltip("p:N", title="p, adjusted"),
        ],
    )
    chart = alt.layer(one, extents, points).properties(width="container", height=ROW * len(found))
    told = "; ".join(f"{each.name}: {each.ratio:.3f}, {each.result}" for each in found)
    return Chart(
        key=key,
        alt=f"Ratio of the times of the second run to those of the first. {told}.",
        spec=compiled(chart),
    )


def _values(found: Sequence[RunRatio]) -> Iterator[dict[str, Any]]:
    for each in found:
        yield {
            "row": each.name,
            "ratio": rounded(each.ratio),
            "low": rounded(each.low or each.ratio),
            "high": rounded(each.high or each.ratio),
            "interval": "-" if each.low is None else f"{each.low:.3f} to {each.high:.3f}",
            "p": or_dash(p_text, each.p),
            "result": each.result,
        }
