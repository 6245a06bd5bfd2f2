"""Placements that ignore the links: a map takes (device_nodes, seed) and returns the placement.

device_nodes: the node of every device, nodes in ascending order.
"""

from collections.abc import Callable, Sequence

import numpy as np

from netbench.limits import MAX_SEED

Map = Callable[[Sequence[int], int], tuple[int, ...]]


def identity(device_nodes: Sequence[int], seed: int) -> tuple[int, ...]:
    """Rank r on device r, whatever the seed."""
    return tuple(range(len(device_nodes)))


def random(device_nodes: Sequence[int], seed: int) -> tuple[int, ...]:
    """The published random maps, bit for bit: rank 0 on device 0, the others shuffled.

    Source: DT-FM's release, `np.random.seed(seed); a = np.arange(1, n); np.random.shuffle(a)`;
    the rank of device i is `([0] + a)[i]`. The placement is the inverse of that map.
    """
    placement = [0] * len(device_nodes)
    for device, rank in enumerate(_shuffled(len(device_nodes), seed)):
        placement[rank] = device
    return tuple(placement)


def random_nodes(device_nodes: Sequence[int], seed: int) -> tuple[int, ...]:
    """Nodes shuffled as `random` shuffles devices; consecutive ranks stay on one node.

    Source: the published runs on FluidStack that are called fair.
    """
    devices: dict[int, list[int]] = {}
    for device, node in enumerate(device_nodes):
        devices.setdefault(node, []).append(device)
    order = _shuffled(len(devices), seed)
    by_turn = dict(zip(order, devices.values(), strict=True))
    return tuple(device for turn in sorted(by_turn) for device in by_turn[turn])


def _shuffled(count: int, seed: int) -> list[int]:
    """Return 0, then 1 to count - 1 in random order."""
    shuffled = np.arange(1, count)
    np.random.RandomState(seed).shuffle(shuffled)
    return [0, *shuffled.tolist()]


MAPS: dict[str, Map] = {"identity": identity, "random": random, "random-nodes": random_nodes}

SEEDED = frozenset({"random", "random-nodes"})
"""Maps whose placement depends on the seed."""

UNSEEDED = frozenset({"identity", "region-aligned"})
"""Schedulers whose placement does not depend on the seed."""

NUM_SEEDS = MAX_SEED + 1
