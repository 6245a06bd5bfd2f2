"""Execute collectives as NCCL moves them: the stages of `plan.collectives`, slice by slice.

gloo's own broadcast, reduce and all-gather wait for a round trip per step over a long link. Here
receives are posted ahead, and a slice is passed on as soon as it has arrived. Chains post as far
ahead as NCCL's and the kernel's buffers reach: further, data would queue in the sender's shaped
link, in front of other data of its node. Passes of rings, all-reduces one after another, and all
collectives of sharded virtual layers post all receives of the next one: a member sends it only when
it has the one before. The arithmetic is real. All members of a group call the same function with
tensors of the same length and the same slices and passes.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise

import torch

from netbench.plan import collectives as specifications
from netbench.plan.collectives import (
    AllPairs,
    CollectiveStage,
    HopList,
    Relay,
    Ring,
    RingCut,
    relays,
    ring_parts,
)
from netbench.plan.model import Plan
from netbench.trainers.communication.links import ahead_bytes, pace_s
from netbench.trainers.communication.world import (
    TAG_BARRIER,
    TAG_COLLECTIVE,
    TAGS_PER_CHANNEL,
    Lane,
    PendingTransfer,
    World,
)
from netbench.trainers.events import RECORDER, recorded

Bounds = list[tuple[int, int]]

Post = Callable[[], Callable[[], None]]
"""Posts the receives of an operation, and returns the function that does the rest."""


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that take part, in ring order; this process is `members[index]`.

    ahead: slices posted for one sender beside the one that is waited for; None = all. pace_s: least
    seconds per byte from one slice to the next of the sender before this member.
    """

    world: World
    members: tuple[int, ...]
    index: int
    ahead: int | None = None
    pace_s: float = 0.0

    @classmethod
    def of(cls, world: World, members: Sequence[int], ahead: int | None = None) -> "Group":
        """Return the group of these processes, of which this process is one."""
        return cls(world, tuple(members), tuple(members).index(world.rank), ahead)

    @classmethod
    def buffered(
        cls, world: World, members: Sequence[int], plan: Plan, slice_bytes: float
    ) -> "Group":
        """Return a group whose slices run ahead as far as the buffers reach.

        slice_bytes: size of a slice, unscaled.
        """
        group = cls.of(world, members)
        buffer_bytes = ahead_bytes(plan, group.members[group.index - 1], world.rank)
        return replace(group, ahead=max(1, math.ceil(buffer_bytes / slice_bytes)))

    @classmethod
    def paced(cls, world: World, members: Sequence[int], plan: Plan) -> "Group":
        """Return a group whose slices come no faster than through the channels of a collective."""
        group = cls.of(world, members)
        return replace(group, pace_s=pace_s(plan, group.members[group.index - 1], world.rank))

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def neighbours(self) -> set[int]:
        """Processes before and after this one in the ring."""
        around = {self.members[self.index - 1], self.members[(self.index + 1) % self.size]}
        return around - {self.world.rank}

    def backwards(self) -> "Group":
        """Return the group with its members in reverse order."""
        return replace(self, members=self.members[::-1], index=self.size - 1 - self.index)

    def send(self, tensor: torch.Tensor, step: int = 1, channel: int = 0) -> PendingTransfer:
        """Start sending to the member `step` places after this one."""
        target = self.members[(self.index + step) % self.size]
        return self.world.send(tensor, target, _tag(channel))

    def receive(
        self, slices: Iterable[torch.Tensor], step: int = -1, channel: int = 0
    ) -> Iterator[torch.Tensor]:
        """Receive these from the member `step` places after this one; yield each as it arrives.

        The first are posted now, the others as those before them are yielded.
        """
        source = self.members[(self.index + step) % self.size]
        waiting, posted = iter(slices), deque[tuple[torch.Tensor, PendingTransfer]]()

        def post(count: int | None) -> None:
            for tensor in islice(waiting, count):
                posted.append((tensor, self.world.receive(tensor, source, _tag(channel))))

        post(None if self.ahead is None else self.ahead + 1)
        return self._yield_arrived(posted, post)

    def _yield_arrived(
        self, posted: deque[tuple[torch.Tensor, PendingTransfer]], post: Callable[[int], None]
    ) -> Iterator[torch.Tensor]:
        ready_s = 0.0
        while posted:
            tensor, transfer = posted.popleft()
            transfer.wait()
            if self.pace_s:
                now_s = time.monotonic()
                ready_s = max(ready_s + self.pace_s * tensor.nbytes, now_s)
                time.sleep(ready_s - now_s)
            post(1)
            yield tensor


def _tag(channel: int) -> int:
    return TAG_COLLECTIVE + TAGS_PER_CHANNEL * channel


def count_slices(plan: Plan, full_bytes: float) -> int:
    """Return the number of slices of a chain or ring over this many bytes at full size."""
    return _count(plan, full_bytes, plan.transport.chunk_bytes)


def tree_slices(plan: Plan, full_bytes: float) -> int:
    """Return the number of slices in each of two trees over this many bytes at full size."""
    return _count(plan, full_bytes / 2, plan.transport.tree_chunk_bytes)


def sliced(num_slices: int, size: int) -> RingCut:
    """Return a cut in one pass that gives a tensor about this many slices among `size` members."""
    return RingCut(slices=max(1, num_slices // size))


def _count(plan: Plan, full_bytes: float, chunk_bytes: int) -> int:
    return max(1, min(plan.transport.max_slices, round(full_bytes / chunk_bytes)))


def split(length: int, count: int) -> Bounds:
    """Return [start, stop) of the parts of `equal_chunks` that are not empty."""
    return [(a, b) for a, b in equal_chunks(length, count) if b > a]


def equal_chunks(length: int, count: int) -> Bounds:
    """Return [start, stop) of `count` nearly equal parts of `length` elements, some empty."""
    return list(pairwise(length * i // count for i in range(count + 1)))


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
    group = replace(group, ahead=None)
    match stage:
        case Ring():
            return _ring_posts(group, stage, tensor, cut)
        case HopList():
            slices = num_slices if stage.sliced else 1
            return [partial(_post_hops, group, stage, tensor, slices)]
        case AllPairs():
            chunks = equal_chunks(tensor.numel(), group.size)
            if not stage.adds:
                return [partial(_post_all_to_all_gather, group, tensor, chunks)]
            mine = tensor[slice(*chunks[group.index])]
            return [partial(_post_all_to_all_sum, group, mine, tensor, chunks)]


def _ring_posts(group: Group, stage: Ring, tensor: torch.Tensor, cut: RingCut) -> list[Post]:
    """Return the passes of a ring over equal parts for `run_ahead`."""
    chunks = equal_chunks(tensor.numel(), group.size)
    if stage.backwards:
        group, chunks = group.backwards(), chunks[::-1]
    if stage.reduces and stage.gathers:
        return _all_reduce_posts(group, tensor, cut, chunks)
    if stage.reduces:
        mine = tensor[slice(*chunks[group.index])]
        return _reduce_scatter_posts(group, mine, tensor, chunks, cut)
    return _all_gather_posts(group, tensor, chunks, cut)


def run_hops(group: Group, stage: HopList, tensor: torch.Tensor, num_slices: int) -> None:
    """Execute this member's hops, slice by slice; every channel has its own thread.

    A partial sum is passed on and not kept. num_slices: of each part, if the stage is sliced.
    """
    _post_hops(group, stage, tensor, num_slices)()


def _post_hops(
    group: Group, stage: HopList, tensor: torch.Tensor, num_slices: int
) -> Callable[[], None]:
    """Post the receives of `run_hops`; return the function that does the rest."""
    slices = [
        _cut(tensor, _inside(part, num_slices if stage.sliced else 1))
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
        _wait_all([transfer for transfers in sent for transfer in transfers])

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
        _wait_all(sends)

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
def chain_reduce(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Sum into member 0's tensor. Other tensors stay as they are."""
    run_hops(group, *specifications.chain_reduce(group.size), tensor, num_slices)


@recorded("collective")
def chain_broadcast(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Copy member 0's tensor to all."""
    run_hops(group, *specifications.chain_broadcast(group.size), tensor, num_slices)


@recorded("collective")
def tree_all_reduce(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Sum over the members, in place, as NCCL does on many nodes. num_slices: of each half."""
    run_hops(group, *specifications.tree_all_reduce(group.size), tensor, num_slices)


@recorded("collective")
def ring_reduce_scatter(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds, cut: RingCut
) -> None:
    """Sum tensor[chunks[i]] over the members into member i's `output`; `tensor` is kept.

    chunks: (size, 2) bounds within `tensor`, one per member.
    """
    run_ahead(_reduce_scatter_posts(group, output, tensor, chunks, cut))


@recorded("collective")
def ring_all_gather(group: Group, tensor: torch.Tensor, chunks: Bounds, cut: RingCut) -> None:
    """Copy member i's tensor[chunks[i]] to every other member's tensor, in place."""
    run_ahead(_all_gather_posts(group, tensor, chunks, cut))


def _reduce_scatter_posts(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds, cut: RingCut
) -> list[Post]:
    mine = slice(*chunks[group.index])
    if group.size == 1:
        return [lambda: lambda: _copy(tensor[mine], output)]
    scratch = torch.empty_like(tensor)
    last = partial(_copy, scratch[mine], output)
    return _round_posts(group, tensor, scratch, chunks, cut, adds=True, last=last)


def _all_gather_posts(
    group: Group, tensor: torch.Tensor, chunks: Bounds, cut: RingCut
) -> list[Post]:
    if group.size == 1:
        return [lambda: lambda: None]
    return _round_posts(group, tensor, tensor, chunks, cut, adds=False)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def _round_posts(
    group: Group,
    own: torch.Tensor,
    into: torch.Tensor,
    chunks: Bounds,
    cut: RingCut,
    *,
    adds: bool,
    last: Callable[[], None] = lambda: None,
) -> list[Post]:
    """Receive chunks of a ring in `into`, slice by slice, and pass them on, with `own` if it adds.

    last: called when all has been received; sends may still be under way.
    """
    group, parts = _in_passes(group, chunks, cut.passes)
    sends: list[PendingTransfer] = []

    def post(part: Bounds) -> Callable[[], None]:
        run = _post_pass(group, own, into, part, cut.slices, adds=adds)

        def run_pass() -> None:
            sends.extend(run())
            if part is parts[-1]:
                last()
                _wait_all(sends)

        return run_pass

    return [partial(post, part) for part in parts]


def _in_passes(group: Group, chunks: Bounds, num_passes: int) -> tuple[Group, list[Bounds]]:
    """Return the piece of every chunk that each pass moves, and a group that posts all receives of
    a pass: one pass may be posted behind another."""
    if num_passes == 1:
        return group, [chunks]
    cut = [equal_chunks(stop - start, num_passes) for start, stop in chunks]
    parts = [
        [(start + a, start + b) for (start, _), (a, b) in zip(chunks, part, strict=True)]
        for part in zip(*cut, strict=True)
    ]
    return replace(group, ahead=None), parts


def run_ahead(posts: Iterable[Post]) -> None:
    """Run operations in order, each when the receives of the next one are posted."""
    run: Callable[[], None] | None = None
    for post in posts:
        following = post()
        if run is not None:
            run()
        run = following
    if run is not None:
        run()


def _post_pass(
    group: Group, own: torch.Tensor, into: torch.Tensor, chunks: Bounds, num_slices: int, *,
    adds: bool,
) -> Callable[[], list[PendingTransfer]]:  # fmt: skip
    """Post the receives of one pass; return the function that does the rest."""
    first, *others = _ring_slices(group, chunks, num_slices, adds=adds)
    rest = [bounds for slices in others for bounds in slices]
    num_passed_on = len(rest) - len(others[-1])
    received = group.receive(_cut(into, rest))

    def run() -> list[PendingTransfer]:
        sends = [group.send(part) for part in _cut(own, first)]
        for i, (part, mine) in enumerate(zip(received, _cut(own, rest), strict=True)):
            if adds:
                part += mine
            if i < num_passed_on:
                sends.append(group.send(part))
        return sends

    return run


def _ring_slices(group: Group, chunks: Bounds, num_slices: int, *, adds: bool) -> list[Bounds]:
    """Return the slices of the chunk that this member sends first in a ring, then of those that it
    receives, in order. num_slices: of each chunk."""
    order = ring_parts(group.size, group.index, adds=adds)
    return [_inside(chunks[part], num_slices) for part in order]


@recorded("collective")
def ring_all_reduce(
    group: Group, tensor: torch.Tensor, cut: RingCut, chunks: Bounds | None = None
) -> None:
    """Sum over the members, in place: a reduce-scatter and an all-gather without a pause.

    chunks: as in `ring_reduce_scatter`; None = equal ones.
    """
    run_ahead(_all_reduce_posts(group, tensor, cut, chunks))


def _all_reduce_posts(
    group: Group, tensor: torch.Tensor, cut: RingCut, chunks: Bounds | None = None
) -> list[Post]:
    chunks = chunks or equal_chunks(tensor.numel(), group.size)
    group, parts = _in_passes(group, chunks, cut.passes)
    return [partial(_post_ring_all_reduce, group, tensor, cut.slices, part) for part in parts]


def _post_ring_all_reduce(
    group: Group, tensor: torch.Tensor, num_slices: int, chunks: Bounds
) -> Callable[[], None]:
    """Post the receives of `ring_all_reduce`; return the function that does the rest.

    A sum that arrives already contains this member's part, so it may overwrite that part.
    num_slices: of each chunk.
    """
    if group.size == 1:
        return lambda: None
    first, *adding = _ring_slices(group, chunks, num_slices, adds=True)
    _, *copying = _ring_slices(group, chunks, num_slices, adds=False)
    own = _cut(tensor, [bounds for slices in adding for bounds in slices])
    sums = _cut(tensor, [bounds for slices in copying for bounds in slices])
    received = group.receive([*map(torch.empty_like, own), *sums])
    num_partial, num_passed_on = len(own) - len(adding[-1]), len(sums) - len(copying[-1])

    def run() -> None:
        sends = [group.send(part) for part in _cut(tensor, first)]
        for i, mine in enumerate(own):
            total = next(received).add_(mine)
            sends.append(group.send(total if i < num_partial else mine.copy_(total)))
        for i, total in enumerate(received):
            if i < num_passed_on:
                sends.append(group.send(total))
        _wait_all(sends)

    return run


def all_reduce_each(
    group: Group, tensors: Sequence[torch.Tensor], cuts: Sequence[RingCut | None]
) -> None:
    """Sum tensors over the members, in place, one after another. The receives of the next one are
    posted while one is summed, as NCCL's buffers are ready.

    cuts: of each tensor in its ring; None = two trees.
    """
    group = replace(group, ahead=None)  # else not all receives of a tensor would be posted
    (trees,) = specifications.tree_all_reduce(group.size)
    posts: list[Post] = []
    for tensor, cut in zip(tensors, cuts, strict=True):
        if cut is None:
            posts.append(partial(_post_hops, group, trees, tensor, 1))
        else:
            posts += _all_reduce_posts(group, tensor, cut)
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
        sends = exchange(_cut(tensor, chunks))
        output.zero_()
        for part in parts:
            output.add_(part)
        _wait_all(sends)

    return run


@recorded("collective")
def all_to_all_gather(group: Group, tensor: torch.Tensor, chunks: Bounds) -> None:
    """Copy member i's tensor[chunks[i]] to every other member's tensor, directly, all at once."""
    _post_all_to_all_gather(group, tensor, chunks)()


def _post_all_to_all_gather(
    group: Group, tensor: torch.Tensor, chunks: Bounds
) -> Callable[[], None]:
    parts = _cut(tensor, chunks)
    exchange = _post_exchange(group, parts)
    return lambda: _wait_all(exchange([parts[group.index]] * group.size))


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


class Barrier:
    """A dissemination barrier: ceil(log2 n) steps of one byte; no member leaves before all came.

    As gloo's: a receive is posted when its step comes, so a step takes a round trip. Source: gloo,
    `gloo/barrier.cc`. The algorithm is Hensgen, Finkel, Manber, "Two algorithms for barrier
    synchronization" (1988).
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._distances = [1 << k for k in range((group.size - 1).bit_length())]
        self._byte = torch.zeros(1, dtype=torch.uint8)

    @property
    def peers(self) -> set[int]:
        """Processes this one exchanges bytes with."""
        me, members = self._group.index, self._group.members
        both = [me + d for d in self._distances] + [me - d for d in self._distances]
        return {members[i % len(members)] for i in both}

    @recorded("barrier")
    def wait(self) -> None:
        """Block until every member has come."""
        world, members, me = self._group.world, self._group.members, self._group.index
        for distance in self._distances:
            source, target = (members[(me + d) % len(members)] for d in (-distance, distance))
            received = world.receive(torch.empty(1, dtype=torch.uint8), source, TAG_BARRIER)
            sent = world.send(self._byte, target, TAG_BARRIER)
            received.wait()
            sent.wait()


def _cut(tensor: torch.Tensor, bounds: Bounds) -> list[torch.Tensor]:
    return [tensor[a:b] for a, b in bounds]


def _inside(chunk: tuple[int, int], count: int) -> Bounds:
    start, stop = chunk
    return [(start + a, start + b) for a, b in split(stop - start, count)]


def _wait_all(transfers: Sequence[PendingTransfer]) -> None:
    for transfer in transfers:
        transfer.wait()
