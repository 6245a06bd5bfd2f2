"""Units: a problem reduced to what DT-FM's cost places."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.placement.dtfm.units import assemble, units_of
from tests.placement.problems import problem_of, random_problem

EVEN = (np.full((12, 12), 0.01), np.full((12, 12), 1e9))


def test_lanes_are_rows_of_their_own_and_the_slowest_of_them_counts() -> None:
    """Lane 1 of the second unit is far from all others."""
    delay_s = np.full((4, 4), 0.01)
    delay_s[3, :], delay_s[:, 3] = 0.5, 0.5
    problem = dataclasses.replace(
        problem_of(delay_s, np.full((4, 4), 1e9), dp=1, pp=2, tp=2), node=np.array([0, 0, 1, 1])
    )
    units = units_of(problem)
    assert units.links.hop_s[0, 1] == pytest.approx(0.5 + 8 * 1e7 / 1e9)
    grid = assemble(units, np.array([[0], [1]]))
    assert sorted(grid.T.tolist()) == [[0, 1], [2, 3]]


def test_the_devices_of_a_node_share_its_nic() -> None:
    """Two devices and one device behind 3 Gbit/s, on links of 100 Gbit/s; inside a node nothing is
    shared."""
    problem = dataclasses.replace(
        problem_of(np.zeros((3, 3)), np.full((3, 3), 100e9), dp=1, pp=3),
        node=np.array([0, 0, 1]),
        nic_bps=np.full(3, 3e9),
    )
    hop_s = units_of(problem).links.hop_s
    bits = 8 * problem.message_bytes * problem.num_micro_batches
    assert hop_s[0, 1] == pytest.approx(bits / 100e9)
    assert hop_s[0, 2] == hop_s[1, 2] == pytest.approx(bits / 1.5e9)


def test_the_heavier_end_goes_to_the_faster_group() -> None:
    """Holds for both directions along a path: the first stage has the embedding."""
    delay_s = np.full((4, 4), 0.01)
    delay_s[0, 1] = delay_s[1, 0] = 0.3
    problem = dataclasses.replace(
        problem_of(delay_s, np.full((4, 4), 1e9), dp=2, pp=2), gradient_bytes=np.array([4e7, 1e7])
    )
    for groups in ([[0, 1], [2, 3]], [[2, 3], [0, 1]]):
        grid = assemble(units_of(problem), np.array(groups))
        assert sorted(grid[:, 0]) == [2, 3]


def test_a_stage_goes_where_it_fits() -> None:
    """Only devices of kind 1 hold the last stage, whatever the direction of the path."""
    problem = dataclasses.replace(
        problem_of(*EVEN, dp=2, pp=2),
        kind=np.array([0] * 10 + [1] * 2),
        stage_s=np.array([[1.0, np.inf], [1.0, 1.0]]),
    )
    for groups in ([[0, 1], [10, 11]], [[10, 11], [0, 1]]):
        grid = assemble(units_of(problem), np.array(groups))
        assert sorted(grid[:, 1]) == [10, 11]
    with pytest.raises(PlanError, match="2 devices of its placement cannot hold their stage"):
        assemble(units_of(problem), np.array([[0, 1], [2, 3]]))


def test_devices_that_hold_every_stage_go_first() -> None:
    """If they suffice, the others stay idle."""
    problem = dataclasses.replace(
        problem_of(*EVEN, dp=2, pp=2),
        kind=np.array([0] * 7 + [1] * 5),
        stage_s=np.array([[1.0, np.inf], [1.0, 1.0]]),
    )
    assert units_of(problem).devices.ravel().tolist() == [7, 8, 9, 10, 11]


def test_too_few_devices_are_refused() -> None:
    """The error states the needed and the available number."""
    nothing = dataclasses.replace(
        random_problem(6, dp=2, pp=3, seed=0), stage_s=np.full((1, 3), np.inf)
    )
    with pytest.raises(PlanError, match=r"dp 2 x pp 3 needs 6 blocks of 1 device .* found 0 among"):
        units_of(nothing)
    with pytest.raises(
        PlanError, match=r"dp 4 x pp 2 needs 8 blocks of 2 devices .* found 6 among"
    ):
        units_of(problem_of(*EVEN, dp=4, pp=2, tp=2))
