"""Cut devices into blocks, and group interchangeable blocks into sites.

A block is the tp devices that share a stage's tensors. Blocks are cut from nodes first, because
tensor parallelism needs the fastest links; then from what remains in each region; then from what
remains overall. The blocks of a site share their region, kind, NIC rate and number of blocks per
node. A search places blocks; which block of a site it takes matters only where nodes have several.
"""

from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError
from netbench.placement.problem import Floats, Grid, Problem
from netbench.units import counted


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sites:
    """The blocks of a problem and their locations.

    devices: (num_blocks, tp). node, site: (num_blocks,), indices. region, kind: (num_sites,).
    delay_s, seconds_per_byte: (num_sites, num_sites), one way between blocks on different nodes.
    nic_seconds_per_byte: (num_sites,), of a node's NIC.
    inside_seconds_per_byte: between blocks of one node.
    """

    devices: Grid
    node: Grid
    site: Grid
    region: Grid
    kind: Grid
    delay_s: Floats
    seconds_per_byte: Floats
    nic_seconds_per_byte: Floats
    inside_seconds_per_byte: float

    @property
    def single(self) -> bool:
        """True if every node has one block, so that the blocks of a site are interchangeable."""
        return len(np.unique(self.node)) == len(self.node)

    def expanded(self, blocks: Grid) -> Grid:
        """Return the grid of devices, (dp * tp, pp), of a grid of blocks, (dp, pp)."""
        return expand_blocks(self.devices, blocks)

    def blocks_of(self, grid: Grid) -> Grid | None:
        """Return the blocks, (dp, pp), of a grid of devices; None where it splits blocks."""
        num_blocks, tp = self.devices.shape
        block = np.full(int(self.devices.max()) + 1, -1)
        block[self.devices.ravel()] = np.repeat(np.arange(num_blocks), tp)
        if (grid >= len(block)).any():
            return None
        blocks: Grid = block[grid[::tp]]
        if (blocks < 0).any() or (self.expanded(blocks) != grid).any():
            return None
        return blocks


def find_sites(problem: Problem) -> Sites:
    """Return the blocks and sites of a problem. Raises PlanError for too few blocks."""
    devices = cut_blocks(problem, np.arange(problem.num_devices))
    first, kind = devices[:, 0], _kinds(problem, devices)
    node = np.unique(problem.node[first], return_inverse=True)[1]
    width = np.bincount(node)[node]
    alike = np.stack([problem.region[first], kind, width])
    rates = np.stack([problem.nic_bps, problem.host_bps])[:, first]
    columns = np.concatenate([alike, rates]).T
    _, where, site = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    needed = problem.dp * problem.pp
    if len(devices) < needed:
        raise PlanError(
            f"found {counted(len(devices), 'block')} of {counted(problem.tp, 'device')}; expected "
            f"{needed}, for {counted(problem.dp, 'pipeline')} of {counted(problem.pp, 'stage')}; "
            "choose fewer"
        )
    delay_s, bandwidth_bps, inside_bps = _between(problem, first, node, site)
    return Sites(
        devices=devices,
        node=node,
        site=site,
        region=problem.region[first][where],
        kind=kind[where],
        delay_s=delay_s,
        seconds_per_byte=8 / bandwidth_bps,
        nic_seconds_per_byte=8 / problem.nic_bps[first][where],
        inside_seconds_per_byte=8 / inside_bps,
    )


def _kinds(problem: Problem, devices: Grid) -> Grid:
    """Return the kind of every block, (num_blocks,): that of its device which fewest stages fit;
    of those, the slowest."""
    unfit, slow_s = np.isinf(problem.stage_s).sum(axis=1), problem.stage_s[:, 0]
    rank = np.argsort(np.lexsort([slow_s, unfit]))  # of every kind
    slowest = np.argmax(rank[problem.kind[devices]], axis=1)
    return np.asarray(problem.kind[devices[np.arange(len(devices)), slowest]])


def _between(problem: Problem, first: Grid, node: Grid, site: Grid) -> tuple[Floats, Floats, float]:
    """Return delays and bandwidths between sites, for blocks on different nodes, and the bandwidth
    inside a node. Measured between one block per site and a second one on another node."""
    num_sites = int(site.max()) + 1
    one = np.array([first[np.flatnonzero(site == index)[0]] for index in range(num_sites)])
    other = one.copy()
    for index in range(num_sites):
        apart = np.flatnonzero((site == index) & (problem.node[first] != problem.node[one[index]]))
        other[index] = first[apart[0]] if len(apart) else one[index]
    ends = np.ix_(one, one)
    delay_s, bandwidth_bps = problem.delay_s[ends].copy(), problem.bandwidth_bps[ends].copy()
    np.fill_diagonal(delay_s, problem.delay_s[one, other])
    np.fill_diagonal(bandwidth_bps, problem.bandwidth_bps[one, other])
    order = np.argsort(node, kind="stable")
    beside = np.flatnonzero(np.diff(node[order]) == 0)
    inside_bps = np.inf
    if len(beside):
        inside_bps = problem.bandwidth_bps[first[order[beside[0]]], first[order[beside[0] + 1]]]
    return delay_s, bandwidth_bps, float(inside_bps)


def cut_blocks(problem: Problem, devices: Grid) -> Grid:
    """Cut `devices`, (num_devices,), into as many blocks as possible: (num_blocks, tp)."""
    if problem.tp == 1:  # every device is a block, in the same order as below
        return devices[np.argsort(problem.node[devices], kind="stable"), None]
    blocks, tp = [], problem.tp
    for place in (problem.node, problem.region, np.zeros_like(problem.node)):
        here = devices[np.argsort(place[devices], kind="stable")]
        _, first, count = np.unique(place[here], return_index=True, return_counts=True)
        rank = np.arange(len(here)) - np.repeat(first, count)
        whole = rank < np.repeat(count // tp * tp, count)
        blocks.append(here[whole].reshape(-1, tp))
        devices = here[~whole]
        if not len(devices):
            break
    return np.concatenate(blocks)


def expand_blocks(devices: Grid, blocks: Grid) -> Grid:
    """Return the grid of devices, (dp * tp, pp), of a grid of blocks, (dp, pp).
    devices: (num_blocks, tp), of every block."""
    lanes = devices[blocks].transpose(0, 2, 1)
    return lanes.reshape(-1, blocks.shape[1])
