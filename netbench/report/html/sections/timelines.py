"""Section: timelines of iterations, to zoom into."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from netbench.report.html.charts import BLUE, GREEN, ORANGE, SKY, Chart, compiled
from netbench.report.html.section import Section
from netbench.report.html.sections.downloads import safe_name
from netbench.report.html.study import MAX_ROWS, Explained, Study
from netbench.report.numbers import seconds_text
from netbench.report.pictures.timeline import Rows, overlaps
from netbench.report.pictures.trace_diff import stretches
from netbench.timelines import Timeline, name_of_rank
from netbench.units import format_bytes

COLOURS: Mapping[str, Any] = {
    "forward": BLUE,
    "backward": SKY,
    "weight": "#8fd0f5",
    "optimizer": GREEN,
    "collective": ORANGE,
    "send/receive": {"expr": "warm"},
    "waiting for network": {"expr": "warm"},
    "waiting for compute": {"expr": "pale"},
    "idle": {"expr": "pale"},
}
"""Colour by kind of activity; waiting is pale."""

RECORDED = {
    "forward": ("forward",),
    "backward": ("backward",),
    "weight": ("weight",),
    "optimizer": ("optimizer",),
    "collective": ("collective",),
    "send/receive": ("send", "receive"),
    "idle": (),
}
"""Kinds of recorded slices by kind of activity; see `report.pictures.trace_diff.KINDS`."""

TICKS = 1_000_000
"""Resolution of a timeline: its length in ticks."""

MAX_TRACES_BYTES = 1_200_000
"""Maximum size of all traces of a run, so that the page of a case stays below 3 MB."""

ROW = 22
"""Height of a rank, pixels."""


def build(study: Study) -> Section | None:
    """Return the section; None if no plan is shown in detail."""
    views = {}
    for each in study.detailed:
        assert each.detail is not None
        name = f"{each.label}, simulated: {seconds_text(each.iteration_s)} s"
        parts = [
            {"name": part, "from": start, "to": end, "repeat": repeat}
            for part, start, end, repeat in _laid_out(each.detail.parts)
        ]
        views[name] = _view(name, each.detail.activity, parts)
        if each.recorded is not None:
            found = each.recorded
            name = f"{each.label}, {found.source}: {seconds_text(found.iteration_s)} s"
            views[name] = _view(name, _rows_of(each, found), [])
    if not views:
        return None
    chart = _chart(f"{study.key}-timeline-chart", views)
    return Section(
        key=f"{study.key}-timelines",
        title="Timelines",
        template="timelines.html",
        content={"kinds": _legend(study), "max_rows": MAX_ROWS, **_traces(study)},
        charts={"timeline": chart},
    )


def _laid_out(parts: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float, float]]:
    """Return (name, start, end, repeat) of parts laid end to end."""
    ends = np.cumsum([length_s for _, length_s, _ in parts]).tolist()
    starts = [0.0, *ends]
    return [
        (name, round(starts[i], 6), round(ends[i], 6), round(repeat, 3))
        for i, (name, _, repeat) in enumerate(parts)
    ]


def _view(name: str, rows: Rows, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a timeline as integers, which the script of the page unfolds.

    slices: per row and kind a list of start and length in ticks; starts are differences.
    """
    end_s = max(
        (
            float(when[:, 1].max())
            for kinds in rows.values()
            for when in kinds.values()
            if len(when)
        ),
        default=1.0,
    )
    tick_s = end_s / TICKS
    slices = []
    for row, kinds in enumerate(rows.values()):
        thin = overlaps(kinds)
        for kind in reversed(list(COLOURS)):  # the last ones are on top
            when = kinds.get(kind)
            if when is not None and len(when):
                ticks = np.rint(when / tick_s).astype(np.int64)
                starts = np.diff(ticks[:, 0], prepend=0)
                pairs = np.stack([starts, ticks[:, 1] - ticks[:, 0]], axis=1).ravel().tolist()
                slices.append([row, kind, int(thin and kind == "collective"), pairs])
    return {
        "name": name,
        "alt": f"Timeline of {name}. {len(rows)} rows of ranks, {end_s:.4g} s drawn. "
        "The section above has the same seconds as numbers.",
        "timeline": {"rows": list(rows), "tick_s": tick_s, "slices": slices, "parts": parts},
        "signals": {"from_s": 0, "to_s": round(end_s, 9)},
    }


def _rows_of(each: Explained, found: Timeline) -> Rows:
    """Return the stretches of some ranks of a recorded timeline."""
    plan = each.plan
    ranks = sorted({piece.rank for piece in found.slices})
    if plan.has_pipelines:
        shown = dict.fromkeys(each.detail.activity if each.detail else ())
        ranks = [rank for rank in ranks if name_of_rank(plan, rank) in shown] or ranks
    return {
        name_of_rank(plan, rank): {
            kind: np.array(some, dtype=np.float64).reshape(-1, 2)
            for kind, some in stretches(found, rank, RECORDED).items()
        }
        for rank in ranks[:MAX_ROWS]
    }


def _legend(study: Study) -> list[dict[str, str]]:
    """Return the kinds that occur, with the class of their colour."""
    used: set[str] = set()
    for each in study.detailed:
        assert each.detail is not None
        used |= {kind for kinds in each.detail.activity.values() for kind in kinds}
        if each.recorded is not None:
            used |= set(RECORDED)
    return [
        {"name": kind, "colour": colour if isinstance(colour, str) else f"var(--{colour['expr']})"}
        for kind, colour in COLOURS.items()
        if kind in used
    ]


def _chart(key: str, views: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Draw a row per rank; a collective beside compute is thin, and on top."""
    first = next(iter(views.values()))
    base = alt.Chart(alt.InlineData(values=[], name="slices")).encode(
        x=alt.X(
            "s:Q",
            title="seconds; repeated parts are drawn once",
            scale=alt.Scale(
                domain=[alt.ExprRef("from_s"), alt.ExprRef("to_s")], nice=False, zero=False
            ),
            axis=alt.Axis(tickCount=8),
        ),
        x2="e:Q",
        y=alt.Y(
            "rank:N",
            sort=None,
            title=None,
            axis=alt.Axis(
                labelExpr="width < 480 ? replace(datum.label, / \\(.*/, '') : datum.label"
            ),
        ),
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
            legend=None,
        ),
        tooltip=[
            alt.Tooltip("rank:N", title="rank"),
            alt.Tooltip("kind:N", title="activity"),
            alt.Tooltip("from:N", title="from"),
            alt.Tooltip("lasts:N", title="lasts"),
            alt.Tooltip("part:N", title="part"),
        ],
    )
    thick = base.transform_filter("!datum.thin").mark_bar(height={"band": 0.86}, clip=True)
    thin = base.transform_filter("datum.thin").mark_bar(height={"band": 0.36}, clip=True)
    chart = (
        alt.layer(thick, thin)
        .properties(width="container", height=alt.Step(ROW))
        .add_params(
            alt.param(name="from_s", value=0),
            alt.param(name="to_s", value=first["signals"]["to_s"]),
        )
    )
    return Chart(
        key=key, alt=first["alt"], spec=compiled(chart), views=views, canvas=True, zooms=True
    )


def _traces(study: Study) -> dict[str, list[Any]]:
    """Return links that download traces, and what is left out of them for the size of the page."""
    attached: list[dict[str, str]] = []
    left_out: list[str] = []
    total_bytes = 0
    for each in study.detailed:
        assert each.detail is not None
        found = {"simulated": each.detail.trace, "recorded": each.recorded_trace}
        for kind, data in found.items():
            if not data:
                continue
            if total_bytes + len(data) > MAX_TRACES_BYTES:
                left_out.append(f"{each.label}, {kind}")
                continue
            total_bytes += len(data)
            attached.append(
                {
                    "label": f"{each.label}, {kind}",
                    "file": f"{safe_name(each.label)}-{each.plan_hash}-{kind}.json.gz",
                    "size": format_bytes(len(data), 2),
                    "data": base64.b64encode(data).decode(),
                }
            )
    return {"traces": attached, "traces_left_out": left_out}
