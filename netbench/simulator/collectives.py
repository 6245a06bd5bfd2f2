"""Time collectives: add the stages of an algorithm (`plan.collectives`) to a graph, as flows.

An `AddCollective` takes (graph, members, size_bytes, gate) and returns `done`. members:
(num_groups, n), ranks in ring or tree order; all groups run at once. size_bytes: (num_groups,) or a
number, the size that nccl-tests calls S. gate: (num_groups, n), tasks that each member ends before
it takes part. done: (num_groups, n), moments when each member has its result and has sent what
others need.

Libraries differ in how they execute a stage. NCCL's receivers have their buffers ready, so bytes
leave as soon as they are there; its rings move `ring_chunk_bytes` per rank round the ring before
the next chunk. gloo's sender waits until the receiver announces that it is ready, and its rings
keep two messages under way, which the receiving host copies after the wire has carried them.
Message sizes come from the libraries' transport profiles.

Sources: NCCL, `src/device/{all_reduce,all_gather,reduce_scatter,broadcast,reduce}.h`,
`src/include/collectives.h`, `src/graph/trees.cc`; gloo, `gloo/{allreduce,allgather,alltoall,
broadcast,reduce}.cc`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netbench.plan import collectives as specifications
from netbench.plan.benchmark import ELEMENT_BYTES, CollectivePlan
from netbench.plan.collectives import Algorithm, AllPairs, HopList, Ring, needs
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Ids, TaskKind
from netbench.transport.profile import TransportProfile, load_transport

Floats = NDArray[np.float64]
AddCollective = Callable[[Graph, Ids, ArrayLike, Ids], Ids]

NCCL, GLOO = load_transport("nccl"), load_transport("gloo")
"""Profiles of the libraries whose algorithms are timed. A plan of one library may use an algorithm
of the other (`data_parallel`)."""

MAX_RING = 64
"""Longest ring that is simulated step by step, ranks."""

MERGED_STEPS = 24
"""Steps of a longer ring. Each stands for several, with their bytes and their delays."""

MAX_GLOO_MESSAGES = 128
"""Messages of one rank in one pass of gloo's ring. Further ones are merged, with their bytes and
their delays."""


def _add(
    library: str, algorithm: Algorithm, graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids
) -> Ids:
    """Add all stages of an algorithm, as `library` executes them."""
    size = np.broadcast_to(np.asarray(size_bytes, np.float64), members.shape[:1])
    rendezvous = library == "gloo"
    for stage in algorithm(members.shape[1]):
        match stage:
            case HopList():
                gate = _hops(graph, members, size, gate, stage, rendezvous=rendezvous)
            case AllPairs():
                gate = _exchange(graph, members, size, gate, rendezvous=rendezvous)
            case Ring():
                add_ring = _gloo_ring if rendezvous else _nccl_ring
                gate = add_ring(graph, members, size, gate, stage)
    return gate


COLLECTIVES: Mapping[str, Mapping[str, AddCollective]] = {
    library: {
        name: partial(_add, library, collective.algorithms[library])
        for name, collective in specifications.COLLECTIVES.items()
        if library in collective.algorithms
    }
    for library in ("nccl", "gloo")
}
"""Library -> collective -> function."""

ring_all_reduce = COLLECTIVES["nccl"]["all-reduce"]
ring_all_gather = COLLECTIVES["nccl"]["all-gather"]
ring_reduce_scatter = COLLECTIVES["nccl"]["reduce-scatter"]
chain_reduce = COLLECTIVES["nccl"]["reduce"]
chain_broadcast = COLLECTIVES["nccl"]["broadcast"]
all_to_all = COLLECTIVES["nccl"]["all-to-all"]
butterfly = COLLECTIVES["nccl"]["butterfly"]


def all_reduce_each(graph: Graph, members: Ids, sizes: Sequence[float], gate: Ids) -> Ids:
    """Add all-reduces of several tensors, bytes, one after another: rings, or trees for short ones.

    The rings are merged into one that goes round for each tensor, as for a large one.
    """
    long = [size for size in sizes if size > specifications.SHORT_TENSOR_BYTES]
    if long:
        n = members.shape[1]
        passes = sum(max(1.0, math.ceil(size / n / NCCL.ring_chunk_bytes)) for size in long)
        total, ring = np.full(len(members), sum(long)), Ring(reduces=True, gathers=True)
        gate = _nccl_ring(graph, members, total, gate, ring, np.full(len(members), passes))
    for size in sizes:
        if size <= specifications.SHORT_TENSOR_BYTES:
            gate = COLLECTIVES["nccl"]["tree-all-reduce"](graph, members, size, gate)
    return gate


def data_parallel(kind: str, backend: str) -> AddCollective:
    """Return the function for a `Plan.data_parallel` that is one collective.

    Only ddp's ring runs gloo's own all-reduce; gloo has no trees and no parameter servers, so those
    are NCCL's with either backend.
    """
    library = "gloo" if (kind, backend) == ("ring", "gloo") else "nccl"
    return COLLECTIVES[library][specifications.DATA_PARALLEL[kind]]


def simulate_collective(plan: CollectivePlan, transport: TransportProfile | None = None) -> float:
    """Return the seconds of one collective or transfer until the last rank has finished.

    transport: None = the built-in profile of the plan's backend. Sizes and rates are unscaled. The
    payload is rounded up to whole elements per rank.
    """
    profile = transport or load_transport(plan.backend)
    fabric = Fabric(plan.network, np.arange(plan.num_nodes), profile, alone=True)
    members = np.arange(2 if plan.op == "p2p" else plan.num_nodes)[None, :]
    shard_elements = -(-plan.payload_bytes // (ELEMENT_BYTES * plan.num_nodes))
    size_bytes = shard_elements * ELEMENT_BYTES * plan.num_nodes
    return alone_s(fabric, members, size_bytes, COLLECTIVES[plan.backend][plan.op])


def simulate_parts(plan: CollectivePlan, transport: TransportProfile | None = None) -> float:
    """Return the seconds of a collective of n members as n collectives of an n-th each, over warm
    connections.

    central-ps: all parts are reduced to member 0, then broadcast from it, one after another.
    sharded-ps: part i is reduced to member i, all parts at once, then broadcast from it: published
    times are shorter than a NIC needs for one part after another. Source: DT-FM's release.
    transport: None = the built-in profile of the plan's backend.
    """
    profile = transport or load_transport(plan.backend)
    fabric = Fabric(plan.network, np.arange(plan.num_nodes), profile, alone=True)
    members, library = np.arange(plan.num_nodes)[None, :], COLLECTIVES[plan.backend]
    size = plan.payload_bytes / plan.num_nodes
    at_once = plan.op == "sharded-ps"
    calls = ("reduce", "broadcast") if plan.op in ("central-ps", "sharded-ps") else (plan.op,)

    def in_parts(graph: Graph, ranks: Ids, size_bytes: ArrayLike, gate: Ids) -> Ids:
        for call in calls:
            if at_once:
                gate = _rotated(library[call], graph, ranks, size_bytes, gate)
                continue
            for _ in range(plan.num_nodes):
                gate = library[call](graph, ranks, size_bytes, gate)
        return gate

    return alone_s(fabric, members, size, in_parts)


def _rotated(
    collective: AddCollective, graph: Graph, members: Ids, size_bytes: ArrayLike, gate: Ids
) -> Ids:
    """Add a collective once from every member, all at once."""
    ends = []
    for first in range(members.shape[1]):
        done = collective(
            graph, np.roll(members, -first, axis=1), size_bytes, np.roll(gate, -first, axis=1)
        )
        ends.append(np.roll(done, first, axis=1))
    together = graph.work(TaskKind.MARK, members)
    for done in ends:
        graph.edge(done, together)
    return together


def alone_s(fabric: Fabric, groups: Ids, size_bytes: float, collective: AddCollective) -> float:
    """Return the seconds of a collective in all `groups` at once, when all members start together
    over warm connections."""
    graph = Graph(fabric)
    first = collective(graph, groups, size_bytes, graph.work(TaskKind.MARK, groups))
    ready = graph.work(TaskKind.MARK, 0)
    graph.edge(first, ready)
    second = collective(graph, groups, size_bytes, np.broadcast_to(ready, groups.shape))
    end_s = graph.run().end_s
    return float(end_s[second].max() - end_s[ready].max())


def _done(graph: Graph, members: Ids, gate: Ids, *ends: tuple[Ids, ArrayLike, ArrayLike]) -> Ids:
    """Add a mark per member, after its gate and every (tasks, positions of members, lag_s)."""
    done = graph.work(TaskKind.MARK, members)
    graph.edge(gate, done)
    for tasks, positions, lag_s in ends:
        graph.edge(tasks, done[:, np.atleast_1d(positions)], lag_s)
    return done


def _hops(
    graph: Graph, members: Ids, size: Floats, gate: Ids, stage: HopList, *, rendezvous: bool
) -> Ids:
    """Add hops. NCCL cuts a part into slices if the stage says so; gloo sends whole parts."""
    if not stage.hops:
        return _done(graph, members, gate)
    part_bytes, sliced = size / stage.num_parts, stage.sliced and not rendezvous
    transport = graph.fabric.transport
    if stage.is_chain and graph.fabric.alone:
        beside_bytes = transport.chain_overhead * part_bytes
        part_bytes = part_bytes + np.minimum(beside_bytes, transport.chain_overhead_bytes)
    sizes, linked = _slices(part_bytes) if sliced else (part_bytes[None, :, None], np.arange(1))
    count = len(sizes)
    from_, to = (np.array([hop[end] for hop in stage.hops]) for end in (0, 1))
    source, target = members[:, from_], members[:, to]
    delay_s = graph.delay_s(source, target)
    kind = TaskKind.TRANSFER if stage.point_to_point else TaskKind.COLLECTIVE
    label = np.arange(count)[:, None, None] if sliced else -1
    sent = graph.flow(kind, source, target, sizes, label)
    graph.edge(gate[:, from_], sent[0])
    if rendezvous:
        graph.edge(gate[:, to], sent[0], graph.delay_s(target, source))
    elif sliced:
        graph.edge(gate[:, to], sent[min(1, count - 1)])  # buffers hold a slice until then
    graph.edge(sent[:-1], sent[1:])
    edges = [(one, hop) for hop, before in enumerate(needs(stage)) for one in before]
    before, after = np.array(edges, np.int64).reshape(-1, 2).T
    passed_on = sent[linked]
    graph.edge(passed_on[:, :, before], passed_on[:, :, after], delay_s[:, before])
    return _done(graph, members, gate, (sent[-1], from_, 0.0), (sent[-1], to, delay_s))


def _slices(size: Floats) -> tuple[Floats, Ids]:
    """Cut every group's message into slices: their sizes, (num_slices, num_groups, 1), and the
    indices of the slices that are passed on as soon as they arrive.

    A short message passes on every slice. A message of more than `max_slices` alternates slices of
    `slice_bytes` with long ones, each of which stands for many slices. The long ones follow the one
    before, which takes as long.
    """
    num_chunks = math.ceil(size.max(initial=1.0) / NCCL.slice_bytes)
    if num_chunks <= NCCL.max_slices:
        sizes = np.broadcast_to(size / num_chunks, (num_chunks, len(size)))
        return sizes[..., None], np.arange(num_chunks)
    count = NCCL.max_slices - 1
    short = np.minimum(NCCL.slice_bytes, size / count)
    sizes = np.broadcast_to(short, (count, len(size))).copy()
    sizes[1::2] = (size - short * (count // 2 + 1)) / (count // 2)
    return sizes[..., None], np.arange(0, count, 2)


def _nccl_ring(
    graph: Graph, members: Ids, size: Floats, gate: Ids, ring: Ring, passes: Floats | None = None
) -> Ids:
    """Add a ring in whose steps every member passes on an n-th, slice by slice.

    Large messages go round in several passes, one after the other. Here all passes are merged into
    one, with all their bytes and delays. That takes the same time, since all passes do. Several
    steps of a long ring are merged likewise. What is merged crosses many hops, so all delays but
    one are the mean of the ring. passes: None = those of one message.
    """
    n = members.shape[1]
    if n < 2:
        return _done(graph, members, gate)
    target = np.roll(members, -1, axis=1)
    num_steps = (ring.reduces + ring.gathers) * (n - 1)
    if passes is None:
        passes = np.maximum(1.0, np.ceil(size / n / NCCL.ring_chunk_bytes))
    steps = num_steps if n <= MAX_RING else min(MERGED_STEPS, num_steps)
    merged, slices = num_steps / steps, NCCL.ring_slices
    delay_s = graph.delay_s(members, target)
    lag_s = delay_s + (passes * merged - 1)[:, None] * delay_s.mean(axis=1, keepdims=True)
    sent = graph.flow(
        TaskKind.COLLECTIVE,
        members,
        target,
        (size / n * merged / slices)[:, None],
        label=(np.arange(steps * slices) // slices)[:, None, None],
    )
    graph.edge(gate, sent[0])
    graph.edge(np.roll(gate, -1, axis=1), sent[1])  # buffers hold a slice, if the receiver is late
    graph.edge(sent[:-1], sent[1:])
    received = np.roll(sent, 1, axis=2)  # [slice, group, i]: what comes to member i
    lag_s = np.roll(lag_s, 1, axis=1)
    graph.edge(received[:-slices], sent[slices:], lag_s)
    everyone = np.arange(n)
    return _done(graph, members, gate, (sent[-1], everyone, 0.0), (received[-1], everyone, lag_s))


def _exchange(graph: Graph, members: Ids, size: Floats, gate: Ids, *, rendezvous: bool) -> Ids:
    """Add an exchange: every member sends size / n to each other, all at once."""
    n = members.shape[1]
    graph.reserve(len(members) * n * (n - 1))
    a, b = np.nonzero(~np.eye(n, dtype=np.bool_))
    source, target = members[:, a], members[:, b]
    sent = graph.flow(TaskKind.COLLECTIVE, source, target, (size / n)[:, None])
    graph.edge(gate[:, a], sent)
    if rendezvous:
        graph.edge(gate[:, b], sent, graph.delay_s(target, source))
    return _done(graph, members, gate, (sent, a, 0.0), (sent, b, graph.delay_s(source, target)))


def _gloo_ring(graph: Graph, members: Ids, size: Floats, gate: Ids, ring: Ring) -> Ids:
    """Add the passes of gloo's ring, each in at least two messages per member."""
    n, per_member = members.shape[1], 2
    if ring.segmented:
        wanted = math.ceil(size.max(initial=1.0) / GLOO.segment_bytes)
        per_member = max(2, math.ceil(wanted / n))
    count = per_member * n - 2 if ring.overruns else per_member * (n - 1)
    order = slice(None, None, -1 if ring.backwards else 1)
    for _ in range(ring.reduces + ring.gathers):
        message = size / (per_member * n)
        gate = _gloo_pass(graph, members[:, order], message, gate[:, order], count)[:, order]
    return gate


def _gloo_pass(graph: Graph, members: Ids, message: Floats, gate: Ids, num_messages: int) -> Ids:
    """Add a pass of gloo's ring: every member sends `num_messages` messages to the next.

    message: bytes of one, (num_groups,). Sender and receiver post a message when both are done with
    the message two before it.
    """
    n = members.shape[1]
    if n < 2:
        return _done(graph, members, gate)
    count = min(num_messages, MAX_GLOO_MESSAGES)
    merged = num_messages / count
    target = np.roll(members, -1, axis=1)
    there_s, back_s = graph.delay_s(members, target), graph.delay_s(target, members)
    sent = graph.flow(
        TaskKind.COLLECTIVE,
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
    # The receiving host copies a message after the wire has carried it.
    copy_s = 8 * message[:, None] / graph.fabric.transport.host_bps
    arrives_s = there_s + copy_s
    received, came_s = np.roll(before, 1, axis=2), np.roll(arrives_s, 1, axis=1)
    graph.edge(received, after, came_s * merged)  # the sender has received
    graph.edge(before, after, (arrives_s + back_s) * merged)  # the receiver has, and announces it
    graph.edge(np.roll(before, -1, axis=2), after, back_s * merged)  # it has sent, and announces it
    everyone = np.arange(n)
    last = sent[-2:]
    ends = [(task, everyone, 0.0) for task in last]
    arrivals = [(np.roll(task, 1, axis=1), everyone, came_s) for task in last]
    return _done(graph, members, gate, *ends, *arrivals)
