"""Collectives as specifications: who sends which part of a tensor to whom, in which order.

A collective names an algorithm for each library that has it. An algorithm is a sequence of stages
among n members, numbered in ring or tree order from the root, 0. A member starts a stage when it
has finished the one before. Stages are pure data:

- `HopList` lists its transfers one by one: chains, trees, a gather to the root.
- `Ring` stands for the rounds of a ring, `AllPairs` for all pairs of members at once.

The simulator times stages (`simulator.collectives`), the trainers execute them
(`trainers.communication.collectives`). A collective made of these stages is one more entry of
`COLLECTIVES`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple


class Hop(NamedTuple):
    """A transfer of one part from one member to another, which adds it to its own or keeps it.

    channel: hops of one channel between the same two members arrive in the order of the list;
    channels do not wait for each other. Hops that bring the same part to a member share a channel.
    """

    source: int
    target: int
    part: int = 0
    adds: bool = False
    channel: int = 0


class Relay(NamedTuple):
    """Hops that bring a part to a member, and the hops that send on what they brought."""

    receives: tuple[Hop, ...]
    sends: tuple[Hop, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HopList:
    """Transfers of `num_parts` equal parts, in an order in which each can run.

    A hop waits for the hops that brought its part to its source (see `needs`). sliced: NCCL cuts
    each part into slices, and passes a slice on as soon as it has arrived. point_to_point: a
    transfer outside of collectives, over one connection.
    """

    hops: tuple[Hop, ...]
    num_parts: int = 1
    sliced: bool = False
    point_to_point: bool = False

    @property
    def is_chain(self) -> bool:
        """The whole message passes in slices, as in `chain`."""
        return self.sliced and self.num_parts == 1

    def list_hops(self, n: int) -> Iterator[Hop]:
        return iter(self.hops)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """n - 1 steps in which every member passes one of n parts to the next member.

    reduces: parts are added up; afterwards member i has the sum of part i. gathers: every member
    starts with its own part and ends with all of them. With both, one follows the other.
    backwards: from every member to the one before. segmented: gloo cuts a part into messages of at
    most `TransportProfile.segment_bytes`; otherwise into halves. overruns: gloo's reduce goes on
    until all but two messages of the tensor have passed, which is more than needed.
    """

    reduces: bool = False
    gathers: bool = False
    backwards: bool = False
    segmented: bool = False
    overruns: bool = False

    def list_hops(self, n: int) -> Iterator[Hop]:
        for adds in (True,) * self.reduces + (False,) * self.gathers:
            passing = [ring_parts(n, member, adds=adds) for member in range(n)]
            for step in range(n - 1):
                for member in range(n):
                    part = passing[member][step]
                    hop = Hop(member, (member + 1) % n, part, adds)
                    if self.backwards:
                        hop = Hop(n - 1 - hop.source, n - 1 - hop.target, n - 1 - part, adds)
                    yield hop


@dataclass(frozen=True, kw_only=True, slots=True)
class AllPairs:
    """Every member sends to every other, all at once: part j to member j, which adds it to its
    own, or its own part to all."""

    adds: bool

    def list_hops(self, n: int) -> Iterator[Hop]:
        for source in range(n):
            for target in range(n):
                if source != target:
                    yield Hop(source, target, target if self.adds else source, self.adds)


CollectiveStage = HopList | Ring | AllPairs
Algorithm = Callable[[int], tuple[CollectiveStage, ...]]
"""Number of members -> stages."""


def ring_parts(n: int, member: int, *, adds: bool) -> tuple[int, ...]:
    """Parts that pass through a member of a ring, in order: it receives all but the first, and
    sends all but the last."""
    return tuple((member - step - adds) % n for step in range(n))


@cache
def needs(stage: HopList) -> tuple[tuple[int, ...], ...]:
    """For each hop, the hops (indices) that brought its part to its source: the last one that was
    kept, and those added since."""
    return _needs(stage)[0]


@cache
def relays(stage: HopList, member: int) -> tuple[Relay, ...]:
    """One member's share of the hops, in order."""
    needed, final = _needs(stage)
    sends: dict[tuple[int, ...], list[Hop]] = {}
    for hop, before in zip(stage.hops, needed, strict=True):
        if hop.source == member:
            sends.setdefault(before, []).append(hop)
    for (target, _), before in final.items():
        if target == member:
            sends.setdefault(before, [])
    return tuple(
        Relay(tuple(stage.hops[index] for index in before), tuple(sent))
        for before, sent in sorted(sends.items())
    )


def _needs(
    stage: HopList,
) -> tuple[tuple[tuple[int, ...], ...], Mapping[tuple[int, int], tuple[int, ...]]]:
    """Return `needs`, and (member, part) -> the hops that made the member's final part."""
    made: dict[tuple[int, int], tuple[int, ...]] = {}
    needed = []
    for index, hop in enumerate(stage.hops):
        needed.append(made.get((hop.source, hop.part), ()))
        earlier = made.get((hop.target, hop.part), ()) if hop.adds else ()
        made[hop.target, hop.part] = (*earlier, index)
    return tuple(needed), made


def chain(order: Sequence[int], *, adds: bool) -> HopList:
    """The whole tensor from member to member, in slices."""
    return HopList(hops=tuple(Hop(a, b, adds=adds) for a, b in pairwise(order)), sliced=True)


@cache
def chain_reduce(n: int) -> tuple[HopList]:
    """Along 1 -> 2 -> ... -> n - 1 -> 0: NCCL's ring, which a reduce walks towards its root."""
    return (chain((*range(1, n), 0), adds=True),)


@cache
def chain_broadcast(n: int) -> tuple[HopList]:
    """Along 0 -> 1 -> ... -> n - 1."""
    return (chain(range(n), adds=False),)


def double_tree(n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parent of every member in NCCL's two trees; -1 for the root. Source: `graph/trees.cc`.

    In the first tree, the parent of i replaces the lowest bit of i by the next higher one, or drops
    it where that exceeds n - 1. The second tree is the first one mirrored, or shifted by one if n
    is odd. An inner member of one tree is a leaf of the other, so all members send about as much
    (Sanders, Speck, Träff: Two-tree algorithms, 2009).
    """
    first = [-1]
    for i in range(1, n):
        low = i & -i
        above = (i ^ low) | (low << 1)
        first.append(above if above < n else i ^ low)
    if n % 2:
        second = [(first[i - 1] + 1) % n if first[i - 1] >= 0 else -1 for i in range(n)]
    else:
        second = [n - 1 - parent if parent >= 0 else -1 for parent in reversed(first)]
    return tuple(first), tuple(second)


@cache
def tree_all_reduce(n: int) -> tuple[HopList]:
    """One half of the tensor up and down each of the two trees."""
    hops = [
        hop for half, parents in enumerate(double_tree(n)) for hop in _up_and_down(parents, half)
    ]
    return (HopList(hops=tuple(hops), num_parts=2, sliced=True),)


@cache
def number_all_reduce(n: int) -> tuple[HopList]:
    """A number up and down the first of the two trees: it has no halves."""
    return (HopList(hops=tuple(_up_and_down(double_tree(n)[0], 0))),)


def _up_and_down(parents: Sequence[int], half: int) -> list[Hop]:
    """Return the hops of a half of the tensor to the root of its tree, and back."""
    below = [member for member in _from_root(parents) if parents[member] >= 0]
    up, down = 2 * half, 2 * half + 1
    return [
        *(Hop(i, parents[i], half, adds=True, channel=up) for i in reversed(below)),
        *(Hop(parents[i], i, half, channel=down) for i in below),
    ]


def _from_root(parents: Sequence[int]) -> list[int]:
    """Members in an order in which each follows its parent."""
    order = [parents.index(-1)]
    for member in order:
        order += [child for child, parent in enumerate(parents) if parent == member]
    return order


@cache
def binomial_broadcast(n: int) -> tuple[CollectiveStage, ...]:
    """gloo's: member i gets the whole tensor from i without its highest bit, and sends it to all
    its children at once."""
    return (HopList(hops=tuple(Hop(i - (1 << (i.bit_length() - 1)), i) for i in range(1, n))),)


@cache
def gloo_reduce(n: int) -> tuple[CollectiveStage, ...]:
    """A ring reduce-scatter, then all send their part to the root at once."""
    to_root = HopList(hops=tuple(Hop(i, 0, i) for i in range(1, n)), num_parts=n)
    return Ring(reduces=True, backwards=True, segmented=True, overruns=True), to_root


def gloo_all_reduce(n: int) -> tuple[CollectiveStage, ...]:
    """A ring reduce-scatter, then a ring all-gather."""
    return (
        Ring(reduces=True, backwards=True, segmented=True),
        Ring(gathers=True, backwards=True, segmented=True),
    )


def transfer(n: int) -> tuple[CollectiveStage, ...]:
    """Member 0 sends to member 1."""
    return (HopList(hops=(Hop(0, 1),), point_to_point=True),)


def always(*stages: CollectiveStage) -> Algorithm:
    """The same stages for any number of members."""
    return lambda n: stages


def joined(*algorithms: Algorithm) -> Algorithm:
    """One algorithm after the other."""
    return lambda n: tuple(stage for algorithm in algorithms for stage in algorithm(n))


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective or transfer.

    algorithms: by library, nccl or gloo. bus_factor: of n members, the bytes that a member's link
    carries per byte of payload (nccl-tests, doc/PERFORMANCE.md). tensors_held: whole tensors and
    shards that a rank holds while torch and gloo run it, their copies included. is_benchmark:
    `netbench collective` offers it.
    """

    algorithms: Mapping[str, Algorithm]
    bus_factor: Callable[[int], float] = lambda n: 1.0
    tensors_held: tuple[int, int] = (1, 0)
    is_benchmark: bool = True


def _fraction(n: int) -> float:
    return (n - 1) / n


_ring_gather = always(Ring(gathers=True))
_scatter = always(AllPairs(adds=True))
_both = _scatter, _ring_gather

COLLECTIVES: Mapping[str, Collective] = {
    "p2p": Collective(algorithms={"nccl": transfer, "gloo": transfer}),
    "all-reduce": Collective(
        algorithms={"nccl": always(Ring(reduces=True, gathers=True)), "gloo": gloo_all_reduce},
        bus_factor=lambda n: 2 * _fraction(n),
    ),
    "tree-all-reduce": Collective(
        algorithms={"nccl": tree_all_reduce},
        bus_factor=lambda n: 2 * _fraction(n),
        is_benchmark=False,  # gloo has none
    ),
    "broadcast": Collective(algorithms={"nccl": chain_broadcast, "gloo": binomial_broadcast}),
    "reduce": Collective(algorithms={"nccl": chain_reduce, "gloo": gloo_reduce}),
    "all-gather": Collective(
        algorithms={"nccl": _ring_gather, "gloo": _ring_gather},
        bus_factor=_fraction,
        tensors_held=(2, 1),  # gloo fills a flat copy of the output
    ),
    "reduce-scatter": Collective(
        # PyTorch's reduce-scatter over gloo is an all-reduce (`ProcessGroupGloo.cpp`), of a copy.
        algorithms={"nccl": always(Ring(reduces=True)), "gloo": gloo_all_reduce},
        bus_factor=_fraction,
        tensors_held=(2, 1),
    ),
    "all-to-all": Collective(
        algorithms={"nccl": _scatter, "gloo": _scatter},
        is_benchmark=False,  # a part of sharded-ps
    ),
    "central-ps": Collective(
        algorithms={
            "nccl": joined(chain_reduce, chain_broadcast),
            "gloo": joined(gloo_reduce, binomial_broadcast),
        }
    ),
    "sharded-ps": Collective(
        algorithms={"nccl": joined(*_both), "gloo": joined(*_both)}, tensors_held=(3, 1)
    ),
    "butterfly": Collective(
        algorithms={"nccl": joined(_scatter, always(AllPairs(adds=False)))},
        is_benchmark=False,  # hivemind's own, over its own connections
    ),
}
"""Every collective by name.

p2p: member 0 sends to member 1. central-ps: gradients are reduced to member 0, parameters are
broadcast from it. sharded-ps: every member sums one shard of the gradients, then all gather the
parameters. butterfly: every member averages one part of the vector and sends it to all.
"""

DATA_PARALLEL = {
    "ring": "all-reduce",
    "tree": "tree-all-reduce",
    "central-ps": "central-ps",
    "sharded-ps": "sharded-ps",
    "butterfly": "butterfly",
}
"""`Plan.data_parallel` -> collective, for the kinds that are one collective."""

CHAINS = ("central-ps", "reduce-broadcast")
"""Values of `Plan.data_parallel` that reduce to one rank in a chain, and broadcast from it."""


class RingCut(NamedTuple):
    """Messages into which each member's part of a tensor is cut in a ring.

    The ring goes round once for each pass, with an equal piece of every part, in `slices` messages.
    """

    slices: int = 1
    passes: int = 1

    @property
    def num_messages(self) -> int:
        return self.slices * self.passes


class ChainCut(NamedTuple):
    """Messages into which a tensor is cut in a chain.

    They grow in size over the first `ramp`, and shrink over the last `ramp`: a member passes a
    message on when it has all of it, so short ones at both ends fill and empty a chain quickly.
    """

    slices: int = 1
    ramp: int = 1


SHORT_TENSOR_BYTES = 64 << 10
"""Tensors up to this size are all-reduced in two trees, longer ones in a ring, where each is a call
of its own. NCCL's tuning is somewhere between 6 kB and 1 MB on several nodes: biases and matrices
of a GPT are on either side."""
