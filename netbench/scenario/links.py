"""The links of a scenario file, pairs or matrix, as a region x region matrix of `Link`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from netbench.errors import nearest
from netbench.scenario.model import NO_BURSTS, BurstLoss, Link
from netbench.scenario.schema import (
    BurstsForm,
    JitterForm,
    LinkForm,
    MatrixForm,
    PairForm,
    ScenarioForm,
)
from netbench.scenario.source import KeyPath, Source
from netbench.units import counted, format_time

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
            found[end], lines[end] = make_link(source, pair, keys), source.line(keys)
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
    links = tuple(
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
    for src, row in enumerate(links):
        for dst, link in enumerate(row):
            _check_jitter(source, link, ("network", "links", "jitter", src, dst))
    return links


def _check_size(source: Source, rows: Sequence[Sequence[float]], size: int, keys: KeyPath) -> None:
    """Every matrix is regions x regions."""
    if len(rows) != size:
        raise source.error(
            keys, f"has {counted(len(rows), 'row')}; expected {size}, one per region"
        )
    for i, row in enumerate(rows):
        if len(row) != size:
            raise source.error(
                (*keys, i), f"has {counted(len(row), 'value')}; expected {size}, one per region"
            )


def _inside(source: Source, form: ScenarioForm) -> list[Link]:
    """The link inside every region; needed where a region has more than one node."""
    inside, counts = form.network.inside, dict.fromkeys(form.regions, 0)
    for group in form.nodes:
        counts[group.region] = counts.get(group.region, 0) + group.count
    if isinstance(inside, LinkForm):
        return [make_link(source, inside, ("network", "inside"))] * len(form.regions)
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
    links = {
        name: make_link(source, link, ("network", "inside", name)) for name, link in given.items()
    }
    return [links.get(name, UNUSED) for name in form.regions]


def make_link(source: Source, form: LinkForm, keys: KeyPath) -> Link:
    """The link that the form at `keys` describes. Raises ScenarioError if it cannot be."""
    jitter, loss = form.jitter, form.loss
    link = Link(
        one_way_delay_s=form.one_way_delay,
        bandwidth_bps=form.bandwidth,
        jitter_s=jitter.deviation if isinstance(jitter, JitterForm) else jitter,
        loss=0.0 if isinstance(loss, BurstsForm) else loss,
        bursts=_bursts(loss) if isinstance(loss, BurstsForm) else NO_BURSTS,
        duplication=form.duplication,
        corruption=form.corruption,
        reordering=form.reordering,
        queue_packets=form.queue or 0,
    )
    if link.reordering and not link.one_way_delay_s:
        raise source.error(
            (*keys, "reordering"),
            "lets packets go without the delay, but the delay is 0; give the link a one_way_delay",
        )
    _check_jitter(source, link, (*keys, "jitter"))
    if isinstance(jitter, JitterForm) and link.jitter_s:
        return replace(
            link,
            jitter_distribution=jitter.distribution,
            jitter_correlation=jitter.correlation,
            jitter_reorders=jitter.reorders,
        )
    return link


def _bursts(form: BurstsForm) -> BurstLoss:
    return BurstLoss(
        to_bad=form.to_bad, to_good=form.to_good, loss_bad=form.in_bad, loss_good=form.in_good
    )


def _check_jitter(source: Source, link: Link, keys: KeyPath) -> None:
    """A deviation above the delay would have packets arrive before they were sent."""
    if link.jitter_s > link.one_way_delay_s:
        raise source.error(
            keys,
            f"of {format_time(link.jitter_s)} is more than the delay it varies, "
            f"{format_time(link.one_way_delay_s)}; lower it, or give a longer one_way_delay",
        )


def _arrow(regions: Sequence[str], end: tuple[int, int]) -> str:
    return f"{regions[end[0]]} -> {regions[end[1]]}"
