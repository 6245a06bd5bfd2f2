"""Section: the network that was asked for, against the network that was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from netbench.network.probing.verify import LinkCheck
from netbench.report.html.charts import BLUE, RED, Chart, compiled, rounded
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.tables.grid import Grid
from netbench.report.tables.matrix import KINDS, Verification, matrix_grid

MAX_TABLES = 6
"""Maximum number of networks with a table; the chart has the checks of all."""

SPAN = 1.5
"""Ends of the axis, in allowed errors. Larger errors are drawn there."""

ROW = 34
"""Height of a quantity, pixels."""

RESULTS = {"within tolerance": (BLUE, "circle"), "outside tolerance": (RED, "cross")}
"""Colour and shape of a figure."""

FIELDS = {field.name for field in dataclasses.fields(LinkCheck)}


def build(study: Study) -> Section | None:
    """Return the section. A run without checks says so; None for simulations."""
    environments = [session.environment for session in study.run.sessions]
    if all(environment.mode == "sim" for environment in environments):
        return None
    networks = [*_networks(study)]
    checks = [check for some in networks for check in some]
    results = [probe.result for probe in study.run.probes]
    found = [check for result in results for check in _read(result.get("checks", ()))]
    return Section(
        key=f"{study.key}-verified",
        title="Asked against measured network",
        template="verified.html",
        content={
            "tables": [_table(study, some) for some in networks[:MAX_TABLES]],
            "left_out": max(0, len(networks) - MAX_TABLES),
            "num_probes": len(results),
            "num_checks": len(found),
            "num_wrong": sum(not check.passed for check in found),
            "num_shown": len(checks),
            "scales": [scale for scale in study.run.scales if scale != 1],
            "tolerance": max(
                (float(probe.result.get("tolerance", 0)) for probe in study.run.probes), default=0.0
            ),
        },
        charts={"checks": _chart(f"{study.key}-checks", checks)} if checks else {},
    )


def _networks(study: Study) -> Iterator[tuple[LinkCheck, ...]]:
    """Yield the checks of each network that was verified, at full size, without repetitions.

    Probes that expect the same of the same links verified the same network; of each figure the
    one with the largest error counts.
    """
    groups: dict[tuple[object, ...], dict[tuple[object, ...], LinkCheck]] = {}
    for probe in study.run.probes:
        # Old probes do not say their scale: all plans of their runs had one.
        scale = probe.result.get("scale", study.run.sessions[0].environment.scale)
        checks = [_at_full_size(c, scale) for c in _read(probe.result.get("checks", ()))]
        signature = tuple((*_what(check), check.expected) for check in checks)
        worst = groups.setdefault(signature, {})
        for check in checks:
            before = worst.get(_what(check), check)
            worst[_what(check)] = max(before, check, key=_badness)
    yield from (tuple(worst.values()) for worst in groups.values() if worst)


def _what(check: LinkCheck) -> tuple[object, ...]:
    return check.kind, check.src, check.dsts, check.srcs, check.quantity, check.streams


def _badness(check: LinkCheck) -> float:
    if check.measured is None:
        return float("inf")
    return abs(check.measured - check.expected)


def _read(checks: Sequence[Mapping[str, Any]]) -> Iterator[LinkCheck]:
    """Yield recorded checks that have all fields of this netbench."""
    for each in checks:
        try:
            yield LinkCheck(
                **{key: value for key, value in each.items() if key in FIELDS}
                | {"dsts": tuple(each["dsts"]), "srcs": tuple(each.get("srcs", ()))}
            )
        except (KeyError, TypeError):
            continue


def _at_full_size(check: LinkCheck, scale: float) -> LinkCheck:
    """Return a check with bandwidths as the scenario has them, not divided by the scale."""
    if check.quantity != "goodput_bps":
        return check
    measured = None if check.measured is None else check.measured * scale
    return dataclasses.replace(
        check, expected=check.expected * scale, measured=measured, allowed=check.allowed * scale
    )


def _table(study: Study, checks: tuple[LinkCheck, ...]) -> Grid:
    """Return a row per link: measured / asked, and whether it is within tolerance."""
    last = max(max((check.src, *check.dsts, *check.srcs)) for check in checks)
    network = max(study.networks.values(), key=lambda each: each.num_nodes, default=None)
    names = study.node_names
    if network is None or last >= len(names):
        names = tuple(f"node{index}" for index in range(last + 1))
    regions = network.regions if network else ("everywhere",)
    places = network.node_regions if network and last < network.num_nodes else (0,) * (last + 1)
    return matrix_grid(
        Verification(
            title=study.run.run_id, checks=checks, nodes=names, regions=regions, node_regions=places
        )
    )


def _chart(key: str, checks: Sequence[LinkCheck]) -> Chart:
    """Draw a point per figure: its error, in units of what is allowed."""
    values = []
    for check in checks:
        kind = KINDS.get(check.quantity)
        if check.measured is None or kind is None:
            continue
        error = check.measured - check.expected
        part = error / check.allowed if check.allowed else (SPAN if error else 0.0)
        values.append(
            {
                "quantity": kind.title,
                "error": rounded(max(-SPAN, min(SPAN, part)), 4),
                "asked": f"{check.expected * kind.factor:.5g} {kind.unit}",
                "measured": f"{check.measured * kind.factor:.5g} {kind.unit}",
                "where": f"{check.kind}: {_nodes((check.src,))} to {_nodes(check.dsts)}",
                "result": "within tolerance" if check.passed else "outside tolerance",
            }
        )
    names = [
        kind.title for kind in KINDS.values() if any(v["quantity"] == kind.title for v in values)
    ]
    results = [name for name in RESULTS if any(value["result"] == name for value in values)]
    colours = [RESULTS[name][0] for name in results]
    shapes = [RESULTS[name][1] for name in results]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y("quantity:N", sort=names, title=None)
    )
    limits = (
        alt.Chart(alt.InlineData(values=[{"x": -1}, {"x": 1}]))
        .mark_rule(strokeDash=[4, 3], strokeWidth=1)
        .encode(x="x:Q")
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=alt.X(
            "error:Q",
            title="error, in units of the allowed error",
            scale=alt.Scale(domain=[-SPAN, SPAN], nice=False),
            axis=alt.Axis(values=[-1, -0.5, 0, 0.5, 1]),
        ),
        color=alt.Color("result:N", sort=results, scale=alt.Scale(domain=results, range=colours)),
        shape=alt.Shape("result:N", sort=results, scale=alt.Scale(domain=results, range=shapes)),
        tooltip=[
            alt.Tooltip("where:N", title="link"),
            alt.Tooltip("quantity:N", title="quantity"),
            alt.Tooltip("asked:N", title="asked"),
            alt.Tooltip("measured:N", title="measured"),
        ],
    )
    chart = alt.layer(limits, points).properties(width="container", height=ROW * max(1, len(names)))
    num_wrong = sum(not check.passed for check in checks)
    return Chart(
        key=key,
        alt=f"Errors of {len(checks)} measured delays and throughputs in units of the allowed "
        f"error: {num_wrong or 'none'} outside.",
        spec=compiled(chart),
    )


def _nodes(nodes: Sequence[int]) -> str:
    return "node " + ", ".join(map(str, nodes))
