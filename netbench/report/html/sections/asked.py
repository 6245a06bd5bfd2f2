"""Section: what the run was asked to do. Its systems and workload, network map and matrix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from netbench.plan.model import Plan
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.tables.grid import Grid
from netbench.scenario.describe import jitter_text, loss_text, rest_lines
from netbench.scenario.model import Link, Network
from netbench.scenario.sharing import SHARING
from netbench.units import counted, format_bandwidth, format_time

MAX_MAP_REGIONS = 12
"""Maximum number of regions on a map; more have a matrix only."""

MAX_LABELLED = 4
"""Maximum number of regions of a map whose links have labels; others show them in the matrix."""

MAX_NETWORKS = 6
"""Maximum number of networks with a map and a matrix; the table has all."""

WIDTH, RADIUS = 520.0, 46.0
"""Width of a map and radius of a region, in units of the picture."""


def build(study: Study) -> Section | None:
    """Return the section; None if no plan of the run can be read."""
    networks = study.networks
    if not networks:
        return None
    shown = dict(list(networks.items())[:MAX_NETWORKS])
    return Section(
        key=f"{study.key}-asked",
        title="What was asked",
        template="asked.html",
        content={
            "workloads": _workload_grid(study),
            "systems": _system_grid(study),
            "networks": _network_grid(networks),
            "maps": [_drawn(name, network) for name, network in shown.items()],
            "left_out": len(networks) - len(shown),
        },
    )


def _workload_grid(study: Study) -> Grid | None:
    """Return a row per workload of the run."""
    if not study.plans:
        return None
    workloads = dict.fromkeys(plan.workload for plan in study.plans.values())
    head = ("Model", "layers", "hidden", "heads", "sequence", "batch", "micro-batch", "type")
    rows = [
        (
            each.name,
            str(each.layers),
            str(each.hidden or "-"),
            str(each.heads or "-"),
            str(each.sequence or "-"),
            str(each.batch),
            str(each.micro_batch),
            each.dtype,
        )
        for each in workloads
    ]
    return Grid(head=head, rows=tuple(rows))


def _system_grid(study: Study) -> Grid:
    """Return a row per system: its layout, schedule and synchronisation."""
    head = ("System", "pipeline x tensor x data", "schedule", "synchronisation", "ranks on")
    rows: dict[tuple[str, ...], None] = {}
    for plan in study.plans.values():
        rows[_system_row(plan)] = None
    for each in study.collectives.values():
        ranks = counted(each.num_nodes, "rank")
        rows[(each.op, ranks, "-", each.backend, counted(each.num_nodes, "node"))] = None
    return Grid(head=head, rows=tuple(rows), num_labels=5)


def _system_row(plan: Plan) -> tuple[str, ...]:
    layout = plan.layout
    nodes = {plan.device_nodes[device] for device in plan.placement}
    placed = f" ({plan.scheduler})" if plan.scheduler else ""
    return (
        plan.variant,
        f"{layout.pp} x {layout.tp} x {layout.dp}",
        plan.schedule if plan.has_pipelines else "-",
        plan.data_parallel,
        f"{counted(layout.num_ranks, 'device')} of {counted(len(nodes), 'node')}{placed}",
    )


def _network_grid(networks: dict[str, Network]) -> Grid:
    head = ("Network", "nodes", "one-way delay", "bandwidth", "NICs", "sharing")
    rows = [
        (
            name or "of the scenario",
            str(network.num_nodes),
            _range((link.one_way_delay_s for link in _used(network)), format_time),
            _range((link.bandwidth_bps for link in _used(network)), _rate),
            _range(network.nic_bps, _rate),
            SHARING[network.sharing].meaning if network.sharing in SHARING else network.sharing,
        )
        for name, network in networks.items()
    ]
    return Grid(head=head, rows=tuple(rows), num_labels=6)


def _used(network: Network) -> Iterator[Link]:
    """Yield the links that join two nodes."""
    counts = Counter(network.node_regions)
    for src, row in enumerate(network.links):
        for dst, link in enumerate(row):
            if counts[src] and counts[dst] and (src != dst or counts[src] > 1):
                yield link


def _range(values: Any, show: Any) -> str:
    found = sorted(set(values))
    if not found:
        return "-"
    low, high = (_spaced(show(value)) for value in (found[0], found[-1]))
    return low if low == high else f"{low} to {high}"


def _rate(bits_per_s: float) -> str:
    return f"{format_bandwidth(bits_per_s, 3)}/s" if math.isfinite(bits_per_s) else "unlimited"


def _spaced(text: str) -> str:
    """Return `11 ms` for `11ms`, `1.12 Gbit/s` for `1.12Gbit/s`."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzGKMT/")
    return f"{number} {text[len(number) :].replace('us', 'µs')}".strip() if number else text


def link_words(link: Link) -> tuple[str, ...]:
    """Return delay, rate and impairments of a link as texts."""
    delay = f"{_spaced(format_time(link.one_way_delay_s, 3))} {jitter_text(link)}".strip()
    rest = (loss_text(link), *rest_lines(link))
    return (delay, _spaced(_rate(link.bandwidth_bps)), *filter(None, rest))


def _drawn(name: str, network: Network) -> dict[str, Any]:
    """Return the map and the matrix of a network."""
    counts = Counter(network.node_regions)
    regions = [
        {"name": region, "nodes": counted(counts[index], "node")}
        for index, region in enumerate(network.regions)
    ]
    delays = [link.one_way_delay_s for link in _used(network)]
    longest = max(delays, default=0.0)
    matrix = [
        [
            {
                "words": link_words(link),
                "heat": round(100 * link.one_way_delay_s / longest) if longest else 0,
                "is_used": bool(counts[src] and counts[dst] and (src != dst or counts[src] > 1)),
            }
            for dst, link in enumerate(row)
        ]
        for src, row in enumerate(network.links)
    ]
    return {
        "name": f"Network {name}" if name else "Network of the scenario",
        "regions": regions,
        "matrix": matrix,
        "map": _map(network, counts) if len(regions) <= MAX_MAP_REGIONS else None,
    }


def _map(network: Network, counts: Counter[int]) -> dict[str, Any]:
    """Return circles and lines of a map. Regions are on a ring, in the order of the scenario."""
    places = _places(len(network.regions))
    top = min(y for _, y in places) - RADIUS - 34
    bottom = max(y for _, y in places) + RADIUS + 34
    labelled = len(network.regions) <= MAX_LABELLED
    edges = [
        _edge(network, places, (a, b), labelled)
        for a in range(len(places))
        for b in range(a + 1, len(places))
    ]
    nodes = [
        {
            "x": round(x, 1),
            "y": round(y, 1),
            "name": _short(network.regions[index]),
            "full": network.regions[index],
            "nodes": counted(counts[index], "node"),
            "inside": ", ".join(link_words(network.links[index][index]))
            if counts[index] > 1
            else "",
            "inside_y": round(y + (RADIUS + 18 if y >= 0 else -RADIUS - 10), 1),
        }
        for index, (x, y) in enumerate(places)
    ]
    words = "; ".join(edge["words"] for edge in edges) or "one region"
    return {
        "box": f"{-WIDTH / 2:g} {top:.0f} {WIDTH:g} {bottom - top:.0f}",
        "edges": edges,
        "nodes": nodes,
        "radius": RADIUS,
        "labelled": labelled,
        "alt": f"Map of {counted(len(places), 'region')}: {words}.",
    }


def _places(num_regions: int) -> list[tuple[float, float]]:
    """Return the centres of the regions: one, two side by side, or a ring."""
    if num_regions == 1:
        return [(0.0, 0.0)]
    if num_regions == 2:
        return [(-160.0, 0.0), (160.0, 0.0)]
    start = -3 * math.pi / 4 if num_regions == 4 else -math.pi / 2
    high = 130.0 if num_regions <= MAX_LABELLED else 190.0
    angles = [start + 2 * math.pi * place / num_regions for place in range(num_regions)]
    return [(195.0 * math.cos(angle), high * math.sin(angle)) for angle in angles]


def _edge(
    network: Network, places: Sequence[tuple[float, float]], ends: tuple[int, int], labelled: bool
) -> dict[str, Any]:
    a, b = ends
    there, back = network.links[a][b], network.links[b][a]
    (x1, y1), (x2, y2) = places[a], places[b]
    # The diagonals of four regions cross in the centre: their labels are nearer to one end.
    crossing = len(places) == 4 and b - a == 2
    at = 0.3 if crossing else 0.5
    lines = ", ".join(link_words(there))
    names = f"{network.regions[a]} and {network.regions[b]}"
    words = f"{names}: {lines}"
    if there != back:
        words += f" there, {', '.join(link_words(back))} back"
    return {
        "x1": round(x1, 1),
        "y1": round(y1, 1),
        "x2": round(x2, 1),
        "y2": round(y2, 1),
        "x": round(x1 + at * (x2 - x1), 1),
        "y": round(y1 + at * (y2 - y1), 1),
        "lines": _edge_lines(there, back) if labelled else (),
        "words": words,
        "width": round(_line_width(min(there.bandwidth_bps, back.bandwidth_bps)), 2),
    }


def _edge_lines(there: Link, back: Link) -> tuple[str, ...]:
    """Return the label of a link, both ways if they differ."""
    if there == back:
        return link_words(there)
    return tuple(
        one if one == other else f"{one} / {other}"
        for one, other in zip(link_words(there)[:2], link_words(back)[:2], strict=True)
    )


def _line_width(bandwidth_bps: float) -> float:
    """Return a width that grows with the logarithm of a rate: 1.5 at 100 Mbit/s, at most 7."""
    if math.isinf(bandwidth_bps):
        return 7.0
    return min(7.0, max(1.0, 1.5 + 0.8 * math.log2(bandwidth_bps / 1e8)))


def _short(name: str) -> str:
    """Return a name that fits a circle."""
    return name if len(name) <= 13 else f"{name[:12]}…"
