"""Build the region x region matrix of `Link` from the pairs or matrix of a scenario file."""

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
from netbench.scenario.source import KeyPath, SourceFile
from netbench.units import counted, format_time

LinkMatrix = tuple[tuple[Link, ...], ...]

UNUSED = Link(one_way_delay_s=0.0, bandwidth_bps=math.inf)
"""The unused link inside a region with a single node."""


def region_index(source: SourceFile, regions: Sequence[str], name: str, keys: KeyPath) -> int:
    """Return the index of the region `name`, which the file has at `keys`."""
    if name not in regions:
        raise source.error(keys, f'"{name}" is not in regions; {nearest(name, regions)}')
    return regions.index(name)


def build_links(source: SourceFile, form: ScenarioForm) -> LinkMatrix:
    """Return links (num_regions, num_regions), [src][dst]; the diagonal is inside a region.

    Raises ScenarioError for a missing, repeated or unknown pair, or a matrix of the wrong size.
    """
    links = form.network.links
    if isinstance(links, MatrixForm):
        return _from_matrix(source, form, links)
    by_pair = _from_pairs(source, form.regions, links)
    for region, link in enumerate(_inside(source, form)):
        by_pair[region, region] = link
    regions = range(len(form.regions))
    return tuple(tuple(by_pair[src, dst] for dst in regions) for src in regions)


def _from_pairs(
    source: SourceFile, regions: Sequence[str], pairs: Sequence[PairForm]
) -> dict[tuple[int, int], Link]:
    """Return a link for every ordered pair (src, dst) of different regions."""
    links: dict[tuple[int, int], Link] = {}
    lines: dict[tuple[int, int], int] = {}
    for i, pair in enumerate(pairs):
        keys = ("network", "links", i)
        for end in _directions(source, regions, pair, keys):
            if end in links:
                raise source.error(
                    keys,
                    f"gives {_arrow(regions, end)} again, which is on line {lines[end]}; "
                    "keep one of the two",
                )
            links[end], lines[end] = make_link(source, pair, keys), source.line(keys)
    for src in range(len(regions)):
        for dst in range(len(regions)):
            if src != dst and (src, dst) not in links:
                ends = f"between: [{regions[src]}, {regions[dst]}]"
                if (dst, src) in links:
                    ends = f"from: {regions[src]}, to: {regions[dst]}"
                raise source.error(
                    ("network", "links"),
                    f"has no link {_arrow(regions, (src, dst))}; add e.g. "
                    f'"- {{{ends}, one_way_delay: 11ms, bandwidth: 1.12Gbit}}"',
                )
    return links


def _directions(
    source: SourceFile, regions: Sequence[str], pair: PairForm, keys: KeyPath
) -> list[tuple[int, int]]:
    """Return the ordered pairs of one entry: two for `between`, one for `from` and `to`."""
    if pair.between is not None:
        a, b = (region_index(source, regions, end, (*keys, "between")) for end in pair.between)
        ends = [(a, b), (b, a)]
    else:
        a = region_index(source, regions, str(pair.from_), (*keys, "from"))
        b = region_index(source, regions, str(pair.to), (*keys, "to"))
        ends = [(a, b)]
    if a == b:
        raise source.error(
            keys, f"joins {regions[a]} with itself; put the link inside a region in network.inside"
        )
    return ends


def _from_matrix(source: SourceFile, form: ScenarioForm, matrix: MatrixForm) -> LinkMatrix:
    if form.network.inside is not None:
        raise source.error(
            ("network", "inside"),
            "is given together with a matrix, whose diagonal has the same links; remove one",
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


def _check_size(
    source: SourceFile, rows: Sequence[Sequence[float]], size: int, keys: KeyPath
) -> None:
    """Raise ScenarioError unless a matrix is regions x regions."""
    if len(rows) != size:
        raise source.error(
            keys, f"has {counted(len(rows), 'row')}; expected {size}, one per region"
        )
    for i, row in enumerate(rows):
        if len(row) != size:
            raise source.error(
                (*keys, i), f"has {counted(len(row), 'value')}; expected {size}, one per region"
            )


def _inside(source: SourceFile, form: ScenarioForm) -> list[Link]:
    """Return the link inside every region; required for regions with more than one node."""
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


def make_link(source: SourceFile, form: LinkForm, keys: KeyPath) -> Link:
    """Return the link that the form at `keys` describes. Raises ScenarioError if impossible."""
    jitter, loss = form.jitter, form.loss
    link = Link(
        one_way_delay_s=form.one_way_delay,
        bandwidth_bps=form.bandwidth,
        jitter_s=jitter.deviation if isinstance(jitter, JitterForm) else jitter,
        loss=0.0 if isinstance(loss, BurstsForm) else loss,
        bursts=BurstLoss(**loss.model_dump()) if isinstance(loss, BurstsForm) else NO_BURSTS,
        duplication=form.duplication,
        corruption=form.corruption,
        reordering=form.reordering,
        queue_packets=form.queue or 0,
    )
    if link.reordering and not link.one_way_delay_s:
        raise source.error(
            (*keys, "reordering"),
            "sends packets without the delay, but the delay is 0; give the link a one_way_delay",
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


def _check_jitter(source: SourceFile, link: Link, keys: KeyPath) -> None:
    """Raise ScenarioError for jitter above the delay: packets would arrive before they leave."""
    if link.jitter_s > link.one_way_delay_s:
        raise source.error(
            keys,
            f"of {format_time(link.jitter_s)} is more than the delay, "
            f"{format_time(link.one_way_delay_s)}; lower it, or give a longer one_way_delay",
        )


def _arrow(regions: Sequence[str], end: tuple[int, int]) -> str:
    return f"{regions[end[0]]} -> {regions[end[1]]}"
