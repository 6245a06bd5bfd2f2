"""Runs a rank's programs: model chunks compute, and the communicator moves their results.

Work waits for its own message only. An exchange waits for the one before it, and takes at least as
long as the copy of its largest message between a GPU and the sockets. A rank of a blocking system
continues only when an exchange is done. Where the system awaits arrival, it takes at least as long
as its messages need to cross an idle network, and behind a shared NIC until they have arrived. In
other systems it takes until the buffers hold the rest of a message, where they hold no whole one.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import zip_longest

import torch

from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Exchange,
    Message,
    Program,
    Work,
    needed,
    user,
)
from netbench.plan.tensor import message_bytes
from netbench.systems import system_of
from netbench.trainers.communication.communicator import (
    Communicator,
    Inbox,
    Outbox,
    OverlappedCommunicator,
    messages_ahead,
)
from netbench.trainers.communication.leaving import Acknowledged, Leaving, OwnQueue
from netbench.trainers.communication.links import (
    ahead_bytes,
    copy_s,
    own_queue,
    passage_s,
    path_bytes_per_s,
    payload_bytes,
    round_trip_bytes,
    socket_bytes_per_s,
)
from netbench.trainers.communication.world import TAG_PIPELINE, World
from netbench.trainers.layers.real import device_of
from netbench.trainers.layers.stage import TrainedStage, boundary_bytes

_Output = Future[torch.Tensor]
_Outputs = dict[Message, _Output]
"""Results of work that are sent, once they are computed."""


class PipelineRank:
    """One rank of one pipeline, connected to the ranks it exchanges messages with.

    processes: of the pipeline's stages, in order. chunks: this rank's parts of the model, in order.
    programs: those of an iteration, in order. sum_loss: what the last stage does after every
    forward pass.
    """

    def __init__(
        self,
        world: World,
        plan: Plan,
        processes: Sequence[int],
        chunks: Sequence[TrainedStage],
        programs: Sequence[Program],
        sum_loss: Callable[[], object] | None = None,
    ) -> None:
        self._sum_loss = sum_loss
        self._processes = tuple(processes)
        self._chunks = tuple(chunks)
        system = system_of(plan)
        self._blocking = system.blocking
        self._splits_backward = plan.splits_backward
        # A GPU orders transfers and computation itself.
        self._overlaps = not self._blocking and plan.compute == VIRTUAL
        self._communicator = OverlappedCommunicator() if self._overlaps else Communicator()
        exchanges = [step for program in programs for step in program if isinstance(step, Exchange)]
        self._num_received = Counter(self._source(m) for step in exchanges for m in step.receives)
        self._inboxes = {process: _inbox(world, plan, process) for process in self._num_received}
        targets = {self._target(m) for step in exchanges for m in step.sends}
        own: dict[Hashable, OwnQueue] = {}
        self._outboxes = {process: _outbox(world, plan, process, own) for process in targets}
        self._queues = {process: own_queue(plan, world.rank, process) for process in self.peers}
        # Virtual devices sleep for a copy; real ones make it.
        is_virtual = plan.compute == VIRTUAL
        self._copies_s = {
            process: copy_s(plan, process, world.rank) if is_virtual else 0.0
            for process in self.peers
        }
        self._rates = {
            p: socket_bytes_per_s(plan, world.rank, p)
            for p in self.peers
            if _watches(plan, world.rank, p) or _watches(plan, p, world.rank)
        }
        self._sends_s = {
            process: passage_s(plan, world.rank, process)
            for process in (targets if is_virtual and system.awaits_arrival else ())
        }

    @property
    def rates(self) -> dict[int, float]:
        """Rate of the connection to a process, bytes/s of payload, inf = not limited. Processes are
        left out whose connection is neither limited nor watched, in both directions."""
        return self._rates

    @property
    def peers(self) -> set[int]:
        """Processes that this one exchanges messages with."""
        return self._inboxes.keys() | self._outboxes.keys()

    def open(self) -> None:
        """Post the receives of an iteration."""
        for process, inbox in self._inboxes.items():
            inbox.open(self._num_received[process])
        for outbox in self._outboxes.values():
            outbox.open()

    def run(self, program: Program) -> dict[str, float]:
        """Run a program; return its seconds by `FORWARD` and `BACKWARD`.

        Gradients of weights count as backward, an exchange as the kind of its last message, or as
        that of the pass that waits for it.
        """
        spent_s = {FORWARD: 0.0, BACKWARD: 0.0}
        exchanges = [step for step in program if isinstance(step, Exchange)]
        outputs = {message: _Output() for step in exchanges for message in step.sends}
        then_s = time.monotonic()
        kind = FORWARD
        if self._overlaps:  # virtual passes read no message, so later ones may overwrite it
            for exchange, following in zip_longest(exchanges, exchanges[1:]):
                self._communicate(exchange, outputs, self._announced(exchange, following))
        for step in program:
            if isinstance(step, Work):
                kind = FORWARD if step.kind == FORWARD else BACKWARD
                self._compute(step, outputs)
            elif not self._overlaps:
                kind = (step.receives or step.sends)[-1].kind
                self._communicate(step, {m: outputs.pop(m) for m in step.sends})
            now_s = time.monotonic()
            spent_s[kind] += now_s - then_s
            then_s = now_s
        self._communicator.finish()
        spent_s[kind] += time.monotonic() - then_s
        return spent_s

    def _compute(self, work: Work, outputs: _Outputs) -> None:
        depth = len(self._processes)
        chunk = self._chunks[work.virtual_stage // depth]
        if work.kind == WEIGHT:
            chunk.backward_weight(work.micro_batch)
            return
        message = needed(work, depth * len(self._chunks))
        received = None if message is None else self._communicator.take(message)
        if work.kind == FORWARD:
            output = chunk.forward(work.micro_batch, received)
        elif self._splits_backward:
            output = chunk.backward_input(work.micro_batch, received)
        else:
            output = chunk.backward(work.micro_batch, received)
        if (sent := outputs.get(Message(*work))) is not None:
            sent.set_result(output)
        is_last = work.virtual_stage == depth * len(self._chunks) - 1
        if self._sum_loss and is_last and work.kind == FORWARD:
            self._sum_loss()

    def _announced(self, exchange: Exchange, following: Exchange | None) -> list[Inbox]:
        """Return the inboxes of the exchange that follows, if what announces it would queue behind
        what this one sends."""
        if following is None:
            return []
        queues = {self._queues[self._target(message)] for message in exchange.sends}
        sources = [self._source(message) for message in following.receives]
        return [self._inboxes[source] for source in sources if self._queues[source] in queues]

    def _communicate(
        self, exchange: Exchange, outputs: _Outputs, announced: Sequence[Inbox] = ()
    ) -> None:
        """Start an exchange. announced: of what is received right after it."""
        targets = {*map(self._target, exchange.sends)}
        peers = targets | {*map(self._source, exchange.receives)}
        lasting_s = [self._copies_s[peer] for peer in peers]
        lasting_s += [self._sends_s.get(target, 0.0) for target in targets]
        self._communicator.start(
            [(message, self._inboxes[self._source(message)]) for message in exchange.receives],
            [(self._outboxes[self._target(m)], outputs[m]) for m in exchange.sends],
            max(lasting_s),
            announced,
        )
        if self._blocking:
            self._communicator.finish()

    def _source(self, message: Message) -> int:
        return self._processes[message.virtual_stage % len(self._processes)]

    def _target(self, message: Message) -> int:
        return self._processes[user(message).virtual_stage % len(self._processes)]


def _inbox(world: World, plan: Plan, process: int) -> Inbox:
    """Return the inbox of one process, whose messages share its buffers."""
    device, cut = device_of(plan), _cut(plan, process, world.rank)
    if cut is not None:
        return Inbox(world, process, TAG_PIPELINE, cut.size, cut.num_ahead, device, cut.cuts)
    ahead = messages_ahead(message_bytes(plan), ahead_bytes(plan, process, world.rank))
    # NCCL buffers messages itself; a receive that waits for one occupies the device.
    ahead = ahead if device.type == "cpu" else 0
    return Inbox(world, process, TAG_PIPELINE, boundary_bytes(plan), ahead, device)


def _outbox(world: World, plan: Plan, process: int, own: dict[Hashable, OwnQueue]) -> Outbox:
    """Return the outbox to one process. own: the queues that this process has for itself."""
    system, ends = system_of(plan), (world.rank, process)
    cut, unsent = _cut(plan, *ends), ahead_bytes(plan, *ends)
    leaving: Leaving | None = None
    if _watches(plan, *ends):
        leaving = Acknowledged(world, process, path_bytes_per_s(plan, *ends))
        # What has left is acknowledged a round trip later.
        unsent = 0.0 if system.awaits_arrival else unsent + round_trip_bytes(plan, *ends)
    elif _waits(plan, *ends):
        rate = path_bytes_per_s(plan, *ends)
        leaving = own.setdefault(own_queue(plan, *ends), OwnQueue(rate))
    return Outbox(
        world,
        process,
        TAG_PIPELINE,
        blocking=system.blocking or leaving is not None,
        size=None if cut is None else cut.size,
        cuts=() if cut is None else cut.cuts,
        num_late=0 if cut is None else cut.num_late,
        leaving=None if leaving is None else (leaving, unsent / plan.scale),
    )


@dataclass(frozen=True)
class _Cut:
    """A message of `size` bytes in pieces. num_ahead, num_late: see `Inbox` and `Outbox`."""

    size: int
    cuts: tuple[int, ...]
    num_ahead: int
    num_late: int


def _cut(plan: Plan, src: int, dst: int) -> _Cut | None:
    """Return how a message goes from one process to another; None if it goes whole, as where the
    buffers at one end hold it, or layers compute it.

    The first E bytes, which the buffers hold, go ahead of the receiver's turn. A sender that has
    its queue for itself sends the last E bytes late. Others send what is not ahead late, if a send
    may end before the receiver asks for it.
    """
    ahead, num_bytes = ahead_bytes(plan, src, dst), message_bytes(plan)
    if plan.compute != VIRTUAL or ahead >= num_bytes:
        return None
    waits = _waits(plan, src, dst)
    counts = waits and own_queue(plan, src, dst) is not None
    size = boundary_bytes(plan, 3 if counts else 2)
    first = min(payload_bytes(plan, ahead), size - 1)
    if not counts:
        return _Cut(size, (first,), 1, int(waits and 2 * ahead >= num_bytes))
    cuts = sorted({first, size - first})
    return _Cut(size, tuple(cuts), 1 + cuts.index(first), len(cuts) - cuts.index(size - first))


def _waits(plan: Plan, src: int, dst: int) -> bool:
    """Return whether a send occupies the communicator until the buffers hold the rest."""
    if system_of(plan).awaits_arrival or plan.compute != VIRTUAL:
        return False
    return ahead_bytes(plan, src, dst) < message_bytes(plan)


def _watches(plan: Plan, src: int, dst: int) -> bool:
    """Return whether a process must know how much of its messages to another has arrived."""
    if system_of(plan).awaits_arrival:
        return socket_bytes_per_s(plan, src, dst) < math.inf
    return _waits(plan, src, dst) and not own_queue(plan, src, dst)
