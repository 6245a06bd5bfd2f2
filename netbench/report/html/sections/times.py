"""Section: iteration times, published, simulated, emulated and measured, with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from netbench.report.html.charts import NARROW, SOURCES, Chart, compiled, needs_log, rounded
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.numbers import (
    TimeSummary,
    or_dash,
    percent_text,
    pflops_text,
    seconds_text,
    spread_text,
)
from netbench.report.tables.comparison import Comparison, run_source
from netbench.report.tables.grid import Grid, table_of
from netbench.report.tables.run import caption, provenance

MAX_CHARTS = 4
"""Maximum number of settings with a chart; the table has all."""

ROOM = 1.3
"""Length of the axis over its longest time: room for the text beside a point."""

ROW = 19
"""Height of a time in a chart, pixels."""


def build(study: Study) -> Section | None:
    """Return the section; None for a run of collectives."""
    if not study.rows:
        return None
    charts = {}
    for index, setting in enumerate(study.settings[:MAX_CHARTS]):
        rows = [row for row in study.rows if row.setting == setting]
        if any(row.found for row in rows):
            key = f"{study.key}-times-{index}"
            charts[setting] = _chart(key, setting, rows, study)
    left_out = len(study.settings) - MAX_CHARTS
    return Section(
        key=f"{study.key}-times",
        title="Iteration times",
        template="times.html",
        content={
            "grid": times_grid(study.rows, run_source(study.run)),
            "lines": [line for line in caption(study.run) if line not in provenance(study.run)],
            "left_out": max(0, left_out),
        },
        charts=charts,
    )


def times_grid(rows: Sequence[Comparison], source: str) -> Grid:
    """Return the times of every row and how they differ; only columns that have values."""
    is_simulated = source == "simulated"
    columns: list[tuple[str, Any]] = [
        ("Setting", lambda row: row.setting),
        ("System", lambda row: row.name),
        ("published, s", lambda row: or_dash(spread_text, row.published)),
        ("simulated, s", lambda row: or_dash(seconds_text, row.simulated_s)),
        (f"{source}, s", lambda row: or_dash(spread_text, row.found)),
        ("n", lambda row: str(row.found.num if row.found else 0)),
        (f"{source} / published", lambda row: or_dash(percent_text, row.error)),
        ("simulated / published", lambda row: or_dash(percent_text, simulated_error(row))),
        (f"simulated / {source}", lambda row: or_dash(percent_text, prediction_error(row))),
        (f"{source} PFLOPS", lambda row: or_dash(pflops_text, _pflops(row))),
    ]
    if is_simulated:
        columns = [column for column in columns if column[0] != "simulated / simulated"]
    found = table_of(rows, columns, num_labels=2)
    kept = [
        place
        for place in range(len(found.head))
        if place < 2 or any(row[place] != "-" for row in found.rows)
    ]
    return Grid(
        head=tuple(found.head[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in found.rows),
        num_labels=2,
    )


def simulated_error(row: Comparison) -> float | None:
    """Return how much the prediction exceeds the published time, as a fraction."""
    if row.simulated_s is None or row.published is None:
        return None
    return row.simulated_s / row.published.mean_s - 1


def prediction_error(row: Comparison) -> float | None:
    """Return how much the prediction exceeds the time that was found, as a fraction."""
    if row.simulated_s is None or row.found is None:
        return None
    return row.simulated_s / row.found.mean_s - 1


def _pflops(row: Comparison) -> float | None:
    return row.pflop / row.found.mean_s if row.pflop is not None and row.found else None


def _chart(key: str, setting: str, rows: Sequence[Comparison], study: Study) -> Chart:
    """Draw a row per system, in it a point per source with the range of its times."""
    source = run_source(study.run)
    values = [value for row in rows for value in _values(row, source)]
    sources = [name for name in SOURCES if any(value["source"] == name for value in values)]
    sources += sorted({value["source"] for value in values} - set(sources))
    is_log = needs_log(value["s"] for value in values)
    longest = max(value["high"] for value in values)
    shortest = min(value["low"] for value in values)
    room = f"pow({ROOM}, width < {NARROW} ? {6 if is_log else 2} : {3 if is_log else 1})"
    scale = alt.Scale(
        type="log" if is_log else "linear",
        domain=[shortest * 0.8 if is_log else 0, alt.ExprRef(f"{longest} * {room}")],
        nice=False,
    )
    words = "seconds per iteration" + (" (logarithmic)" if is_log else "")
    colours = [SOURCES.get(name, SOURCES["measured"])[0] for name in sources]
    shapes = [SOURCES.get(name, SOURCES["measured"])[1] for name in sources]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("s:Q", scale=scale, title=words, axis=alt.Axis(tickCount=6)),
        y=alt.Y("system:N", sort=[row.name for row in rows], title=None),
        yOffset=alt.YOffset("source:N", sort=sources),
    )
    series = alt.Color("source:N", sort=sources, scale=alt.Scale(domain=sources, range=colours))
    tooltip = [
        alt.Tooltip("system:N", title="system"),
        alt.Tooltip("source:N", title="source"),
        alt.Tooltip("text:N", title="time"),
        alt.Tooltip("n:Q", title="n"),
    ]
    extent = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", color=series)
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        color=series,
        shape=alt.Shape("source:N", sort=sources, scale=alt.Scale(domain=sources, range=shapes)),
        tooltip=tooltip,
    )
    words_beside = base.mark_text(align="left", dx=9, fontSize=11).encode(
        text="label:N", x="high:Q"
    )
    chart = (
        alt.layer(extent, points, words_beside)
        .properties(width="container", height=ROW * len(sources) * len({r.name for r in rows}))
        .resolve_scale(color="shared")
    )
    return Chart(key=key, alt=_alt(setting, rows, source), spec=compiled(chart))


def _values(row: Comparison, source: str) -> list[dict[str, Any]]:
    """Return a value per time of a row."""
    simulated = TimeSummary.pool([row.simulated_s]) if row.simulated_s is not None else None
    found = {"published": row.published, "simulated": simulated, source: row.found}
    errors = {"simulated": simulated_error(row), source: row.error}
    values = []
    for name, times in found.items():
        if times is None:
            continue
        error = errors.get(name)
        beside = "" if error is None else f"  {percent_text(error)}"
        values.append(
            {
                "system": row.name,
                "source": name,
                "s": rounded(times.mean_s),
                "low": rounded(times.min_s),
                "high": rounded(times.max_s),
                "n": times.num,
                "text": f"{spread_text(times)} s",
                "label": f"{seconds_text(times.mean_s)} s{beside}",
            }
        )
    return values


def _alt(setting: str, rows: Sequence[Comparison], source: str) -> str:
    """Describe the chart in words: every system with its times."""
    texts = []
    for row in rows:
        times = ", ".join(f"{v['source']} {v['text']}" for v in _values(row, source))
        texts.append(f"{row.name}: {times or 'no time'}")
    return f"Seconds per iteration in setting {setting}. {'; '.join(texts)}."
