"""The event loop: when every task of a graph starts and ends.

A task either works for a time or moves bytes across resources (links, NICs, classes), which it
shares by max-min fairness with every flow that crosses them at that moment. Between events all
rates are constant, so the solution is exact for the fluid model, and bit-identical between runs.

A connection starts slowly, as TCP does: it sends its window, waits for the round trip to end, and
doubles the window, until one fills the round trip (first window: RFC 6928). From then on a window
grows by what is sent, while that is more than half of it, and is halved for every retransmission
timeout that the connection is idle (RFC 2861; on by default in Linux).
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_HOPS = 4
"""Resources that a flow crosses at most: its connection, egress NIC, link or class, ingress NIC."""

NONE = -1
_VERSIONS = 1 << 20
_TICKS = float(1 << 30)
"""Of a second: what should happen at once does, however a processor rounds."""


class Network(NamedTuple):
    """What flows cross.

    capacity: (num_resources,), bytes/s. hops: (num_paths, MAX_HOPS), resource indices, NONE where
    there are fewer. rtt_s, idle_s: (num_paths,), the round trip, and the idleness that halves a
    connection's window. first_window: (num_paths,), bytes; inf = never slow.
    """

    capacity: Floats
    hops: Integers
    rtt_s: Floats
    idle_s: Floats
    first_window: Floats


class Tasks(NamedTuple):
    """What is to be done, and in which order.

    amount: (num_tasks,), seconds of work, or bytes where `path` is not NONE. num_before:
    (num_tasks,), how many tasks each waits for. What waits for task t is
    after[after_start[t]:after_start[t + 1]], and may start `lag_s` seconds after t ended.
    """

    amount: Floats
    path: Integers
    num_before: Integers
    after_start: Integers
    after: Integers
    lag_s: Floats


_TASK = np.dtype(
    [
        ("start", np.float64),
        ("end", np.float64),
        ("amount", np.float64),
        ("waiting", np.int32),
        ("path", np.int32),
        ("slot", np.int32),
        ("edges", np.int32),
    ]
)
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
        ("alone", np.int64),
    ]
)
_FLOW = np.dtype(
    [
        ("left", np.float64),
        ("chunk", np.float64),
        ("until", np.float64),
        ("rate", np.float64),
        ("since", np.float64),
        ("version", np.int64),
        ("task", np.int64),
        ("path", np.int64),
        ("mark", np.int64),
        ("sending", np.int64),
    ]
)


class _Users(NamedTuple):
    """The flows of every resource, as linked lists of slots, one per task and hop."""

    head: Integers
    following: Integers
    previous: Integers


class _Scratch(NamedTuple):
    """Of one sharing: what is left of each resource and for how many flows; who takes part."""

    room: Floats
    users: Integers
    mark: Integers
    resources: Integers


def run(tasks: Tasks, network: Network) -> tuple[Floats, Floats]:
    """Start and end of every task, (num_tasks,), seconds; nan for a task that cannot start."""
    num_paths = len(network.hops)
    alone = np.ones(num_paths, np.bool_)
    state, done = _try(tasks, network, alone)
    if not done:
        alone = _apart(tasks.path, network.hops, len(network.capacity))
        state, done = _try(tasks, network, alone)
    if not done:
        state, done = _try(tasks, network, np.zeros(num_paths, np.bool_))
    return state["start"].copy(), state["end"].copy()


@njit(cache=True)
def _apart(path, hops, num_resources):
    used = np.zeros(len(hops), np.bool_)
    for one in path:
        if one != NONE:
            used[one] = True
    count = np.zeros(num_resources, np.int64)
    for one in range(len(hops)):
        for hop in hops[one]:
            if used[one] and hop != NONE:
                count[hop] += 1
    alone = np.ones(len(hops), np.bool_)
    for one in range(len(hops)):
        for hop in hops[one]:
            if hop != NONE and count[hop] > 1:
                alone[one] = False
    return alone


def _try(tasks, network, alone):
    num_tasks, num_resources = len(tasks.amount), len(network.capacity)
    num_flows = num_tasks
    state = np.empty(num_tasks, _TASK).view(np.recarray)
    flows = np.empty(num_flows, _FLOW).view(np.recarray)
    paths = np.empty(len(network.hops), _PATH).view(np.recarray)
    users = _Users(
        head=np.full(num_resources, NONE),
        following=np.empty(num_flows * MAX_HOPS, np.int64),
        previous=np.empty(num_flows * MAX_HOPS, np.int64),
    )
    scratch = _Scratch(
        room=np.zeros(num_resources),
        users=np.zeros(num_resources, np.int64),
        mark=np.zeros(num_resources, np.int64),
        resources=np.zeros(num_resources, np.int64),
    )
    done = _run(tasks, network, alone, state, paths, flows, users, scratch)
    return state, done


@njit(cache=True)
def _run(tasks, network, alone, state, paths, flows, users, scratch):
    num_tasks, num_resources = len(tasks.amount), len(network.capacity)
    for path in range(len(paths)):
        first = network.first_window[path]
        paths[path].window = paths[path].granted = paths[path].first = first
        paths[path].round_s = 0.0
        paths[path].used_s = -1.0
        paths[path].rtt_s, paths[path].idle_s = network.rtt_s[path], network.idle_s[path]
        paths[path].fastest = _fastest(network, path)
        paths[path].alone = alone[path]
    dirty, is_dirty = np.zeros(num_resources, np.int64), np.zeros(num_resources, np.bool_)
    num_dirty = num_shares = num_ready = 0
    now = 0.0
    ready = np.empty(num_tasks, np.int64)
    free = np.empty(num_tasks, np.int64)
    num_slots = num_free = 0
    for task in range(num_tasks):
        state[task].start = 0.0
        state[task].end = np.nan
        state[task].amount = tasks.amount[task]
        state[task].waiting = tasks.num_before[task]
        state[task].path = tasks.path[task]
        state[task].slot = NONE
        if state[task].waiting == 0:
            ready[num_ready] = task
            num_ready += 1
    free_s = np.zeros(num_resources)
    events = [(0.0, 0)]
    events.pop()

    while True:
        task = NONE
        while num_ready > 0:
            num_ready -= 1
            task = ready[num_ready]
            start, path = state[task].start, state[task].path
            if state[task].amount <= 0.0:
                end = start
            elif path == NONE:
                end = _tick(start + state[task].amount)
            elif paths[path].alone:
                end = _send_alone(start, state[task].amount, paths[path])
                for hop in range(MAX_HOPS):
                    resource = network.hops[path, hop]
                    if resource == NONE:
                        break
                    if start < free_s[resource]:
                        return False
                    free_s[resource] = end
            elif start > now:
                heapq.heappush(events, (start, _key(task, 0)))
                task = NONE
                continue
            else:
                break
            state[task].end = end
            num_ready = _release(task, end, tasks, state, ready, num_ready)
            task = NONE
        finished = False
        if task == NONE:
            if num_dirty > 0 and (len(events) == 0 or events[0][0] > now):
                num_shared = 0
                for index in range(num_dirty):
                    is_dirty[dirty[index]] = False
                    slot = _only_flow(dirty[index], network, flows, users)
                    if slot == NONE:
                        dirty[num_shared] = dirty[index]
                        num_shared += 1
                    else:
                        _set_rate(flows[slot], paths[flows[slot].path].fastest, now, events)
                num_dirty = 0
                if num_shared > 0:
                    num_shares += 1
                    _share(now, num_shares, dirty, num_shared, network, flows, users, scratch, events)
            if len(events) == 0:
                break
            now, key = heapq.heappop(events)
            version = key % _VERSIONS
            task = key // _VERSIONS
        slot, path = state[task].slot, state[task].path
        if slot == NONE:
            _wake(paths[path], now)
            if num_free > 0:
                num_free -= 1
                slot = free[num_free]
            else:
                slot = num_slots
                num_slots += 1
                flows[slot].version = 0
                flows[slot].mark = 0
            state[task].slot = slot
            flows[slot].task, flows[slot].path = task, path
            flows[slot].left = state[task].amount
            flows[slot].sending = 0
        elif flows[slot].task != task or version != flows[slot].version % _VERSIONS:
            continue
        elif flows[slot].sending:
            flows[slot].sending = 0
            num_dirty = _leave(slot, path, network, users, dirty, is_dirty, num_dirty)
            flows[slot].left -= flows[slot].chunk
            _sent(paths[path], flows[slot].chunk, state[task].amount, now)
            if flows[slot].left <= 0.0:
                state[task].end = now
                flows[slot].task = NONE
                flows[slot].version += 1
                free[num_free] = slot
                num_free += 1
                num_ready = _release(task, now, tasks, state, ready, num_ready)
                continue
        chunk = _grant(paths[path], flows[slot].left, now)
        flows[slot].version += 1
        if chunk <= 0.0:
            ends = _tick(paths[path].round_s + paths[path].rtt_s)
            heapq.heappush(events, (ends, _key(task, flows[slot].version)))
            continue
        flows[slot].chunk = flows[slot].until = chunk
        flows[slot].since, flows[slot].rate = now, 0.0
        flows[slot].sending = 1
        if network.hops[path, 0] == NONE:
            heapq.heappush(events, (now, _key(task, flows[slot].version)))
        else:
            num_dirty = _enter(slot, path, network, users, dirty, is_dirty, num_dirty)
    for task in range(num_tasks):
        if state[task].waiting > 0:
            state[task].start = np.nan
    return True


@njit(cache=True, inline="always")
def _release(task, end, tasks, state, ready, num_ready):
    for edge in range(tasks.after_start[task], tasks.after_start[task + 1]):
        later = tasks.after[edge]
        when = _tick(end + tasks.lag_s[edge])
        if when > state[later].start:
            state[later].start = when
        state[later].waiting -= 1
        if state[later].waiting == 0:
            ready[num_ready] = later
            num_ready += 1
    return num_ready


@njit(cache=True, inline="always")
def _wake(path, now):
    if path.used_s < 0.0:
        path.round_s = now
    elif now - path.used_s >= path.idle_s:
        timeouts = (now - path.used_s) // path.idle_s
        halved = path.window / 2.0 ** min(timeouts, 99.0)
        path.window = max(halved, path.first)
        path.granted = path.window
        path.round_s = now


@njit(cache=True, inline="always")
def _grant(path, left, now):
    if path.granted < np.inf and now >= _tick(path.round_s + path.rtt_s):
        if path.granted <= path.window / 2.0:  # only a window that was used grows
            path.window *= 2.0
        path.granted, path.round_s = path.window, now
    if path.granted <= 0.0:
        return 0.0
    if path.window >= path.fastest * path.rtt_s:
        path.granted = np.inf
    return min(left, path.granted)


@njit(cache=True, inline="always")
def _sent(path, chunk, amount, now):
    path.granted -= chunk
    path.used_s = now
    if path.granted == np.inf and 2.0 * amount > path.window:
        path.window += amount  # every byte acknowledged adds one


@njit(cache=True, inline="always")
def _send_alone(start, amount, path):
    _wake(path, start)
    now, left = start, amount
    while left > 0.0:
        chunk = _grant(path, left, now)
        if chunk <= 0.0:
            now = _tick(path.round_s + path.rtt_s)
            continue
        now = _tick(now + chunk / path.fastest)
        left -= chunk
        _sent(path, chunk, amount, now)
    return now


@njit(cache=True, inline="always")
def _tick(time_s: float) -> float:
    return float(np.rint(time_s * _TICKS) / _TICKS)


@njit(cache=True, inline="always")
def _key(task: int, version: int) -> int:
    return task * _VERSIONS + version % _VERSIONS


@njit(cache=True, inline="always")
def _fastest(network: Network, path: int) -> float:
    """The most that a path can carry, bytes/s."""
    least = np.inf
    for hop in range(MAX_HOPS):
        if network.hops[path, hop] != NONE:
            least = min(least, network.capacity[network.hops[path, hop]])
    return least


@njit(cache=True, inline="always")
def _touch(resource, dirty, is_dirty, num_dirty):
    """Note, once, that a resource is to be shared anew."""
    if is_dirty[resource]:
        return num_dirty
    is_dirty[resource] = True
    dirty[num_dirty] = resource
    return num_dirty + 1


@njit(cache=True, inline="always")
def _enter(flow, path, network, users, dirty, is_dirty, num_dirty):
    """Put a flow on its resources, which are to be shared anew."""
    for hop in range(MAX_HOPS):
        resource = network.hops[path, hop]
        if resource == NONE:
            break
        slot = flow * MAX_HOPS + hop
        first = users.head[resource]
        users.following[slot], users.previous[slot] = first, NONE
        if first != NONE:
            users.previous[first] = slot
        users.head[resource] = slot
        num_dirty = _touch(resource, dirty, is_dirty, num_dirty)
    return num_dirty


@njit(cache=True, inline="always")
def _leave(flow, path, network, users, dirty, is_dirty, num_dirty):
    """Take a flow off its resources; those that others still use are to be shared anew."""
    for hop in range(MAX_HOPS):
        resource = network.hops[path, hop]
        if resource == NONE:
            break
        slot = flow * MAX_HOPS + hop
        before, behind = users.previous[slot], users.following[slot]
        if before == NONE:
            users.head[resource] = behind
        else:
            users.following[before] = behind
        if behind != NONE:
            users.previous[behind] = before
        if users.head[resource] != NONE:
            num_dirty = _touch(resource, dirty, is_dirty, num_dirty)
    return num_dirty


@njit(cache=True, inline="always")
def _only_flow(resource, network, flows, users):
    """The flow that has `resource` and all its other ones to itself, or NONE."""
    slot = users.head[resource]
    if slot == NONE:
        return NONE
    flow = slot // MAX_HOPS
    for hop in range(MAX_HOPS):
        other = network.hops[flows[flow].path, hop]
        if other == NONE:
            break
        first = users.head[other]
        if first // MAX_HOPS != flow or users.following[first] != NONE:
            return NONE
    return flow


@njit(cache=True, inline="always")
def _set_rate(flow, rate: float, now: float, events: Any) -> None:
    """A flow goes on at another rate from now: when it will have sent what it may."""
    if flow.rate != rate:
        flow.until -= flow.rate * (now - flow.since)
        flow.rate, flow.since = rate, now
        flow.version += 1
        wait_s = max(0.0, flow.until) / rate
        heapq.heappush(events, (_tick(now + wait_s), _key(flow.task, flow.version)))


@njit(cache=True)
def _share(now, mark, dirty, num_dirty, network, flows, users, scratch, events):
    """Max-min rates for all flows that `dirty` resources reach, by progressive filling: the
    resource with the least room per flow is full first and fixes its flows' rate."""
    for start in range(num_dirty):
        if scratch.mark[dirty[start]] == mark:
            continue  # reached from one before
        num_resources, num_open = _gather(dirty[start], mark, network, flows, users, scratch)
        while num_open > 0:
            tightest, fair = NONE, np.inf
            for index in range(num_resources):
                resource = scratch.resources[index]
                if scratch.users[resource] > 0:
                    even = scratch.room[resource] / scratch.users[resource]
                    if tightest == NONE or even < fair:
                        tightest, fair = resource, even
            slot = users.head[tightest]
            while slot != NONE:
                flow = slot // MAX_HOPS
                if flows[flow].mark == mark:
                    flows[flow].mark = -mark
                    num_open -= 1
                    for hop in range(MAX_HOPS):
                        resource = network.hops[flows[flow].path, hop]
                        if resource == NONE:
                            break
                        scratch.room[resource] = max(0.0, scratch.room[resource] - fair)
                        scratch.users[resource] -= 1
                    _set_rate(flows[flow], fair, now, events)
                slot = users.following[slot]


@njit(cache=True)
def _gather(first, mark, network, flows, users, scratch):
    """Mark the resources and flows that `first` is connected with; how many of each."""
    scratch.mark[first] = mark
    scratch.resources[0] = first
    num_resources, num_flows, index = 1, 0, 0
    while index < num_resources:  # the list grows while it is walked
        resource = scratch.resources[index]
        scratch.room[resource], scratch.users[resource] = network.capacity[resource], 0
        slot = users.head[resource]
        while slot != NONE:
            flow = slot // MAX_HOPS
            scratch.users[resource] += 1
            if flows[flow].mark != mark:
                flows[flow].mark = mark
                num_flows += 1
                for hop in range(MAX_HOPS):
                    other = network.hops[flows[flow].path, hop]
                    if other == NONE:
                        break
                    if scratch.mark[other] != mark:
                        scratch.mark[other] = mark
                        scratch.resources[num_resources] = other
                        num_resources += 1
            slot = users.following[slot]
        index += 1
    return num_resources, num_flows


@njit(cache=True)
def by_key(keys: Integers, num_keys: int) -> tuple[Integers, Integers]:
    """Sort by small keys: where each key starts, (num_keys + 1,), and the order, stable."""
    starts = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(num_keys):
        starts[key + 1] += starts[key]
    place, order = starts[:-1].copy(), np.zeros(len(keys), np.int64)
    for index, key in enumerate(keys):
        order[place[key]] = index
        place[key] += 1
    return starts, order
