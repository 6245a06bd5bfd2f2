"""Point-to-point transfers with the semantics of one NCCL communicator over TCP.

What is modelled
- Operations of one rank on a communicator happen in program order. Each is a kernel on the GPU, and
  the next one starts when the one before it is done.
- A sender and a receiver are not in lock step. Either side buffers E bytes (`links.ahead_bytes`).
  NCCL keeps a FIFO of 8 slots x 128 KiB per point-to-point channel. Linux grows the send buffer to
  twice the congestion window, which on a busy path is about rate x round-trip time, and the
  receive buffer likewise. So a long path holds whole messages that have not been received yet, and
  a short one holds none.
- A send whose message the buffers at one end do not hold occupies the communicator until no more
  is left than they do. Others do not, unless they are `blocking`: then a send ends when its
  receiver has asked for it and the kernel has its bytes.
  (docs/local-testbed.md explains which systems block.)

How, with real bytes
- gloo is a rendezvous: bytes of a send flow only after the receiver has posted, and its
  notification has crossed the link. So a receive is posted when its turn comes in program order,
  and floor(2E / S) further messages of S bytes ahead of their turn. Where E holds less than a
  message, each goes in pieces, of which the first E bytes go ahead.
- A rank posts receives before it sends at the same moment, or just before: a notification must not
  queue behind a message of its own rank, which, scaled down, fills the link in one piece. Where a
  rank has its queue for itself, the next receive is posted before the last E bytes of a send. So
  its notification leaves when the send is done, unless the copy of the message takes longer.
"""

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import torch

from netbench.trainers.communication.leaving import Leaving
from netbench.trainers.communication.world import PendingTransfer, World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.virtual import sleep_until

CPU = torch.device("cpu")

MAX_MESSAGES_AHEAD = 64
"""Most messages ahead, if E holds more: no schedule has more in flight per peer."""


def messages_ahead(message_bytes: float, buffer_bytes: float) -> int:
    """Return the whole messages that both ends of a path buffer, beside the one received."""
    return int(min(2 * buffer_bytes / message_bytes, MAX_MESSAGES_AHEAD))


class Together:
    """Transfers that are done when all of them are."""

    def __init__(self, works: Sequence[PendingTransfer]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for the last first: those before it are done then, and wake no thread."""
        for work in reversed(self._works):
            work.wait()


class Inbox:
    """Messages from one process, received in the order in which it sends them.

    Plans run one after the other, so all plans of a process share the memory for messages. device:
    where messages are to be. cuts: bytes before each piece but the first, if a message comes in
    pieces, which num_ahead counts.
    """

    _memory: ClassVar[dict[tuple[int, int, torch.device], torch.Tensor]] = {}

    def __init__(
        self,
        world: World,
        process: int,
        tag: int,
        size: int,
        num_ahead: int,
        device: torch.device = CPU,
        cuts: Sequence[int] = (),
    ) -> None:
        self._cuts, self._pieces = tuple(cuts), len(cuts) + 1
        self._world, self._process, self._tag, self._device = world, process, tag, device
        self._size, self._num_ahead = size, num_ahead
        self._buffers: list[torch.Tensor] = []
        self._works: deque[PendingTransfer] = deque()
        self._count = self._turn = self._posted = self._taken = 0
        self._started_s: deque[float] = deque()

    def open(self, count: int) -> None:
        """Expect `count` messages from now on; post those that may come ahead."""
        self._count, self._turn, self._posted, self._taken = count, 0, 0, 0
        self._buffers = self._take_memory()
        self._post(self._num_ahead)

    def start(self) -> None:
        """Begin the turn of the next message: let it flow, and those that fit behind it."""
        self._turn += 1
        self._started_s.append(time.monotonic())
        self._post(self._turn * self._pieces + self._num_ahead)

    def announce(self) -> None:
        """Let the message of the next turn flow before its turn."""
        self._post((self._turn + 1) * self._pieces + self._num_ahead)

    def finish(self) -> torch.Tensor:
        """Block until the next started message has come; it stays valid for two more turns."""
        Together([self._works.popleft() for _ in range(self._pieces)]).wait()
        message = self._buffers[self._taken % len(self._buffers)]
        RECORDER.add(
            "receive",
            self._started_s.popleft(),
            peer=self._process,
            tag=self._tag,
            message=self._taken,
            bytes=message.numel(),
        )
        self._taken += 1
        return message

    def _take_memory(self) -> list[torch.Tensor]:
        """Return a buffer more than can be under way, for the message in use."""
        num_ahead = -(-self._num_ahead // self._pieces)
        num_bytes, key = (num_ahead + 2) * self._size, (self._process, self._tag, self._device)
        block = self._memory.get(key)
        if block is None or block.numel() < num_bytes:
            block = self._memory[key] = torch.empty(
                num_bytes, dtype=torch.uint8, device=self._device
            )
        return list(torch.split(block[:num_bytes], self._size))

    def _post(self, until: int) -> None:
        while self._posted < min(until, self._count * self._pieces):
            message, piece = divmod(self._posted, self._pieces)
            buffer = self._buffers[message % len(self._buffers)]
            part = _pieces(buffer, self._cuts)[piece]
            self._works.append(self._world.receive(part, self._process, self._tag))
            self._posted += 1


class Outbox:
    """Messages to one process, sent in order. blocking: an operation lasts until they are sent.

    size: bytes of a message that are sent; None = all. cuts: see `Inbox`. num_late: pieces that are
    sent after what announces the next receives. leaving: where bytes leave, and how many of a
    message need not have left when an operation ends; None = it ends when the kernel has all but
    the late pieces.
    """

    def __init__(
        self,
        world: World,
        process: int,
        tag: int,
        *,
        blocking: bool = False,
        size: int | None = None,
        cuts: Sequence[int] = (),
        num_late: int = 0,
        leaving: tuple[Leaving, float] | None = None,
    ) -> None:
        self._world, self._process, self._tag = world, process, tag
        self._size, self._cuts, self._num_late = size, tuple(cuts), num_late
        self._leaving, self._blocking = leaving, blocking
        self._late: list[torch.Tensor] = []
        # gloo drops a send whose work object is freed before it is done.
        self._works: deque[PendingTransfer] = deque()
        self._started = 0
        self._leaves: deque[_Piece] = deque()
        self._running: deque[tuple[float, dict[str, int]]] = deque()

    @property
    def makes_way(self) -> bool:
        """True if late pieces may be sent before the others have left."""
        return self._num_late > 0 and self._leaving is not None and self._leaving[0].takes_more

    def open(self) -> None:
        """Begin an iteration: all messages sent before have arrived."""
        self._works.clear()
        self._started = 0

    def start(self, message: torch.Tensor) -> None:
        """Start to send a message; it flows when its receiver has posted."""
        started_s = time.monotonic()
        pieces = self._send(message)
        details = {
            "peer": self._process,
            "tag": self._tag,
            "message": self._started,
            "bytes": message.numel(),
        }
        self._started += 1
        if self._blocking:
            self._leaves += pieces
            self._running.append((started_s, details))
        else:
            RECORDER.follow(Together([work for work, _ in pieces]), started_s, **details)

    def _send(self, message: torch.Tensor) -> "list[_Piece]":
        if self._size is not None:
            message = message.view(-1)[: self._size]
        pieces = _pieces(message, self._cuts)
        self.send_late()  # those of the message before, if both are of one operation
        self._late = pieces[len(pieces) - self._num_late :]
        return [self._send_piece(piece) for piece in pieces[: len(pieces) - self._num_late]]

    def _send_piece(self, piece: torch.Tensor) -> "_Piece":
        work = self._world.send(piece, self._process, self._tag)
        self._works.append(work)
        return work, piece.nbytes

    def send_late(self) -> None:
        """Send the pieces that are left."""
        for piece in self._late:
            self._count(self._send_piece(piece)[1])
        self._late = []

    def _count(self, num_bytes: int) -> None:
        if self._leaving is not None:
            self._leaving[0].give(num_bytes)

    def hand_over(self) -> None:
        """If blocking, wait until the kernel has all messages but for late pieces."""
        while self._leaves:
            work, num_bytes = self._leaves.popleft()
            work.wait()
            self._count(num_bytes)

    def wait(self) -> None:
        """If blocking, wait until all messages are sent. The kernel has them."""
        if self._running and self._leaving is not None:
            leaving, unsent_bytes = self._leaving
            leaving.wait(unsent_bytes - sum(piece.nbytes for piece in self._late))

    def finish(self) -> None:
        """End the operation."""
        while self._running:
            started_s, details = self._running.popleft()
            RECORDER.add("send", started_s, **details)


_Piece = tuple[PendingTransfer, int]
"""A send of a part of a message, and its bytes."""


def _pieces(message: torch.Tensor, cuts: Sequence[int]) -> list[torch.Tensor]:
    """Return the pieces of a message, (num_bytes,) if it is cut."""
    return [*torch.tensor_split(message.view(-1), cuts)] if cuts else [message]


class Receipt:
    """A message whose turn has come, for whoever waits for it. until_s: it is not there before."""

    def __init__(self, inbox: Inbox, until_s: float) -> None:
        self._inbox, self._until_s = inbox, until_s
        self._lock = threading.Lock()
        self._message = Future[torch.Tensor]()

    @property
    def is_taken(self) -> bool:
        """True once the message has been waited for."""
        return self._message.done()

    def take(self) -> torch.Tensor:
        """Return the message, blocking while it is on its way. Messages of one inbox are taken in
        order."""
        with self._lock:
            if not self._message.done():
                # First, so that a message that arrived before is recorded to last as long.
                sleep_until(self._until_s)
                try:
                    self._message.set_result(self._inbox.finish())
                except Exception as error:  # others that wait learn of it too
                    self._message.set_exception(error)
        return self._message.result()


Receives = Iterable[tuple[Hashable, Inbox]]
"""A name for `take`, and the inbox that the message comes from."""

Sends = Iterable[tuple[Outbox, Future[torch.Tensor]]]
"""A message once it is computed, and where it goes."""


class Communicator:
    """Operations of one rank on one communicator: in program order, one group at a time."""

    def __init__(self) -> None:
        self._sending: list[Outbox] = []
        self._receiving: list[Receipt] = []
        self._receipts: dict[Hashable, Receipt] = {}
        self._announced: list[Inbox] = []
        self._least_until_s = 0.0

    def start(
        self,
        receives: Receives,
        sends: Sends,
        least_s: float = 0.0,
        announced: Iterable[Inbox] = (),
    ) -> None:
        """Start a group of transfers, once the one before is done.

        least_s: that each lasts. announced: inboxes of the next group, if words to their senders
        would queue behind these sends.
        """
        receives = [*receives]
        receipts = self.receive([inbox for _, inbox in receives], least_s)
        self._receipts |= {name: each for (name, _), each in zip(receives, receipts, strict=True)}
        self.send(sends, least_s, announced)

    def receive(self, inboxes: Iterable[Inbox], least_s: float) -> list[Receipt]:
        """Begin a group with a receive from each inbox, once the group before is done."""
        self.finish()
        for inbox in inboxes:
            inbox.start()
            self._receiving.append(Receipt(inbox, time.monotonic() + least_s))
        return [*self._receiving]

    def send(self, sends: Sends, least_s: float, announced: Iterable[Inbox]) -> None:
        """Add sends to the group, once their messages are computed. See `start`."""
        computed = [(outbox, message.result()) for outbox, message in sends]
        self._least_until_s = time.monotonic() + (least_s if computed else 0.0)
        self._announced = [*announced]
        if not self._receiving and not any(outbox.makes_way for outbox, _ in computed):
            self._announce()
        for outbox, message in computed:
            outbox.start(message)
            self._sending.append(outbox)

    def finish(self) -> None:
        """Block until the running group is done."""
        for outbox in self._sending:
            outbox.hand_over()
        if not self._receiving:  # the group ends with its sends
            self._announce()
            for outbox in self._sending:
                if outbox.makes_way:
                    outbox.send_late()
        for outbox in self._sending:
            outbox.wait()
        # Beside receives, the next group may only be announced if this one is over now.
        ends = time.monotonic() >= self._least_until_s
        if ends and all(receipt.is_taken for receipt in self._receiving):
            self._announce()
        for outbox in self._sending:
            outbox.send_late()
        sleep_until(self._least_until_s)
        for outbox in self._sending:
            outbox.finish()
        self._sending.clear()
        for receipt in self._receiving:
            receipt.take()
        self._receiving.clear()
        self._announced = []

    def _announce(self) -> None:
        for inbox in self._announced:
            inbox.announce()
        self._announced = []

    def take(self, name: Hashable) -> torch.Tensor:
        """Return the message received under `name`, blocking while it is on its way."""
        return self._receipts.pop(name).take()


_Group = tuple[list[tuple[Inbox, Future[Receipt]]], list[Any], Future[None], Any]
"""Inboxes with what tells that their turn has come; sends; the end; the rest of `send`."""


class OverlappedCommunicator:
    """A `Communicator` beside the rank's computation: `start` waits for nothing."""

    def __init__(self) -> None:
        self._groups = queue.SimpleQueue[_Group | None]()
        self._receipts: dict[Hashable, Future[Receipt]] = {}
        self._last: Future[None] | None = None
        threading.Thread(target=_run_groups, args=(self._groups,), daemon=True).start()
        weakref.finalize(self, self._groups.put, None)

    def start(
        self,
        receives: Receives,
        sends: Sends,
        least_s: float = 0.0,
        announced: Iterable[Inbox] = (),
    ) -> None:
        """Start transfers as soon as the groups before them are done."""
        named = [(name, inbox, Future[Receipt]()) for name, inbox in receives]
        self._receipts |= {name: receipt for name, _, receipt in named}
        self._last = Future()
        turns = [(inbox, receipt) for _, inbox, receipt in named]
        self._groups.put((turns, [*sends], self._last, (least_s, [*announced])))

    def finish(self) -> None:
        """Block until all groups are done."""
        if self._last is not None:
            self._last.result()

    def take(self, name: Hashable) -> torch.Tensor:
        """Return the message received under `name`, blocking while it is on its way."""
        return self._receipts.pop(name).result().take()


def _run_groups(groups: "queue.SimpleQueue[_Group | None]") -> None:
    """Run groups in turn until None comes, which a communicator leaves when nothing uses it."""
    communicator = Communicator()
    while (group := groups.get()) is not None:
        receives, sends, done, (least_s, announced) = group
        try:
            receipts = communicator.receive([inbox for inbox, _ in receives], least_s)
            for (_, turn), receipt in zip(receives, receipts, strict=True):
                turn.set_result(receipt)
            communicator.send(sends, least_s, announced)
            communicator.finish()
            done.set_result(None)
        except Exception as error:
            unset: list[Future[Any]] = [done, *(future for _, future in receives)]
            for future in unset:
                if not future.done():
                    future.set_exception(error)
