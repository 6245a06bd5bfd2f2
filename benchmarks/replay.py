"""A small discrete-event replay of a plan: how long one iteration takes, nothing executed.

It exists to calibrate device profiles (`calibrate_v100.py`) and to tell transport rules apart.
Bytes are fluid: a flow gets the least of its equal shares of every resource it crosses.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from netbench.plan.model import Plan
from netbench.workload.costs import DTYPE_BYTES, model_parameters

INSIDE_NODE_BPS = 100e9
"""Between two GPUs of one node, bit/s. Source: published notes, cases 1 and 2."""

ETHERNET_BYTES, HEADER_BYTES = 14, 52
"""Beside the payload: Ethernet counts against a rate; IPv4, TCP and timestamps are in the MTU."""

RULES = ("whole messages", "rendezvous", "independent")
"""How many messages of S bytes a receiver accepts before their turn in its program order.

whole messages: floor(2 e / S), e = fifo + window_factor x rate x round-trip time; what the
    trainers do (netbench/trainers/communicator.py).
rendezvous: none. independent: all. The two extremes, for comparison.
"""
CHOSEN = RULES[0]

STEADY = (24, 40)
"""1F1B is affine in the micro-batches once its pipeline is full: replayed at these two."""

MAX_SLICES = 32
"""Of a gradient in a chain: `chunk_bytes` each, but at most so many (the trainers' bound)."""

Process = Generator["float | Signal", None, None]


class Timeline:
    """Events in order of (time, insertion); processes are generators of delays and signals."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, call))

    def start(self, process: Process) -> None:
        def step() -> None:
            wait = next(process, None)
            if isinstance(wait, Signal):
                wait.then(step)
            elif wait is not None:
                self.after(wait, step)

        self.after(0.0, step)

    def run(self) -> None:
        while self._events:
            self.now_s, _, call = heapq.heappop(self._events)
            call()


class Signal:
    """Something that happens once."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.fired = False
        self._calls: list[Callable[[], None]] = []

    def fire(self) -> None:
        if not self.fired:
            self.fired = True
            for call in self._calls:
                self._timeline.after(0.0, call)

    def then(self, call: Callable[[], None]) -> None:
        if self.fired:
            self._timeline.after(0.0, call)
        else:
            self._calls.append(call)


@dataclass(eq=False, slots=True)
class Resource:
    """A link, NIC direction or class of `capacity` bytes/s, and the flows that cross it now."""

    capacity: float
    flows: dict[Flow, None] = field(default_factory=dict)  # in order: a set's would vary


class Flow:
    """`size` bytes across `resources`; calls `done` once when the last has crossed."""

    def __init__(
        self,
        timeline: Timeline,
        size: float,
        resources: Iterable[Resource],
        done: Callable[[], None],
    ) -> None:
        self._timeline, self._left, self._done = timeline, size, done
        self._resources = tuple(resources)
        self._rate, self._since_s, self._version = 0.0, timeline.now_s, 0
        for resource in self._resources:
            resource.flows[self] = None
        self._share()

    def _share(self) -> None:
        for flow in {flow: None for resource in self._resources for flow in resource.flows}:
            flow._adjust()

    def _adjust(self) -> None:
        rate = min(resource.capacity / len(resource.flows) for resource in self._resources)
        if rate == self._rate:
            return
        self._left -= self._rate * (self._timeline.now_s - self._since_s)
        self._rate, self._since_s = rate, self._timeline.now_s
        self._version += 1
        version = self._version
        self._timeline.after(max(0.0, self._left) / rate, lambda: self._finish(version))

    def _finish(self, version: int) -> None:
        if version != self._version:
            return  # the rate changed meanwhile, another event is on its way
        for resource in self._resources:
            resource.flows.pop(self, None)
        self._share()
        self._done()


class Channel:
    """One direction between two ranks, in order. A send never holds its rank up."""

    def __init__(
        self,
        timeline: Timeline,
        resources: tuple[Resource, ...],
        delay_s: float,
        num_ahead: float,
    ) -> None:
        self._timeline, self._resources, self._delay_s = timeline, resources, delay_s
        self._allowed = num_ahead  # messages that the sender knows it may send
        self._turn = self._started = self._num_arrived = 0
        self._queue: deque[float] = deque()
        self._arrivals: defaultdict[int, Signal] = defaultdict(lambda: Signal(timeline))
        self._busy = False

    def send(self, size: float) -> None:
        """Hand a message over; it flows when the receiver lets it."""
        self._queue.append(size)
        self._next()

    def receive(self) -> Signal:
        """The turn of the next message: one more may flow, once the sender has heard of it."""
        self._timeline.after(self._delay_s, self._allow)
        self._turn += 1
        return self._arrivals[self._turn - 1]

    def _allow(self) -> None:
        self._allowed += 1
        self._next()

    def _next(self) -> None:
        if not self._busy and self._queue and self._started < self._allowed:
            self._busy = True
            self._started += 1
            Flow(self._timeline, self._queue.popleft(), self._resources, self._crossed)

    def _crossed(self) -> None:
        self._timeline.after(self._delay_s, self._arrive)
        self._busy = False
        self._next()

    def _arrive(self) -> None:
        self._arrivals[self._num_arrived].fire()
        self._num_arrived += 1


class World:
    """A plan's network at time 0, its ranks and the channels between them."""

    def __init__(self, plan: Plan, rule: str) -> None:
        self.plan, self.rule = plan, rule
        self.timeline = Timeline()
        self._resources: dict[tuple[object, ...], Resource] = {}
        self._channels: dict[tuple[int, int], Channel] = {}
        mtu = plan.network.mtu_bytes
        self._goodput = (mtu - HEADER_BYTES) / (mtu + ETHERNET_BYTES)

    def path(self, src: int, dst: int) -> tuple[tuple[Resource, ...], float, float]:
        """Resources between two ranks, one-way delay in seconds, and the least rate in bit/s."""
        nodes, network = self.plan.device_nodes, self.plan.network
        a, b = nodes[self.plan.placement[src]], nodes[self.plan.placement[dst]]
        if a == b:
            return (self._resource(("inside", src, dst), INSIDE_NODE_BPS / self._goodput),), 0.0, 0
        link = network.link(a, b)
        limits: dict[tuple[object, ...], float] = {}
        if network.sharing == "class":
            limits[("class", a, link.one_way_delay_s, link.bandwidth_bps)] = link.bandwidth_bps
        else:
            limits[("pair", a, b)] = link.bandwidth_bps
        if network.sharing == "nic":
            limits[("egress", a)] = network.nic_bps[a]
            limits[("ingress", b)] = network.nic_bps[b]
        finite = {key: bps for key, bps in limits.items() if math.isfinite(bps)}
        resources = tuple(self._resource(key, bps) for key, bps in finite.items())
        return resources, link.one_way_delay_s, min(finite.values())

    def channel(self, src: int, dst: int) -> Channel:
        if (src, dst) not in self._channels:
            resources, delay_s, _ = self.path(src, dst)
            self._channels[src, dst] = Channel(
                self.timeline, resources, delay_s, self.num_ahead(src, dst)
            )
        return self._channels[src, dst]

    def num_ahead(self, src: int, dst: int) -> float:
        """Boundary tensors that `dst` accepts from `src` before their turn. See RULES."""
        if self.rule != CHOSEN:
            return 0 if self.rule == "rendezvous" else math.inf
        transport = self.plan.transport
        _, delay_s, bps = self.path(src, dst)
        window = bps / 8 * (delay_s + self.path(dst, src)[1])
        buffer_bytes = transport.fifo_bytes + transport.window_factor * window
        return 2 * buffer_bytes // self.plan.activation_bytes

    def ring(
        self, members: tuple[int, ...], closed: bool, slice_bytes: float = 0.0
    ) -> tuple[tuple[Resource, ...], float]:
        """Resources of the hops through `members`, back to the first if closed, and what a slice
        takes through all of them, in seconds: all delays, and its bytes but on the slowest hop."""
        ends = members[1:] + members[:1] if closed else members[1:]
        paths = [self.path(a, b) for a, b in zip(members, ends, strict=False)]
        hops_s = [slice_bytes / min(r.capacity for r in path[0]) for path in paths]
        resources = {r: None for path in paths for r in path[0]}
        return tuple(resources), sum(path[1] for path in paths) + sum(hops_s) - max(hops_s)

    def _resource(self, key: tuple[object, ...], bps: float) -> Resource:
        if key not in self._resources:
            self._resources[key] = Resource(bps * self._goodput / 8)
        return self._resources[key]


def replay(plan: Plan, rule: str = CHOSEN) -> float:
    """Seconds of one iteration of `plan`; iterations do not differ."""
    unit_s, once_s = replay_unit(plan, rule)
    return num_units(plan) * unit_s + once_s


def num_units(plan: Plan) -> int:
    """What an iteration repeats: GPipe rounds, else micro-batches of a rank."""
    return plan.num_rounds * (1 if plan.schedule == "gpipe" else plan.num_micro_batches)


def replay_unit(plan: Plan, rule: str = CHOSEN) -> tuple[float, float]:
    """Seconds per unit (see `num_units`), and seconds once per iteration.

    Neither depends on the plan's batch, so one replay serves every batch of a sweep.
    """
    if plan.schedule == "gpipe":
        return _gpipe_unit(plan, rule)
    if plan.schedule == "1f1b":
        return _1f1b_unit(plan, rule)
    return sum(shard_seconds(plan)), plan.stages[0].optimizer_s


def _gpipe_unit(plan: Plan, rule: str) -> tuple[float, float]:
    """A round is forward, barrier, backward; a stage synchronises after its last backward."""
    forward_s = _barrier(plan, _gpipe_phase(plan, rule, forward=True))
    ends = _gpipe_phase(plan, rule, forward=False)
    backward_s = max(ends.values())
    return forward_s + backward_s, _data_parallel(plan, rule, ends) - backward_s


def _barrier(plan: Plan, ready: dict[int, float]) -> float:
    """When the last rank leaves a dissemination barrier: in step k, rank r waits for r - 2^k."""
    world, num_ranks = World(plan, CHOSEN), plan.layout.num_ranks
    times = [ready[rank] for rank in range(num_ranks)]
    for step in range((num_ranks - 1).bit_length()):
        sources = [(rank - (1 << step)) % num_ranks for rank in range(num_ranks)]
        times = [
            max(times[rank], times[source] + world.path(source, rank)[1])
            for rank, source in enumerate(sources)
        ]
    return max(times)


def _gpipe_phase(plan: Plan, rule: str, forward: bool) -> dict[int, float]:
    """When each rank ends a phase. Its operations are on one communicator, in the order receive 0,
    send 0, receive 1, ...: the turn of a receive comes with the send before it, or, on a stage
    that sends nothing, when the receive before it is over."""
    world, depth, step = World(plan, rule), plan.layout.pp, 1 if forward else -1
    count, ends = plan.num_micro_batches, {}

    def run(rank: int) -> Process:
        stage = rank % depth
        work_s = plan.stages[stage].forward_s if forward else plan.stages[stage].backward_s
        source = world.channel(rank - step, rank) if 0 <= stage - step < depth else None
        target = world.channel(rank, rank + step) if 0 <= stage + step < depth else None
        arrival = source.receive() if source else None
        for index in range(count):
            if arrival:
                yield arrival
            more = source if index + 1 < count else None
            if more and not target:
                arrival = more.receive()
            yield work_s
            if target:
                arrival = more.receive() if more else None
                target.send(plan.activation_bytes)
        ends[rank] = world.timeline.now_s

    for rank in range(plan.layout.num_ranks):
        world.timeline.start(run(rank))
    world.timeline.run()
    return ends


def _1f1b_unit(plan: Plan, rule: str) -> tuple[float, float]:
    """One forward, one backward; neighbours exchange both tensors at once, and wait to receive."""
    few, many = (_1f1b_pass(plan, rule, count) for count in STEADY)
    micro_batch_s = (max(many.values()) - max(few.values())) / (STEADY[1] - STEADY[0])
    return micro_batch_s, _data_parallel(plan, rule, many) - STEADY[1] * micro_batch_s


def _1f1b_pass(plan: Plan, rule: str, num_micro_batches: int) -> dict[int, float]:
    """When each rank ends the last backward pass."""
    world, depth, width = World(plan, rule), plan.layout.pp, plan.layout.dp
    ends = {}

    def run(rank: int) -> Process:
        stage, before, after = rank // width, rank - width, rank + width
        work = plan.stages[stage]
        warm_up = min(depth - stage - 1, num_micro_batches)

        def exchange(peer: int, receive: bool, send: bool) -> Process:
            if 0 <= peer < plan.layout.num_ranks:
                arrival = world.channel(peer, rank).receive() if receive else None
                if send:
                    world.channel(rank, peer).send(plan.activation_bytes)
                if arrival:
                    yield arrival

        for _ in range(warm_up):
            yield from exchange(before, receive=True, send=False)
            yield work.forward_s
            yield from exchange(after, receive=False, send=True)
        yield from exchange(before, receive=num_micro_batches > warm_up, send=False)
        for index in range(warm_up, num_micro_batches):
            yield work.forward_s
            yield from exchange(after, receive=True, send=True)
            yield work.backward_s
            yield from exchange(before, receive=index + 1 < num_micro_batches, send=True)
        for _ in range(warm_up):
            yield from exchange(after, receive=True, send=False)
            yield work.backward_s
            yield from exchange(before, receive=False, send=True)
        ends[rank] = world.timeline.now_s

    for rank in range(plan.layout.num_ranks):
        world.timeline.start(run(rank))
    world.timeline.run()
    return ends


def _data_parallel(plan: Plan, rule: str, ready: dict[int, float]) -> float:
    """When the last stage has its parameters, each group starting once its members are ready.

    reduce-broadcast: a chain to the first member, the update there, a chain back.
    ring: 2 (n - 1) / n of the gradient across every hop, then the update everywhere.
    """
    world, depth, width = World(plan, rule), plan.layout.pp, plan.layout.dp
    chain = plan.data_parallel == "reduce-broadcast"
    end_s = 0.0

    def run(stage: int) -> Process:
        nonlocal end_s
        ranks = range(stage, depth * width, depth) if chain else range(width)
        members = tuple(ranks) if chain else tuple(stage * width + i for i in ranks)
        work = plan.stages[stage]
        slices = max(1, min(MAX_SLICES, round(work.gradient_bytes / plan.transport.chunk_bytes)))

        def pass_bytes(order: tuple[int, ...]) -> Process:
            share = 1.0 if chain else 2 * (width - 1) / width
            slice_bytes = work.gradient_bytes / slices if chain else 0.0
            resources, delay_s = world.ring(order, not chain, slice_bytes)
            crossed = Signal(world.timeline)
            Flow(world.timeline, share * work.gradient_bytes, resources, crossed.fire)
            yield crossed
            yield delay_s

        yield max(ready[rank] for rank in members)
        yield from pass_bytes(members[1:] + members[:1] if chain else members)
        yield work.optimizer_s
        if chain:
            yield from pass_bytes(members)
        end_s = max(end_s, world.timeline.now_s)

    for stage in range(depth):
        world.timeline.start(run(stage))
    world.timeline.run()
    return end_s


def shard_seconds(plan: Plan) -> tuple[float, float]:
    """ZeRO-3's (communication, compute) seconds of one micro-step, one after the other.

    The parameters are gathered, gathered again beyond the live limit, and the gradients
    scattered, each in a ring over all ranks that crosses every NIC once.
    """
    world, ranks = World(plan, CHOSEN), tuple(range(plan.layout.num_ranks))
    resources, _ = world.ring(ranks, closed=True)
    parameters = model_parameters(plan.workload)
    again = max(0, parameters - plan.live_parameters)
    share = (len(ranks) - 1) / len(ranks)
    size = (2 * parameters + again) * DTYPE_BYTES[plan.workload.dtype] * share
    work = plan.stages[0]
    slowest = min(resource.capacity for resource in resources)
    return size / slowest, work.forward_s + work.backward_s
