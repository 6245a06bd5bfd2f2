"""Lay nodes of several devices as rectangles of pipelines by stages.

A node laid along one pipeline keeps that stretch of it off the NIC; a node laid across pipelines
keeps part of a group off it; a rectangle, such as 2 x 2, does half of both. The best shape depends
on contention at the NICs, and moves of single devices hardly lead from one shape to another.
"""

import numpy as np

from netbench.placement.problem import Grid
from netbench.placement.search.sites import Sites


def tilings(sites: Sites, blocks: Grid) -> list[Grid]:
    """Return `blocks`, (dp, pp), laid with every height that divides the blocks of a node. Regions
    and kinds keep their cells. Empty where no node has two blocks."""
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
        ordered = blocks[free][np.argsort(sites.node[blocks[free]], kind="stable")]
        nodes = np.split(ordered, np.flatnonzero(np.diff(sites.node[ordered])) + 1)
        _lay(tiled, free, sorted(nodes, key=len, reverse=True), height)
    return tiled


def _lay(tiled: Grid, free: Grid, nodes: list[Grid], height: int) -> None:
    """Fill the `free` cells, as many as the nodes have blocks, with rectangles from the first
    pipeline and stage on. Nodes without room for a rectangle fill the remaining cells."""
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
    """Return the corner of the first free rectangle on a grid of rectangles, or None."""
    rows, columns = free.shape[0] // high, free.shape[1] // wide
    whole = free[: rows * high, : columns * wide].reshape(rows, high, columns, wide)
    fits = whole.all(axis=(1, 3))
    if not fits.any():
        return None
    row, column = divmod(int(fits.argmax()), columns)
    return row * high, column * wide
