"""Specifications of collectives: their hops, done one by one, give what their names promise."""

from __future__ import annotations

import math

import pytest

from netbench.plan.collectives import COLLECTIVES, Hop, HopList, double_tree, needs, relays
from tests.hops import bounds, carry_out

LENGTH = 41
"""Elements: more than members, divisible by none of their numbers."""

ALGORITHMS = [
    (name, library) for name, found in COLLECTIVES.items() for library in found.algorithms
]
every_algorithm = pytest.mark.parametrize(("name", "library"), ALGORITHMS)


def tensors_of(n: int) -> list[list[float]]:
    return [[float((i + 1) * 4**member) for i in range(LENGTH)] for member in range(n)]


def promised(name: str, n: int) -> list[dict[int, float]]:
    """By member: elements whose values the collective defines."""
    before, parts = tensors_of(n), bounds(LENGTH, n)
    total = {i: sum(tensor[i] for tensor in before) for i in range(LENGTH)}
    mine = [{i: total[i] for i in range(*part)} for part in parts]
    gathered = {i: before[owner][i] for owner, part in enumerate(parts) for i in range(*part)}
    root = dict(enumerate(before[0]))
    return {
        "p2p": [root, root],
        "broadcast": [root] * n,
        "reduce": [total],
        "all-gather": [gathered] * n,
        "reduce-scatter": mine,
        "all-to-all": mine,
    }.get(name, [total] * n)


@every_algorithm
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16])
def test_an_algorithm_does_what_its_collective_promises(name: str, library: str, n: int) -> None:
    """Sums are at the root, at the owners of parts, or everywhere; copies likewise."""
    found = carry_out(COLLECTIVES[name].algorithms[library](n), tensors_of(n))
    expected = promised(name, n)
    assert expected
    for member, elements in enumerate(expected):
        assert elements
        assert {i: found[member][i] for i in elements} == elements, member


@every_algorithm
def test_one_member_has_nothing_to_send(name: str, library: str) -> None:
    if name != "p2p":
        stages = COLLECTIVES[name].algorithms[library](1)
        assert not [hop for stage in stages for hop in stage.list_hops(1)]


@every_algorithm
@pytest.mark.parametrize("n", [2, 5, 8])
def test_members_share_all_hops_among_their_relays(name: str, library: str, n: int) -> None:
    """Every hop is received once and sent once; what arrives together arrives on one channel."""
    for stage in COLLECTIVES[name].algorithms[library](n):
        if isinstance(stage, HopList):
            shares = [relays(stage, member) for member in range(n)]
            sent = [hop for share in shares for relay in share for hop in relay.sends]
            assert sorted(sent) == sorted(stage.hops)
            for member, share in enumerate(shares):
                received = {hop for relay in share for hop in relay.receives}
                assert received == {hop for hop in stage.hops if hop.target == member}
                for relay in share:
                    assert len({hop.channel for hop in relay.receives}) <= 1
                    assert len({hop.part for half in relay for hop in half}) == 1


def test_a_hop_needs_the_copy_it_sends_and_all_sums_since() -> None:
    """Two children are added; the parent's copy replaces their sum."""
    stage = HopList(
        hops=(
            Hop(1, 0, adds=True),
            Hop(2, 0, adds=True),
            Hop(0, 3, adds=True),
            Hop(3, 0),
            Hop(0, 1),
            Hop(0, 2, part=1),
        ),
        num_parts=2,
    )
    assert needs(stage) == ((), (), (0, 1), (2,), (3,), ())
    up, down, apart = relays(stage, 0)[1], relays(stage, 0)[2], relays(stage, 0)[0]
    assert (up.receives, up.sends) == (stage.hops[:2], stage.hops[2:3])
    assert (down.receives, down.sends) == (stage.hops[3:4], stage.hops[4:5])
    assert (apart.receives, apart.sends) == ((), stage.hops[5:])


@pytest.mark.parametrize("n", range(2, 40))
def test_double_trees_reach_all_members_and_share_the_work(n: int) -> None:
    """Binary trees of logarithmic depth; an inner member of one is a leaf of the other."""
    trees = double_tree(n)
    for parents in trees:
        assert parents.count(-1) == 1
        assert max(_depth(parents, member) for member in range(n)) <= math.ceil(math.log2(n)) + 1
        assert max(parents.count(member) for member in range(n)) <= 2
    inner = [set(parents) - {-1, parents.index(-1)} for parents in trees]
    assert not inner[0] & inner[1]  # the roots apart
    if n % 2 == 0:
        assert all(len(set(parents) - {-1}) == n // 2 for parents in trees)


def test_the_first_tree_is_that_of_nccl() -> None:
    """The example of 14 ranks in NCCL's `graph/trees.cc`."""
    assert double_tree(14)[0] == (-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12)


def _depth(parents: tuple[int, ...], member: int) -> int:
    return 0 if parents[member] < 0 else 1 + _depth(parents, parents[member])
