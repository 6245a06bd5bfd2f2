"""The event loop: start and end of every task of a graph.

A task either works for a time or is a flow: it moves bytes across resources (links, NICs, classes).
Flows that cross a resource at the same moment share it by max-min fairness. Between events all
rates are constant, so the solution is exact for the fluid model, and bit-identical between runs.
But where a queue keeps the order of messages, the oldest has what it can use, and the next one what
is left.

The end of a work task is known as soon as all its predecessors have ended. So is the end of a flow
that has its resources to itself. Only flows that contend with others wait for the clock. Contention
is found iteratively: assume that there is none; if two flows are on a resource at once, mark it and
everything connected with it as shared, and run again.

Compiled code counts references to arrays unless numba can prune that, and counting costs more than
a step. Therefore loops over hops do not break, and helpers take arrays one by one. All compiled
code is in this module, since numba's cache only notices changes of a function's own file.

A connection starts slowly, as TCP does: it sends its window, waits for the round trip to end, and
doubles the window, until one fills the round trip (first window: RFC 6928). From then on the window
grows by the bytes sent while they exceed half of it. It is halved for every retransmission timeout
that the connection is idle (RFC 2861; on by default in Linux).
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]

MAX_HOPS = 6
"""Most resources that a flow crosses: its connection, egress NIC, link or class, ingress NIC, and
the hosts at both ends."""

NONE = -1
_TICKS = float(1 << 30)
"""Resolution of the clock, per second. Events that should coincide do, however a CPU rounds."""

TICK_S = 1 / _TICKS
"""Time between two moments of the clock; every end of a task is rounded to one."""


class FluidNetwork(NamedTuple):
    """Resources, and the paths of connections across them.

    capacity: (num_resources,), bytes/s. hops: (num_paths, MAX_HOPS), resource indices, NONE where
    there are fewer. rtt_s, idle_s: (num_paths,), the round trip, and the idle time that halves a
    connection's window. first_window: (num_paths,), bytes; inf = no slow start. in_order:
    (num_resources,), whether the oldest message is served first; a path has one such resource at
    most.
    """

    capacity: Floats
    hops: Integers
    rtt_s: Floats
    idle_s: Floats
    first_window: Floats
    in_order: Flags


class Tasks(NamedTuple):
    """Tasks and the edges between them.

    amount: (num_tasks,), seconds of work, or bytes where `path` is not NONE. message: (num_tasks,),
    the first task of the message that those bytes belong to, NONE = of no message. num_before:
    (num_tasks,), number of predecessors. The successors of task t are
    after[after_start[t]:after_start[t + 1]]; each may start `lag_s` seconds after t ended.
    """

    amount: Floats
    path: Integers
    message: Integers
    num_before: Integers
    after_start: Integers
    after: Integers
    lag_s: Floats


_TASK = np.dtype(
    [
        ("start", np.float64),
        ("end", np.float64),
        ("amount", np.float64),
        ("path", np.int64),
        ("waiting", np.int64),
    ]
)
"""A task. Its fields are side by side in memory, since the loop jumps between tasks. waiting:
predecessors that have not ended; the others let it start at `start`."""

_PATH = np.dtype(
    [
        ("window", np.float64),
        ("granted", np.float64),
        ("round_s", np.float64),
        ("used_s", np.float64),
        ("rtt_s", np.float64),
        ("idle_s", np.float64),
        ("first", np.float64),
        ("fastest", np.float64),
        ("alone", np.bool_),
    ]
)
"""A path and its connection. window, granted: bytes, in all and left in the round that began at
`round_s`. used_s: time of last use, -1 = never. rtt_s, idle_s, first: as in `FluidNetwork`.
fastest: capacity of the path, bytes/s. alone: no flow on it contends with another path's."""

_FLOW = np.dtype(
    [
        ("due", np.float64),
        ("task", np.int64),
        ("place", np.int64),
        ("left", np.float64),
        ("chunk", np.float64),
        ("until", np.float64),
        ("rate", np.float64),
        ("since", np.float64),
        ("path", np.int64),
        ("mark", np.int64),
        ("turn", np.int64),
    ]
)
"""A flow under way that may contend. due: time of its next event. task: its task. place: index in
the queue (of a finished flow: the next finished one). left: bytes. chunk: bytes that may leave now,
0 = none are under way. until: bytes of the chunk that had not left at `since`. rate: bytes/s since
then, 0 = others are first. mark: the sharing that it was part of. turn: of its message, in the
order in which they begin; NONE = it is of none."""

_RESOURCE = np.dtype(
    [
        ("capacity", np.float64),
        ("free_s", np.float64),
        ("head", np.int64),
        ("room", np.float64),
        ("users", np.int64),
        ("mark", np.int64),
        ("dirty", np.bool_),
        ("in_order", np.bool_),
    ]
)
"""A resource. free_s: end of its last flow, if it is not shared. head: slot of the first of its
flows, if it is. While rates are computed: room, bytes/s left for `users` flows; mark, the sharing
that reached it; dirty, whether its rates must be computed again."""


class _Traffic(NamedTuple):
    """State of the flows that may contend.

    turns: (num_tasks,), of the messages that begin with a task, NONE before. queue: those flows, a
    heap by due time and task. beside: (num_slots, 2), one slot per flow and
    hop: the next and the previous one on the same resource. dirty: resources whose rates must be
    computed again. reached: resources that a sharing reaches. num: see `_QUEUED`.
    """

    flows: Records
    resources: Records
    turns: Integers
    queue: Integers
    beside: Integers
    dirty: Integers
    reached: Integers
    num: Integers


_QUEUED, _FLOWS, _OVER, _DIRTY, _SHARES, _TURNS = range(6)
"""Indices of `num`: length of the queue, flows so far, first of the finished flows, length of
`dirty`, sharings so far, turns so far."""


def run(tasks: Tasks, network: FluidNetwork) -> tuple[Floats, Floats]:
    """Return start and end of every task, (num_tasks,), seconds; nan if a task cannot start."""
    num_tasks, num_resources = len(tasks.amount), len(network.capacity)
    shared, alone = np.zeros(num_resources, np.bool_), np.ones(len(network.hops), np.bool_)
    for last_try in (False, False, False, True):  # sharing delays flows, and others contend
        if last_try:
            shared[:], alone[:] = True, False
        # Allocated here: numba 0.68 loses writes to arrays of a tuple built in compiled code.
        state, paths = _records(num_tasks, _TASK), _records(len(alone), _PATH)
        traffic = _Traffic(
            flows=_records(num_tasks, _FLOW),
            resources=_records(num_resources, _RESOURCE),
            turns=np.full(num_tasks, NONE),
            queue=np.empty(num_tasks, np.int64),
            beside=np.empty((num_tasks * MAX_HOPS, 2), np.int64),
            dirty=np.empty(num_resources + 1, np.int64),
            reached=np.empty(num_resources, np.int64),
            num=np.array([0, 0, NONE, 0, 0, 0]),
        )
        if _run(tasks, network, shared, alone, state, paths, traffic):
            break
    return state["start"].copy(), state["end"].copy()


def _records(count: int, dtype: np.dtype[np.void]) -> Records:
    return np.empty(count, dtype).view(np.recarray)  # so that it also runs uncompiled


@njit(cache=True, error_model="numpy")
def _run(
    tasks: Tasks,
    network: FluidNetwork,
    shared: Flags,
    alone: Flags,
    state: Records,
    paths: Records,
    traffic: _Traffic,
) -> bool:
    """Fill `state`. Return False if flows taken to be alone contend; `shared` then marks more."""
    flows, resources, turns, queue, beside, dirty, _, num = traffic
    hops, num_tasks = network.hops, len(state)
    ready = np.empty(num_tasks, np.int64)  # in order: all their predecessors have ended
    num_ready = num_begun = 0
    for index in range(len(resources)):
        resources[index].capacity = network.capacity[index]
        resources[index].free_s, resources[index].head = 0.0, NONE
        resources[index].mark, resources[index].dirty = 0, False
        resources[index].in_order = network.in_order[index]
    for path in range(len(paths)):
        _new_path(path, network, alone[path], paths)
    for task in range(num_tasks):
        state[task].start, state[task].end = 0.0, np.nan
        state[task].amount, state[task].path = tasks.amount[task], tasks.path[task]
        state[task].waiting = tasks.num_before[task]
        if state[task].waiting == 0:
            ready[num_ready] = task
            num_ready += 1
    now, correct = 0.0, True

    while True:
        flow = NONE
        while num_begun < num_ready and flow == NONE:
            task = ready[num_begun]
            num_begun += 1
            start, path = state[task].start, state[task].path
            if state[task].amount <= 0.0:
                end = start
            elif path == NONE:
                end = _tick(start + state[task].amount)
            elif paths[path].alone:
                correct &= start >= paths[path].used_s
                end = _send_alone(start, state[task].amount, paths[path])
                correct &= _occupy(path, start, end, hops, resources, shared)
            else:
                flow = _new_flow(task, path, state[task].amount, flows, num)
                flows[flow].turn = _turn(tasks.message[task], turns, num)
                if start > now:
                    _queue(flow, start, queue, flows, num)
                    flow = NONE
                continue
            state[task].end = end
            num_ready = _release(task, end, tasks, state, ready, num_ready)
        if flow == NONE:
            if num[_DIRTY] > 0 and (num[_QUEUED] == 0 or flows[queue[0]].due > now):
                num[_SHARES] += 1
                for index in range(num[_DIRTY]):
                    resources[dirty[index]].dirty = False
                for index in range(num[_DIRTY]):
                    flow = _only_flow(dirty[index], hops, flows, resources, beside)
                    if flow != NONE:
                        due = _at_rate(flow, paths[flows[flow].path].fastest, now, flows)
                        _queue(flow, due, queue, flows, num)
                    elif resources[dirty[index]].mark != num[_SHARES]:  # not yet reached
                        _share(dirty[index], now, hops, traffic)
                num[_DIRTY] = 0
            if num[_QUEUED] == 0:
                break
            flow = _next(queue, flows, num)
            now = flows[flow].due
        task, path = flows[flow].task, flows[flow].path
        if flows[flow].chunk > 0.0:
            _leave(flow, path, hops, resources, beside, dirty, num)
            flows[flow].left -= flows[flow].chunk
            _sent(flows[flow].chunk, state[task].amount, now, paths[path])
            if flows[flow].left <= 0.0:
                state[task].end = now
                num_ready = _release(task, now, tasks, state, ready, num_ready)
                flows[flow].place, num[_OVER] = num[_OVER], flow
                continue
        elif flows[flow].left == state[task].amount:
            _wake(now, paths[path])
        flows[flow].chunk = flows[flow].until = _granted(flows[flow].left, now, paths[path])
        flows[flow].since, flows[flow].rate = now, 0.0
        if flows[flow].chunk <= 0.0:
            _queue(flow, _round_ends(paths[path]), queue, flows, num)
        elif hops[path, 0] == NONE:
            _queue(flow, now, queue, flows, num)
        else:
            _enter(flow, path, hops, resources, beside, dirty, num)
    if not correct:
        _spread(hops, shared, alone)
    for task in range(num_tasks):
        if state[task].waiting > 0:
            state[task].start = np.nan
    return correct


@njit(cache=True, error_model="numpy")
def _tick(time_s: float) -> float:
    return float(np.rint(time_s * _TICKS) / _TICKS)


@njit(cache=True, error_model="numpy")
def _release(
    task: int, end: float, tasks: Tasks, state: Records, ready: Integers, num_ready: int
) -> int:
    """Tell the successors of a task when it ends, and append those that wait for nothing else."""
    for edge in range(tasks.after_start[task], tasks.after_start[task + 1]):
        later = tasks.after[edge]
        state[later].start = max(state[later].start, _tick(end + tasks.lag_s[edge]))
        state[later].waiting -= 1
        if state[later].waiting == 0:
            ready[num_ready] = later
            num_ready += 1
    return num_ready


@njit(cache=True, error_model="numpy")
def _new_path(index: int, network: FluidNetwork, alone: bool, paths: Records) -> None:
    path = paths[index]
    path.window = path.granted = path.first = network.first_window[index]
    path.rtt_s, path.idle_s = network.rtt_s[index], network.idle_s[index]
    path.round_s, path.used_s = 0.0, -1.0
    path.alone = alone
    path.fastest = np.inf
    for hop in range(MAX_HOPS):
        if network.hops[index, hop] != NONE:
            path.fastest = min(path.fastest, network.capacity[network.hops[index, hop]])


@njit(cache=True, error_model="numpy")
def _wake(now: float, path: Any) -> None:
    """Begin a message: start the first round, or halve the window for the idle time."""
    if path.used_s < 0.0:
        path.round_s = now
    elif now - path.used_s >= path.idle_s:
        halved = path.window / 2.0 ** min((now - path.used_s) // path.idle_s, 99.0)
        path.window = max(halved, path.first)
        path.granted, path.round_s = path.window, now


@njit(cache=True, error_model="numpy")
def _round_ends(path: Any) -> float:
    return _tick(path.round_s + path.rtt_s)


@njit(cache=True, error_model="numpy")
def _granted(left: float, now: float, path: Any) -> float:
    """Return the bytes that may leave now: 0 until `_round_ends` if the window is used up."""
    if path.granted < np.inf and now >= _round_ends(path):
        if path.granted <= path.window / 2.0:  # only a window that was used grows
            path.window *= 2.0
        path.granted, path.round_s = path.window, now
    if path.granted <= 0.0:
        return 0.0
    if path.window >= path.fastest * path.rtt_s:
        path.granted = np.inf
    return float(min(left, path.granted))


@njit(cache=True, error_model="numpy")
def _sent(chunk: float, amount: float, now: float, path: Any) -> None:
    """Account for bytes of a message of `amount` that have left."""
    path.granted -= chunk
    path.used_s = now
    if path.granted == np.inf and 2.0 * amount > path.window:
        path.window += amount  # every byte acknowledged adds one


@njit(cache=True, error_model="numpy")
def _send_alone(start: float, amount: float, path: Any) -> float:
    """Return the time at which a message has left that has its path to itself."""
    now, left = start, amount
    _wake(now, path)
    while left > 0.0:
        chunk = _granted(left, now, path)
        if chunk <= 0.0:
            now = _round_ends(path)
            continue
        now = _tick(now + chunk / path.fastest)
        left -= chunk
        _sent(chunk, amount, now, path)
    return now


@njit(cache=True, error_model="numpy")
def _occupy(
    path: int, start: float, end: float, hops: Integers, resources: Records, shared: Flags
) -> bool:
    """Occupy a path's resources until `end`. Return whether all were free at `start`."""
    all_free = True
    for hop in range(_num_hops(path, hops)):
        index = hops[path, hop]
        if start < resources[index].free_s:
            shared[index], all_free = True, False
        resources[index].free_s = end
    return all_free


@njit(cache=True, error_model="numpy")
def _spread(hops: Integers, shared: Flags, alone: Flags) -> None:
    """Mark paths across shared resources as not alone, and the other resources that they cross."""
    grows = True
    while grows:
        grows = False
        for path in range(len(hops)):
            for hop in range(MAX_HOPS):
                if alone[path] and hops[path, hop] != NONE and shared[hops[path, hop]]:
                    alone[path], grows = False, True
            for hop in range(MAX_HOPS):
                if not alone[path] and hops[path, hop] != NONE:
                    shared[hops[path, hop]] = True


@njit(cache=True, error_model="numpy")
def _new_flow(task: int, path: int, amount: float, flows: Records, num: Integers) -> int:
    over = num[_OVER]
    index = num[_FLOWS] if over == NONE else over
    num[_FLOWS] += over == NONE
    num[_OVER] = NONE if over == NONE else flows[index].place
    flows[index].task, flows[index].path, flows[index].place = task, path, NONE
    flows[index].left, flows[index].chunk, flows[index].mark = amount, 0.0, 0
    return int(index)


@njit(cache=True, error_model="numpy")
def _turn(message: int, turns: Integers, num: Integers) -> int:
    """Return the turn of a message, which begins if it has none yet."""
    if message == NONE:
        return NONE
    if turns[message] == NONE:
        turns[message] = num[_TURNS]
        num[_TURNS] += 1
    return int(turns[message])


@njit(cache=True, error_model="numpy")
def _sooner(a: int, b: int, flows: Records) -> bool:
    if flows[a].due == flows[b].due:
        return bool(flows[a].task < flows[b].task)
    return bool(flows[a].due < flows[b].due)


@njit(cache=True, error_model="numpy")
def _queue(flow: int, due: float, queue: Integers, flows: Records, num: Integers) -> None:
    """Schedule a flow's next event at `due`, in place of the one before."""
    at = flows[flow].place
    flows[flow].due = due
    if at == NONE:
        at = num[_QUEUED]
        num[_QUEUED] += 1
    while at > 0 and _sooner(flow, queue[(at - 1) // 2], flows):
        queue[at] = queue[(at - 1) // 2]
        flows[queue[at]].place = at
        at = (at - 1) // 2
    _sink(flow, at, queue, flows, num[_QUEUED])


@njit(cache=True, error_model="numpy")
def _sink(flow: int, at: int, queue: Integers, flows: Records, length: int) -> None:
    """Insert a flow at a place of the heap, or further down."""
    while True:
        child = 2 * at + 1
        if child + 1 < length and _sooner(queue[child + 1], queue[child], flows):
            child += 1
        if child >= length or not _sooner(queue[child], flow, flows):
            break
        queue[at] = queue[child]
        flows[queue[at]].place = at
        at = child
    queue[at] = flow
    flows[flow].place = at


@njit(cache=True, error_model="numpy")
def _next(queue: Integers, flows: Records, num: Integers) -> int:
    """Remove the flow that is due first from the heap."""
    flow = queue[0]
    num[_QUEUED] -= 1
    _sink(queue[num[_QUEUED]], 0, queue, flows, num[_QUEUED])
    flows[flow].place = NONE
    return int(flow)


@njit(cache=True, error_model="numpy")
def _num_hops(path: int, hops: Integers) -> int:
    num = 0
    for hop in range(MAX_HOPS):
        num += hops[path, hop] != NONE
    return num


@njit(cache=True, error_model="numpy")
def _touch(index: int, resources: Records, dirty: Integers, num: Integers) -> None:
    """Append a resource to the dirty ones, once."""
    dirty[num[_DIRTY]] = index
    num[_DIRTY] += not resources[index].dirty
    resources[index].dirty = True


@njit(cache=True, error_model="numpy")
def _enter(
    flow: int,
    path: int,
    hops: Integers,
    resources: Records,
    beside: Integers,
    dirty: Integers,
    num: Integers,
) -> None:
    """Add a flow to its resources, which become dirty."""
    for hop in range(_num_hops(path, hops)):
        index = hops[path, hop]
        slot, first = flow * MAX_HOPS + hop, resources[index].head
        beside[slot, 0], beside[slot, 1] = first, NONE
        if first != NONE:
            beside[first, 1] = slot
        resources[index].head = slot
        _touch(index, resources, dirty, num)


@njit(cache=True, error_model="numpy")
def _leave(
    flow: int,
    path: int,
    hops: Integers,
    resources: Records,
    beside: Integers,
    dirty: Integers,
    num: Integers,
) -> None:
    """Remove a flow from its resources; those that others still use become dirty."""
    for hop in range(_num_hops(path, hops)):
        index = hops[path, hop]
        slot = flow * MAX_HOPS + hop
        behind, before = beside[slot, 0], beside[slot, 1]
        if before == NONE:
            resources[index].head = behind
        else:
            beside[before, 0] = behind
        if behind != NONE:
            beside[behind, 1] = before
        if resources[index].head != NONE:
            _touch(index, resources, dirty, num)


@njit(cache=True, error_model="numpy")
def _only_flow(
    index: int, hops: Integers, flows: Records, resources: Records, beside: Integers
) -> int:
    """Return the flow that has a resource and its other ones to itself, or NONE."""
    slot = resources[index].head
    flow = max(slot, 0) // MAX_HOPS
    path = flows[flow].path
    only = slot != NONE
    for hop in range(_num_hops(path, hops)):
        first = resources[hops[path, hop]].head
        only &= (first // MAX_HOPS == flow) & (beside[first, 0] == NONE)
    return int(flow) if only else NONE


@njit(cache=True, error_model="numpy")
def _at_rate(flow: int, rate: float, now: float, flows: Records) -> float:
    """Set a flow's rate from now on. Return when it will have sent its chunk."""
    if flows[flow].rate == rate and rate > 0.0:  # a new flow has no rate, and no time either
        return float(flows[flow].due)
    flows[flow].until -= flows[flow].rate * (now - flows[flow].since)
    flows[flow].rate, flows[flow].since = rate, now
    return _tick(now + max(0.0, flows[flow].until) / rate) if rate > 0.0 else np.inf


@njit(cache=True, error_model="numpy")
def _share(first: int, now: float, hops: Integers, traffic: _Traffic) -> None:
    """Compute max-min rates for all flows connected with a resource, by progressive filling.

    The resource with the least room per flow fills up first and fixes the rate of its flows. In a
    queue that keeps their order, only the oldest message takes part; younger ones use what is left.
    """
    flows, resources, _, queue, beside, _, reached, num = traffic
    num_reached, num_open = _gather(first, hops, traffic)
    for place in range(num_reached):
        if resources[reached[place]].in_order:
            num_open -= _hold(reached[place], hops, traffic)
    while num_open > 0:
        tightest, fair = NONE, np.inf
        for place in range(num_reached):
            if resources[reached[place]].users > 0:
                even = resources[reached[place]].room / resources[reached[place]].users
                if tightest == NONE or even < fair:
                    tightest, fair = reached[place], even
        slot = resources[tightest].head
        while slot != NONE:
            flow = slot // MAX_HOPS
            if flows[flow].mark == num[_SHARES]:
                flows[flow].mark = 0
                num_open -= 1
                for hop in range(_num_hops(flows[flow].path, hops)):
                    index = hops[flows[flow].path, hop]
                    resources[index].room = max(0.0, resources[index].room - fair)
                    resources[index].users -= 1
                _queue(flow, _at_rate(flow, fair, now, flows), queue, flows, num)
            slot = beside[slot, 0]
    for place in range(num_reached):
        if resources[reached[place]].in_order:
            _use_rest(reached[place], now, hops, traffic)


@njit(cache=True, error_model="numpy")
def _after(resource: int, turn: int, traffic: _Traffic) -> int:
    """Return the oldest flow on a resource of a message after `turn`, or NONE."""
    flows, resources, _, _, beside, _, _, _ = traffic
    slot, oldest = resources[resource].head, NONE
    while slot != NONE:
        flow = slot // MAX_HOPS
        if flows[flow].turn > turn and (oldest == NONE or flows[flow].turn < flows[oldest].turn):
            oldest = flow
        slot = beside[slot, 0]
    return int(oldest)


@njit(cache=True, error_model="numpy")
def _hold(resource: int, hops: Integers, traffic: _Traffic) -> int:
    """Take all messages on a resource but the oldest out of a sharing. Return how many."""
    flows, resources = traffic.flows, traffic.resources
    flow, num_held = _after(resource, NONE, traffic), 0
    while flow != NONE:
        flow = _after(resource, flows[flow].turn, traffic)
        if flow != NONE:
            flows[flow].mark = 0
            num_held += 1
            for hop in range(_num_hops(flows[flow].path, hops)):
                resources[hops[flows[flow].path, hop]].users -= 1
    return num_held


@njit(cache=True, error_model="numpy")
def _use_rest(resource: int, now: float, hops: Integers, traffic: _Traffic) -> None:
    """Give the room that a sharing has left to the messages that it held, the oldest first."""
    flows, resources, queue, num = traffic.flows, traffic.resources, traffic.queue, traffic.num
    flow = _after(resource, NONE, traffic)
    while flow != NONE:
        flow = _after(resource, flows[flow].turn, traffic)
        if flow != NONE:
            path, rate = flows[flow].path, np.inf
            for hop in range(_num_hops(path, hops)):
                rate = min(rate, resources[hops[path, hop]].room)
            for hop in range(_num_hops(path, hops)):
                resources[hops[path, hop]].room -= rate
            _queue(flow, _at_rate(flow, rate, now, flows), queue, flows, num)


@njit(cache=True, error_model="numpy")
def _gather(first: int, hops: Integers, traffic: _Traffic) -> tuple[int, int]:
    """Mark the resources and flows connected with `first`. Return how many of each."""
    flows, resources, _, _, beside, _, reached, num = traffic
    mark = num[_SHARES]
    resources[first].mark, reached[0] = mark, first
    num_reached, num_flows, place = 1, 0, 0
    while place < num_reached:  # the list grows meanwhile
        index = reached[place]
        resources[index].room, resources[index].users = resources[index].capacity, 0
        slot = resources[index].head
        while slot != NONE:
            flow = slot // MAX_HOPS
            resources[index].users += 1
            if flows[flow].mark != mark:
                flows[flow].mark = mark
                num_flows += 1
                for hop in range(_num_hops(flows[flow].path, hops)):
                    other = hops[flows[flow].path, hop]
                    if resources[other].mark != mark:
                        resources[other].mark, reached[num_reached] = mark, other
                        num_reached += 1
            slot = beside[slot, 0]
        place += 1
    return num_reached, num_flows


@njit(cache=True, error_model="numpy")
def by_task(
    before: Integers, after: Integers, lag_s: Floats, num_tasks: int
) -> tuple[Integers, Integers, tuple[Integers, Integers, Floats]]:
    """Sort edges by predecessor, stably.

    Return the start of each task's edges, (num_tasks + 1,), the number of its predecessors,
    (num_tasks,), and the sorted edges.
    """
    starts, num_before = np.zeros(num_tasks + 1, np.int64), np.zeros(num_tasks, np.int64)
    for edge in range(len(before)):
        starts[before[edge] + 1] += 1
        num_before[after[edge]] += 1
    for task in range(num_tasks):
        starts[task + 1] += starts[task]
    place = starts[:-1].copy()
    ordered = np.empty_like(before), np.empty_like(after), np.empty_like(lag_s)
    for edge in range(len(before)):
        here = place[before[edge]]
        place[before[edge]] += 1
        ordered[0][here], ordered[1][here] = before[edge], after[edge]
        ordered[2][here] = lag_s[edge]
    return starts, num_before, ordered
