"""Collectives as NCCL moves them: chains and rings of slices.

gloo's own broadcast, reduce and all-gather wait for a round trip per step over a long link. Here
receives are posted ahead, as far as NCCL's and the kernel's buffers reach, and a slice goes on as
soon as it has come. Not further ahead: what is let through queues in the sender's shaped link, in
front of what else its node sends. The arithmetic is real. All members of a group call the
same function with tensors of the same length and the same `num_slices`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import torch

from netbench.plan import Plan
from netbench.trainers.events import recorded
from netbench.trainers.links import ahead_bytes
from netbench.trainers.world import TAG_BARRIER, TAG_COLLECTIVE, Work, World

MAX_SLICES = 32
"""Slices of one collective: enough to fill a chain of 8, few enough to be cheap to emulate."""

Bounds = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that take part, in ring order; this process is `members[index]`.

    ahead: slices that this process lets come beside the one it waits for.
    """

    world: World
    members: tuple[int, ...]
    index: int
    ahead: int = MAX_SLICES

    @classmethod
    def of(cls, world: World, members: Sequence[int], ahead: int = MAX_SLICES) -> Group:
        """The group of these processes, of which this process is one."""
        return cls(world, tuple(members), tuple(members).index(world.rank), ahead)

    @classmethod
    def buffered(
        cls, world: World, members: Sequence[int], plan: Plan, slice_bytes: float
    ) -> Group:
        """A group whose slices, of this size unscaled, run ahead as far as the buffers reach."""
        group = cls.of(world, members)
        buffer_bytes = ahead_bytes(plan, group.members[group.index - 1], world.rank)
        return replace(group, ahead=max(1, math.ceil(buffer_bytes / slice_bytes)))

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def neighbours(self) -> set[int]:
        """Processes this one exchanges data with."""
        around = {self.members[self.index - 1], self.members[(self.index + 1) % self.size]}
        return around - {self.world.rank}

    def send(self, tensor: torch.Tensor) -> Work:
        """Start sending to the member after this one."""
        after = self.members[(self.index + 1) % self.size]
        return self.world.send(tensor, after, TAG_COLLECTIVE)

    def receive(self, slices: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Receive these from the member before this one; each is handed out when it has come.

        The first are posted now, the others as those before them are handed out.
        """
        waiting, posted = iter(slices), deque[tuple[torch.Tensor, Work]]()

        def post() -> None:
            for tensor in islice(waiting, 1):
                work = self.world.receive(tensor, self.members[self.index - 1], TAG_COLLECTIVE)
                posted.append((tensor, work))

        for _ in range(self.ahead + 1):
            post()
        return self._hand_out(posted, post)

    @staticmethod
    def _hand_out(
        posted: deque[tuple[torch.Tensor, Work]], post: Callable[[], None]
    ) -> Iterator[torch.Tensor]:
        while posted:
            tensor, work = posted.popleft()
            work.wait()
            post()
            yield tensor


def count_slices(full_bytes: float, chunk_bytes: int) -> int:
    """Slices for a collective of this many bytes at full size."""
    return max(1, min(MAX_SLICES, round(full_bytes / chunk_bytes)))


def split(length: int, count: int) -> Bounds:
    """[start, stop) of `count` nearly equal parts of `length` elements; empty ones left out."""
    return [(a, b) for a, b in equal_chunks(length, count) if b > a]


def equal_chunks(length: int, count: int) -> Bounds:
    """[start, stop) of `count` nearly equal parts of `length` elements; some may be empty."""
    return list(pairwise(length * i // count for i in range(count + 1)))


@recorded("collective")
def chain_reduce(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Sum into member 0's tensor, along 1 -> 2 -> ... -> n-1 -> 0. Other tensors stay as they are.

    Source of the order: NCCL's ring, which a reduce walks towards its root.
    """
    first, last = group.index == 1 % group.size, group.index == 0
    mine = _cut(tensor, split(tensor.numel(), num_slices))
    scratch = torch.empty_like(tensor)
    sends = []
    if not first:
        sums = _cut(scratch, split(tensor.numel(), num_slices))
        for part, own in zip(group.receive(sums), mine, strict=True):
            part += own
            if not last:
                sends.append(group.send(part))
        if last:
            tensor.copy_(scratch)
    elif not last:
        sends = [group.send(own) for own in mine]
    _wait_all(sends)


@recorded("collective")
def chain_broadcast(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Copy member 0's tensor to all, along 0 -> 1 -> ... -> n-1."""
    parts: Iterable[torch.Tensor] = _cut(tensor, split(tensor.numel(), num_slices))
    if group.index > 0:
        parts = group.receive(parts)
    if group.index < group.size - 1:
        _wait_all([group.send(part) for part in parts])
    else:
        for _ in parts:
            pass


@recorded("collective")
def ring_reduce_scatter(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds, num_slices: int
) -> None:
    """Member i's `output` becomes the sum over members of tensor[chunks[i]]; `tensor` is kept.

    chunks: (size, 2) bounds within `tensor`, one per member.
    """
    n, me = group.size, group.index
    if n == 1:
        output.copy_(tensor[slice(*chunks[me])])
        return
    scratch = torch.empty_like(tensor)
    per_chunk = max(1, num_slices // n)
    # Step by step around the ring: the chunk before ours first, ours last.
    steps = [_inside(chunks[(me - step) % n], per_chunk) for step in range(1, n + 1)]
    sends = [group.send(part) for part in _cut(tensor, steps[0])]
    rest = [bounds for slices in steps[1:] for bounds in slices]
    parts = zip(group.receive(_cut(scratch, rest)), _cut(tensor, rest), strict=True)
    num_passed_on = len(rest) - len(steps[-1])
    for i, (part, own) in enumerate(parts):
        part += own
        if i < num_passed_on:
            sends.append(group.send(part))
    output.copy_(scratch[slice(*chunks[me])])
    _wait_all(sends)


@recorded("collective")
def ring_all_gather(group: Group, tensor: torch.Tensor, chunks: Bounds, num_slices: int) -> None:
    """Member i's tensor[chunks[i]] goes to every other member's tensor, in place."""
    n, me = group.size, group.index
    per_chunk = max(1, num_slices // n)
    steps = [_inside(chunks[(me - step) % n], per_chunk) for step in range(n)]
    sends = [group.send(part) for part in _cut(tensor, steps[0])] if n > 1 else []
    rest = [bounds for slices in steps[1:] for bounds in slices]
    num_passed_on = len(rest) - len(steps[-1])
    for i, part in enumerate(group.receive(_cut(tensor, rest))):
        if i < num_passed_on:
            sends.append(group.send(part))
    _wait_all(sends)


def ring_all_reduce(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Sum over the members, in place: reduce-scatter, then all-gather."""
    chunks = equal_chunks(tensor.numel(), group.size)
    mine = tensor[slice(*chunks[group.index])]
    ring_reduce_scatter(group, mine, tensor, chunks, num_slices)
    ring_all_gather(group, tensor, chunks, num_slices)


@recorded("collective")
def all_to_all_sum(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds
) -> None:
    """Member i's `output` becomes the sum over members of tensor[chunks[i]], which all send it
    directly and at once. `output` may be that part of `tensor`; the rest is kept.

    chunks: as in `ring_reduce_scatter`. Summed in the order of members.
    """
    own = group.index
    parts = [torch.empty_like(output) for _ in group.members]
    parts[own].copy_(tensor[slice(*chunks[own])])
    others = [(own + step) % group.size for step in range(1, group.size)]
    receives = [
        group.world.receive(parts[i], group.members[i], TAG_COLLECTIVE)
        for i in others
        if output.numel()
    ]
    sends = [
        group.world.send(tensor[slice(*chunks[i])], group.members[i], TAG_COLLECTIVE)
        for i in others
        if chunks[i][1] > chunks[i][0]
    ]
    _wait_all(receives)
    output.zero_()
    for part in parts:
        output += part
    _wait_all(sends)


class Barrier:
    """A dissemination barrier: ceil(log2 n) steps of one byte; nobody leaves before all came.

    Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988).
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
        """Block until every member is here."""
        world, members, me = self._group.world, self._group.members, self._group.index
        sources = [members[(me - d) % len(members)] for d in self._distances]
        receives = [
            world.receive(torch.empty(1, dtype=torch.uint8), s, TAG_BARRIER) for s in sources
        ]
        sends = []
        for receive, distance in zip(receives, self._distances, strict=True):
            target = members[(me + distance) % len(members)]
            sends.append(world.send(self._byte, target, TAG_BARRIER))
            receive.wait()
        _wait_all(sends)


def _cut(tensor: torch.Tensor, bounds: Bounds) -> list[torch.Tensor]:
    return [tensor[a:b] for a, b in bounds]


def _inside(chunk: tuple[int, int], count: int) -> Bounds:
    start, stop = chunk
    return [(start + a, start + b) for a, b in split(stop - start, count)]


def _wait_all(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()
