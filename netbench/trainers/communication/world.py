"""All ranks as one gloo process group. Its ranks are *process* indices: the devices they own.

A plan's logical rank r runs on process `placement[r]`, so one world serves every placement. Tensors
of another device than the CPU travel through copies in host memory; `nccl.NcclWorld` sends those of
CUDA devices directly.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, unmarked

TIMEOUT = timedelta(days=7)
"""Deadline of any transfer or store access. Virtual time runs ahead freely and says nothing about
health; the controller watches wall time."""

TAG_PIPELINE, TAG_COLLECTIVE, TAG_BARRIER, TAG_WARM, TAG_SOCKETS = range(1, 6)

TAGS_PER_CHANNEL = 16
"""Distance between the tags of two channels (`plan.collectives.Hop`): more than there are above."""


LOOPBACK = "127.0.0.1"


Lane = tuple[int, int, int]
"""Source and destination, as processes, and channel (`plan.collectives.Hop`)."""


class PendingTransfer(Protocol):
    """A transfer that has been started."""

    def wait(self) -> Any:
        """Block until it is done."""


class World:
    """This process among all processes: point-to-point transfers by process index.

    address: address of this process's node. backend: None for a process that joined later; it has
    no transfers. sockets: process -> those of connections that have a rate of their own
    (`communication.sockets`).
    """

    def __init__(self, backend: Any, rank: int, size: int, address: str = LOOPBACK) -> None:
        self._backend = backend
        self.rank = rank
        self.size = size
        self.address = address
        self._warm: set[int] = set()
        self.sockets: dict[int, list[int]] = {}

    @classmethod
    def connect(
        cls,
        *,
        rank: int,
        size: int,
        interface: str,
        store: str,
        serve_store: bool,
        address: str = LOOPBACK,
    ) -> "World":
        """Rendezvous with all other processes at `store` ("address:port")."""
        connect_gloo(rank, size, interface, store, serve_store)
        group = dist.group.WORLD
        assert group is not None
        return cls(group._get_backend(torch.device("cpu")), rank, size, address)

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        """Start to send; done once the receiver has posted and the kernel has taken the bytes."""
        if is_elsewhere(tensor):
            tensor = tensor.cpu()
        work: PendingTransfer = self._backend.send([tensor], process, tag)
        return work

    def receive(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        """Post a receive of exactly this size. Receives of one process and tag match in order."""
        if is_elsewhere(tensor):
            host = torch.empty_like(tensor, device="cpu")
            return _Copied(self._backend.recv([host], process, tag), host, tensor)
        work: PendingTransfer = self._backend.recv([tensor], process, tag)
        return work

    def fork(self) -> AbstractContextManager[None]:
        """Return a context for another thread: its work follows what this one has queued so far.

        When the context ends, that work is done. Without streams, all work is done at once.
        """
        return nullcontext()

    def warm(self, peers: Iterable[int], lanes: Iterable[Lane] | None = None) -> None:
        """Connect to these processes and pass one byte each way. Each must list this process too.

        Connecting may block until the peer connects back. All processes connect their pairs in one
        global order, by (smaller, larger) index, so the smallest open pair always has both ends
        ready, and there is no deadlock. lanes: those that will be used, None = both directions to
        and from every peer, on channel 0; gloo has one connection for all.
        """
        works = []
        order = sorted(set(peers) - self._warm - {self.rank}, key=self._pair)
        for peer in order:
            works.append(self.receive(torch.empty(1, dtype=torch.uint8), peer, TAG_WARM))
            works.append(self.send(torch.zeros(1, dtype=torch.uint8), peer, TAG_WARM))
        for work in works:
            work.wait()
        self._warm.update(order)

    def _pair(self, peer: int) -> tuple[int, int]:
        return min(self.rank, peer), max(self.rank, peer)


class _Copied:
    """A receive whose tensor is filled from host memory."""

    def __init__(self, work: PendingTransfer, host: torch.Tensor, tensor: torch.Tensor) -> None:
        self._work, self._host, self._tensor = work, host, tensor

    def wait(self) -> None:
        self._work.wait()
        self._tensor.copy_(self._host)


def both_ways(process: int, peers: Iterable[int]) -> set[Lane]:
    """Return the lanes from a process to its peers and back, on channel 0."""
    return {lane for peer in peers for lane in ((process, peer, 0), (peer, process, 0))}


def is_elsewhere(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is not in the memory of the CPU, from which gloo sends."""
    return tensor.device.type != "cpu"


def connect_gloo(
    rank: int, size: int, interface: str, store: str, serve_store: bool, backends: str = "gloo"
) -> TCPStore:
    """Join torch's group of all processes and return its store. backends: see `Device`."""
    # torch reads these when it creates the gloo device. Connections are made for the pairs that
    # `World.warm` names, not for all.
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    host, port = store.rsplit(":", 1)
    joint = TCPStore(host, int(port), size, serve_store, timeout=TIMEOUT, wait_for_workers=False)
    dist.init_process_group(backends, store=joint, rank=rank, world_size=size, timeout=TIMEOUT)
    return joint
