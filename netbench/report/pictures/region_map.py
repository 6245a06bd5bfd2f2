"""A picture of a scenario: regions with their nodes, links with delay and bandwidth.

Few regions are drawn as a map of circles and edges, many as two heat maps.
"""

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from numpy.typing import NDArray

from netbench.report.pictures.style import INK, MUTED, PAPER, add_arrow, without_frame, write_over
from netbench.scenario.describe import jitter_text, loss_text, rest_lines
from netbench.scenario.model import Link, Network, Scenario
from netbench.scenario.sharing import SHARING
from netbench.units import counted, format_bandwidth, format_time

MAX_MAP_REGIONS = 4
"""Maximum regions of a map; with more, too many edges and labels cross."""

EDGE, FILL = "#8fa3b5", "#dcebf7"
RADIUS = 0.5
"""Radius of a region's circle, in data units of the map (neighbours are about 3 apart)."""

BEND = -0.16
"""Bend of a directed link to its left, as a fraction of its length."""

Point = NDArray[np.float64]
"""(2,): x and y of the map."""


def region_figure(scenario: Scenario) -> Figure:
    """Draw few regions as a map, many as heat maps."""
    few = len(scenario.network.regions) <= MAX_MAP_REGIONS
    return _map_figure(scenario) if few else _matrix_figure(scenario)


def _figure(scenario: Scenario, width_in: float, height_in: float) -> Figure:
    """An empty figure with the name of the scenario and the meaning of its numbers."""
    figure = Figure(figsize=(width_in, height_in), layout=None)
    network = scenario.network
    rate = SHARING[network.sharing].meaning
    left, top = 0.45 / width_in, 1 - 0.42 / height_in
    title = f"{scenario.name}: {scenario.title}"
    figure.text(left, top, title, color=INK, size=14, weight="bold", va="center")
    sizes = f"{counted(len(scenario.nodes), 'node')}, {counted(scenario.num_devices, 'device')}"
    note = f"{sizes}.  Delay is one way; {rate}."
    figure.text(left, top - 0.3 / height_in, note, color=MUTED, size=10, va="center")
    return figure


# -- map -----------------------------------------------------------------------------------------


def _map_figure(scenario: Scenario) -> Figure:
    """Circles for regions, an edge per pair; two arrows if the directions differ."""
    network = scenario.network
    points = _positions(len(network.regions))
    half_width = 2.6
    heights, margin = [float(y) for _, y in points], RADIUS + 0.3
    low, high = min(heights) - margin, max(heights) + margin
    width, header = 8.4, 0.95
    height = header + width * (high - low) / (2 * half_width)
    figure = _figure(scenario, width, height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1 - header / height))
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-half_width, half_width)
    axes.set_ylim(low, high)
    for a in range(len(points)):
        for b in range(a + 1, len(points)):
            _draw_pair(axes, network, points, a, b)
    for region, point in enumerate(points):
        _draw_region(axes, scenario, region, point)
    return figure


def _positions(num_regions: int) -> list[Point]:
    """Positions of the regions: one in the centre, two side by side, three or four on a ring."""
    if num_regions == 1:
        return [np.zeros(2)]
    if num_regions == 2:
        return [np.array([-1.5, 0.0]), np.array([1.5, 0.0])]
    start = 3 * math.pi / 4 if num_regions == 4 else math.pi / 2
    angles = [start - 2 * math.pi * i / num_regions for i in range(num_regions)]
    return [np.array([2.3 * math.cos(angle), 1.8 * math.sin(angle)]) for angle in angles]


def _draw_pair(axes: Axes, network: Network, points: list[Point], a: int, b: int) -> None:
    there, back = network.links[a][b], network.links[b][a]
    # The diagonals of four regions cross in the centre, so their labels are nearer to one end. The
    # labels of two directions are one above the other; on a slope each is nearer to its source.
    crossing = len(points) == 4 and b - a == 2
    level = abs(points[b][1] - points[a][1]) < RADIUS
    position = 0.3 if crossing else 0.5 if there == back or level else 0.36
    if there == back:
        _draw_edge(axes, points[a], points[b], there, bend=0.0, position=position)
    else:
        _draw_edge(axes, points[a], points[b], there, bend=BEND, position=position)
        _draw_edge(axes, points[b], points[a], back, bend=BEND, position=position)


def _draw_edge(
    axes: Axes, src: Point, dst: Point, link: Link, *, bend: float, position: float
) -> None:
    """Draw a line between circles, an arrow if bent, wider for more bandwidth.

    position: of the label, as a fraction of the length.
    """
    along = dst - src
    length = float(np.hypot(*along))
    unit = along / length
    start, end = src + unit * RADIUS, dst - unit * RADIUS
    add_arrow(
        axes, start, end, bend, arrowstyle="-|>" if bend else "-", mutation_scale=16,
        linewidth=_line_width(link.bandwidth_bps), color=EDGE, shrinkA=2, shrinkB=2, zorder=1,
    )  # fmt: skip
    # The control point of arc3 is bend x length off the middle; at `position` the curve is off by
    # 2 position (1 - position) of that.
    normal = np.array([unit[1], -unit[0]])
    off = 2 * position * (1 - position) * bend * (length - 2 * RADIUS)
    spot = src + along * position + normal * off
    write_over(axes, spot, _link_text(link), size=10, linespacing=1.35, zorder=3)


def _draw_region(axes: Axes, scenario: Scenario, region: int, centre: Point) -> None:
    """Draw a circle with the name and nodes of a region; beside it the link inside the region."""
    network = scenario.network
    x, y = float(centre[0]), float(centre[1])
    axes.add_patch(Circle((x, y), RADIUS, facecolor=FILL, edgecolor=INK, linewidth=1.2, zorder=2))
    name, lines = network.regions[region], _node_groups(scenario, region)
    block = 0.085 * len(lines)
    size = min(12.0, 125.0 / len(name))
    axes.text(
        x, y + block, name, ha="center", va="center", size=size, weight="bold", color=INK, zorder=4
    )
    axes.text(
        x, y - 0.1, "\n".join(lines), ha="center", va="center", size=9, color=INK, linespacing=1.35,
        zorder=4,
    )  # fmt: skip
    if network.node_regions.count(region) > 1:
        inside = _link_text(network.links[region][region]).replace("\n", ", ")
        beyond = RADIUS + 0.14
        label_y = y + beyond if y > 0.1 else y - beyond  # away from the edges of a ring
        write_over(
            axes, (x, label_y), f"inside: {inside}", size=9.5, color=MUTED, linespacing=1.35,
            zorder=3,
        )  # fmt: skip


def _node_groups(scenario: Scenario, region: int) -> list[str]:
    """Lines about the nodes of a region: `8 × 4 V100`, and `NIC 10 Gbit/s` if all have this cap."""
    name = scenario.network.regions[region]
    nodes = [node for node in scenario.nodes if node.region == name]
    caps = {node.nic_bps for node in nodes}
    counts: dict[str, int] = {}
    for node in nodes:
        each = f"{node.num_devices} {node.device}" if node.num_devices > 1 else node.device
        if len(caps) > 1 and math.isfinite(node.nic_bps):
            each += f" ({_spaced(format_bandwidth(node.nic_bps, 3))})"
        counts[each] = counts.get(each, 0) + 1
    lines = [f"{count} × {each}" for each, count in counts.items()] or ["no nodes"]
    if len(caps) == 1 and math.isfinite(cap := min(caps)):
        lines.append(f"NIC {_spaced(format_bandwidth(cap, 3))}/s")
    return lines


def _line_width(bandwidth_bps: float) -> float:
    """Width in points: 0.7 per factor of two above 100 Mbit/s, within 1..5."""
    if math.isinf(bandwidth_bps):
        return 5.0
    return min(5.0, max(1.0, 1.0 + 0.7 * math.log2(bandwidth_bps / 1e8)))


def _link_text(link: Link) -> str:
    """Lines with the delay, the bandwidth if finite, and the other impairments."""
    lines = [f"{_spaced(format_time(link.one_way_delay_s, 3))} {jitter_text(link)}".strip()]
    if math.isfinite(link.bandwidth_bps):
        lines.append(_spaced(format_bandwidth(link.bandwidth_bps, 3)) + "/s")
    return "\n".join(line for line in (*lines, loss_text(link), *rest_lines(link)) if line)


def _spaced(text: str) -> str:
    """`11 ms` for `11ms`."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzGKMT")
    return f"{number} {text[len(number) :].replace('us', 'µs')}"


# -- matrix --------------------------------------------------------------------------------------


def _matrix_figure(scenario: Scenario) -> Figure:
    """Two heat maps, delay and bandwidth, a row per source; the diagonal is within regions."""
    network = scenario.network
    size = len(network.regions)
    side = 0.62 * size + 0.6
    width, height = 2 * side + 2.6, side + 2.35
    figure = _figure(scenario, width, height)
    delay_ms = np.array([[1e3 * link.one_way_delay_s for link in row] for row in network.links])
    rate_gbps = np.array([[link.bandwidth_bps / 1e9 for link in row] for row in network.links])
    bottom, box_height = 1.15 / height, side / height
    left = figure.add_axes((1.3 / width, bottom, side / width, box_height))
    right = figure.add_axes(((side + 2.2) / width, bottom, side / width, box_height))
    _draw_matrix(left, network, delay_ms, "One-way delay, ms", "Oranges", _shades(delay_ms, low=0))
    _draw_matrix(right, network, rate_gbps, "Bandwidth, Gbit/s", "Blues", _shades(rate_gbps))
    counts = [network.node_regions.count(region) for region in range(size)]
    names = [f"{name} ({n})" for name, n in zip(network.regions, counts, strict=True)]
    left.set_yticks(range(size), names)
    left.set_ylabel("from (nodes)", color=MUTED, size=9.5)
    return figure


def _shades(values: NDArray[np.float64], low: float | None = None) -> Normalize:
    """Map values to 0..1 with room at the dark end: linear from `low`, else logarithmic."""
    finite = values[np.isfinite(values)]
    top = float(finite.max(initial=1e-3))
    if low is not None:
        return Normalize(vmin=low, vmax=1.4 * top)
    return LogNorm(vmin=0.8 * float(finite.min(initial=top)), vmax=1.6 * top)


def _draw_matrix(
    axes: Axes,
    network: Network,
    values: NDArray[np.float64],
    title: str,
    cmap: str,
    norm: Normalize,
) -> None:
    """Draw a heat map with its numbers; an infinite value is blank with a `∞`."""
    axes.imshow(np.where(np.isfinite(values), values, np.nan), cmap=cmap, norm=norm)
    axes.set_xticks(
        range(len(values)), network.regions, rotation=40, ha="right", rotation_mode="anchor"
    )
    axes.set_yticks([])
    without_frame(axes, labelsize=9.5)
    axes.set_title(title, loc="left", size=11, color=INK, pad=8)
    axes.set_xlabel("to", color=MUTED, size=9.5)
    for (src, dst), value in np.ndenumerate(values):
        finite = bool(np.isfinite(value))
        red, green, blue, _ = colormaps[cmap](norm(value)) if finite else (1.0, 1.0, 1.0, 1.0)
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        axes.text(
            dst, src, f"{value:.3g}" if finite else "∞", ha="center", va="center", size=9,
            color=PAPER if dark else INK,
        )  # fmt: skip
    for i in range(len(values)):  # inside a region
        axes.add_patch(Rectangle((i - 0.48, i - 0.48), 0.96, 0.96, fill=False, edgecolor=INK))
