"""Section: utilisation of links, NICs and connections, as a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from netbench.explain.usage import LinkUse
from netbench.report.html.charts import ORANGE, RED, Chart, compiled, rounded
from netbench.report.html.section import Section
from netbench.report.html.study import Explained, Study
from netbench.report.tables.grid import Grid
from netbench.scenario.sharing import SHARING
from netbench.units import format_bandwidth, format_bytes

MAX_TARGETS = 24
"""Maximum number of rows per kind of resource; for more, the nodes of a region share a row."""

IDLE = 0.5
"""Utilisation of connections and insides of nodes, over that of the busiest resource, up to which
they are left out."""

NUM_BUSIEST = 5
"""Number of resources in the table of a plan."""

ROW = 24
"""Height of a row, pixels."""

KINDS = {
    "host": "connection",
    "channels": "collective",
    "inside": "inside a node",
    "sockets": "host, in and out",
    "class": "queue",
    "pair": "queue",
    "trunk": "trunk",
    "egress": "NIC, out",
    "ingress": "NIC, in",
}
"""Words for kinds of resources; others have the name of their queue."""


def build(study: Study) -> Section | None:
    """Return the section; None if nothing is sent."""
    used = [each for each in study.detailed if each.detail and each.detail.links]
    if not used:
        return None
    views = {each.label: _view(each) for each in used}
    return Section(
        key=f"{study.key}-links",
        title="Link utilisation",
        template="links.html",
        content={"tables": [(each.label, _grid(each)) for each in used]},
        charts={"links": _chart(f"{study.key}-links-chart", views)},
    )


def _view(each: Explained) -> dict[str, Any]:
    assert each.detail is not None
    cells = list(heat_cells(each))
    busiest = each.detail.links[0]
    return {
        "name": each.label,
        "alt": f"Utilisation of links by {each.label}. Busiest: {busiest.name} "
        f"({KINDS.get(busiest.kind, busiest.kind)}), {busiest.utilisation:.0%}.",
        "data": {"cells": cells},
    }


def heat_cells(each: Explained) -> list[dict[str, Any]]:
    """Return a cell per source and target with the highest utilisation of what is between them.

    A target is a node, a region or a NIC. Where a kind of resource has many targets, they are
    regions. Limits of single connections are left out if queues are far busier.
    """
    assert each.detail is not None
    regions = dict(
        zip(
            each.plan.node_names,
            (each.plan.network.regions[region] for region in each.plan.network.node_regions),
            strict=True,
        )
    )
    by_kind: dict[str, list[LinkUse]] = {}
    busiest = each.detail.links[0].utilisation
    queues = {kind.name for kind in SHARING[each.plan.network.sharing].queues}
    for use in each.detail.links:
        by_kind.setdefault(use.kind, []).append(use)
    by_kind = {
        kind: uses
        for kind, uses in by_kind.items()
        if kind in queues or uses[0].utilisation > IDLE * busiest
    }
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, uses in by_kind.items():
        many = len({use.ends[-1] for use in uses}) > MAX_TARGETS
        for use in uses:
            source, target = use.ends[0].partition(",")[0], _target(kind, use, many, regions)
            at = cells.setdefault(
                (source, target), {"source": source, "target": target, "busy": 0.0}
            )
            if use.utilisation >= at["busy"]:
                at |= {
                    "busy": rounded(use.utilisation, 4),
                    "name": use.name,
                    "bytes": format_bytes(round(use.payload_bytes), 3),
                    "rate": f"{format_bandwidth(use.capacity_bps, 3)}/s",
                }
    order = {name: place for place, name in enumerate((*each.plan.node_names, *regions.values()))}
    for cell in cells.values():
        cell["place"] = order.get(cell["source"], 0)
    return sorted(cells.values(), key=lambda cell: (cell["target"], cell["place"]))


def _target(kind: str, use: LinkUse, many: bool, regions: Mapping[str, str]) -> str:
    """Name the row of a resource."""
    words = KINDS.get(kind, kind)
    if len(use.ends) == 1 or kind == "inside":
        return words
    target = use.ends[-1]
    return f"{words} to {regions.get(target, target) if many else target}"


def _chart(key: str, views: Mapping[str, Mapping[str, Any]]) -> Chart:
    first = next(iter(views.values()))
    chart = (
        alt.Chart(alt.InlineData(values=first["data"]["cells"], name="cells"))
        .mark_rect(cornerRadius=1)
        .encode(
            x=alt.X(
                "source:N",
                sort={"field": "place", "op": "min"},
                title="from",
                axis=alt.Axis(labelOverlap=True, labelAngle=0, labelLimit=90),
                scale=alt.Scale(paddingInner=0.08),
            ),
            y=alt.Y("target:N", sort=None, title=None, scale=alt.Scale(paddingInner=0.12)),
            color=alt.Color(
                "busy:Q",
                title="busy",
                scale=alt.Scale(
                    domain=[0, 0.5, 1], range=[alt.ExprRef("pale"), ORANGE, RED], interpolate="rgb"
                ),
                legend=alt.Legend(format="%", orient="top", gradientLength=180, title=None),
            ),
            tooltip=[
                alt.Tooltip("name:N", title="resource"),
                alt.Tooltip("busy:Q", title="busy", format=".1%"),
                alt.Tooltip("bytes:N", title="bytes per iteration"),
                alt.Tooltip("rate:N", title="payload rate"),
            ],
        )
        .properties(width="container", height=alt.Step(ROW))
    )
    return Chart(key=key, alt=first["alt"], spec=compiled(chart), views=views)


def _grid(each: Explained) -> Grid:
    """Return the busiest resources of a plan."""
    assert each.detail is not None
    rows: Sequence[LinkUse] = each.detail.links[:NUM_BUSIEST]
    return Grid(
        head=("Kind", "Resource", "bytes per iteration", "payload rate", "busy"),
        rows=tuple(
            (
                KINDS.get(use.kind, use.kind),
                use.name,
                format_bytes(round(use.payload_bytes), 3),
                f"{format_bandwidth(use.capacity_bps, 3)}/s",
                f"{use.utilisation:.1%}",
            )
            for use in rows
        ),
        num_labels=2,
    )
