"""Section: where the time of an iteration goes, and what would shorten it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from netbench.report.html.charts import (
    BLUE,
    GREEN,
    NARROW,
    ORANGE,
    PINK,
    RED,
    SKY,
    Chart,
    compiled,
    rounded,
)
from netbench.report.html.section import Section
from netbench.report.html.study import Explained, Study
from netbench.report.numbers import seconds_text
from netbench.report.tables.grid import Grid

GROUPS: Mapping[str, tuple[str, str]] = {
    "forward": ("forward", BLUE),
    "backward": ("backward", SKY),
    "optimizer": ("optimizer", GREEN),
    "bubble": ("bubble", PINK),
    "point_to_point": ("point to point", RED),
    "collective": ("collective", ORANGE),
}
"""Name and colour of the groups of `explain.breakdown.GROUPS`."""

MEANINGS = (
    ("forward, backward, optimizer", "a rank computes"),
    ("bubble", "a rank waits while others compute"),
    ("point to point", "a rank waits for activations or gradients of a neighbouring stage"),
    ("collective", "a rank waits for a collective, or for tensor-parallel ranks"),
)

ROW = 30
"""Height of a bar, pixels."""


def build(study: Study) -> Section | None:
    """Return the section; None if no plan of the run is simulated."""
    if not study.explained:
        return None
    return Section(
        key=f"{study.key}-breakdown",
        title="Where time goes",
        template="breakdown.html",
        content={
            "grid": _grid(study.explained),
            "meanings": MEANINGS,
            "losses": [_losses(each) for each in study.detailed],
            "phases": _phases_grid(study),
            "notes": study.notes,
        },
        charts={"breakdown": _chart(f"{study.key}-breakdown-chart", study.explained)},
    )


def _chart(key: str, explained: Sequence[Explained]) -> Chart:
    """Stack the shares of each plan to 100%."""
    labels = list(dict.fromkeys(each.label for each in explained))
    values = [
        {
            "plan": each.label,
            "group": GROUPS[group][0],
            "place": place,
            "share": rounded(seconds / each.iteration_s),
            "text": f"{seconds_text(seconds)} s",
            "total": f"{seconds_text(each.iteration_s)} s",
        }
        for each in explained
        for place, (group, seconds) in enumerate(each.seconds.items())
    ]
    names = [name for name, _ in GROUPS.values()]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y("plan:N", sort=labels, title=None)
    )
    bars = base.mark_bar(height={"band": 0.72}).encode(
        x=alt.X(
            "share:Q",
            stack="zero",
            title="share of the iteration, mean over the ranks",
            axis=alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1]),
            scale=alt.Scale(domain=[0, alt.ExprRef(f"width < {NARROW} ? 1.4 : 1.12")], nice=False),
        ),
        color=alt.Color(
            "group:N",
            sort=names,
            scale=alt.Scale(domain=names, range=[colour for _, colour in GROUPS.values()]),
            legend=alt.Legend(columns=alt.ExprRef(f"width < {NARROW} ? 3 : 6")),
        ),
        order=alt.Order("place:Q"),
        tooltip=[
            alt.Tooltip("plan:N", title="system"),
            alt.Tooltip("group:N", title="time"),
            alt.Tooltip("text:N", title="seconds"),
            alt.Tooltip("share:Q", title="share", format=".1%"),
        ],
    )
    totals = (
        base.transform_filter("datum.place == 0")
        .mark_text(align="left", dx=6, fontSize=12)
        .encode(x=alt.datum(1), text="total:N")
    )
    chart = alt.layer(bars, totals).properties(width="container", height=ROW * len(labels))
    texts = [
        f"{each.label}: "
        + ", ".join(
            f"{GROUPS[group][0]} {seconds / each.iteration_s:.0%}"
            for group, seconds in each.seconds.items()
        )
        for each in explained
    ]
    return Chart(
        key=key,
        alt=f"Shares of a simulated iteration by cause. {'; '.join(texts)}.",
        spec=compiled(chart),
    )


def _grid(explained: Sequence[Explained]) -> Grid:
    """Return the seconds of the chart."""
    has_settings = len({each.setting for each in explained}) > 1
    head = ["System", *(name for name, _ in GROUPS.values()), "iteration", "compute alone"]
    rows = []
    for each in explained:
        cells = [seconds_text(seconds) if seconds else "0" for seconds in each.seconds.values()]
        labels = [each.setting, each.system] if has_settings else [each.system]
        rows.append((*labels, *cells, seconds_text(each.iteration_s), seconds_text(each.bound_s)))
    return Grid(
        head=tuple(["Setting", *head] if has_settings else head),
        rows=tuple(rows),
        num_labels=1 + has_settings,
    )


def _losses(each: Explained) -> dict[str, Any]:
    """Return what the template shows of a plan's losses, largest first."""
    assert each.detail is not None
    return {
        "label": each.label,
        "iteration": seconds_text(each.iteration_s),
        "bound": f"{each.bound_s / each.iteration_s:.0%}",
        "hash": each.plan_hash,
        "ranked": [
            {
                "group": GROUPS[loss.group][0],
                "share": loss.share,
                "text": loss.text,
                "remedy": each.detail.remedies[loss.group].text,
                "is_simulated": each.detail.remedies[loss.group].iteration_s is not None,
            }
            for loss in each.detail.losses
        ],
    }


def _phases_grid(study: Study) -> Grid | None:
    """Return the phases that ranks recorded, mean over iterations; None if they recorded none."""
    by_row: dict[tuple[str, ...], list[Mapping[str, float]]] = {}
    several = len(study.settings) > 1
    for record in study.run.records:
        if record.source != "simulated" and record.phases and not record.warmup:
            setting = (f"L{record.layers} B{record.batch}",) if several else ()
            row = (*setting, record.variant)
            by_row.setdefault(row, []).append(record.phases)
    if not by_row:
        return None
    names = list(dict.fromkeys(name for some in by_row.values() for each in some for name in each))
    rows = [
        (*labels, *(_mean_text([p.get(name, 0.0) for p in some]) for name in names))
        for labels, some in by_row.items()
    ]
    heads = [name.removesuffix("_s").replace("_", " ") for name in names]
    labels = ["Setting", "System"] if several else ["System"]
    return Grid(head=(*labels, *heads), rows=tuple(rows), num_labels=len(labels))


def _mean_text(seconds: Sequence[float]) -> str:
    mean_s = sum(seconds) / len(seconds)
    return seconds_text(mean_s) if mean_s >= 5e-5 else "0"
