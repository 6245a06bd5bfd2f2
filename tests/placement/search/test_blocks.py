"""Blocks of devices that are placed together."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.placement.search.sites import cut_blocks, expand_blocks
from tests.placement.problems import problem_of

EVEN = (np.full((12, 12), 0.01), np.full((12, 12), 1e9))


def test_blocks_are_cut_from_nodes_then_regions() -> None:
    """Nodes of 5, 3, 3 and 1 device, the first two in one region; of two devices, and of four."""
    problem = dataclasses.replace(
        problem_of(*EVEN, dp=3, pp=2, tp=2),
        node=np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3]),
        region=np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
    )
    pairs = cut_blocks(problem, np.arange(12)).tolist()
    assert pairs == [[0, 1], [2, 3], [5, 6], [8, 9], [4, 7], [10, 11]]
    fours = cut_blocks(dataclasses.replace(problem, tp=4), np.arange(12)).tolist()
    assert fours == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=12, max_size=12), st.integers(1, 5), st.integers(0, 99))
def test_as_many_are_cut_as_there_can_be(node: list[int], tp: int, seed: int) -> None:
    """Blocks use each device at most once, and take as many as possible from every node."""
    problem = dataclasses.replace(
        problem_of(*EVEN, dp=1, pp=1, tp=tp), node=np.array(node), region=np.array(node) // 2
    )
    devices = np.flatnonzero(np.random.default_rng(seed).random(12) < 0.8)
    blocks = cut_blocks(problem, devices)
    assert len(blocks) == len(devices) // tp
    assert len(set(blocks.ravel().tolist())) == blocks.size
    assert set(blocks.ravel().tolist()) <= set(devices.tolist())
    whole = sum(count // tp for count in np.bincount(problem.node[devices], minlength=6).tolist())
    inside = problem.node[blocks]
    assert (inside == inside[:, :1]).all(axis=1).sum() >= whole


def test_a_grid_of_blocks_has_a_row_for_every_lane() -> None:
    """Two pipelines of two stages on two devices each: both lanes of the first come first."""
    devices = np.array([[0, 1], [2, 3], [5, 4], [6, 7]])
    grid = expand_blocks(devices, np.array([[2, 0], [1, 3]]))
    assert grid.tolist() == [[5, 0], [4, 1], [2, 6], [3, 7]]
