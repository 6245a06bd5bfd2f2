"""Execute collectives as NCCL moves them: the stages of `plan.collectives`, slice by slice.

gloo's own broadcast, reduce and all-gather wait for a round trip per step over a long link. Here
receives are posted ahead, and a slice is passed on as soon as it has arrived. Chains post as far
ahead as NCCL's and the kernel's buffers reach: further, data would queue in the sender's shaped
link, in front of other data of its node. All-reduces one after another, and all collectives of
sharded virtual layers, post all receives of the next one: a member sends it only when it has the
one before. The arithmetic is real. All members of a group call the same function with
tensors of the same length and the same slices and passes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch

from netbench.plan import collectives as specifications
from netbench.plan.collectives import (
    AllPairs,
    ChainCut,
    CollectiveStage,
    HopList,
    Relay,
    Ring,
    RingCut,
    relays,
)
from netbench.trainers.communication.group import Group, Post, run_ahead, wait_all
from netbench.trainers.communication.rings import all_reduce_posts, ring_posts
from netbench.trainers.communication.slices import (
    Bounds,
    chain_slices,
    cut_at,
    equal_chunks,
    sliced,
)
from netbench.trainers.communication.world import Lane, PendingTransfer
from netbench.trainers.events import RECORDER, recorded

WHOLE = ChainCut()


def run_stages(
    group: Group,
    stages: Sequence[CollectiveStage],
    tensor: torch.Tensor,
    num_slices: int = 1,
    cut: RingCut | None = None,
) -> None:
    """Execute an algorithm in place.

    A part of `tensor` that the algorithm leaves to other members may be overwritten.
    num_slices: of the tensor, in chains; of each part, in other hops. cut: in rings; None = into
    that many slices.
    """
    cut = cut or sliced(num_slices, group.size)
    for stage in stages:
        with RECORDER.span("collective", name=type(stage).__name__):
            run_ahead(stage_posts(group, stage, tensor, num_slices, cut))


def stage_posts(
    group: Group, stage: CollectiveStage, tensor: torch.Tensor, num_slices: int, cut: RingCut
) -> list[Post]:
    """Return a stage of `run_stages` for `run_ahead`: a ring as its passes, others as one.

    All receives of one are posted at once. A stage that is posted behind another one may overwrite
    what that still reads, so only virtual tensors go through several stages in one `run_ahead`.
    num_slices: of a sliced stage.
    """
    group = replace(group, ahead_bytes=math.inf)
    match stage:
        case Ring():
            return ring_posts(group, stage, tensor, cut)
        case HopList():
            return [partial(_post_hops, group, stage, tensor, ChainCut(num_slices))]
        case AllPairs():
            chunks = equal_chunks(tensor.numel(), group.size)
            if not stage.adds:
                return [partial(_post_all_to_all_gather, group, tensor, chunks)]
            mine = tensor[slice(*chunks[group.index])]
            return [partial(_post_all_to_all_sum, group, mine, tensor, chunks)]


def run_hops(group: Group, stage: HopList, tensor: torch.Tensor, cut: ChainCut) -> None:
    """Execute this member's hops, slice by slice; every channel has its own thread.

    A partial sum is passed on and not kept. cut: of each part, if the stage is sliced.
    """
    _post_hops(group, stage, tensor, cut)()


def _post_hops(
    group: Group, stage: HopList, tensor: torch.Tensor, cut: ChainCut = WHOLE
) -> Callable[[], None]:
    """Post the receives of `run_hops`; return the function that does the rest."""
    slices = [
        cut_at(tensor, chain_slices(part, cut if stage.sliced else WHOLE))
        for part in equal_chunks(tensor.numel(), stage.num_parts)
    ]
    by_channel: dict[int, list[Relay]] = {}
    first: list[Relay] = []  # parts that this member has itself
    for relay in relays(stage, group.index):
        channel = by_channel.setdefault(relay.receives[0].channel, []) if relay.receives else first
        channel.append(relay)
    running = [_pass_on(group, relays_, slices) for relays_ in by_channel.values()]  # posts

    def run() -> None:
        sent = [
            _send(group, relay, part) for relay in first for part in slices[relay.sends[0].part]
        ]
        if len(running) < 2:
            for work in running:
                work()
        else:
            # At once: each channel waits for other members.
            with ThreadPoolExecutor(max_workers=len(running)) as threads:
                for future in [threads.submit(work) for work in running]:
                    future.result()
        wait_all([transfer for transfers in sent for transfer in transfers])

    return run


def _pass_on(
    group: Group, relays: Sequence[Relay], slices: list[list[torch.Tensor]]
) -> Callable[[], None]:
    """Post the receives of one channel; return the function that handles them in order."""

    def buffers(source: int) -> Iterator[torch.Tensor]:
        for relay in relays:
            for hop in relay.receives:
                if hop.source == source:
                    # Straight into its place, unless it is added to what is there.
                    part = slices[hop.part]
                    yield from (torch.empty_like(own) if hop.adds else own for own in part)

    sources = dict.fromkeys(hop.source for relay in relays for hop in relay.receives)
    channel = relays[0].receives[0].channel
    arriving = {
        source: group.receive(buffers(source), source - group.index, channel) for source in sources
    }

    def work() -> None:
        sends: list[PendingTransfer] = []
        for relay in relays:
            for own in slices[relay.receives[0].part]:
                total = own
                for hop in relay.receives:
                    piece = next(arriving[hop.source])
                    if hop.adds:
                        total = piece.add_(total)
                if total is not own and not any(hop.adds for hop in relay.sends):
                    total = own.copy_(total)
                sends += _send(group, relay, total)
        wait_all(sends)

    return work


def _send(group: Group, relay: Relay, tensor: torch.Tensor) -> list[PendingTransfer]:
    return [group.send(tensor, hop.target - group.index, hop.channel) for hop in relay.sends]


def stage_peers(group: Group, stages: Sequence[CollectiveStage]) -> set[int]:
    """Return the processes that this one exchanges data with."""
    me = group.index
    ends = [(hop.source, hop.target) for stage in stages for hop in stage.list_hops(group.size)]
    return {group.members[b if a == me else a] for a, b in ends if me in (a, b)}


def stage_lanes(group: Group, stages: Sequence[CollectiveStage]) -> set[Lane]:
    """Return the lanes on which this process sends and receives."""
    me = group.index
    return {
        (group.members[hop.source], group.members[hop.target], hop.channel)
        for stage in stages
        for hop in stage.list_hops(group.size)
        if me in (hop.source, hop.target)
    }


def tree_lanes(group: Group) -> set[Lane]:
    """Return the lanes of this process in two trees."""
    return stage_lanes(group, specifications.tree_all_reduce(group.size))


def tree_peers(group: Group) -> set[int]:
    """Return the processes that this one exchanges data with in two trees."""
    return stage_peers(group, specifications.tree_all_reduce(group.size))


@recorded("collective")
def chain_reduce(group: Group, tensor: torch.Tensor, cut: ChainCut) -> None:
    """Sum into member 0's tensor. Other tensors stay as they are."""
    run_hops(group, *specifications.chain_reduce(group.size), tensor, cut)


@recorded("collective")
def chain_broadcast(group: Group, tensor: torch.Tensor, cut: ChainCut) -> None:
    """Copy member 0's tensor to all."""
    run_hops(group, *specifications.chain_broadcast(group.size), tensor, cut)


@recorded("collective")
def tree_all_reduce(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Sum over the members, in place, as NCCL does on many nodes. num_slices: of each half."""
    run_ahead(tree_posts(group, tensor, num_slices))


def tree_posts(group: Group, tensor: torch.Tensor, num_slices: int) -> list[Post]:
    """Return `tree_all_reduce` for `run_ahead`."""
    (trees,) = specifications.tree_all_reduce(group.size)
    return [partial(_post_hops, group, trees, tensor, ChainCut(num_slices))]


class NumberSum:
    """Sums a number over the members, up and down a tree, time and again. The receives of the next
    sum are posted before one begins, as NCCL's buffers are ready."""

    def __init__(self, group: Group) -> None:
        self._group = replace(group, ahead_bytes=math.inf)
        (self._tree,) = specifications.number_all_reduce(group.size)
        self._left = 0
        self._posted: list[tuple[torch.Tensor, Callable[[], None]]] = []

    @property
    def peers(self) -> set[int]:
        """Processes that this one exchanges numbers with."""
        return stage_peers(self._group, [self._tree])

    def open(self, count: int) -> None:
        """Expect `count` sums from now on."""
        self._left = count
        self._post()

    def run(self, number: float = 0.0) -> float:
        """Return the sum of all members' numbers, once all have come."""
        tensor, finish = self._posted.pop()
        self._post()
        tensor.fill_(number)
        finish()
        return float(tensor)

    def _post(self) -> None:
        if self._left:
            self._left -= 1
            tensor = torch.zeros(1)
            self._posted.append((tensor, _post_hops(self._group, self._tree, tensor)))


def all_reduce_each(
    group: Group, tensors: Sequence[torch.Tensor], cuts: Sequence[RingCut | None]
) -> None:
    """Sum tensors over the members, in place, one after another. The receives of the next one are
    posted while one is summed, as NCCL's buffers are ready.

    cuts: of each tensor in its ring; None = two trees.
    """
    group = replace(group, ahead_bytes=math.inf)  # else not all receives would be posted
    (trees,) = specifications.tree_all_reduce(group.size)
    posts: list[Post] = []
    for tensor, cut in zip(tensors, cuts, strict=True):
        if cut is None:
            posts.append(partial(_post_hops, group, trees, tensor))
        else:
            posts += all_reduce_posts(group, tensor, cut)
    with RECORDER.span("collective", name="all_reduce"):
        run_ahead(posts)


@recorded("collective")
def all_to_all_sum(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds
) -> None:
    """Sum tensor[chunks[i]] over the members into member i's `output`.

    All send at once, directly. `output` may be that part of `tensor`; the rest is kept. chunks: as
    in `ring_reduce_scatter`. Parts are summed in the order of members.
    """
    _post_all_to_all_sum(group, output, tensor, chunks)()


def _post_all_to_all_sum(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds
) -> Callable[[], None]:
    own = group.index
    parts = [torch.empty_like(output) for _ in group.members]
    exchange = _post_exchange(group, parts)

    def run() -> None:
        parts[own].copy_(tensor[slice(*chunks[own])])
        sends = exchange(cut_at(tensor, chunks))
        output.zero_()
        for part in parts:
            output.add_(part)
        wait_all(sends)

    return run


@recorded("collective")
def all_to_all_gather(group: Group, tensor: torch.Tensor, chunks: Bounds) -> None:
    """Copy member i's tensor[chunks[i]] to every other member's tensor, directly, all at once."""
    _post_all_to_all_gather(group, tensor, chunks)()


def _post_all_to_all_gather(
    group: Group, tensor: torch.Tensor, chunks: Bounds
) -> Callable[[], None]:
    parts = cut_at(tensor, chunks)
    exchange = _post_exchange(group, parts)
    return lambda: wait_all(exchange([parts[group.index]] * group.size))


def _post_exchange(
    group: Group, incoming: Sequence[torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], list[PendingTransfer]]:
    """Post a receive from every other member, all at once; empty tensors do not travel. Return the
    function that sends one to each, and returns the sends, which may still be under way."""
    own = group.index
    others = [(own + step) % group.size for step in range(1, group.size)]
    arriving = [group.receive([incoming[i]], i - own) for i in others if incoming[i].numel()]

    def exchange(outgoing: Sequence[torch.Tensor]) -> list[PendingTransfer]:
        sends = [group.send(outgoing[i], i - own) for i in others if outgoing[i].numel()]
        for received in arriving:
            next(received)
        return sends

    return exchange
