"""CUDA tensors over NCCL, with the semantics of `World`: `NcclWorld`.

NCCL has no tags, and its transfers between two processes follow one another on one stream: a
receive that was posted early would hold up the sends after it. So every direction between two
processes, and every channel of a collective, has a communicator of its own with two members, a
lane. Transfers on a lane match in order, as those of one tag do. Lanes are made in `warm`, all in
one global order, while nothing else is under way: making a communicator allocates memory, which may
wait for every kernel on the device.

A transfer is done when the host knows that the device has done it. Waiting never puts a wait into
the stream on which layers compute: two threads that wait for different processes would then wait
for each other. For the same reason no two lanes may share a stream of torch's.
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, unmarked

from netbench.errors import TestbedError
from netbench.trainers.communication.world import (
    LOOPBACK,
    TAGS_PER_CHANNEL,
    TIMEOUT,
    Lane,
    PendingTransfer,
    World,
    both_ways,
    connect_gloo,
)

VISIBLE = "CUDA_VISIBLE_DEVICES"

MAX_LANES = 32
"""Streams of high priority that torch makes per device, one for each communicator; then it takes
the first again. Source: `kStreamsPerPool` of c10/cuda/CUDAStream.cpp."""

POLL_S = 20e-6
"""Interval at which the host looks whether a transfer is done, seconds."""

SENDER, RECEIVER = 0, 1
"""Ranks of the two members of a lane."""


class Device(Protocol):
    """The device whose tensors travel in lanes; `CudaDevice`, or a stand-in of tests.

    backends: of torch.distributed's group of all processes, for collectives of torch.
    """

    backends: str

    def carries(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor travels in lanes."""

    def open_lane(self, store: Any, end: int) -> Any:
        """Return a backend of torch.distributed with two members, of which this is `end`.

        store: the members' own.
        """

    def probe(self) -> torch.Tensor:
        """Return a tensor of one element."""

    def follow(self, work: Any, tensor: torch.Tensor) -> PendingTransfer:
        """Return a transfer that is done when `work` on `tensor` is, as the host sees it."""

    def fork(self) -> AbstractContextManager[None]:
        """See `World.fork`."""


class NcclWorld(World):
    """This process among all processes: CUDA tensors in lanes, all others over gloo."""

    def __init__(
        self, backend: Any, rank: int, size: int, address: str, *, store: Any, device: Device
    ) -> None:
        super().__init__(backend, rank, size, address)
        self._store, self._device = store, device
        self._lanes: dict[Lane, Any] = {}

    @classmethod
    def join(
        cls,
        *,
        rank: int,
        size: int,
        interface: str,
        store: str,
        serve_store: bool,
        device: Device,
        address: str = LOOPBACK,
    ) -> "NcclWorld":
        """Rendezvous with all other processes at `store` ("address:port")."""
        joint = connect_gloo(rank, size, interface, store, serve_store, device.backends)
        group = dist.group.WORLD
        assert group is not None
        gloo = group._get_backend(torch.device("cpu"))
        return cls(gloo, rank, size, address, store=joint, device=device)

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        """Start to send what the current stream computes."""
        if not self._device.carries(tensor):
            return super().send(tensor, process, tag)
        lane = self._lane(self.rank, process, tag)
        return self._device.follow(lane.send([tensor], RECEIVER, 0), tensor)

    def receive(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        """Post a receive of exactly this size, after what the current stream computes."""
        if not self._device.carries(tensor):
            return super().receive(tensor, process, tag)
        lane = self._lane(process, self.rank, tag)
        return self._device.follow(lane.recv([tensor], SENDER, 0), tensor)

    def warm(self, peers: Iterable[int], lanes: Iterable[Lane] | None = None) -> None:
        """Connect to these processes, and pass one element on every lane.

        As in `World.warm`, all processes go through their pairs in one global order. Raises
        TestbedError for more lanes than there are streams.
        """
        others = set(peers) - {self.rank}
        super().warm(others)
        wanted = both_ways(self.rank, others) if lanes is None else set(lanes)
        total = len(wanted | self._lanes.keys())
        if total > MAX_LANES:
            raise TestbedError(
                f"this rank would need {total} communicators of NCCL, and torch has {MAX_LANES} "
                "streams for them; choose a system whose ranks exchange data with fewer others, "
                "e.g. all-reduce in a ring instead of sharded-ps, or compute on cpu"
            )
        for lane in sorted(wanted - self._lanes.keys(), key=_global_order):
            self._open(*lane)

    def fork(self) -> AbstractContextManager[None]:
        return self._device.fork()

    def _open(self, source: int, target: int, channel: int) -> None:
        end = SENDER if source == self.rank else RECEIVER
        store = PrefixStore(f"lane/{source}/{target}/{channel}", self._store)
        lane = self._lanes[source, target, channel] = self._device.open_lane(store, end)
        probe = self._device.probe()
        work = lane.send([probe], RECEIVER, 0) if end == SENDER else lane.recv([probe], SENDER, 0)
        self._device.follow(work, probe).wait()

    def _lane(self, source: int, target: int, tag: int) -> Any:
        channel = tag // TAGS_PER_CHANNEL
        lane = self._lanes.get((source, target, channel))
        if lane is None:
            raise TestbedError(
                f"process {source} has no lane to process {target} for channel {channel}; its "
                "trainer's `peers`, or `lanes`, must list all"
            )
        return lane


class CudaDevice:
    """The CUDA device of this process, the first that it sees."""

    backends = "cpu:gloo,cuda:nccl"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise TestbedError("torch sees no CUDA device here; choose cpu")
        if not dist.is_nccl_available():
            raise TestbedError("this torch has no NCCL; install one built for CUDA, or choose cpu")
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._side = threading.local()

    def carries(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def open_lane(self, store: Any, end: int) -> Any:
        # Of high priority: those of layers and of other collectives are not.
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = TIMEOUT
        return dist.ProcessGroupNCCL(store, end, 2, options)

    def probe(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.uint8, device=self._device)

    def follow(self, work: Any, tensor: torch.Tensor) -> PendingTransfer:
        return CudaTransfer(work, tensor)

    @contextmanager
    def _follow_on(self, queued: torch.cuda.Event) -> Iterator[None]:
        stream = getattr(self._side, "stream", None)
        if stream is None:
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._side.stream = stream
        stream.wait_event(queued)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def fork(self) -> AbstractContextManager[None]:
        queued = torch.cuda.Event()  # type: ignore[no-untyped-call]
        queued.record(torch.cuda.current_stream(self._device))
        return self._follow_on(queued)


class CudaTransfer:
    """A transfer of NCCL. It keeps its tensor: the allocator does not know that a lane uses it."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self) -> None:
        """Block this thread until the device has done it.

        Not `work.wait()`, which lets the current stream wait.
        """
        while not self._work.is_completed():
            time.sleep(POLL_S)


def _global_order(lane: Lane) -> tuple[int, ...]:
    """By pair of processes, as `World.warm` connects them."""
    source, target, channel = lane
    return min(source, target), max(source, target), channel, source


def choose_device(index: int, num_devices: int, visible: str | None) -> str:
    """Return `CUDA_VISIBLE_DEVICES` of a rank.

    index: of the rank among those of its host. num_devices: of the host. visible: the value that
    the process inherited, which may name devices by UUID; None = all. Ranks share devices if there
    are too few. Raises TestbedError without any.
    """
    names = [str(i) for i in range(num_devices)]
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
    if not names:
        raise TestbedError("this host has no CUDA device that netbench may use; choose cpu")
    return names[index % len(names)]


def prepare_process(index: int, environment: Mapping[str, str]) -> None:
    """Set the environment of NCCL and CUDA, before torch has used CUDA.

    Then this process sees one device: threads need not choose it.
    """
    os.environ.update(environment)
    # Counted by NVML where there is one: the runtime must not be started yet.
    count = torch.cuda.device_count()
    os.environ[VISIBLE] = choose_device(index, count, os.environ.get(VISIBLE))
