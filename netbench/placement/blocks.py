"""What moves together: a device, or the tp devices that share a stage's tensors.

Blocks are cut from nodes first, as tensor parallelism wants the fastest links; from what remains of
the nodes of a region next; from what remains of regions last.
"""

from __future__ import annotations

import numpy as np

from netbench.placement.problem import Grid, Problem


def cut_blocks(problem: Problem, devices: Grid) -> Grid:
    """As many blocks of `devices`, (num_devices,), as there are: (num_blocks, tp)."""
    if problem.tp == 1:  # each is a block, in the same order as below
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
    """A grid of blocks, (dp, pp), as the grid of their devices, (dp * tp, pp), lane by lane.
    devices: (num_blocks, tp)."""
    lanes = devices[blocks].transpose(0, 2, 1)
    grid: Grid = lanes.reshape(-1, blocks.shape[1])
    return grid
