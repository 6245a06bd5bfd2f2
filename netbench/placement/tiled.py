"""Nodes of several devices laid as rectangles: so many pipelines high, so many stages wide.

A node as wide as its devices keeps a stretch of a pipeline off its NIC, one as high a part of a
group; in between, two by two say, it keeps half of either. Which is best depends on who waits for
whom at a NIC; moves of single devices hardly lead from one to another.
"""

from __future__ import annotations

import numpy as np

from netbench.placement.problem import Grid
from netbench.placement.sites import Sites


def tilings(sites: Sites, blocks: Grid) -> list[Grid]:
    """`blocks`, (dp, pp), with nodes of every height that divides the blocks of one; regions and
    kinds stay in the cells where they are. None where no node has two blocks."""
    widths = np.unique(np.bincount(sites.node[blocks.ravel()]))
    heights = {
        height
        for width in widths[widths > 1].tolist()
        for height in range(1, width + 1)
        if width % height == 0
    }
    return [_tiled(sites, blocks, height) for height in sorted(heights)]


def _tiled(sites: Sites, blocks: Grid, height: int) -> Grid:
    tiled = np.empty_like(blocks)
    place = np.stack([sites.region, sites.kind])[:, sites.site[blocks]]
    for each in np.unique(place.reshape(2, -1), axis=1).T:
        free = (place == each[:, None, None]).all(axis=0)
        _lay(tiled, free, _nodes(sites, blocks[free]), height)
    return tiled


def _nodes(sites: Sites, blocks: Grid) -> list[Grid]:
    """Of every node its blocks, the larger nodes first."""
    ordered = blocks[np.argsort(sites.node[blocks], kind="stable")]
    nodes = np.split(ordered, np.flatnonzero(np.diff(sites.node[ordered])) + 1)
    return sorted(nodes, key=len, reverse=True)


def _lay(tiled: Grid, free: Grid, nodes: list[Grid], height: int) -> None:
    """Fill the cells that are `free`, as many as the nodes have blocks: with rectangles from the
    first pipeline and stage on, and what finds no room as one with what is left over."""
    left = []
    for node in nodes:
        high = height if len(node) % height == 0 else 1
        corner = _corner(free, high, len(node) // high)
        if corner is None:
            left.append(node)
            continue
        cells = np.s_[corner[0] : corner[0] + high, corner[1] : corner[1] + len(node) // high]
        tiled[cells] = node.reshape(high, -1)
        free[cells] = False
    if left:
        tiled[free] = np.concatenate(left)


def _corner(free: Grid, high: int, wide: int) -> tuple[int, int] | None:
    """Of the first free rectangle, on a grid of such rectangles; None where there is none."""
    rows, columns = free.shape[0] // high, free.shape[1] // wide
    whole = free[: rows * high, : columns * wide].reshape(rows, high, columns, wide)
    fits = whole.all(axis=(1, 3))
    if not fits.any():
        return None
    row, column = divmod(int(fits.argmax()), columns)
    return row * high, column * wide
