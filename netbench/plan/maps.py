"""Placements that ignore the network: a map takes (num_devices, seed) and returns the placement."""

from collections.abc import Callable

import numpy as np

from netbench.limits import MAX_SEED

Map = Callable[[int, int], tuple[int, ...]]


def identity(num_devices: int, seed: int) -> tuple[int, ...]:
    """Rank r on device r, whatever the seed."""
    return tuple(range(num_devices))


def random(num_devices: int, seed: int) -> tuple[int, ...]:
    """The published random maps, bit for bit: rank 0 on device 0, the others shuffled.

    Source: DT-FM's release, `np.random.seed(seed); a = np.arange(1, n); np.random.shuffle(a)`;
    the rank of device i is `([0] + a)[i]`. The placement is the inverse of that map.
    """
    shuffled = np.arange(1, num_devices)
    np.random.RandomState(seed).shuffle(shuffled)
    rank_of_device = [0, *shuffled.tolist()]
    placement = [0] * num_devices
    for device, rank in enumerate(rank_of_device):
        placement[rank] = device
    return tuple(placement)


MAPS: dict[str, Map] = {"identity": identity, "random": random}

SEEDED = frozenset({"random"})
"""Maps whose placement depends on the seed."""

UNSEEDED = frozenset({"identity", "region-aligned"})
"""Schedulers whose placement does not depend on the seed."""

NUM_SEEDS = MAX_SEED + 1
