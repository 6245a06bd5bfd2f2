"""Section: how times change over what a run varies, e.g. its networks or batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from netbench.report.html.charts import SERIES, Chart, compiled, needs_log, rounded
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.numbers import seconds_text
from netbench.report.tables.comparison import Comparison, run_source

VARIABLES: Mapping[str, str] = {
    "network": "network",
    "layers": "layers",
    "batch": "batch",
    "micro_batch": "micro-batch",
    "model": "model",
    "replicas": "replicas",
}
"""Column of a run that can vary -> its name on the page."""

HEIGHT = 300
"""Height of the chart, pixels."""


def build(study: Study) -> Section | None:
    """Return the section; None if no system has times in two settings."""
    rows = [row for row in study.rows if row.found]
    varied = {name: _values_of(rows, name) for name in VARIABLES}
    varied = {name: values for name, values in varied.items() if len(values) > 1}
    across = _across(rows, varied)
    if across is None:
        return None
    others = [name for name in varied if name != across and _is_free(rows, name, across)]
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for row in rows:
        groups.setdefault(tuple(_value(row, name) for name in others), []).append(row)
    views = {
        _group_name(others, key): _view(_group_name(others, key), some, across, study)
        for key, some in groups.items()
        if len({_value(row, across) for row in some}) > 1
    }
    if not views:
        return None
    return Section(
        key=f"{study.key}-sweep",
        title=f"Across {VARIABLES[across]}s" if across != "batch" else "Across batches",
        template="sweeps.html",
        content={"across": VARIABLES[across], "others": [VARIABLES[name] for name in others]},
        charts={
            "sweep": _chart(
                f"{study.key}-sweep-chart", views, across, varied[across], _systems(rows)
            )
        },
    )


def _value(row: Comparison, name: str) -> Any:
    if name in ("network", "replicas"):
        return getattr(row, name) or "own"
    return getattr(row.workload, name)


def _values_of(rows: Sequence[Comparison], name: str) -> list[Any]:
    """Return the values of a variable: numbers ascending, names as planned."""
    values = list(dict.fromkeys(_value(row, name) for row in rows))
    return values if any(isinstance(value, str) for value in values) else sorted(values)


def _across(rows: Sequence[Comparison], varied: Mapping[str, list[Any]]) -> str | None:
    """Return the variable of the x axis: the one with most values that a system was run with."""
    found = {
        name: max(
            len({_value(row, name) for row in rows if row.name == system})
            for system in _systems(rows)
        )
        for name in varied
    }
    best = max(found, key=lambda name: found[name], default=None)
    return best if best is not None and found[best] > 1 else None


def _is_free(rows: Sequence[Comparison], name: str, across: str) -> bool:
    """Return false for a variable that follows from the one on the axis, or from the system."""
    values: dict[tuple[Any, str], set[Any]] = {}
    for row in rows:
        values.setdefault((_value(row, across), row.name), set()).add(_value(row, name))
    return any(len(some) > 1 for some in values.values())


def _systems(rows: Sequence[Comparison]) -> list[str]:
    return list(dict.fromkeys(row.name for row in rows))


def _group_name(others: Sequence[str], key: tuple[Any, ...]) -> str:
    parts = [f"{VARIABLES[name]} {value}" for name, value in zip(others, key, strict=True)]
    return ", ".join(parts)


def _view(name: str, rows: Sequence[Comparison], across: str, study: Study) -> dict[str, Any]:
    source = run_source(study.run)
    values = []
    for row in rows:
        assert row.found is not None
        times = {source: row.found.mean_s}
        if row.simulated_s is not None:
            times["simulated"] = row.simulated_s
        if row.published is not None:
            times["published"] = row.published.mean_s
        values += [
            {
                "x": str(_value(row, across)),
                "system": row.name,
                "source": kind,
                "s": rounded(seconds),
                "text": f"{seconds_text(seconds)} s",
            }
            for kind, seconds in times.items()
        ]
    told = "; ".join(
        f"{v['system']} at {v['x']}: {v['text']}" for v in values if v["source"] == source
    )
    return {"name": name, "alt": f"Seconds per iteration. {told}.", "data": {"points": values}}


def _chart(
    key: str,
    views: Mapping[str, Mapping[str, Any]],
    across: str,
    order: Sequence[Any],
    systems: Sequence[str],
) -> Chart:
    """Draw a line per system and source; simulated lines are dashed, published ones dotted."""
    first = next(iter(views.values()))
    points = [point for view in views.values() for point in view["data"]["points"]]
    is_log = needs_log(point["s"] for point in points)
    sources = list(dict.fromkeys(point["source"] for point in points))
    dashes = {"simulated": [5, 4], "published": [1, 3]}
    chart = (
        alt.Chart(alt.InlineData(values=first["data"]["points"], name="points"))
        .mark_line(point=alt.OverlayMarkDef(size=50, filled=True), strokeWidth=2)
        .encode(
            x=alt.X(
                "x:N",
                sort=[str(value) for value in order],
                title=VARIABLES[across],
                axis=alt.Axis(labelAngle=0, labelOverlap=True),
                scale=alt.Scale(type="point", padding=0.3),
            ),
            y=alt.Y(
                "s:Q",
                title="seconds per iteration" + (" (logarithmic)" if is_log else ""),
                scale=alt.Scale(type="log" if is_log else "linear", zero=not is_log),
                axis=alt.Axis(tickCount=6),
            ),
            color=alt.Color(
                "system:N",
                sort=list(systems),
                scale=alt.Scale(domain=list(systems), range=list(SERIES)),
            ),
            shape=alt.Shape("system:N", sort=list(systems), scale=alt.Scale(domain=list(systems))),
            strokeDash=alt.StrokeDash(
                "source:N",
                sort=sources,
                scale=alt.Scale(
                    domain=sources, range=[dashes.get(name, [1, 0]) for name in sources]
                ),
            ),
            tooltip=[
                alt.Tooltip("system:N", title="system"),
                alt.Tooltip("source:N", title="source"),
                alt.Tooltip("x:N", title=VARIABLES[across]),
                alt.Tooltip("text:N", title="time"),
            ],
        )
        .properties(width="container", height=HEIGHT)
    )
    return Chart(
        key=key, alt=first["alt"], spec=compiled(chart), views=views if len(views) > 1 else {}
    )
