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
_READY, _WORKED, _SENT, _ROUND = 0, 1, 2, 3
"""Kinds of event. An event is (time, key); a key holds task, kind and, in its last bits, which
version of a flow's rate it was made for. So ties are broken by task, and nothing else."""
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


_STATE = np.dtype(
    [
        ("left", np.float64),
        ("chunk", np.float64),
        ("until", np.float64),
        ("rate", np.float64),
        ("since", np.float64),
        ("version", np.int64),
        ("path", np.int64),
        ("amount", np.float64),
        ("waiting", np.int64),
        ("ready", np.float64),
        ("start", np.float64),
        ("end", np.float64),
    ]
)
"""A task under way, its figures side by side in memory, for the loop jumps between tasks.

Of a flow: bytes left, bytes that may go now (`chunk`, at first) and are still to go (`until`), its
rate, since when, and how often that changed. Of any: as in `Tasks`, how many tasks it still waits
for, when those before it let it start, and its start and end."""


class _Users(NamedTuple):
    """The flows of every resource, as linked lists of slots, one per task and hop."""

    head: Integers
    following: Integers
    previous: Integers


class _Scratch(NamedTuple):
    """Of one sharing: what is left of each resource and for how many flows; who takes part."""

    room: Floats
    users: Integers
    resource_mark: Integers
    flow_mark: Integers
    resources: Integers


def run(tasks: Tasks, network: Network) -> tuple[Floats, Floats]:
    """Start and end of every task, (num_tasks,), seconds; nan for a task that cannot start."""
    num_tasks, num_resources = len(tasks.amount), len(network.capacity)
    # Made here: numba 0.68 loses writes to arrays of a tuple that is made inside compiled code.
    state = np.zeros(num_tasks, _STATE).view(np.recarray)  # so that it runs uncompiled, too
    state["left"] = state["amount"] = tasks.amount
    state["path"], state["waiting"] = tasks.path, tasks.num_before
    state["start"] = state["end"] = np.nan
    users = _Users(
        head=np.full(num_resources, NONE),
        following=np.full(num_tasks * MAX_HOPS, NONE),
        previous=np.full(num_tasks * MAX_HOPS, NONE),
    )
    scratch = _Scratch(
        room=np.zeros(num_resources),
        users=np.zeros(num_resources, np.int64),
        resource_mark=np.zeros(num_resources, np.int64),
        flow_mark=np.zeros(num_tasks, np.int64),
        resources=np.zeros(num_resources, np.int64),
    )
    _run(tasks, network, state, users, scratch)
    return state["start"].copy(), state["end"].copy()


@njit(cache=True)
def _run(
    tasks: Tasks, network: Network, state: NDArray[np.void], users: _Users, scratch: _Scratch
) -> None:
    num_tasks, num_resources = len(tasks.amount), len(network.capacity)
    window, granted = network.first_window.copy(), network.first_window.copy()
    round_s = np.zeros(len(window))
    used_s = np.full(len(window), -1.0)  # never
    dirty, is_dirty = np.zeros(num_resources, np.int64), np.zeros(num_resources, np.bool_)
    num_dirty = num_shares = num_now = 0
    now = 0.0
    ready_now = np.zeros(num_tasks, np.int64)  # a stack: what may start without waiting
    for task in range(num_tasks):
        if state[task].waiting == 0:
            ready_now[num_now] = task
            num_now += 1
    events = [(0.0, 0)]
    events.pop()

    while True:
        if num_now > 0:
            num_now -= 1
            kind, task, version = _READY, ready_now[num_now], 0
        else:
            if num_dirty > 0 and (len(events) == 0 or events[0][0] > now):
                num_shared = 0
                for index in range(num_dirty):
                    is_dirty[dirty[index]] = False
                    task = _only_flow(dirty[index], tasks, network, users)
                    if task == NONE:
                        dirty[num_shared] = dirty[index]
                        num_shared += 1
                    else:
                        _set_rate(task, _fastest(network, state[task].path), now, state, events)
                num_dirty = 0
                if num_shared > 0:
                    num_shares += 1
                    _share(
                        now,
                        num_shares,
                        dirty,
                        num_shared,
                        tasks,
                        network,
                        state,
                        users,
                        scratch,
                        events,
                    )
            if len(events) == 0:
                return
            now, key = heapq.heappop(events)
            version = key % _VERSIONS
            kind = key // _VERSIONS % 4
            task = key // (_VERSIONS * 4)
        path = state[task].path
        finished = kind == _WORKED
        if kind == _READY:
            state[task].start = now
            if state[task].amount <= 0.0:
                finished = True
            elif path == NONE:
                heapq.heappush(events, (_tick(now + state[task].amount), _key(task, _WORKED, 0)))
                continue
            elif used_s[path] < 0.0:
                round_s[path] = now
            else:
                timeouts = (now - used_s[path]) // network.idle_s[path]
                if timeouts > 0:
                    halved = window[path] / 2.0 ** min(timeouts, 99.0)
                    window[path] = max(halved, network.first_window[path])
                    granted[path] = window[path]
                    round_s[path] = now
        elif kind == _SENT:
            if version != state[task].version % _VERSIONS:
                continue  # its rate changed, another event is on its way
            num_dirty = _leave(task, path, network, users, dirty, is_dirty, num_dirty)
            state[task].left -= state[task].chunk
            granted[path] -= state[task].chunk
            used_s[path] = now
            finished = state[task].left <= 0.0
            if granted[path] == np.inf and 2.0 * state[task].amount > window[path]:
                window[path] += state[task].amount  # every byte acknowledged adds one
        if finished:
            state[task].end = now
            for edge in range(tasks.after_start[task], tasks.after_start[task + 1]):
                later = tasks.after[edge]
                state[later].ready = max(state[later].ready, _tick(now + tasks.lag_s[edge]))
                state[later].waiting -= 1
                if state[later].waiting == 0:
                    if state[later].ready <= now:
                        ready_now[num_now] = later
                        num_now += 1
                    else:
                        heapq.heappush(events, (state[later].ready, _key(later, _READY, 0)))
            continue
        round_ends_s = _tick(round_s[path] + network.rtt_s[path])
        if granted[path] < np.inf and now >= round_ends_s:
            if granted[path] <= window[path] / 2.0:  # only a window that was used grows
                window[path] *= 2.0
            granted[path], round_s[path] = window[path], now
        if granted[path] <= 0.0:
            heapq.heappush(events, (round_ends_s, _key(task, _ROUND, 0)))
            continue
        if window[path] >= _fastest(network, path) * network.rtt_s[path]:
            granted[path] = np.inf
        state[task].chunk = min(state[task].left, granted[path])
        state[task].until = state[task].chunk
        state[task].since, state[task].rate = now, 0.0
        state[task].version += 1
        if network.hops[path, 0] == NONE:
            heapq.heappush(events, (now, _key(task, _SENT, state[task].version)))
        else:
            num_dirty = _enter(task, path, network, users, dirty, is_dirty, num_dirty)


@njit(cache=True, inline="always")
def _tick(time_s: float) -> float:
    return float(np.rint(time_s * _TICKS) / _TICKS)


@njit(cache=True, inline="always")
def _key(task: int, kind: int, version: int) -> int:
    return (task * 4 + kind) * _VERSIONS + version % _VERSIONS


@njit(cache=True, inline="always")
def _fastest(network: Network, path: int) -> float:
    """The most that a path can carry, bytes/s."""
    least = np.inf
    for hop in range(MAX_HOPS):
        if network.hops[path, hop] != NONE:
            least = min(least, network.capacity[network.hops[path, hop]])
    return least


@njit(cache=True, inline="always")
def _touch(resource: int, dirty: Integers, is_dirty: NDArray[np.bool_], num_dirty: int) -> int:
    """Note, once, that a resource is to be shared anew."""
    if is_dirty[resource]:
        return num_dirty
    is_dirty[resource] = True
    dirty[num_dirty] = resource
    return num_dirty + 1


@njit(cache=True, inline="always")
def _enter(
    task: int,
    path: int,
    network: Network,
    users: _Users,
    dirty: Integers,
    is_dirty: NDArray[np.bool_],
    num_dirty: int,
) -> int:
    """Put a flow on its resources, which are to be shared anew."""
    for hop in range(MAX_HOPS):
        resource = network.hops[path, hop]
        if resource == NONE:
            break
        slot = task * MAX_HOPS + hop
        first = users.head[resource]
        users.following[slot], users.previous[slot] = first, NONE
        if first != NONE:
            users.previous[first] = slot
        users.head[resource] = slot
        num_dirty = _touch(resource, dirty, is_dirty, num_dirty)
    return num_dirty


@njit(cache=True, inline="always")
def _leave(
    task: int,
    path: int,
    network: Network,
    users: _Users,
    dirty: Integers,
    is_dirty: NDArray[np.bool_],
    num_dirty: int,
) -> int:
    """Take a flow off its resources; those that others still use are to be shared anew."""
    for hop in range(MAX_HOPS):
        resource = network.hops[path, hop]
        if resource == NONE:
            break
        slot = task * MAX_HOPS + hop
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
def _only_flow(resource: int, tasks: Tasks, network: Network, users: _Users) -> int:
    """The flow that has `resource` and all its other ones to itself, or NONE."""
    slot = users.head[resource]
    if slot == NONE:
        return NONE
    task = int(slot // MAX_HOPS)
    for hop in range(MAX_HOPS):
        other = network.hops[tasks.path[task], hop]
        if other == NONE:
            break
        first = users.head[other]
        if first // MAX_HOPS != task or users.following[first] != NONE:
            return NONE
    return task


@njit(cache=True, inline="always")
def _set_rate(task: int, rate: float, now: float, state: NDArray[np.void], events: Any) -> None:
    """A flow goes on at another rate from now: when it will have sent what it may."""
    if state[task].rate != rate:
        state[task].until -= state[task].rate * (now - state[task].since)
        state[task].rate, state[task].since = rate, now
        state[task].version += 1
        wait_s = max(0.0, state[task].until) / rate
        heapq.heappush(events, (_tick(now + wait_s), _key(task, _SENT, state[task].version)))


@njit(cache=True)
def _share(
    now: float,
    mark: int,
    dirty: Integers,
    num_dirty: int,
    tasks: Tasks,
    network: Network,
    state: NDArray[np.void],
    users: _Users,
    scratch: _Scratch,
    events: Any,
) -> None:
    """Max-min rates for all flows that `dirty` resources reach, by progressive filling: the
    resource with the least room per flow is full first and fixes its flows' rate."""
    for start in range(num_dirty):
        if scratch.resource_mark[dirty[start]] == mark:
            continue  # reached from one before
        num_resources, num_open = _gather(dirty[start], mark, tasks, network, users, scratch)
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
                task = slot // MAX_HOPS
                if scratch.flow_mark[task] == mark:
                    scratch.flow_mark[task] = -mark
                    num_open -= 1
                    for hop in range(MAX_HOPS):
                        resource = network.hops[tasks.path[task], hop]
                        if resource == NONE:
                            break
                        scratch.room[resource] = max(0.0, scratch.room[resource] - fair)
                        scratch.users[resource] -= 1
                    _set_rate(task, fair, now, state, events)
                slot = users.following[slot]


@njit(cache=True)
def _gather(
    first: int, mark: int, tasks: Tasks, network: Network, users: _Users, scratch: _Scratch
) -> tuple[int, int]:
    """Mark the resources and flows that `first` is connected with; how many of each."""
    scratch.resource_mark[first] = mark
    scratch.resources[0] = first
    num_resources, num_flows, index = 1, 0, 0
    while index < num_resources:  # the list grows while it is walked
        resource = scratch.resources[index]
        scratch.room[resource], scratch.users[resource] = network.capacity[resource], 0
        slot = users.head[resource]
        while slot != NONE:
            task = slot // MAX_HOPS
            scratch.users[resource] += 1
            if scratch.flow_mark[task] != mark:
                scratch.flow_mark[task] = mark
                num_flows += 1
                for hop in range(MAX_HOPS):
                    other = network.hops[tasks.path[task], hop]
                    if other == NONE:
                        break
                    if scratch.resource_mark[other] != mark:
                        scratch.resource_mark[other] = mark
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
