"""Collectives as flows over links, added to a graph: as NCCL moves them, and as gloo does.

All functions take (graph, members, size_bytes, gate, ...) and return `done`. members: (num_groups,
n), ranks in ring or tree order, all groups at once. size_bytes: (num_groups,) or a number, the size
that nccl-tests calls S. gate: (num_groups, n), tasks that each member ends before it takes part.
done: (num_groups, n), moments when each member has its result and has sent what others need.

NCCL's receivers have their buffers ready: bytes leave when they are there. The ring algorithms move
`RING_CHUNK_BYTES` per rank round the ring before the next so many. gloo's sender waits to hear from
the receiver, and its rings keep two messages under way.

Sources: NCCL, `src/device/{all_reduce,all_gather,reduce_scatter,broadcast,reduce}.h`,
`src/include/collectives.h`, `src/graph/trees.cc`; gloo, `gloo/{allreduce,allgather,alltoall,
broadcast,reduce}.cc`; PyTorch, `ProcessGroupGloo.cpp` (its reduce-scatter is an all-reduce).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netbench.simulator.graph import Graph, Ids, Kind

Floats = NDArray[np.float64]
Collective = Callable[[Graph, Ids, ArrayLike, Ids], Ids]

RING_CHUNK_BYTES = 2 * (4 << 20) // 8 * 4
"""What a rank passes on in one step of NCCL's rings: 4 of the 8 parts of a 4 MiB buffer
(`NCCL_STEPS`, `ALLREDUCE_CHUNKSTEPS`, `NCCL_BUFFSIZE`) in each of 2 channels (a ring found once is
doubled, `connectRings`)."""

RING_SLICES = 2
"""Parts of it that are passed on by themselves: `ALLREDUCE_CHUNKSTEPS / ALLREDUCE_SLICESTEPS`."""

CHUNK_BYTES = 2 * (4 << 20) // 8
"""Slice of a chain or tree, bytes: 1 of the 8 parts (`BROADCAST_CHUNKSTEPS`), in 2 channels."""

MAX_SLICES = 64
"""Of a chain or tree, in tasks; see `_slices`."""

MAX_RING = 64
"""Ranks of a ring that is simulated step by step."""

MERGED_STEPS = 24
"""Steps of a longer ring: each stands for several, with their bytes and their delays."""

GLOO_SEGMENT_BYTES = 1 << 20
"""Largest message of gloo's ring all-reduce and reduce, bytes: `kMaxSegmentSize`."""

MAX_GLOO_MESSAGES = 128
"""Of one rank in one pass of gloo's ring; more are merged, with their bytes and their delays."""


def nccl_p2p(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """members[0] sends to members[1], whose library takes all in before it asks for it."""
    source, target = members[:, 0], members[:, 1]
    sent = graph.flow(Kind.TRANSFER, source, target, size_bytes)
    graph.edge(gate[:, 0], sent)
    return _done(graph, members, gate, (sent[:, None], 0, 0.0), _arrivals(graph, sent, members, 1))


def ring_all_reduce(
    graph: Graph,
    members: Ids,
    size_bytes: ArrayLike,
    gate: Ids,
    chunk_bytes: float = RING_CHUNK_BYTES,
) -> Ids:
    """Every member ends with the sum of all: a reduce-scatter and an all-gather in one."""
    return _nccl_ring(graph, members, size_bytes, gate, chunk_bytes, 2 * (members.shape[1] - 1))


def ring_all_gather(
    graph: Graph,
    members: Ids,
    size_bytes: ArrayLike,
    gate: Ids,
    chunk_bytes: float = RING_CHUNK_BYTES,
) -> Ids:
    """Every member has size / n, and ends with all of it."""
    return _nccl_ring(graph, members, size_bytes, gate, chunk_bytes, members.shape[1] - 1)


def ring_reduce_scatter(
    graph: Graph,
    members: Ids,
    size_bytes: ArrayLike,
    gate: Ids,
    chunk_bytes: float = RING_CHUNK_BYTES,
) -> Ids:
    """Every member has size bytes, and ends with the sum of an n-th of them."""
    return _nccl_ring(graph, members, size_bytes, gate, chunk_bytes, members.shape[1] - 1)


def chain_reduce(
    graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids, chunk_bytes: int = CHUNK_BYTES
) -> Ids:
    """Slices go from members[1] through all others to members[0], and are summed on the way."""
    order = np.roll(np.arange(members.shape[1]), -1)
    return _chain(graph, members, size_bytes, gate, order, chunk_bytes)


def chain_broadcast(
    graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids, chunk_bytes: int = CHUNK_BYTES
) -> Ids:
    """Slices go from members[0] through all others to members[-1]."""
    return _chain(graph, members, size_bytes, gate, np.arange(members.shape[1]), chunk_bytes)


def tree_all_reduce(
    graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids, chunk_bytes: int = CHUNK_BYTES
) -> Ids:
    """Half of the bytes up and down each of two trees, in slices; who is a leaf of one tree is
    none of the other (Sanders, Speck, Träff: Two-tree algorithms, 2009)."""
    n = members.shape[1]
    if n < 2:
        return _done(graph, members, gate)
    half = np.broadcast_to(np.asarray(size_bytes, np.float64) / 2, members.shape[:1])
    ends = [_tree(graph, members, half, gate, tree, chunk_bytes) for tree in double_tree(n)]
    return _done(graph, members, gate, *(end for tree in ends for end in tree))


def all_to_all(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """Every member sends size / n to each other, all at once."""
    return _all_to_all(graph, members, size_bytes, gate, rendezvous=False)


def central_ps(
    graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids, chunk_bytes: int = CHUNK_BYTES
) -> Ids:
    """Gradients to members[0], parameters back: reduce, then broadcast."""
    summed = chain_reduce(graph, members, size_bytes, gate, chunk_bytes)
    return chain_broadcast(graph, members, size_bytes, summed, chunk_bytes)


def sharded_ps(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """Each member gets its shard of every gradient, then all gather the parameters."""
    exchanged = all_to_all(graph, members, size_bytes, gate)
    return ring_all_gather(graph, members, size_bytes, exchanged)


def butterfly(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """hivemind's: each member gets its part of every vector, averages it, and sends it to all."""
    return all_to_all(graph, members, size_bytes, all_to_all(graph, members, size_bytes, gate))


def gloo_p2p(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """members[0] sends to members[1] once it has heard that the receiver is ready."""
    source, target = members[:, 0], members[:, 1]
    sent = graph.flow(Kind.TRANSFER, source, target, size_bytes)
    graph.edge(gate[:, 0], sent)
    graph.edge(gate[:, 1], sent, graph.delay_s(target, source))
    return _done(graph, members, gate, (sent[:, None], 0, 0.0), _arrivals(graph, sent, members, 1))


def gloo_all_reduce(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """A ring reduce-scatter, then a ring all-gather; messages go from members[i] to [i - 1]."""
    message, per_member = _gloo_segments(members, size_bytes)
    num_messages = per_member * (members.shape[1] - 1)
    scattered = _gloo_ring_back(graph, members, message, gate, num_messages)
    return _gloo_ring_back(graph, members, message, scattered, num_messages)


def gloo_reduce(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """A ring reduce-scatter, then all send their part to members[0], at once.

    The ring stops two messages before it has come round, though less would do.
    """
    n = members.shape[1]
    message, per_member = _gloo_segments(members, size_bytes)
    scattered = _gloo_ring_back(graph, members, message, gate, per_member * n - 2)
    if n < 2:
        return scattered
    root, others = members[:, :1], members[:, 1:]
    part = np.broadcast_to(np.asarray(size_bytes, np.float64) / n, members.shape[:1])
    sent = graph.flow(Kind.COLLECTIVE, others, root, part[:, None])
    graph.edge(scattered[:, 1:], sent)
    graph.edge(scattered[:, :1], sent, graph.delay_s(root, others))
    done = _done(graph, members, scattered, (sent, np.arange(1, n), 0.0))
    graph.edge(sent, done[:, :1], graph.delay_s(others, root))
    return done


def gloo_broadcast(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """A binomial tree of whole messages from members[0]; a member sends to its children at once.

    Member i gets it from i without its highest bit.
    """
    n = members.shape[1]
    child = np.arange(1, n)
    parent = child - (1 << (np.frexp(child)[1].astype(np.int64) - 1))
    source, target = members[:, parent], members[:, child]
    size = np.broadcast_to(np.asarray(size_bytes, np.float64), members.shape[:1])
    sent = graph.flow(Kind.COLLECTIVE, source, target, size[:, None])
    delay_s = graph.delay_s(source, target)
    graph.edge(gate[:, parent], sent)
    graph.edge(gate[:, child], sent, graph.delay_s(target, source))
    inner = parent > 0
    above = parent[inner] - 1  # the message that brought it to the parent
    graph.edge(sent[:, above], sent[:, inner], delay_s[:, above])
    done = _done(graph, members, gate, (sent, child, delay_s))
    graph.edge(sent, done[:, parent])
    return done


def gloo_all_gather(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """A ring; every member's part goes round in two halves."""
    n = members.shape[1]
    message = np.asarray(size_bytes, np.float64) / n / 2
    return _gloo_ring(graph, members, message, gate, 2 * (n - 1))


def gloo_all_to_all(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """Every member sends size / n to each other, all at once."""
    return _all_to_all(graph, members, size_bytes, gate, rendezvous=True)


def gloo_central_ps(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """Gradients to members[0], parameters back: reduce, then broadcast."""
    summed = gloo_reduce(graph, members, size_bytes, gate)
    return gloo_broadcast(graph, members, size_bytes, summed)


def gloo_sharded_ps(graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
    """Each member gets its shard of every gradient, then all gather the parameters."""
    exchanged = gloo_all_to_all(graph, members, size_bytes, gate)
    return gloo_all_gather(graph, members, size_bytes, exchanged)


COLLECTIVES: Mapping[str, Mapping[str, Collective]] = {
    "nccl": {
        "p2p": nccl_p2p,
        "all-reduce": ring_all_reduce,
        "tree-all-reduce": tree_all_reduce,
        "broadcast": chain_broadcast,
        "reduce": chain_reduce,
        "all-gather": ring_all_gather,
        "reduce-scatter": ring_reduce_scatter,
        "all-to-all": all_to_all,
        "central-ps": central_ps,
        "sharded-ps": sharded_ps,
    },
    "gloo": {
        "p2p": gloo_p2p,
        "all-reduce": gloo_all_reduce,
        "broadcast": gloo_broadcast,
        "reduce": gloo_reduce,
        "all-gather": gloo_all_gather,
        "reduce-scatter": gloo_all_reduce,
        "all-to-all": gloo_all_to_all,
        "central-ps": gloo_central_ps,
        "sharded-ps": gloo_sharded_ps,
    },
}
"""Backend -> op -> function."""

DATA_PARALLEL: Mapping[str, Collective] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "central-ps": central_ps,
    "sharded-ps": sharded_ps,
}
"""`Plan.data_parallel` -> function, for those that are one collective. All are NCCL's."""


def data_parallel(kind: str, backend: str) -> Collective:
    """The function for `Plan.data_parallel` under ddp. gloo is asked for its own all-reduce; it has
    no trees and no parameter servers, so those are NCCL's whatever the backend."""
    return gloo_all_reduce if (kind, backend) == ("ring", "gloo") else DATA_PARALLEL[kind]


def double_tree(n: int) -> tuple[Ids, Ids]:
    """Parent of every member in NCCL's two trees, (n,); -1 for the root.

    In the first, i hangs where its lowest bit is replaced by the next higher one. The second is the
    first, mirrored, or shifted by one if n is odd.
    """
    ranks = np.arange(n)
    low = ranks & -ranks
    first = (ranks ^ low) | (low << 1)
    first = np.where(first < n, first, ranks ^ low)
    first[0] = -1
    if n % 2:
        moved = np.roll(first, 1)
        return first, np.where(moved < 0, -1, (moved + 1) % n)
    mirrored = first[::-1]
    return first, np.where(mirrored < 0, -1, n - 1 - mirrored)


def _done(graph: Graph, members: Ids, gate: Ids, *ends: tuple[Ids, ArrayLike, ArrayLike]) -> Ids:
    """A mark per member, after its gate and after every (tasks, positions of members, lag_s)."""
    done = graph.work(Kind.MARK, members)
    graph.edge(gate, done)
    for tasks, positions, lag_s in ends:
        graph.edge(tasks, done[:, np.atleast_1d(positions)], lag_s)
    return done


def _arrivals(graph: Graph, sent: Ids, members: Ids, position: int) -> tuple[Ids, int, Floats]:
    delay_s = graph.delay_s(members[:, 0], members[:, position])
    return sent[:, None], position, delay_s[:, None]


def _slices(size_bytes: Floats, chunk_bytes: int) -> tuple[Floats, Ids]:
    """Sizes of the slices of every group's message, (num_slices, num_groups, 1), and which of them
    are passed on when they are there; the others follow the one before.

    These are all where there are few. Longer messages alternate slices of chunk_bytes with long
    ones that are passed on while they come, as the many slices are that each stands for.
    """
    num_chunks = math.ceil(size_bytes.max(initial=1.0) / chunk_bytes)
    if num_chunks <= MAX_SLICES:
        sizes = np.broadcast_to(size_bytes / num_chunks, (num_chunks, len(size_bytes)))
        return sizes[..., None], np.arange(num_chunks)
    count = MAX_SLICES - 1
    short = np.minimum(chunk_bytes, size_bytes / count)
    sizes = np.broadcast_to(short, (count, len(size_bytes))).copy()
    sizes[1::2] = (size_bytes - short * (count // 2 + 1)) / (count // 2)
    return sizes[..., None], np.arange(0, count, 2)


def _nccl_ring(
    graph: Graph,
    members: Ids,
    size_bytes: ArrayLike,
    gate: Ids,
    chunk_bytes: float,
    num_steps: int,
) -> Ids:
    """`num_steps` steps in which every member passes an n-th on, slice by slice.

    Large messages go round in several passes, one after the other. All passes are one here, with
    all their bytes and as many delays: the time is the same, since every pass takes the same. So
    are several steps of a long ring. What is merged goes over many hops, so all delays but one are
    the mean of the ring.
    """
    num_groups, n = members.shape
    if n < 2:
        return _done(graph, members, gate)
    size = np.broadcast_to(np.asarray(size_bytes, np.float64), (num_groups,))
    target = np.roll(members, -1, axis=1)
    passes = np.maximum(1.0, np.ceil(size / n / chunk_bytes))
    steps = num_steps if n <= MAX_RING else min(MERGED_STEPS, num_steps)
    merged = num_steps / steps
    delay_s = graph.delay_s(members, target)
    lag_s = delay_s + (passes * merged - 1)[:, None] * delay_s.mean(axis=1, keepdims=True)
    count = steps * RING_SLICES
    sent = graph.flow(
        Kind.COLLECTIVE,
        members,
        target,
        (size / n * merged / RING_SLICES)[:, None],
        label=(np.arange(count) // RING_SLICES)[:, None, None],
    )
    graph.edge(gate, sent[0])
    graph.edge(np.roll(gate, -1, axis=1), sent[1])  # buffers hold a slice, if the receiver is late
    graph.edge(sent[:-1], sent[1:])
    received = np.roll(sent, 1, axis=2)  # [slice, group, i]: what comes to member i
    lag_s = np.roll(lag_s, 1, axis=1)
    graph.edge(received[:-RING_SLICES], sent[RING_SLICES:], lag_s)
    everyone = np.arange(n)
    return _done(graph, members, gate, (sent[-1], everyone, 0.0), (received[-1], everyone, lag_s))


def _chain(
    graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids, order: Ids, chunk_bytes: int
) -> Ids:
    """Slices along members[order], each passed on as soon as it is there."""
    num_groups, n = members.shape
    if n < 2:
        return _done(graph, members, gate)
    size = np.broadcast_to(np.asarray(size_bytes, np.float64), (num_groups,))
    sizes, linked = _slices(size, chunk_bytes)
    count = len(sizes)
    source, target = members[:, order[:-1]], members[:, order[1:]]
    delay_s = graph.delay_s(source, target)
    sent = graph.flow(
        Kind.COLLECTIVE,
        source,
        target,
        sizes,
        label=np.arange(count)[:, None, None],
    )
    graph.edge(gate[:, order[:-1]], sent[0])
    graph.edge(gate[:, order[1:]], sent[min(1, count - 1)])  # buffers hold a slice until then
    graph.edge(sent[:-1], sent[1:])
    graph.edge(sent[linked, :, :-1], sent[linked, :, 1:], delay_s[:, :-1])
    last = sent[-1]
    return _done(graph, members, gate, (last, order[:-1], 0.0), (last, order[1:], delay_s))


def _tree(
    graph: Graph, members: Ids, size: Floats, gate: Ids, parent: Ids, chunk_bytes: int
) -> list[tuple[Ids, ArrayLike, ArrayLike]]:
    """Slices up one tree and down again: what `_done` waits for."""
    n = members.shape[1]
    root = int(np.flatnonzero(parent < 0)[0])
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    place = np.full(n, -1)  # of a member in `child`
    place[child] = np.arange(n - 1)
    sizes, linked = _slices(size, chunk_bytes)
    low, high = members[:, child], members[:, above]
    up_s, down_s = graph.delay_s(low, high), graph.delay_s(high, low)
    label = np.arange(len(sizes))[:, None, None]
    up = graph.flow(Kind.COLLECTIVE, low, high, sizes, label)
    down = graph.flow(Kind.COLLECTIVE, high, low, sizes, label)
    graph.edge(gate[:, child], up[0])
    graph.edge(gate[:, above], down[0])
    inner = above != root
    over = place[above[inner]]  # the link above: of the parent to its own
    some_up, some_down = up[linked], down[linked]
    graph.edge(some_up[:, :, inner], some_up[:, :, over], up_s[:, inner])
    graph.edge(some_down[:, :, over], some_down[:, :, inner], down_s[:, over])
    summed = graph.work(Kind.MARK, np.broadcast_to(members[:, root], some_up.shape[:2]))
    graph.edge(gate[:, root], summed)
    graph.edge(some_up[:, :, ~inner], summed[:, :, None], up_s[:, ~inner])
    graph.edge(summed[:, :, None], some_down[:, :, ~inner])
    graph.edge(up[:-1], up[1:])
    graph.edge(down[:-1], down[1:])
    return [
        (up[-1], child, 0.0),
        (down[-1], above, 0.0),
        (down[-1], child, down_s),
        (summed[-1][:, None], root, 0.0),
    ]


def _all_to_all(
    graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids, *, rendezvous: bool
) -> Ids:
    n = members.shape[1]
    size = np.broadcast_to(np.asarray(size_bytes, np.float64) / n, members.shape[:1])
    a, b = np.nonzero(~np.eye(n, dtype=np.bool_))
    source, target = members[:, a], members[:, b]
    sent = graph.flow(Kind.COLLECTIVE, source, target, size[:, None])
    graph.edge(gate[:, a], sent)
    if rendezvous:
        graph.edge(gate[:, b], sent, graph.delay_s(target, source))
    return _done(graph, members, gate, (sent, a, 0.0), (sent, b, graph.delay_s(source, target)))


def _gloo_segments(members: Ids, size_bytes: ArrayLike) -> tuple[Floats, int]:
    """Bytes of a message of the ring, (num_groups,), and how many each member's part has."""
    n = members.shape[1]
    size = np.broadcast_to(np.asarray(size_bytes, np.float64), members.shape[:1])
    wanted = math.ceil(size.max(initial=1.0) / GLOO_SEGMENT_BYTES)
    per_member = max(2, math.ceil(wanted / n))
    return size / (per_member * n), per_member


def _gloo_ring_back(
    graph: Graph, members: Ids, message_bytes: ArrayLike, gate: Ids, num_messages: int
) -> Ids:
    """`_gloo_ring` from every member to the one before."""
    done = _gloo_ring(graph, members[:, ::-1], message_bytes, gate[:, ::-1], num_messages)
    return done[:, ::-1]


def _gloo_ring(
    graph: Graph, members: Ids, message_bytes: ArrayLike, gate: Ids, num_messages: int
) -> Ids:
    """Every member sends so many messages to the next; the one after the next is posted, by
    sender and receiver, when they are done with the message before the last."""
    num_groups, n = members.shape
    if n < 2:
        return _done(graph, members, gate)
    count = min(num_messages, MAX_GLOO_MESSAGES)
    merged = num_messages / count
    target = np.roll(members, -1, axis=1)
    there_s, back_s = graph.delay_s(members, target), graph.delay_s(target, members)
    message = np.broadcast_to(np.asarray(message_bytes, np.float64), (num_groups,))
    sent = graph.flow(
        Kind.COLLECTIVE,
        members,
        target,
        (message * merged)[:, None],
        label=np.arange(count)[:, None, None],
    )
    graph.edge(sent[:-1], sent[1:])
    for first in sent[:2]:
        graph.edge(gate, first)
        graph.edge(np.roll(gate, -1, axis=1), first, back_s)
    before, after = sent[:-2], sent[2:]
    received, came_s = np.roll(before, 1, axis=2), np.roll(there_s, 1, axis=1)
    graph.edge(received, after, came_s * merged)  # the sender has received
    graph.edge(before, after, (there_s + back_s) * merged)  # the receiver has, and says so
    graph.edge(np.roll(before, -1, axis=2), after, back_s * merged)  # it has sent, and says so
    everyone = np.arange(n)
    last = sent[-2:]
    ends = [(task, everyone, 0.0) for task in last]
    arrivals = [(np.roll(task, 1, axis=1), everyone, came_s) for task in last]
    return _done(graph, members, gate, *ends, *arrivals)
