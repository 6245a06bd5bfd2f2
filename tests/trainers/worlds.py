"""Worlds that tell what a rank asks of them."""

from __future__ import annotations

from typing import Any

import torch

from netbench.trainers.communication.world import PendingTransfer, World


class PostingWorld(World):
    """Tells how many messages were posted when each was waited for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.num_posted = 0
        self.posted_when_waiting: list[int] = []

    def receive(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        self.num_posted += 1
        return _Posted(super().receive(tensor, process, tag), self)


class _Posted:
    def __init__(self, work: PendingTransfer, world: PostingWorld) -> None:
        self._work, self._world = work, world

    def wait(self) -> None:
        self._world.posted_when_waiting.append(self._world.num_posted)
        self._work.wait()
