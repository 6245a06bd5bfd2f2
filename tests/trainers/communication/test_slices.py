"""Slices in which collectives move tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.plan.collectives import ChainCut, RingCut
from netbench.plan.model import Plan, emulated_transport
from netbench.trainers.communication.slices import chain_slices, split


def test_slices_fill_a_tensor_once_and_in_order() -> None:
    """Nearly equal, none empty, also when there are more slices than elements."""
    assert split(10, 3) == [(0, 3), (3, 6), (6, 10)]
    assert split(2, 5) == [(0, 1), (1, 2)]
    assert split(0, 4) == []


def test_slices_of_a_chain_grow_and_shrink_at_its_ends() -> None:
    """In proportion to 1, 2, 3, 3, .. 3, 2, 1; fewer than a ramp never reach full size."""
    bounds = chain_slices((100, 1900), ChainCut(slices=8, ramp=3))
    assert [b - a for a, b in bounds] == [100, 200, 300, 300, 300, 300, 200, 100]
    assert chain_slices((0, 400), ChainCut(slices=3, ramp=16)) == [(0, 100), (100, 300), (300, 400)]


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 200), st.integers(1, 20))
def test_slices_of_a_chain_fill_it_once_and_in_order(
    start: int, length: int, slices: int, ramp: int
) -> None:
    bounds = chain_slices((start, start + length), ChainCut(slices=slices, ramp=ramp))
    inside = [i for a, b in bounds for i in range(a, b)]
    assert inside == list(range(start, start + length))
    assert len(bounds) <= slices
    assert all(b > a for a, b in bounds)


def test_a_collective_is_sliced_by_the_chunk_up_to_a_bound(plan_of: Callable[..., Plan]) -> None:
    """4 MiB chunks: 296 MB are 71 slices with --fast, and at most 128 are emulated."""
    transport = plan_of(transport=emulated_transport()).transport
    assert transport.num_slices(1000) == 1
    assert transport.num_slices(40 << 20) == 10
    assert transport.num_slices(296e6) == 71
    assert transport.num_slices(1e9) == transport.max_slices == 128


@pytest.mark.parametrize(
    ("mib", "size", "passes"), [(0.001, 4, 1), (16, 4, 1), (17, 4, 2), (296, 8, 10)]
)
def test_a_ring_passes_on_four_mebibytes_per_member_in_two_slices(
    plan_of: Callable[..., Plan], mib: float, size: int, passes: int
) -> None:
    cut = plan_of().transport.ring_cut(mib * 2**20, size)
    assert cut == RingCut(slices=2, passes=passes)
    assert cut.num_messages == 2 * passes


def test_tree_slices_are_a_mebibyte_of_each_half(plan_of: Callable[..., Plan]) -> None:
    """A bucket of 24 MiB has 12; there are never more than 32."""
    assert [plan_of().transport.num_tree_slices(mib * 2**20) for mib in (1, 24, 500)] == [1, 12, 32]
