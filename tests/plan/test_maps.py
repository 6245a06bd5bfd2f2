"""Maps: placements that look at no network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.plan.maps import MAPS, SEEDED, identity, random, random_nodes


@pytest.mark.parametrize("seed", [2022, 2023, 2024])
def test_random_is_the_published_map_bit_for_bit(seed: int) -> None:
    """rank of device i = ([0] + shuffled arange(1, 64))[i], from numpy's global legacy state."""
    before = np.random.get_state()
    try:
        np.random.seed(seed)
        a = np.arange(1, 64)
        np.random.shuffle(a)
    finally:
        np.random.set_state(before)
    ranks = [0, *a]
    placement = random(range(64), seed)
    assert [placement[rank] for rank in ranks] == list(range(64))


def test_random_of_seed_2022_begins_as_published() -> None:
    """Written out, so that a change of generator cannot go unseen."""
    placement = random(range(64), 2022)
    rank_of_device = [placement.index(device) for device in range(8)]
    assert rank_of_device == [0, 2, 32, 33, 4, 10, 7, 45]


def test_random_leaves_numpys_global_state_alone() -> None:
    """Other users of it would see a difference."""
    before = np.random.get_state(legacy=False)["state"]["key"]
    random(range(64), 1)
    assert np.array_equal(before, np.random.get_state(legacy=False)["state"]["key"])


@given(st.sampled_from(sorted(MAPS)), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_every_placement_is_a_permutation(name: str, num_devices: int, seed: int) -> None:
    """Each device once, as Python ints, so that a plan can be written as JSON."""
    placement = MAPS[name]([device // 2 for device in range(num_devices)], seed)
    assert sorted(placement) == list(range(num_devices))
    assert all(type(device) is int for device in placement)


@given(st.integers(1, 100), st.integers(0, 1000))
def test_rank_0_stays_on_device_0(num_devices: int, seed: int) -> None:
    """In every published map."""
    assert random(range(num_devices), seed)[0] == 0


def test_shuffled_nodes_keep_their_ranks_together() -> None:
    """The order of nodes is the one that `random` gives to 16 devices."""
    placement = random_nodes([device // 2 for device in range(32)], 2022)
    pairs = [placement[first : first + 2] for first in range(0, 32, 2)]
    assert [pair[1] - pair[0] for pair in pairs] == [1] * 16
    assert tuple(pair[0] // 2 for pair in pairs) == random(range(16), 2022)


def test_only_random_maps_depend_on_the_seed() -> None:
    """Placements without a seed are planned once."""
    devices = range(64)
    changing = {name for name, place in MAPS.items() if place(devices, 1) != place(devices, 2)}
    assert changing == SEEDED
    assert identity(range(4), 7) == (0, 1, 2, 3)
