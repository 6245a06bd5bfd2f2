"""Groups of processes: transfers between members, operations one after another, a barrier."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from netbench.plan.model import Plan
from netbench.trainers.communication.links import ahead_bytes, pace_s
from netbench.trainers.communication.world import (
    TAG_BARRIER,
    TAG_COLLECTIVE,
    TAGS_PER_CHANNEL,
    PendingTransfer,
    World,
)
from netbench.trainers.events import recorded

Post = Callable[[], Callable[[], None]]
"""Posts the receives of an operation, and returns the function that does the rest."""


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that take part, in ring order; this process is `members[index]`.

    ahead_bytes: receives beyond the awaited one are posted until they have this many. pace_s: least
    seconds per byte from one slice to the next, over the path from the member before this one.
    """

    world: World
    members: tuple[int, ...]
    index: int
    ahead_bytes: float = math.inf
    pace_s: float = 0.0

    @classmethod
    def of(cls, world: World, members: Sequence[int], ahead_bytes: float = math.inf) -> "Group":
        """Return the group of these processes, of which this process is one."""
        return cls(world, tuple(members), tuple(members).index(world.rank), ahead_bytes)

    @classmethod
    def buffered(cls, world: World, members: Sequence[int], plan: Plan) -> "Group":
        """Return a paced group whose slices run ahead as far as the buffers reach."""
        group = cls.paced(world, members, plan)
        buffer_bytes = ahead_bytes(plan, group.members[group.index - 1], world.rank)
        return replace(group, ahead_bytes=buffer_bytes / plan.scale)

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

        def post() -> None:
            if math.isinf(self.ahead_bytes) and posted:
                return  # all of them are
            beyond = sum(tensor.nbytes for tensor, _ in islice(posted, 1, None))
            while not posted or beyond < self.ahead_bytes:
                if (tensor := next(waiting, None)) is None:
                    return
                beyond += tensor.nbytes if posted else 0
                posted.append((tensor, self.world.receive(tensor, source, _tag(channel))))

        post()
        return self._yield_arrived(posted, post)

    def _yield_arrived(
        self, posted: deque[tuple[torch.Tensor, PendingTransfer]], post: Callable[[], None]
    ) -> Iterator[torch.Tensor]:
        ready_s = 0.0
        while posted:
            tensor, transfer = posted.popleft()
            transfer.wait()
            if self.pace_s:
                now_s = time.monotonic()
                ready_s = max(ready_s + self.pace_s * tensor.nbytes, now_s)
                time.sleep(ready_s - now_s)
            post()
            yield tensor


def _tag(channel: int) -> int:
    return TAG_COLLECTIVE + TAGS_PER_CHANNEL * channel


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


def wait_all(transfers: Sequence[PendingTransfer]) -> None:
    """Block until these are done."""
    for transfer in transfers:
        transfer.wait()
