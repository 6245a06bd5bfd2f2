"""Build the graph of a pipeline schedule: compute, and messages as NCCL moves them over TCP.

A message of S bytes has three steps. The sender's operation copies it into the library's buffers,
the bytes cross the network, and the receiver's operation copies them out. Each copy takes S over
the rate at which a process moves bytes through its sockets. Operations of one communicator follow
one another, so fast networks cannot hide their transfers behind compute. The buffers at either end
hold E = FIFO + window + factor x rate x round trip. Up to E bytes may arrive before the receiver
asks for them, and a send is done when at most E bytes are left. On long paths E is several
messages, and ranks do not wait for each other; on short paths it is a part of a message.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netbench.plan.collectives import double_tree
from netbench.plan.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Exchange,
    Message,
    Program,
    Work,
    user,
)
from netbench.simulator.graph import Graph, Ids, TaskKind

MAX_AHEAD = 64
"""Buffers of more messages than this count as unlimited: no schedule has more under way."""

_KINDS = {FORWARD: TaskKind.FORWARD, BACKWARD: TaskKind.BACKWARD, WEIGHT: TaskKind.BACKWARD}


class Noise:
    """Random times of passes. jitter: standard deviation over mean. draw: a seed."""

    def __init__(self, jitter: float, draw: int) -> None:
        self._jitter, self._random = jitter, np.random.default_rng(draw)

    def factors(self, shape: tuple[int, int]) -> NDArray[np.float64]:
        """Return the time of passes over its mean; not below 0."""
        return np.maximum(0.0, 1 + self._jitter * self._random.standard_normal(shape))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """Pipelines side by side. ranks: (num_lanes, num_stages)."""

    ranks: Ids
    num_micro_batches: int
    message_bytes: float
    blocking: bool  # a rank waits for every exchange; otherwise compute overlaps
    awaits_arrival: bool  # a send lasts until its message has arrived, slow starts aside
    sums_loss: bool = False  # the last stages do, after every forward pass
    tensor_parallel: int = 1  # neighbouring lanes that compute together
    noise: Noise | None = None  # None = every pass takes its mean time


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """A schedule as the tasks and edges of one pipeline, independent of network and durations.

    Tasks, (num_tasks,): kind (`TaskKind`), stage, label (micro-batch). Work comes first, with its
    virtual_stage, (num_work,); work_of has the tasks of every kind of work. Messages follow, four
    times (num_messages,): start and end of their sends, start and end of their receives. Marks are
    last.
    Messages, (num_messages,), grouped by pair of stages, in order: source and target stage, place
    in their group, and length of that group.
    before, after: (num_edges,), tasks. first: tasks that wait for the gate of their stage. ends:
    (num_stages,), a mark that follows all tasks of a stage.
    """

    kind: NDArray[np.int8]
    stage: Ids
    label: Ids
    work_of: dict[str, Ids]
    virtual_stage: Ids
    source: Ids
    target: Ids
    place: Ids
    length: Ids
    before: Ids
    after: Ids
    first: Ids
    ends: Ids


class _Names(NamedTuple):
    """Tasks of one lane: all work, and start and end of the send and receive of every message."""

    work: dict[Work, int]
    issue: dict[Message, int]
    sent: dict[Message, int]
    post: dict[Message, int]
    received: dict[Message, int]


def wire(programs: list[Program], *, blocking: bool) -> Wiring:
    """Turn a schedule's programs, by stage, into tasks and edges. blocking: as in `Lanes`."""
    works = [
        (stage, step)
        for stage, program in enumerate(programs)
        for step in program
        if isinstance(step, Work)
    ]
    channels = _channels(programs)
    rows = [
        (source, target, place, len(messages), message.micro_batch)
        for (source, target), messages in channels.items()
        for place, message in enumerate(messages)
    ]
    source, target, place, length, label = np.array(rows, np.int64).reshape(-1, 5).T
    num_work, count = len(works), len(rows)
    listed = [message for messages in channels.values() for message in messages]
    issue, sent, post, received = (
        {message: num_work + part * count + index for index, message in enumerate(listed)}
        for part in range(4)
    )
    work = {step: task for task, (_, step) in enumerate(works)}
    names = _Names(work, issue, sent, post, received)
    ends = np.arange(len(programs)) + num_work + 4 * count
    edges, marks, firsts = _edges(programs, names, ends, blocking=blocking)
    before, after = np.array(edges, np.int64).reshape(-1, 2).T
    others = np.array([*range(len(programs)), *marks], np.int64)
    operations = np.repeat([TaskKind.MARK, TaskKind.SEND, TaskKind.MARK, TaskKind.RECEIVE], count)
    marks_kind, no_label = np.full(len(others), TaskKind.MARK), np.full(len(others), -1)
    work_kind, work_stage, work_label = np.array(
        [(_KINDS[step.kind], stage, step.micro_batch) for stage, step in works], np.int64
    ).T
    return Wiring(
        kind=np.concatenate([work_kind, operations, marks_kind]).astype(np.int8),
        stage=np.concatenate([work_stage, source, source, target, target, others]),
        label=np.concatenate([work_label, *[label] * 4, no_label]),
        work_of={kind: np.flatnonzero([step.kind == kind for _, step in works]) for kind in _KINDS},
        virtual_stage=np.array([step.virtual_stage for _, step in works], np.int64),
        source=source,
        target=target,
        place=place,
        length=length,
        before=before,
        after=after,
        first=np.array(firsts, np.int64),
        ends=ends,
    )


def _channels(programs: list[Program]) -> dict[tuple[int, int], list[Message]]:
    """Return the messages between each pair of stages, in order."""
    channels: dict[tuple[int, int], list[Message]] = {}
    for stage, program in enumerate(programs):
        for step in program:
            for message in step.sends if isinstance(step, Exchange) else ():
                target = user(message).virtual_stage % len(programs)
                channels.setdefault((stage, target), []).append(message)
    return channels


def _edges(
    programs: list[Program], names: _Names, ends: Ids, *, blocking: bool
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Return the edges, the stages of further marks, and the first task of every chain.

    A rank that waits for exchanges has one chain of all its tasks. Otherwise it has a chain of its
    work and one of its communicator's operations; work waits for its message, and a message for the
    work that makes it. An operation of several sends and receives is between two marks.
    """
    edges: list[tuple[int, int]] = []
    marks: list[int] = []
    firsts: list[int] = []
    for stage, program in enumerate(programs):
        work: list[tuple[int, int]] = []
        talk = work if blocking else []
        for step in program:
            if isinstance(step, Work):
                work.append((names.work[step], names.work[step]))
                continue
            begins = [names.issue[m] for m in step.sends] + [names.post[m] for m in step.receives]
            stops = [names.sent[m] for m in step.sends] + [names.received[m] for m in step.receives]
            begin, stop = begins[0], stops[0]
            if len(begins) > 1:
                begin = int(ends[-1]) + 1 + len(marks)
                stop = begin + 1
                marks += [stage, stage]
                edges += [(begin, other) for other in begins] + [(other, stop) for other in stops]
            talk.append((begin, stop))
            if not blocking:
                edges += [(names.work[Work(*m)], names.issue[m]) for m in step.sends]
                edges += [(names.received[m], names.work[user(m)]) for m in step.receives]
        for chain in [work] if blocking else [work, talk]:
            if chain:
                firsts.append(chain[0][0])
                edges += [(one[1], other[0]) for one, other in itertools.pairwise(chain)]
                edges.append((chain[-1][1], int(ends[stage])))
    return edges, marks, firsts


def add_pipelines(
    graph: Graph, lanes: Lanes, wiring: Wiring, seconds: dict[str, NDArray[np.float64]], gate: Ids
) -> Ids:
    """Add a schedule for every lane.

    seconds: by kind of work, (num_virtual_stages, num_lanes). gate: (num_lanes, num_stages), tasks
    that each rank ends before. Returns (num_lanes, num_stages), tasks at the end of each program.
    """
    ranks = lanes.ranks.T
    amount = np.zeros((len(wiring.kind), ranks.shape[1]))
    for kind, durations in seconds.items():
        work = wiring.work_of[kind]
        amount[work] = durations[wiring.virtual_stage[work]]
        if lanes.noise is not None:
            together = (len(work), ranks.shape[1] // lanes.tensor_parallel)
            factors = lanes.noise.factors(together)
            amount[work] *= np.repeat(factors, lanes.tensor_parallel, axis=1)
    tasks = graph.work(wiring.kind[:, None], ranks[wiring.stage], amount, wiring.label[:, None])
    graph.edge(gate.T[wiring.stage[wiring.first]], tasks[wiring.first])
    graph.edge(tasks[wiring.before], tasks[wiring.after])
    if len(wiring.source):
        _add_messages(graph, lanes, wiring, tasks)
    if lanes.sums_loss:
        _sum_losses(graph, lanes, wiring, tasks)
    return tasks[wiring.ends].T


def _sum_losses(graph: Graph, lanes: Lanes, wiring: Wiring, tasks: Ids) -> None:
    """Let every backward pass of a last stage wait until the replicas have summed the loss of its
    micro-batch, up and down a tree. Numbers take as long as the delays.
    """
    last = wiring.virtual_stage.max()
    passes = []
    for kind in (FORWARD, BACKWARD):
        works = wiring.work_of[kind]
        works = works[wiring.virtual_stage[works] == last]
        works = works[np.argsort(wiring.label[works])]
        passes.append(tasks[works].reshape(len(works), -1, lanes.tensor_parallel))
    forward, backward = passes  # (num_micro_batches, num_replicas, tensor_parallel)
    members = lanes.ranks[:, -1].reshape(forward.shape[1:])
    parents = np.array(double_tree(len(members))[0])
    below = np.flatnonzero(parents >= 0)
    above, root = parents[below], np.flatnonzero(parents < 0)
    ranks = np.broadcast_to(members, forward.shape)
    summed, told = graph.work(TaskKind.MARK, ranks), graph.work(TaskKind.MARK, ranks)
    graph.edge(forward, summed)
    graph.edge(summed[:, below], summed[:, above], graph.delay_s(members[below], members[above]))
    graph.edge(summed[:, root], told[:, root])
    graph.edge(told[:, above], told[:, below], graph.delay_s(members[above], members[below]))
    graph.edge(told, backward)


def _add_messages(graph: Graph, lanes: Lanes, wiring: Wiring, tasks: Ids) -> None:
    """Add the bytes of every message, between its send and its receive.

    All arrays are (num_messages, num_lanes).
    """
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
    first = graph.flow(TaskKind.TRANSFER, senders, receivers, np.where(cut, low, size), label)
    middle, last = first.copy(), first.copy()
    ends, of = (senders[cut], receivers[cut]), first[cut]
    middle[cut] = graph.flow(TaskKind.TRANSFER, *ends, (high - low)[cut], label[cut], of)
    last[cut] = graph.flow(TaskKind.TRANSFER, *ends, (size - high)[cut], label[cut], of)
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
    if lanes.awaits_arrival:
        idle_s = graph.fabric.serialisation_s(senders, receivers, size)
        passage = graph.work(TaskKind.PASSAGE, senders, idle_s, label, receivers)
        graph.edge(issue, passage)
        graph.edge(passage, sent, delay_s)
        fast = graph.fabric.starts_fast(senders, receivers)
        graph.edge(last[fast], sent[fast], delay_s[fast])
