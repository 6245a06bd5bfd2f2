"""A picture of a placement on a map of the regions.

A circle is a region with its devices, a path is a pipeline, a colour is a data-parallel group. For
many devices, a circle shows the fractions of the groups, and an arrow the number of pipelines that
go from one region to another.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch, Wedge
from numpy.typing import NDArray

from netbench.placement.problem import Grid
from netbench.plan.model import Plan
from netbench.report.pictures.style import INK, MUTED, PAPER, add_arrow, add_legend, write_over
from netbench.units import counted

MAX_DOTS = 160
"""Maximum devices drawn one by one; for more, fractions are drawn."""

MAX_RING = 16
"""Maximum circles on a ring; more are placed in rows."""

COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#7a4f9e", "#d55e00", "#4d5a66",
)  # fmt: skip
"""Colours of groups, after Okabe and Ito; for more groups a colour map is used."""

FILL, RIM, PATH, IDLE = "#f4f7fa", "#b9c6d2", "#3a4754", "#c9d1d8"

WIDE_FRACTION = 0.05
"""Fraction of all pipelines from which on an arrow may have the largest width."""

DOT = 0.36
"""Radius of the dot of a device; neighbouring dots are 1 apart."""

LINE = 0.06
"""Distance from a dot below which an arrow touches it."""

BENDS = (-0.12, 0.12, 0.0, -0.24, 0.24, -0.36, 0.36, -0.5, 0.5)
"""Bends of an arrow to try, as fractions of its length, the preferred one first."""

Points = NDArray[np.float64]
"""(n, 2): x and y."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SiteLayout:
    """Circles of the map. of_device: (num_devices,), the circle of each device. centres: (n, 2).
    radii: (n,)."""

    names: tuple[str, ...]
    of_device: Grid
    centres: Points
    radii: NDArray[np.float64]


def placement_figure(plan: Plan, grid: Grid, *, note: str = "") -> Figure:
    """Draw `grid`, (dp * tp, pp) devices. note: written beside the name of the scenario."""
    sites = _sites(plan)
    whole = len(plan.device_nodes) > MAX_DOTS
    margin = np.array([1.6, 1.3])
    low = (sites.centres - sites.radii[:, None]).min(axis=0) - margin
    high = (sites.centres + sites.radii[:, None]).max(axis=0) + margin
    across, up = high - low
    width_in = 10.0
    header_in, footer_in = 0.85, 0.6
    body_in = width_in * up / across
    height_in = header_in + body_in + footer_in
    figure = Figure(figsize=(width_in, height_in), facecolor=PAPER)
    axes = figure.add_axes((0.0, footer_in / height_in, 1.0, body_in / height_in))
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    colors = _colors(grid.shape[1])
    _draw_sites(axes, sites)
    if whole:
        _draw_fractions(axes, plan, grid, sites, colors)
    else:
        _draw_devices(axes, plan, grid, sites, colors)
    _write_heading(figure, plan, note, whole, height_in)
    _draw_legend(figure, plan, grid, colors, height_in)
    return figure


# -- where things are ----------------------------------------------------------------------------


def _sites(plan: Plan) -> SiteLayout:
    """Regions, or the nodes of a single region; few of them on a ring, ordered by delay."""
    network, nodes = plan.network, np.asarray(plan.device_nodes)
    regions = np.asarray(network.node_regions)
    names, of_device = network.regions, regions[nodes]
    delays_s = np.array([[link.one_way_delay_s for link in row] for row in network.links])
    whole = len(nodes) > MAX_DOTS
    if len(names) == 1 and len(plan.node_names) > 1 and not whole:
        names, of_device = plan.node_names, nodes
        delays_s = np.zeros((len(names), len(names)))
    counts = np.bincount(of_device, minlength=len(names))
    # A circle has room for its dots.
    reach = [np.hypot(*_spots(int(count)).T).max(initial=0.0) for count in counts]
    radii = np.array(reach) + DOT + 0.3
    if whole:
        radii *= 3.0 / radii.mean()  # keeps the texts as large as with few devices
    if len(names) > MAX_RING:
        return SiteLayout(names=names, of_device=of_device, centres=_rows(radii), radii=radii)
    centres = np.empty((len(names), 2))
    order = _ring_order(delays_s)
    centres[order] = _ring(radii[order])
    return SiteLayout(names=names, of_device=of_device, centres=centres, radii=radii)


def _spots(num: int) -> Points:
    """(num, 2): positions of dots around the origin, 1 apart, in rows of alternating direction, so
    that consecutive dots are neighbours."""
    reach = math.ceil(math.sqrt(num)) + 2
    rows = [
        (column + row % 2 / 2, row * math.sqrt(3) / 2)
        for row in range(-reach, reach + 1)
        for column in range(-reach, reach + 1)
    ]
    lattice = np.array(rows)
    # Choose the centre with the nearest farthest dot: on a dot, between two, or among three.
    choices = [np.array(spot) for spot in ((0.0, 0.0), (0.5, 0.0), (0.5, math.sqrt(3) / 6))]
    found = []
    for centre in choices:
        moved = lattice - centre
        nearest = np.lexsort((moved[:, 0], moved[:, 1], np.hypot(*moved.T).round(6)))[:num]
        found.append(moved[nearest])
    spots = min(found, key=lambda spots: float(np.hypot(*spots.T).max(initial=0.0)))
    ordered: list[Points] = []
    for index, y in enumerate(sorted(set(spots[:, 1].round(6)), reverse=True)):
        row = spots[np.isclose(spots[:, 1], y, atol=1e-5)]
        ordered.append(row[np.argsort(row[:, 0] if index % 2 == 0 else -row[:, 0])])
    return np.concatenate(ordered) if ordered else spots


def _ring_order(delays_s: NDArray[np.float64]) -> Grid:
    """A short tour through all circles: nearest neighbours, then 2-opt."""
    num = len(delays_s)
    near = (delays_s + delays_s.T) / 2
    left, order = set(range(1, num)), [0]
    while left:
        order.append(min(left, key=lambda site: (near[order[-1], site], site)))
        left.remove(order[-1])

    def length(tour: Sequence[int]) -> float:
        return float(sum(near[a, b] for a, b in zip(tour, [*tour[1:], tour[0]], strict=True)))

    better = True
    while better:
        better = False
        for first in range(1, num - 1):
            for last in range(first + 1, num):
                turned = [*order[:first], *order[first : last + 1][::-1], *order[last + 1 :]]
                if length(turned) < length(order) - 1e-12:
                    order, better = turned, True
    return np.array(order)


def _ring(radii: NDArray[np.float64]) -> Points:
    """(n, 2): centres of circles on a flattened ring, the first on the left; a single circle is in
    the middle."""
    num = len(radii)
    if num == 1:
        return np.zeros((1, 2))
    if num == 2:
        apart = radii.sum() + 2.4 * radii.max()
        return np.array([[-apart / 2, 0.0], [apart / 2, 0.0]])
    arcs = 2 * radii + 0.8 * radii.mean()
    middles = (np.cumsum(arcs) - arcs / 2) / arcs.sum()
    around = max(arcs.sum() / (2 * math.pi), 2.2 * radii.max())
    angles = math.pi - 2 * math.pi * (middles - middles[0])
    return np.stack([1.25 * around * np.cos(angles), around * np.sin(angles)], axis=1)


def _rows(radii: NDArray[np.float64]) -> Points:
    """(n, 2): centres of circles in rows, from the top down."""
    width = 1.6 * math.sqrt(float(((2 * radii + 0.8) * (2 * radii + 1.2)).sum()))
    centres = np.empty((len(radii), 2))
    x = y = below = 0.0
    for index, radius in enumerate(radii.tolist()):
        if x > 0 and x + 2 * radius > width:
            x, y, below = 0.0, below, 0.0
        centres[index] = x + radius, y - radius
        x += 2 * radius + 0.8
        below = min(below, y - 2 * radius - 1.2)
    return centres


# -- drawing -------------------------------------------------------------------------------------


def _draw_sites(axes: Axes, sites: SiteLayout) -> None:
    """Draw circles, each with its name and number of devices on the outer side."""
    middle = float(sites.centres[:, 1].mean())
    size = 10.5 if len(sites.names) <= MAX_RING else 7.5
    counts = np.bincount(sites.of_device, minlength=len(sites.names))
    for (x, y), radius, name, count in zip(
        sites.centres.tolist(), sites.radii.tolist(), sites.names, counts, strict=True
    ):
        axes.add_patch(Circle((x, y), radius, facecolor=FILL, edgecolor=RIM, lw=1.2, zorder=1))
        above = y >= middle - 1e-9 or len(sites.names) > MAX_RING
        label = f"{name} ({count})" if count > 1 else name
        spot = x, y + (radius + 0.25) * (1 if above else -1)
        va = "bottom" if above else "top"
        write_over(axes, spot, label, pad=0.1, va=va, size=size, weight="bold", zorder=5)


def _draw_devices(
    axes: Axes, plan: Plan, grid: Grid, sites: SiteLayout, colors: Sequence[str]
) -> None:
    """Draw a dot per device with its stage, and a path per pipeline."""
    places = _places(plan, grid, sites)
    stage_of = {int(device): s for s in range(grid.shape[1]) for device in grid[:, s]}
    size = 7.5 if grid.shape[1] < 10 else 6.0
    for device, (x, y) in enumerate(places):
        stage = stage_of.get(device)
        fill = IDLE if stage is None else colors[stage]
        axes.add_patch(Circle((x, y), DOT, facecolor=fill, edgecolor="none", zorder=4))
        if stage is not None:
            axes.text(
                x, y - 0.02, str(stage), ha="center", va="center", size=size, color=PAPER,
                weight="bold", zorder=5,
            )  # fmt: skip
    for lane in grid[:: plan.layout.tp]:
        for src, dst in itertools.pairwise(lane):
            inside = sites.of_device[src] == sites.of_device[dst]
            others = np.delete(places, [src, dst], axis=0)
            _draw_hop(axes, places[src], places[dst], others, inside=bool(inside))


def _places(plan: Plan, grid: Grid, sites: SiteLayout) -> Points:
    """(num_devices, 2): positions of the dots, in each circle by pipeline and stage; idle devices
    come last."""
    num_devices, tp = len(plan.device_nodes), plan.layout.tp
    rank = np.full(num_devices, grid.size + num_devices)
    lane, stage = np.indices(grid.shape)
    rank[grid] = lane // tp * grid.size + stage * tp + lane % tp
    places = np.empty((num_devices, 2))
    for site, centre in enumerate(sites.centres):
        devices = np.flatnonzero(sites.of_device == site)
        places[devices[np.argsort(rank[devices], kind="stable")]] = centre + _spots(len(devices))
    return places


def _draw_hop(axes: Axes, src: Points, dst: Points, others: Points, *, inside: bool) -> None:
    """Draw a step of a pipeline: an arrow with the least bend that crosses the fewest `others`."""
    apart = float(np.hypot(*(dst - src)))
    if apart == 0:
        return
    unit = (dst - src) / apart
    start, end = src + unit * DOT, dst - unit * DOT
    bends = (0.0,) if inside and apart < 1.2 else BENDS
    bend = min(bends, key=lambda bend: _num_crossed(start, end, bend, others))
    add_arrow(
        axes, start, end, bend, arrowstyle="-|>,head_length=0.35,head_width=0.16", mutation_scale=9,
        linewidth=1.5 if inside else 0.9, color=PATH, alpha=0.85 if inside else 0.55, shrinkA=0,
        shrinkB=0, zorder=3,
    )  # fmt: skip


def _num_crossed(start: Points, end: Points, bend: float, dots: Points) -> int:
    """Count the dots that the curve `arc3,rad=bend` touches."""
    along = end - start
    control = (start + end) / 2 + bend * np.array([along[1], -along[0]])
    t = np.linspace(0, 1, 64)[:, None]
    curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
    apart = np.hypot(*(curve[:, None] - dots).transpose(2, 0, 1))
    return int((apart.min(axis=0) < DOT + LINE).sum())


def _draw_fractions(
    axes: Axes, plan: Plan, grid: Grid, sites: SiteLayout, colors: Sequence[str]
) -> None:
    """Draw a disc per region with the fractions of the groups, and arrows as wide as their hops."""
    hops: Counter[tuple[int, int]] = Counter()
    for lane in sites.of_device[grid[:: plan.layout.tp]]:
        hops.update((int(a), int(b)) for a, b in itertools.pairwise(lane))
    idle = np.ones(len(plan.device_nodes), bool)
    idle[grid.ravel()] = False
    for site, (centre, radius) in enumerate(zip(sites.centres, sites.radii, strict=True)):
        counts = [int((sites.of_device[grid[:, s]] == site).sum()) for s in range(grid.shape[1])]
        counts.append(int(idle[sites.of_device == site].sum()))
        angle = 90.0
        for count, color in zip(counts, [*colors, IDLE], strict=True):
            sweep = 360.0 * count / max(1, sum(counts))
            wedge = Wedge(
                (float(centre[0]), float(centre[1])), 0.86 * float(radius), angle - sweep, angle,
                facecolor=color, edgecolor=PAPER, linewidth=0.6, zorder=4,
            )  # fmt: skip
            axes.add_patch(wedge)
            angle -= sweep
        size = 8 * min(1.0, float(radius) / 2.5)
        write_over(axes, centre, f"{hops[site, site]} within", size=size, zorder=6)
    between = {ends: num for ends, num in hops.items() if ends[0] != ends[1]}
    _draw_arrows(axes, sites, between, WIDE_FRACTION * plan.layout.dp)


def _draw_arrows(
    axes: Axes, sites: SiteLayout, hops: Mapping[tuple[int, int], int], wide: float
) -> None:
    """Draw an arrow per pair of regions, with the number of hops if it is not small. wide: smallest
    number of hops with the largest width."""
    most = max([wide, *hops.values()])
    for (a, b), num in sorted(hops.items(), key=lambda hop: hop[1]):
        along = sites.centres[b] - sites.centres[a]
        unit = along / np.hypot(*along)
        start = sites.centres[a] + unit * sites.radii[a]
        end = sites.centres[b] - unit * sites.radii[b]
        add_arrow(
            axes, start, end, -0.14, arrowstyle="-|>,head_length=0.5,head_width=0.25",
            mutation_scale=9, linewidth=0.6 + 5.0 * num / most, color=PATH, alpha=0.5, shrinkA=1,
            shrinkB=1, zorder=3,
        )  # fmt: skip
        if num >= most / 3:
            normal = np.array([unit[1], -unit[0]])
            spot = (start + end) / 2 - normal * 0.07 * float(np.hypot(*(end - start)))
            write_over(axes, spot, str(num), pad=0.15, size=8, zorder=5)


def _colors(num: int) -> Sequence[str]:
    if num <= len(COLORS):
        return COLORS[:num]

    return [to_hex(colormaps["cividis"](0.9 * i / (num - 1))) for i in range(num)]


def _write_heading(figure: Figure, plan: Plan, note: str, whole: bool, height_in: float) -> None:
    layout = plan.layout
    figure.text(
        0.03, 1 - 0.3 / height_in, f"{plan.scenario}: {note}" if note else plan.scenario,
        color=INK, size=14, weight="bold", va="center",
    )  # fmt: skip
    ways = "a path: a pipeline, in forward direction"
    if whole:
        ways = "numbers: hops between stages"
    tensor = f" of {layout.tp} ranks" if layout.tp > 1 else ""
    figure.text(
        0.03, 1 - 0.6 / height_in,
        f"{counted(layout.dp, 'pipeline')} of {counted(layout.pp, 'stage')}{tensor}.  "
        f"A colour: a stage (a data-parallel group); {ways}.",
        color=MUTED, size=10, va="center",
    )  # fmt: skip


def _draw_legend(
    figure: Figure, plan: Plan, grid: Grid, colors: Sequence[str], height_in: float
) -> None:
    layers = [stage.num_layers for stage in plan.stages]
    uneven = len(set(layers)) > 1
    handles = [
        Patch(
            color=color,
            label=f"{stage} ({layers[stage]} layer{'s' if layers[stage] > 1 else ''})"
            if uneven
            else str(stage),
        )
        for stage, color in enumerate(colors)
    ]
    if len(plan.device_nodes) > grid.size:
        handles.append(Patch(color=IDLE, label="idle"))
    add_legend(
        figure, handles, min(16, len(handles)), loc="lower center", title="stage",
        title_fontsize=9, handlelength=1.0, columnspacing=1.2,
        bbox_to_anchor=(0.5, 0.05 / height_in),
    )  # fmt: skip
