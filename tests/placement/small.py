"""Scenarios of a few devices, whose placements can all be tried."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import strategies as st

from netbench.placement.plan_problem import Request
from netbench.placement.problem import Grid, Problem
from netbench.placement.search.exhaustive import MAX_GRIDS, few_grids
from netbench.scenario import load_scenario
from netbench.scenario.model import Link, Network, Node, Scenario, Setting
from netbench.scenario.sharing import SHARING
from netbench.simulator.iteration import forget
from netbench.systems.megatron import Megatron

DELAYS_S = (0.0, 0.00005, 0.001, 0.01, 0.05, 0.2)
RATES_BPS = (1e8, 3e8, 1e9, 2e9, 1e10, math.inf)
WIDTHS = ((1,), (2,), (4,), (1, 2), (1, 2, 3, 4))
"""Devices of a node."""

NEAR = Link(one_way_delay_s=0.01, bandwidth_bps=2e9)
FAR = Link(one_way_delay_s=0.1, bandwidth_bps=0.4e9)


@contextmanager
def pipelines_apart() -> Iterator[None]:
    """Let Megatron's pipelines not wait for each other: their last stages sum no losses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Megatron, "sums_loss", False)
        forget()
        yield
    forget()


def small_scenario(
    sizes: Sequence[Sequence[int]],
    links: Sequence[Sequence[Link]],
    sharing: str = "pair",
    nic_bps: float = math.inf,
) -> Scenario:
    """Return a scenario. sizes: devices of every node, by region. links: between regions, as in
    `Network`."""
    names = tuple(f"r{index}" for index in range(len(sizes)))
    nodes = tuple(
        Node(name=f"{name}-{index}", region=name, device="V100", num_devices=size, nic_bps=nic_bps)
        for name, region in zip(names, sizes, strict=True)
        for index, size in enumerate(region)
    )
    network = Network(
        regions=names,
        links=tuple(tuple(row) for row in links),
        node_regions=tuple(names.index(node.region) for node in nodes),
        sharing=sharing,
        nic_bps=(nic_bps,) * len(nodes),
        mtu_bytes=9001,
    )
    scenario = load_scenario("case3")
    sweep = dataclasses.replace(scenario.sweep, pipeline=0, system_micro_batch={})
    return dataclasses.replace(scenario, nodes=nodes, network=network, sweep=sweep)


def small_problem(
    scenario: Scenario, variant: str, *, layers: int, batch: int, num_ranks: int | None = None
) -> Problem:
    """Return the problem that a scheduler gets."""
    request = Request(
        scenario=scenario,
        variant=variant,
        setting=Setting(layers=layers, batch=batch),
        num_ranks=num_ranks,
    )
    return request.problem()


def optimum(problem: Problem) -> tuple[float, Grid]:
    """Return the least simulated seconds of all placements that fit, inf if none does, and such a
    placement."""
    grids = [grid for grid in few_grids(problem, MAX_GRIDS) if problem.fits(grid).all()]
    times_s = problem.objective.times_s(np.stack(grids)) if grids else np.array([math.inf])
    best = int(times_s.argmin())
    return float(times_s[best]), grids[best] if grids else np.empty(problem.shape, np.int64)


VARIANTS = {
    "dtfm-random-p{}": 1,
    "dtfm-random-p{}-1f1b": 1,
    "dtfm-random-p{}-allreduce": 1,
    "dtfm-random-p{}-sharded-ps": 1,
    "dtfm-random-p{}-1f1b-sharded-ps": 1,
    "deepspeed-pp-p{}": 1,
    "megatron-p{}": 1,
    "megatron-p{}-zero-bubble": 1,
    "megatron-p{}-interleaved2": 1,
    "megatron-p{}t2": 2,
}
"""Names, of any depth, and their degree of tensor parallelism."""

LINKS = st.builds(
    Link, one_way_delay_s=st.sampled_from(DELAYS_S), bandwidth_bps=st.sampled_from(RATES_BPS)
)


@st.composite
def problems(draw: st.DrawFn, max_devices: int = 16) -> Problem:
    """Draw a problem of up to `max_devices` devices and a few idle ones, on nodes of one to four,
    in up to three regions, with directed links."""
    variant, tp = draw(st.sampled_from(sorted(VARIANTS.items())))
    pp = draw(st.integers(2, min(4, max_devices // tp)))
    dp = draw(st.integers(1, min(4, max_devices // (pp * tp))))
    widths, num_regions = draw(st.sampled_from(WIDTHS)), draw(st.integers(1, 3))
    regions: list[list[int]] = [[] for _ in range(num_regions)]
    while sum(map(sum, regions)) < pp * dp * tp:
        draw(st.sampled_from(regions)).append(draw(st.sampled_from(widths)))
    sizes = [nodes for nodes in regions if nodes]
    links = [[draw(LINKS) for _ in sizes] for _ in sizes]
    sharing = draw(st.sampled_from(tuple(SHARING)))
    nic_bps = draw(st.sampled_from((1e9, 1e10))) if SHARING[sharing].has_nics else math.inf
    micro_batches = draw(st.sampled_from((1, 2, 5, 16, 40, 64, 100)))
    if "interleaved" in variant:
        micro_batches = math.ceil(micro_batches / pp) * pp
    scenario = small_scenario(sizes, links, sharing, nic_bps)
    return small_problem(
        scenario,
        variant.format(pp),
        layers=pp * 2,
        batch=dp * micro_batches,
        num_ranks=pp * dp * tp,
    )
