"""The benchmark's ops move what their names say; on loopback."""

from __future__ import annotations

import pytest
import torch

from netbench.plan.benchmark import CollectivePlan, uniform_network
from netbench.trainers.communication.world import World
from netbench.trainers.systems import benchmark as benchmarks
from netbench.trainers.systems.benchmark import OPERATIONS, Benchmark
from tests.trainers.processes import on_processes

SIZE = 3
ELEMENTS = 6
"""Elements of the payload: two per rank."""


def result(
    world: World, op: str, by_stages: bool = False
) -> tuple[list[float], list[float], set[str]]:
    """full and shard after the op, and its phases; rank r starts with r + 1 in all elements.

    by_stages: without torch.distributed, in this process.
    """
    if by_stages:
        benchmarks.OPERATIONS = {}
    plan = CollectivePlan(
        op=op,
        num_nodes=SIZE,
        payload_bytes=4 * ELEMENTS,
        backend="gloo",
        network=uniform_network(SIZE, one_way_delay_s=0.0, bandwidth_bps=1e9),
        iterations=1,
        warmup_iterations=0,
    )
    benchmark = Benchmark(world, plan)
    world.warm(benchmark.peers())
    benchmark.arm()
    benchmark.full.fill_(world.rank + 1)
    benchmark.shard.fill_(world.rank + 1)
    phases = benchmark.iterate()
    return benchmark.full.tolist(), benchmark.shard.tolist(), set(phases)


OWN = [[rank + 1.0] * ELEMENTS for rank in range(SIZE)]
SUM = [float(sum(range(1, SIZE + 1)))] * ELEMENTS
GATHERED = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("op", "full"),
    [
        ("p2p", [OWN[0], OWN[0], OWN[2]]),
        ("all-reduce", [SUM] * SIZE),
        ("broadcast", [OWN[0]] * SIZE),
        ("all-gather", [GATHERED] * SIZE),
        ("central-ps", [SUM] * SIZE),
        ("sharded-ps", [SUM] * SIZE),
    ],
)
def test_every_rank_ends_with_what_the_op_promises(op: str, full: list[list[float]]) -> None:
    """In the tensor of the payload."""
    assert [found[0] for found in on_processes(SIZE, result, op)] == full


@pytest.mark.parametrize(
    ("op", "full"),
    [
        ("p2p", [OWN[0], OWN[0], OWN[2]]),
        ("all-reduce", [SUM] * SIZE),
        ("broadcast", [OWN[0]] * SIZE),
        ("all-gather", [GATHERED] * SIZE),
        ("central-ps", [SUM] * SIZE),
        ("sharded-ps", [SUM] * SIZE),
    ],
)
def test_an_op_that_torch_does_not_have_is_run_from_its_specification(
    op: str, full: list[list[float]]
) -> None:
    """With the same result, as one phase."""
    found = on_processes(SIZE, result, op, True)
    assert [values for values, _, _ in found] == full
    assert [phases for _, _, phases in found] == [{op.replace("-", "_") + "_s"}] * SIZE


def test_a_reduce_ends_at_rank_0() -> None:
    """The contents of the other tensors are undefined."""
    assert on_processes(SIZE, result, "reduce")[0][0] == SUM


def test_a_reduce_scatter_leaves_every_rank_its_shard() -> None:
    """Two elements of the sum each."""
    assert [found[1] for found in on_processes(SIZE, result, "reduce-scatter")] == [SUM[:2]] * SIZE


@pytest.mark.parametrize(
    ("op", "parts"),
    [
        ("central-ps", {"reduce_s", "broadcast_s"}),
        ("sharded-ps", {"exchange_s", "sum_s", "gather_s"}),
    ],
)
def test_a_server_reports_its_parts(op: str, parts: set[str]) -> None:
    """On every rank."""
    assert [found[2] for found in on_processes(SIZE, result, op)] == [parts] * SIZE


def test_plans_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight prepared plans hold what the largest needs, once."""
    monkeypatch.setattr(Benchmark, "_memory", torch.empty(0))
    world = World(None, 0, SIZE)
    network = uniform_network(SIZE, one_way_delay_s=0.0, bandwidth_bps=1e9)
    held = {
        Benchmark(
            world,
            CollectivePlan(
                op=op,
                num_nodes=SIZE,
                payload_bytes=4 * ELEMENTS,
                backend="gloo",
                network=network,
                iterations=1,
                warmup_iterations=0,
            ),
        )._memory.numel()
        for op in sorted(OPERATIONS, reverse=True)
    }
    assert held == {2 * ELEMENTS + ELEMENTS // SIZE}
