"""The event loop against sums that can be done by hand, and an independent max-min."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.simulator import kernel
from netbench.simulator.kernel import MAX_HOPS, NONE, FluidNetwork, Tasks

INF = float("inf")


def network(
    capacity: Sequence[float],
    paths: Sequence[Sequence[int]],
    rtt_s: float = 0.0,
    idle_s: float = 1.0,
    first_window: float = INF,
    in_order: Sequence[int] = (),
) -> FluidNetwork:
    hops = [[*path, *[NONE] * (MAX_HOPS - len(path))] for path in paths]
    full = np.full(len(paths), 1.0)
    return FluidNetwork(
        np.asarray(capacity, dtype=float),
        np.asarray(hops, dtype=np.int64).reshape(-1, MAX_HOPS),
        full * rtt_s,
        full * idle_s,
        full * first_window,
        np.isin(np.arange(len(capacity)), in_order),
    )


def tasks(
    amount: Sequence[float],
    path: Sequence[int],
    edges: Sequence[tuple[int, int, float]] = (),
    others: Sequence[int] = (),
    messages: Sequence[int] = (),
) -> Tasks:
    """Return a graph. others: flows that are of no message. messages: the first flow of every
    flow's message, each its own by default."""
    columns = np.asarray(edges, dtype=float).reshape(-1, 3).T
    before, after = columns[:2].astype(np.int64)
    starts, num_before, (_, after, lag_s) = kernel.by_task(before, after, columns[2], len(amount))
    return Tasks(
        np.asarray(amount, dtype=float),
        np.asarray(path, dtype=np.int64),
        np.where(np.isin(np.arange(len(amount)), others), NONE, messages or np.arange(len(amount))),
        num_before,
        starts,
        after,
        lag_s,
    )


def ends(graph: Tasks, links: FluidNetwork) -> list[float]:
    return [float(end_s) for end_s in kernel.run(graph, links)[1]]


def test_work_follows_its_edges_and_lags() -> None:
    graph = tasks([2.0, 3.0, 1.0], [NONE] * 3, [(0, 2, 0.5), (1, 2, 0.0)])
    start, end = kernel.run(graph, network([], []))
    assert start.tolist() == [0.0, 0.0, 3.0]
    assert end.tolist() == [2.0, 3.0, 4.0]


def test_what_waits_for_itself_never_starts() -> None:
    start, end = kernel.run(
        tasks([1.0, 1.0], [NONE, NONE], [(0, 1, 0.0), (1, 0, 0.0)]), network([], [])
    )
    assert np.isnan(start).all()
    assert np.isnan(end).all()


def test_flows_share_and_speed_up_when_one_is_done() -> None:
    """100 and 300 bytes on 100 bytes/s: halves until 2 s, then the second has all of it."""
    assert ends(tasks([100.0, 300.0], [0, 0]), network([100.0], [[0]])) == [2.0, 4.0]


def test_a_flow_is_alone_until_another_comes() -> None:
    """40 of 100 bytes in 4 s at 10 bytes/s; halves until the other's 30 are sent, then 3 s."""
    graph = tasks([100.0, 4.0, 30.0], [0, NONE, 1], [(1, 2, 0.0)])
    assert ends(graph, network([10.0], [[0], [0]])) == [13.0, 4.0, 10.0]


def test_a_flow_delayed_by_sharing_contends_with_others() -> None:
    """Alone, the second flow would end at 5 s and the third, behind it on another link, at 7 s,
    before the fourth starts at 8 s. Shared, the second ends at 10 s, and those two meet as well:
    the fourth has 20 of its 100 bytes then, 40 when the third is done."""
    graph = tasks([100.0, 50.0, 20.0, 8.0, 100.0], [0, 0, 1, NONE, 2], [(1, 2, 0.0), (3, 4, 0.0)])
    links = network([10.0, 10.0], [[0], [1], [1]])
    assert ends(graph, links) == [15.0, 10.0, 14.0, 8.0, 20.0]


def test_max_min_gives_what_others_cannot_use() -> None:
    """Three flows, the textbook example: a thin link holds one back, another takes the rest."""
    links = network([10.0, 2.0], [[0], [0, 1], [1]])
    end = ends(tasks([9.0, 1.0, 1.0], [0, 1, 2]), links)
    assert end == pytest.approx([1.0, 1.0, 1.0])  # 9, 1 and 1 bytes/s


def test_messages_of_one_queue_leave_it_one_after_another() -> None:
    """100 and 300 bytes at 100 bytes/s, and 100 that come at 0.5 s. Others share with the first of
    them: 100 bytes beside 100 take 2 s."""
    links = network([100.0], [[0], [0], [0]], in_order=[0])
    graph = tasks([100.0, 300.0, 0.5, 100.0], [0, 1, NONE, 2], [(2, 3, 0.0)])
    assert ends(graph, links) == [1.0, 4.0, 0.5, 5.0]
    assert ends(tasks([100.0, 100.0, 300.0], [0, 1, 2], others=[1]), links) == [2.0, 2.0, 5.0]


def test_pieces_of_a_message_stay_together() -> None:
    """Two messages of 2 x 100 bytes, whose second pieces start when the first ones have left."""
    links = network([100.0], [[0], [0]], in_order=[0])
    graph = tasks([100.0] * 4, [0, 1, 0, 1], [(0, 2, 0.0), (1, 3, 0.0)], messages=[0, 1, 0, 1])
    assert ends(graph, links) == [1.0, 3.0, 2.0, 4.0]


def test_a_younger_message_uses_what_the_oldest_leaves() -> None:
    """100 bytes at 10 bytes/s of the connection; two others have 60 bytes/s each and the rest."""
    links = network([100.0, 10.0, 60.0, 60.0], [[0, 1], [0, 2], [0, 3]], in_order=[0])
    assert ends(tasks([100.0, 120.0, 120.0], [0, 1, 2]), links) == [10.0, 2.0, 3.0]


def test_what_a_waiting_message_does_not_use_goes_to_others() -> None:
    """The second message waits for the first, so a third has the second's other link to itself: 10
    bytes in 1 s. Then both share that link at 5 bytes/s, until 15 bytes of each are sent."""
    links = network([10.0, 10.0], [[0], [0, 1], [1]], in_order=[0])
    assert ends(tasks([10.0, 15.0, 25.0], [0, 1, 2]), links) == [1.0, 4.0, 4.0]


def test_unlimited_path_takes_no_time() -> None:
    assert ends(tasks([1e9], [0]), network([], [[]])) == [0.0]


def fair_rates(capacity: list[float], paths: list[list[int]]) -> list[float]:
    """Max-min by raising all rates together in tiny exact steps: freeze flows on a full link."""
    rates, active = [0.0] * len(paths), set(range(len(paths)))
    room = list(capacity)
    while active:
        users = [sum(link in paths[flow] for flow in active) for link in range(len(room))]
        step = min(room[link] / users[link] for link in range(len(room)) if users[link])
        for link in range(len(room)):
            room[link] -= step * users[link]
        for flow in active:
            rates[flow] += step
        full = {link for link in range(len(room)) if users[link] and room[link] < 1e-9}
        active = {flow for flow in active if not full & set(paths[flow])}
    return rates


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rates_are_max_min(data: st.DataObject) -> None:
    """The first flow to end shows the rates: bytes that each has left tell what it had."""
    num_links = data.draw(st.integers(1, 5))
    capacity = data.draw(
        st.lists(st.sampled_from([1.0, 2.0, 3.0, 7.0]), min_size=num_links, max_size=num_links)
    )
    paths = data.draw(
        st.lists(
            st.lists(st.integers(0, num_links - 1), min_size=1, max_size=3, unique=True),
            min_size=1,
            max_size=6,
        )
    )
    rates = fair_rates(capacity, paths)
    # Sizes in proportion to the rates: all end together, after one second.
    end = ends(tasks(rates, list(range(len(paths)))), network(capacity, paths))
    assert end == pytest.approx([1.0] * len(paths))


def test_a_new_connection_doubles_its_window_every_round_trip() -> None:
    """10, 20, 40 bytes in rounds of 1 s, then 30 bytes: 3 s and 0.3 s at 100 bytes/s."""
    links = network([100.0], [[0]], rtt_s=1.0, first_window=10.0)
    assert ends(tasks([100.0], [0]), links) == pytest.approx([3.3])


def test_a_window_that_fills_the_round_trip_is_not_waited_for() -> None:
    links = network([100.0], [[0]], rtt_s=0.1, first_window=10.0)
    assert ends(tasks([100.0], [0]), links) == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("idle_s", "expected"),
    [
        (0.5, 0.5),  # the round ends 0.4 s later, then 40 bytes may go
        (1.5, 1.05),  # halved: 10 bytes, a round trip, 10 bytes in 0.05 s
        (20.0, 2.025),  # back to the first window: 5, 10 and 5 bytes, a round trip between them
    ],
)
def test_idleness_halves_the_window(idle_s: float, expected: float) -> None:
    """The first message uses windows of 5, 10 and 20 bytes; the second has 20 bytes."""
    links = network([200.0], [[0]], rtt_s=1.0, first_window=5.0)
    graph = tasks([35.0, idle_s, 20.0], [0, NONE, 0], [(0, 1, 0.0), (1, 2, 0.0)])
    start, end = kernel.run(graph, links)
    assert end[2] - start[2] == pytest.approx(expected)


def scrambled(seed: int) -> tuple[Tasks, FluidNetwork]:
    """A graph of 400 tasks on 12 links with everything in it."""
    random = np.random.default_rng(seed)
    paths = [random.choice(12, size=random.integers(1, 4), replace=False) for _ in range(30)]
    path = random.integers(-1, 30, size=400)
    edges = []
    for after in range(1, 400):
        for before in random.integers(0, after, size=random.integers(0, 3)):
            edges.append((int(before), after, float(random.choice([0.0, 0.01, 0.3]))))
    links = network(
        random.uniform(1.0, 9.0, size=12).tolist(),
        [hops.tolist() for hops in paths],
        rtt_s=0.2,
        first_window=0.3,
        in_order=[0],
    )
    return tasks(random.uniform(0.1, 3.0, size=400).tolist(), path.tolist(), edges), links


def test_bit_identical_between_runs() -> None:
    first, second = (kernel.run(*scrambled(7)) for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1].tobytes() == second[1].tobytes()


def test_all_bytes_cross_and_no_link_carries_more_than_it_can() -> None:
    graph, links = scrambled(3)
    start, end = kernel.run(graph, links)
    assert not np.isnan(end).any()
    for link, capacity in enumerate(links.capacity):
        crossing = [
            t for t in range(400) if graph.path[t] >= 0 and link in links.hops[graph.path[t]]
        ]
        busy = max(end[crossing]) - min(start[crossing])
        assert sum(graph.amount[crossing]) <= capacity * busy * (1 + 1e-9)


def test_compiled_code_does_what_the_source_says() -> None:
    """The same graph without numba's compiler, in a process of its own."""
    code = (
        "from tests.simulator.test_kernel import scrambled\n"
        "from netbench.simulator import kernel\n"
        "print(kernel.run(*scrambled(5))[1].tobytes().hex())"
    )
    interpreted = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.strip()
    assert kernel.run(*scrambled(5))[1].tobytes().hex() == interpreted
