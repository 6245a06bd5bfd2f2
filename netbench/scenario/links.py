"""The links of a scenario file, pairs or matrix, as a region x region matrix of `Link`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from netbench.errors import nearest
from netbench.scenario.model import Link
from netbench.scenario.schema import LinkForm, MatrixForm, PairForm, ScenarioForm
from netbench.scenario.source import KeyPath, Source

LinkMatrix = tuple[tuple[Link, ...], ...]

UNUSED = Link(one_way_delay_s=0.0, bandwidth_bps=math.inf)
"""The link inside a region with a single node: nothing crosses it."""


def region_index(source: Source, regions: Sequence[str], name: str, keys: KeyPath) -> int:
    """Index of the region called `name`, which the file has at `keys`."""
    if name not in regions:
        raise source.error(keys, f'"{name}" is not in regions; {nearest(name, regions)}')
    return regions.index(name)


def build_links(source: Source, form: ScenarioForm) -> LinkMatrix:
    """(num_regions, num_regions) links, [src][dst]; the diagonal is inside a region.

    Raises ScenarioError for a missing, repeated or unknown pair, or a matrix of the wrong size.
    """
    links = form.network.links
    if isinstance(links, MatrixForm):
        return _from_matrix(source, form, links)
    found = _from_pairs(source, form.regions, links)
    for region, link in enumerate(_inside(source, form)):
        found[region, region] = link
    regions = range(len(form.regions))
    return tuple(tuple(found[src, dst] for dst in regions) for src in regions)


def _from_pairs(
    source: Source, regions: Sequence[str], pairs: Sequence[PairForm]
) -> dict[tuple[int, int], Link]:
    """(src, dst) -> link for every ordered pair of different regions."""
    found: dict[tuple[int, int], Link] = {}
    lines: dict[tuple[int, int], int] = {}
    for i, pair in enumerate(pairs):
        keys = ("network", "links", i)
        for end in _directions(source, regions, pair, keys):
            if end in found:
                raise source.error(
                    keys,
                    f"gives {_arrow(regions, end)} again, which is on line {lines[end]}; "
                    "keep one of the two",
                )
            found[end], lines[end] = make_link(pair), source.line(keys)
    for src in range(len(regions)):
        for dst in range(len(regions)):
            if src != dst and (src, dst) not in found:
                ends = f"between: [{regions[src]}, {regions[dst]}]"
                if (dst, src) in found:
                    ends = f"from: {regions[src]}, to: {regions[dst]}"
                raise source.error(
                    ("network", "links"),
                    f"has no link {_arrow(regions, (src, dst))}; add e.g. "
                    f'"- {{{ends}, one_way_delay: 11ms, bandwidth: 1.12Gbit}}"',
                )
    return found


def _directions(
    source: Source, regions: Sequence[str], pair: PairForm, keys: KeyPath
) -> list[tuple[int, int]]:
    """The ordered pairs that one entry gives: two for `between`, one for `from` and `to`."""
    if pair.between is not None:
        a, b = (region_index(source, regions, end, (*keys, "between")) for end in pair.between)
        ends = [(a, b), (b, a)]
    else:
        a = region_index(source, regions, str(pair.from_), (*keys, "from"))
        b = region_index(source, regions, str(pair.to), (*keys, "to"))
        ends = [(a, b)]
    if a == b:
        raise source.error(
            keys, f"joins {regions[a]} with itself; the link inside a region goes to network.inside"
        )
    return ends


def _from_matrix(source: Source, form: ScenarioForm, matrix: MatrixForm) -> LinkMatrix:
    if form.network.inside is not None:
        raise source.error(
            ("network", "inside"),
            "is given beside a matrix; its diagonal is the inside: remove one",
        )
    size = len(form.regions)
    values = {name: getattr(matrix, name) for name in MatrixForm.model_fields}
    for name, rows in values.items():
        if rows is not None:
            _check_size(source, rows, size, ("network", "links", name))
    zeros = [[0.0] * size for _ in range(size)]
    jitter, loss = matrix.jitter or zeros, matrix.loss or zeros
    return tuple(
        tuple(
            Link(
                one_way_delay_s=matrix.one_way_delay[src][dst],
                bandwidth_bps=matrix.bandwidth[src][dst],
                jitter_s=jitter[src][dst],
                loss=loss[src][dst],
            )
            for dst in range(size)
        )
        for src in range(size)
    )


def _check_size(source: Source, rows: Sequence[Sequence[float]], size: int, keys: KeyPath) -> None:
    """Every matrix is regions x regions."""
    if len(rows) != size:
        raise source.error(keys, f"has {len(rows)} rows; expected {size}, one per region")
    for i, row in enumerate(rows):
        if len(row) != size:
            raise source.error(
                (*keys, i), f"has {len(row)} values; expected {size}, one per region"
            )


def _inside(source: Source, form: ScenarioForm) -> list[Link]:
    """The link inside every region; needed where a region has more than one node."""
    inside, counts = form.network.inside, dict.fromkeys(form.regions, 0)
    for group in form.nodes:
        counts[group.region] = counts.get(group.region, 0) + group.count
    if isinstance(inside, LinkForm):
        return [make_link(inside)] * len(form.regions)
    given: Mapping[str, LinkForm] = inside or {}
    for name in given:
        region_index(source, form.regions, name, ("network", "inside", name))
    for name in form.regions:
        if counts[name] > 1 and name not in given:
            raise source.error(
                ("network", "inside") if inside else ("network",),
                f"has no link inside {name}, which has {counts[name]} nodes; "
                'write e.g. "inside: {one_way_delay: 1ms, bandwidth: 5Gbit}"',
            )
    return [make_link(given[name]) if name in given else UNUSED for name in form.regions]


def make_link(form: LinkForm) -> Link:
    """The link a form describes."""
    return Link(
        one_way_delay_s=form.one_way_delay,
        bandwidth_bps=form.bandwidth,
        jitter_s=form.jitter,
        loss=form.loss,
    )


def _arrow(regions: Sequence[str], end: tuple[int, int]) -> str:
    return f"{regions[end[0]]} -> {regions[end[1]]}"
