"""All-reduce over two trees, as NCCL does on many nodes: half of the tensor up and down each.

Who is a leaf of one tree is none of the other, so that all send about as much (Sanders, Speck,
Träff: Two-tree algorithms, 2009). Slices go up, are summed on the way, and go down again from the
root as soon as they are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from netbench.trainers.collectives import Group, count_slices, split
from netbench.trainers.events import recorded
from netbench.trainers.world import Work

CHUNK_BYTES = 1 << 20
"""Slice of a tree: 1 of the 8 parts of a 4 MiB buffer, in each of 2 channels. Source: NCCL,
`NCCL_STEPS`, `NCCL_BUFFSIZE`, as in the simulator."""

TAGS = ((16, 17), (18, 19))
"""Up and down each tree: two processes may be joined in both. Apart from those of `world`."""


def double_tree(n: int) -> tuple[list[int], list[int]]:
    """Parents of n members in NCCL's two trees, -1 for the root. Source: NCCL, `graph/trees.cc`.

    In the first, i hangs where its lowest bit is replaced by the next higher one, or, were that
    beyond the last, is left out. The second is the first mirrored, or shifted by one if n is odd.
    """
    first = [-1]
    for i in range(1, n):
        low = i & -i
        above = (i ^ low) | (low << 1)
        first.append(above if above < n else i ^ low)
    if n % 2:
        return first, [(first[i - 1] + 1) % n if first[i - 1] >= 0 else -1 for i in range(n)]
    return first, [n - 1 - parent if parent >= 0 else -1 for parent in reversed(first)]


def tree_slices(full_bytes: float) -> int:
    """Slices in each of the two trees, of a tensor of this many bytes at full size."""
    return count_slices(full_bytes / 2, CHUNK_BYTES)


def tree_peers(members: Sequence[int], index: int) -> set[int]:
    """Processes that member `index` exchanges data with."""
    found = set()
    for parents in double_tree(len(members)):
        above, below = _neighbours(parents, index)
        found |= {members[i] for i in (*above, *below)}
    return found


@recorded("collective")
def tree_all_reduce(group: Group, tensor: torch.Tensor, num_slices: int) -> None:
    """Sum over the members, in place. num_slices: of each half."""
    if group.size == 1:
        return
    halves = tensor.tensor_split(2)
    trees = zip(double_tree(group.size), halves, TAGS, strict=True)
    # Up and down at once in both trees: each waits for others than the other three.
    with ThreadPoolExecutor(max_workers=4) as threads:
        running = []
        for parents, half, tags in trees:
            tree = _Tree(group, parents, half, num_slices, tags)
            running += [threads.submit(tree.go_up), threads.submit(tree.go_down)]
        for future in running:
            future.result()


class _Tree:
    """One member's part in one tree. All receives are posted now."""

    def __init__(
        self,
        group: Group,
        parents: Sequence[int],
        half: torch.Tensor,
        num_slices: int,
        tags: tuple[int, int],
    ) -> None:
        self._world, (self._up, self._down) = group.world, tags
        above, below = _neighbours(parents, group.index)
        self._above = [group.members[i] for i in above]
        self._below = [group.members[i] for i in below]
        self._slices = [half[a:b] for a, b in split(half.numel(), num_slices)]
        self._from_below = [
            [self._receive_like(own, child) for child in self._below] for own in self._slices
        ]
        # Into the slice itself: its sum comes after what was sent of it has arrived.
        self._from_above = [
            self._world.receive(own, parent, self._down)
            for own in self._slices
            for parent in self._above
        ]

    def _receive_like(self, own: torch.Tensor, child: int) -> tuple[torch.Tensor, Work]:
        part = torch.empty_like(own)
        return part, self._world.receive(part, child, self._up)

    def go_up(self) -> None:
        """Add what comes from below, pass it on; the root has the sum then, and sends it down."""
        sends: list[Work] = []
        for own, received in zip(self._slices, self._from_below, strict=True):
            for part, work in received:
                work.wait()
                own += part
            sends += [self._world.send(own, parent, self._up) for parent in self._above]
            if not self._above:
                sends += self._send_down(own)
        for send in sends:
            send.wait()

    def go_down(self) -> None:
        """Pass sums on, as they come from above."""
        sends: list[Work] = []
        if self._above:
            for own, work in zip(self._slices, self._from_above, strict=True):
                work.wait()
                sends += self._send_down(own)
        for send in sends:
            send.wait()

    def _send_down(self, own: torch.Tensor) -> list[Work]:
        return [self._world.send(own, child, self._down) for child in self._below]


def _neighbours(parents: Sequence[int], index: int) -> tuple[list[int], list[int]]:
    """Who is above (one, or none), and who is below."""
    above = [parents[index]] if parents[index] >= 0 else []
    return above, [child for child, parent in enumerate(parents) if parent == index]
