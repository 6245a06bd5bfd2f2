"""A pipeline schedule as a graph: compute, and messages as NCCL moves them over TCP.

A message of S bytes is three things. The sender's operation copies it into the library's buffers,
the bytes cross the network, and the receiver's operation copies them out: each copy takes S over
what a process moves through its sockets. Operations of one communicator follow one another, which
is what keeps fast networks from hiding their transfers behind compute. The buffers at either end
hold E = FIFO + window + factor x rate x round trip: so many bytes may arrive before the receiver
asks for them, and a send is done when no more than that is left. On long paths E is several
messages and nobody waits for anybody; on short ones it is a part of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.simulator.graph import Graph, Ids, Kind
from netbench.simulator.schedules import BACKWARD, FORWARD, WEIGHT, Exchange, Message, Program, Work

MAX_AHEAD = 64
"""Messages in buffers, beyond which they count as unlimited: no schedule has more under way."""

_KINDS = {FORWARD: Kind.FORWARD, BACKWARD: Kind.BACKWARD, WEIGHT: Kind.BACKWARD}


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """Pipelines side by side. ranks: (num_lanes, num_stages)."""

    ranks: Ids
    num_micro_batches: int
    message_bytes: float
    blocking: bool  # a rank waits for every exchange; else compute and communication overlap


def add_pipelines(
    graph: Graph,
    lanes: Lanes,
    programs: list[Program],
    seconds: dict[str, NDArray[np.float64]],
    gate: Ids,
) -> Ids:
    """Add a schedule's programs for every lane.

    seconds: by kind of work, (num_virtual_stages,). gate: (num_lanes, num_stages), what each rank
    has ended before. Returns (num_lanes, num_stages), when each rank has ended its program.
    """
    num_stages = lanes.ranks.shape[1]
    micro_batches = np.arange(lanes.num_micro_batches)
    done: dict[tuple[str, int], Ids] = {}
    for kind, durations in seconds.items():
        for virtual_stage, duration in enumerate(durations):
            rank = lanes.ranks[:, virtual_stage % num_stages, None]
            done[kind, virtual_stage] = graph.work(_KINDS[kind], rank, duration, micro_batches)
    channels = _channels(graph, lanes, programs)
    ends = graph.work(Kind.MARK, lanes.ranks)
    for stage, program in enumerate(programs):
        chains = _chains(graph, lanes, stage, program, done, channels)
        for starts, stops in chains:
            graph.edge(gate[:, stage], starts[0])
            graph.edge(stops[:-1], starts[1:])
            graph.edge(stops[-1], ends[:, stage])
    if not lanes.blocking:
        _data_edges(graph, programs, done, channels)
    return ends


@dataclass(frozen=True, kw_only=True, slots=True)
class _Channel:
    """Messages from one stage to another, in order: (num_messages, num_lanes) each.

    issue, sent: the send starts, is done. post, received: the receive starts, is done.
    """

    place: dict[Message, int]
    issue: Ids
    sent: Ids
    post: Ids
    received: Ids


def _channels(
    graph: Graph, lanes: Lanes, programs: list[Program]
) -> dict[Message, tuple[_Channel, int]]:
    """Every message's channel, and its place there."""
    num_stages = lanes.ranks.shape[1]
    order: dict[tuple[int, int], list[Message]] = {}
    for stage, program in enumerate(programs):
        for step in program:
            for message in step.sends if isinstance(step, Exchange) else ():
                direction = 1 if message.kind == FORWARD else -1
                target = (message.virtual_stage + direction) % num_stages
                order.setdefault((stage, target), []).append(message)
    found: dict[Message, tuple[_Channel, int]] = {}
    for (source, target), messages in order.items():
        channel = _channel(graph, lanes, source, target, messages)
        found.update((message, (channel, place)) for place, message in enumerate(messages))
    return found


def _channel(
    graph: Graph, lanes: Lanes, source: int, target: int, messages: list[Message]
) -> _Channel:
    size, count = max(1.0, lanes.message_bytes), len(messages)  # even an empty one is a message
    senders, receivers = lanes.ranks[:, source], lanes.ranks[:, target]
    label = np.asarray([message.micro_batch for message in messages])[:, None]
    delay_s = graph.delay_s(senders, receivers)
    copy_s = graph.fabric.copy_s(senders, receivers, size)
    buffered = graph.fabric.buffered_bytes(senders, receivers)
    issue = graph.work(Kind.MARK, senders, 0.0, label)
    post = graph.work(Kind.MARK, receivers, 0.0, label)
    sent = graph.work(Kind.SEND, senders, 0.0, label)
    received = graph.work(Kind.RECEIVE, receivers, 0.0, label)
    graph.edge(issue, sent, copy_s)
    graph.edge(post, received, copy_s)

    ahead, part = np.divmod(np.minimum(buffered, MAX_AHEAD * size), size)
    ahead = np.minimum(ahead, min(count, MAX_AHEAD)).astype(np.int64)
    for skip, early in set(zip(ahead.tolist(), (part <= size / 2).tolist(), strict=True)):
        alike = np.flatnonzero((ahead == skip) & ((part <= size / 2) == early))
        ends = (senders[alike], receivers[alike])
        starts, asked, lag_s = issue[:, alike], post[:, alike], delay_s[alike]
        if skip == min(count, MAX_AHEAD):
            first = last = graph.flow(Kind.TRANSFER, *ends, size, label)
        else:
            # Bytes of message m up to `part` wait for the receiver to ask for m - skip - 1, the
            # rest for m - skip; when all but `part` have left, the send of m + skip is done.
            cuts = np.sort([part[alike], size - part[alike]], axis=0)
            first, middle, last = (
                graph.flow(Kind.TRANSFER, *ends, piece, label)
                for piece in (cuts[0], cuts[1] - cuts[0], size - cuts[1])
            )
            graph.edge(first, middle)
            graph.edge(middle, last)
            graph.edge(asked[: count - skip], (middle if early else last)[skip:], lag_s)
            graph.edge(asked[: max(0, count - skip - 1)], first[skip + 1 :], lag_s)
            graph.edge((middle if early else first)[: count - skip], sent[skip:, alike])
        graph.edge(starts, first)
        graph.edge(last[:-1], first[1:])
        graph.edge(last, received[:, alike], lag_s)
        if lanes.blocking:
            graph.edge(last, sent[:, alike], lag_s)
    place = {message: index for index, message in enumerate(messages)}
    return _Channel(place=place, issue=issue, sent=sent, post=post, received=received)


def _chains(
    graph: Graph,
    lanes: Lanes,
    stage: int,
    program: Program,
    done: dict[tuple[str, int], Ids],
    channels: dict[Message, tuple[_Channel, int]],
) -> list[tuple[Ids, Ids]]:
    """Sequences of (starts, stops), (length, num_lanes): one for all that a rank does if it waits
    for exchanges, else one of its work and one of its communicator's operations."""
    work: tuple[list[Ids], list[Ids]] = ([], [])
    talk = work if lanes.blocking else ([], [])
    edges: list[tuple[Ids, Ids]] = []
    for step in program:
        if isinstance(step, Work):
            task = done[step.kind, step.virtual_stage][:, step.micro_batch]
            work[0].append(task)
            work[1].append(task)
            continue
        begins = [channel.issue[place] for channel, place in (channels[m] for m in step.sends)]
        begins += [channel.post[place] for channel, place in (channels[m] for m in step.receives)]
        ends = [channel.sent[place] for channel, place in (channels[m] for m in step.sends)]
        ends += [channel.received[place] for channel, place in (channels[m] for m in step.receives)]
        begin, end = begins[0], ends[0]
        if len(begins) > 1:
            begin, end = graph.work(Kind.MARK, lanes.ranks[:, [stage, stage]].T)
            edges += [(begin, other) for other in begins] + [(other, end) for other in ends]
        talk[0].append(begin)
        talk[1].append(end)
    if edges:
        graph.edge(np.stack([a for a, _ in edges]), np.stack([b for _, b in edges]))
    sequences = [work] if lanes.blocking else [work, talk]
    return [(np.stack(starts), np.stack(stops)) for starts, stops in sequences if starts]


def _data_edges(
    graph: Graph,
    programs: list[Program],
    done: dict[tuple[str, int], Ids],
    channels: dict[Message, tuple[_Channel, int]],
) -> None:
    """Work waits for its message, and a message for the work that makes it."""
    before, after = [], []
    for program in programs:
        for step in program:
            if not isinstance(step, Exchange):
                continue
            for message in step.sends:
                channel, place = channels[message]
                before.append(done[message.kind, message.virtual_stage][:, message.micro_batch])
                after.append(channel.issue[place])
            for message in step.receives:
                channel, place = channels[message]
                target = message.virtual_stage + (1 if message.kind == FORWARD else -1)
                before.append(channel.received[place])
                after.append(done[message.kind, target][:, message.micro_batch])
    if before:  # else a pipeline of one stage
        graph.edge(np.stack(before), np.stack(after))
