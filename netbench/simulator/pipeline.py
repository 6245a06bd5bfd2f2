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

import itertools
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """A schedule as the tasks of one pipeline and what they wait for: of no network, and no time.

    Of tasks, (num_tasks,): kind (`Kind`), stage, label (micro-batch). First all work, which has
    work_kind (its kind, and the tasks of it) and virtual_stage, (num_work,). Then, in the order of
    `messages`, where each message's send starts, is done, its receive starts, is done. Others are
    marks. Of messages, (num_messages,), in order within their channel, from one stage to another:
    source, target, channel, place there, and length of the channel.
    before, after: (num_edges,), tasks. first: of every chain of tasks, what waits for the gate of
    its stage. ends: (num_stages,), the last one of each stage.
    """

    kind: NDArray[np.int8]
    stage: Ids
    label: Ids
    work_of: dict[str, Ids]
    virtual_stage: Ids
    source: Ids
    target: Ids
    channel: Ids
    place: Ids
    length: Ids
    before: Ids
    after: Ids
    first: Ids
    ends: Ids


def wire(programs: list[Program], *, blocking: bool) -> Wiring:
    """A schedule's programs, by stage. blocking: as in `Lanes`."""
    channels: dict[tuple[int, int], list[Message]] = {}
    for stage, program in enumerate(programs):
        for step in program:
            for message in step.sends if isinstance(step, Exchange) else ():
                direction = 1 if message.kind == FORWARD else -1
                target = (message.virtual_stage + direction) % len(programs)
                channels.setdefault((stage, target), []).append(message)
    columns = [
        (source, target, channel, place, len(messages), message.micro_batch)
        for channel, ((source, target), messages) in enumerate(channels.items())
        for place, message in enumerate(messages)
    ]
    source, target, channel, place, length, micro_batch = (
        np.array(columns, np.int64).reshape(-1, 6).T
    )
    works = [
        (stage, step) for stage, program in enumerate(programs) for step in program
        if isinstance(step, Work)
    ]
    task = {step: index for index, (_, step) in enumerate(works)}
    count = len(columns)
    listed = [message for messages in channels.values() for message in messages]
    issue, sent, post, received = (
        {message: len(works) + part * count + index for index, message in enumerate(listed)}
        for part in range(4)
    )
    num_tasks = len(works) + 4 * count + len(programs)
    ends = np.arange(num_tasks - len(programs), num_tasks)
    mark_stages: list[int] = []
    edges: list[tuple[int, int]] = []
    firsts: list[int] = []
    for stage, program in enumerate(programs):
        work: list[tuple[int, int]] = []
        talk = work if blocking else []
        for step in program:
            if isinstance(step, Work):
                work.append((task[step], task[step]))
                continue
            begins = [issue[m] for m in step.sends] + [post[m] for m in step.receives]
            stops = [sent[m] for m in step.sends] + [received[m] for m in step.receives]
            begin, stop = begins[0], stops[0]
            if len(begins) > 1:
                begin = num_tasks + len(mark_stages)
                stop = begin + 1
                mark_stages += [stage, stage]
                edges += [(begin, other) for other in begins] + [(other, stop) for other in stops]
            talk.append((begin, stop))
            if blocking:
                continue
            for message in step.sends:  # a message waits for the work that makes it
                edges.append((task[Work(*message)], issue[message]))
            for message in step.receives:  # and work for its message
                after = message.virtual_stage + (1 if message.kind == FORWARD else -1)
                edges.append(
                    (received[message], task[Work(message.kind, after, message.micro_batch)])
                )
        for chain in [work] if blocking else [work, talk]:
            if chain:
                firsts.append(chain[0][0])
                edges += [(a[1], b[0]) for a, b in itertools.pairwise(chain)]
                edges.append((chain[-1][1], int(ends[stage])))
    before, after_ = np.array(edges, np.int64).reshape(-1, 2).T
    marks = np.full(count, int(Kind.MARK))
    steps = [step for _, step in works]
    return Wiring(
        kind=np.concatenate(
            [
                [int(_KINDS[step.kind]) for step in steps],
                marks,
                np.full(count, int(Kind.SEND)),
                marks,
                np.full(count, int(Kind.RECEIVE)),
                np.full(len(programs) + len(mark_stages), int(Kind.MARK)),
            ]
        ).astype(np.int8),
        stage=np.concatenate(
            [
                np.array([stage for stage, _ in works], np.int64),
                source,
                source,
                target,
                target,
                np.arange(len(programs)),
                np.array(mark_stages, np.int64),
            ]
        ),
        label=np.concatenate(
            [
                np.array([step.micro_batch for step in steps], np.int64),
                np.tile(micro_batch, 4),
                np.full(len(programs) + len(mark_stages), -1),
            ]
        ),
        work_of={
            kind: np.flatnonzero([step.kind == kind for step in steps])
            for kind in (FORWARD, BACKWARD, WEIGHT)
        },
        virtual_stage=np.array([step.virtual_stage for step in steps], np.int64),
        source=source,
        target=target,
        channel=channel,
        place=place,
        length=length,
        before=before,
        after=after_,
        first=np.array(firsts, np.int64),
        ends=ends,
    )


def add_pipelines(
    graph: Graph,
    lanes: Lanes,
    wiring: Wiring,
    seconds: dict[str, NDArray[np.float64]],
    gate: Ids,
) -> Ids:
    """Add a schedule for every lane.

    seconds: by kind of work, (num_virtual_stages,). gate: (num_lanes, num_stages), what each rank
    has ended before. Returns (num_lanes, num_stages), when each rank has ended its program.
    """
    ranks = lanes.ranks.T
    amount = np.zeros(len(wiring.kind))
    for kind, durations in seconds.items():
        work = wiring.work_of[kind]
        amount[work] = durations[wiring.virtual_stage[work]]
    tasks = graph.work(
        wiring.kind[:, None], ranks[wiring.stage], amount[:, None], wiring.label[:, None]
    )
    graph.edge(gate.T[wiring.stage[wiring.first]], tasks[wiring.first])
    graph.edge(tasks[wiring.before], tasks[wiring.after])
    if len(wiring.source):
        _add_messages(graph, lanes, wiring, tasks)
    return tasks[wiring.ends].T


def _add_messages(graph: Graph, lanes: Lanes, wiring: Wiring, tasks: Ids) -> None:
    """Bytes of every message, between its send and its receive. All arrays are (num_messages,
    num_lanes)."""
    size = max(1.0, lanes.message_bytes)  # even an empty one is a message
    num_work, count = len(wiring.virtual_stage), len(wiring.source)
    issue, sent, post, received = tasks[num_work : num_work + 4 * count].reshape(4, count, -1)
    senders, receivers = lanes.ranks.T[wiring.source], lanes.ranks.T[wiring.target]
    label = np.broadcast_to(wiring.label[num_work : num_work + count, None], senders.shape)
    lane = np.broadcast_to(np.arange(senders.shape[1]), senders.shape)
    place = np.broadcast_to(wiring.place[:, None], senders.shape)
    length = wiring.length[:, None]
    delay_s = graph.delay_s(senders, receivers)
    copy_s = graph.fabric.copy_s(senders, receivers, size)
    buffered = graph.fabric.buffered_bytes(senders, receivers)
    graph.edge(issue, sent, copy_s)
    graph.edge(post, received, copy_s)

    ahead, part = np.divmod(np.minimum(buffered, MAX_AHEAD * size), size)
    ahead = np.minimum(ahead, MAX_AHEAD).astype(np.int64)
    cut = ahead < np.minimum(length, MAX_AHEAD)
    early = part <= size / 2
    # Bytes of message m up to `part` wait for the receiver to ask for m - ahead - 1, the rest for
    # m - ahead; when all but `part` have left, the send of m + ahead is done. So three pieces.
    low, high = np.minimum(part, size - part), np.maximum(part, size - part)
    first = graph.flow(Kind.TRANSFER, senders, receivers, np.where(cut, low, size), label)
    middle, last = first.copy(), first.copy()
    ends = (senders[cut], receivers[cut])
    middle[cut] = graph.flow(Kind.TRANSFER, *ends, (high - low)[cut], label[cut])
    last[cut] = graph.flow(Kind.TRANSFER, *ends, (size - high)[cut], label[cut])
    graph.edge(first[cut], middle[cut])
    graph.edge(middle[cut], last[cut])
    for pieces, skip in ((np.where(early, middle, last), ahead), (first, ahead + 1)):
        asked = np.nonzero(cut & (place + skip < length))
        later = asked[0] + skip[asked]
        graph.edge(post[asked], pieces[later, lane[asked]], delay_s[asked])
    freed = np.nonzero(cut & (place + ahead < length))
    pieces = np.where(early, middle, first)
    graph.edge(pieces[freed], sent[freed[0] + ahead[freed], freed[1]])
    graph.edge(issue, first)
    follows = np.flatnonzero(wiring.place > 0)
    graph.edge(last[follows - 1], first[follows])
    graph.edge(last, received, delay_s)
    if lanes.blocking:
        graph.edge(last, sent, delay_s)
