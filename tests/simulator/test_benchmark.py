"""A collective plan takes, in the simulator, what its algorithm takes on paper."""

from __future__ import annotations

import dataclasses
import math

import pytest

from netbench.plan.benchmark import BACKENDS, OPS, CollectivePlan, uniform_network
from netbench.simulator import simulate_collective
from netbench.transport.profile import load_transport

GOODPUT = (1500 - 52) / (1500 + 14)
FREE = load_transport("nccl").model_copy(
    update={
        "channels": 1,
        "host_bps": math.inf,
        "first_window_segments": 10**9,
        "max_window_bytes": math.inf,
        "chain_overhead": 0.0,
    }
)
MIB = 1 << 20


def plan(
    op: str = "p2p",
    n: int = 2,
    size: int = 64 * MIB,
    *,
    d: float = 5e-3,
    rate: float = 1e9,
    backend: str = "nccl",
    scale: float = 1.0,
) -> CollectivePlan:
    return CollectivePlan(
        op=op,
        num_nodes=n,
        payload_bytes=size,
        backend=backend,
        network=uniform_network(n, one_way_delay_s=d, bandwidth_bps=rate),
        iterations=3,
        warmup_iterations=1,
        scale=scale,
    )


def wire_s(size: float, rate: float = 1e9) -> float:
    return size * 8 / (rate * GOODPUT)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [2, 8])
def test_an_op_takes_the_time_of_the_bytes_that_a_node_sends(op: str, backend: str, n: int) -> None:
    """Most bytes that one node sends in one go, where steps are long and latency small."""
    binomial = math.ceil(math.log2(n))  # levels of gloo's tree, whole messages
    ring = (n - 1) / n
    reduce = 1 if backend == "nccl" else 1 + 1 / n  # gloo: a ring, then a gather
    units = {
        "p2p": 1,
        "all-reduce": 2 * ring,
        "broadcast": 1 if backend == "nccl" else binomial,
        "reduce": reduce,
        "all-gather": ring,
        "reduce-scatter": ring if backend == "nccl" else 2 * ring,
        "central-ps": reduce + (1 if backend == "nccl" else binomial),
        "sharded-ps": ring + 1 / n,
    }[op]
    took_s = simulate_collective(plan(op, n, 512 * MIB, d=1e-4, backend=backend), FREE)
    assert took_s == pytest.approx(wire_s(units * 512 * MIB), rel=0.03)


def test_a_transfer_over_an_open_connection_is_not_slow_again() -> None:
    """The first window of 16 sockets is a tenth of the bytes in flight over 100 ms at 1 Gbit/s. The
    iteration before has opened it."""
    took_s = simulate_collective(plan(d=50e-3), load_transport("nccl"))
    assert took_s == pytest.approx(wire_s(64 * MIB) + 50e-3, rel=1e-3)


def test_the_profile_is_the_backend_s_own_unless_another_is_given() -> None:
    fast = plan(rate=100e9, size=512 * MIB, d=50e-6)
    for backend in BACKENDS:
        profile = load_transport(backend)
        took_s = simulate_collective(dataclasses.replace(fast, backend=backend))
        assert took_s == pytest.approx(512 * MIB * 8 / profile.host_bps, rel=0.01)
        assert took_s == simulate_collective(dataclasses.replace(fast, backend=backend), profile)
    assert simulate_collective(fast, FREE) == pytest.approx(wire_s(512 * MIB, 100e9), rel=0.01)


def test_gloo_over_a_long_link_carries_a_window_per_round_trip() -> None:
    """Published: 2.26 and 1.22 Gbit/s over 5 and 10 ms one way, 3 MB per round trip."""
    for d, published_bps in ((5e-3, 2.26e9), (10e-3, 1.22e9)):
        both = [
            simulate_collective(plan(d=d, rate=10e9, size=size * MIB, backend="gloo"))
            for size in (64, 128)
        ]
        assert 64 * MIB * 8 / (both[1] - both[0]) == pytest.approx(published_bps, rel=0.1)


def test_the_scale_of_an_emulation_does_not_change_the_time() -> None:
    """An emulation divides bytes and rates by the scale: the simulated time is at full size."""
    assert simulate_collective(plan(scale=1.0)) == simulate_collective(plan(scale=1000.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_payload_is_rounded_up_to_an_element_per_rank(backend: str) -> None:
    small = dataclasses.replace(plan("all-reduce", 8, backend=backend), payload_bytes=1)
    rounded = dataclasses.replace(small, payload_bytes=32)
    assert simulate_collective(small) == simulate_collective(rounded)


MEASURED_MS = {  # (MiB, one-way ms): docs/collectives.md, 4 nodes, 1 Gbit/s per pair
    (4, 5): (45.1, 95.2, 85.2, 66.4, 47.6, 95.2, 146.5, 66.4),
    (16, 5): (150.3, 242.9, 295.7, 185.4, 115.3, 242.9, 476.0, 160.6),
    (4, 20): (75.1, 275.2, 130.2, 186.4, 137.6, 275.2, 296.5, 186.4),
    (16, 20): (180.3, 602.9, 340.7, 425.3, 190.3, 602.9, 746.0, 265.5),
}


@pytest.mark.parametrize(("mib", "delay_ms"), MEASURED_MS)
def test_gloo_takes_as_long_as_the_real_one_did_on_the_local_testbed(
    mib: int, delay_ms: int
) -> None:
    """On it, windows are wide open, connections warm, and computing takes no virtual time."""
    for op, measured_ms in zip(OPS, MEASURED_MS[mib, delay_ms], strict=True):
        simulated_s = simulate_collective(
            plan(op, 4, mib * MIB, d=delay_ms / 1e3, backend="gloo"), FREE
        )
        assert simulated_s == pytest.approx(measured_ms / 1e3, rel=0.005), op


@pytest.mark.parametrize(
    ("op", "measured_s"), [("broadcast", 0.4353), ("all-gather", 0.1153), ("sharded-ps", 0.2301)]
)
def test_gloo_shares_a_nic_as_the_real_one_did(op: str, measured_s: float) -> None:
    """docs/collectives.md: 4 nodes, 16 MiB, 5 ms, 1 Gbit/s per NIC."""
    network = uniform_network(4, one_way_delay_s=5e-3, bandwidth_bps=1e9, sharing="nic")
    shared = dataclasses.replace(plan(op, 4, 16 * MIB, backend="gloo"), network=network)
    assert simulate_collective(shared, FREE) == pytest.approx(measured_s, rel=0.005)
