"""Section: collectives and transfers, timed."""

from __future__ import annotations

import statistics

import altair as alt

from netbench.report.html.charts import SERIES, Chart, compiled, rounded
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.tables.collective import closed_form_s, collective_grid
from netbench.units import format_bytes, format_time

HEIGHT = 300
"""Height of the chart, pixels."""


def build(study: Study) -> Section | None:
    """Return the section; None for a run without collectives."""
    if not study.collectives:
        return None
    return Section(
        key=f"{study.key}-collectives",
        title="Collectives",
        template="collectives.html",
        content={"grid": collective_grid(study.run)},
        charts={"collectives": _chart(study)},
    )


def _chart(study: Study) -> Chart:
    """Draw a line per operation over sizes; closed forms are dashed."""
    values = []
    for plan_hash, plan in study.collectives.items():
        times_s = [
            record.iteration_s
            for record in study.run.records
            if record.plan_hash == plan_hash and not record.warmup
        ]
        found = {"closed form": closed_form_s(plan)}
        if times_s:
            source = study.run.records[0].source
            found = {source: statistics.median(times_s), **found}
        values += [
            {
                "op": plan.op,
                "bytes": plan.payload_bytes,
                "size": format_bytes(plan.payload_bytes),
                "s": rounded(seconds),
                "source": name,
                "text": format_time(seconds, 4),
            }
            for name, seconds in found.items()
            if seconds is not None
        ]
    ops = list(dict.fromkeys(plan.op for plan in study.collectives.values()))
    sources = list(dict.fromkeys(str(value["source"]) for value in values))
    chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_line(point=alt.OverlayMarkDef(size=50, filled=True), strokeWidth=2)
        .encode(
            x=alt.X(
                "bytes:Q", scale=alt.Scale(type="log"), title="payload, bytes (logarithmic)",
                axis=alt.Axis(format="~s", tickCount=6),
            ),
            y=alt.Y(
                "s:Q", scale=alt.Scale(type="log"), title="seconds (logarithmic)",
                axis=alt.Axis(tickCount=5, format="~s"),
            ),
            color=alt.Color("op:N", sort=ops, scale=alt.Scale(domain=ops, range=list(SERIES))),
            shape=alt.Shape("op:N", sort=ops, scale=alt.Scale(domain=ops)),
            strokeDash=alt.StrokeDash(
                "source:N",
                sort=sources,
                scale=alt.Scale(
                    domain=sources,
                    range=[[5, 4] if name == "closed form" else [1, 0] for name in sources],
                ),
            ),
            tooltip=[
                alt.Tooltip("op:N", title="operation"),
                alt.Tooltip("size:N", title="payload"),
                alt.Tooltip("source:N", title="source"),
                alt.Tooltip("text:N", title="time"),
            ],
        )
        .properties(width="container", height=HEIGHT)
    )  # fmt: skip
    told = "; ".join(f"{v['op']} of {v['size']}: {v['text']} {v['source']}" for v in values)
    return Chart(
        key=f"{study.key}-collectives-chart",
        alt=f"Seconds of an operation by payload. {told}.",
        spec=compiled(chart),
    )
