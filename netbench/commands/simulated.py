"""Simulates what `netbench reproduce --simulate` writes: published runs, predictions, transfers.

Whatever is asked for is made of tasks; each is simulated once, over all cores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from netbench.placement import SEEDED
from netbench.plan import Plan, build_plan, build_plans, find_variant
from netbench.plan.collective import BACKENDS, OPS, CollectivePlan, uniform_network
from netbench.report.closed_forms import closed_form_s
from netbench.report.predictions import (
    PIPELINE_SYSTEMS,
    PRINTED_MICRO_BATCH,
    PRINTED_NETWORK,
)
from netbench.report.published import CASES, SEED, iteration_times, load, published_settings
from netbench.report.simulated import (
    COLLECTIVES,
    PIPELINES,
    PLACED,
    SCALING,
    SWEEPS,
    TIMES,
    TRANSFERS,
    placement_path,
)
from netbench.report.throughput import TESTBEDS, published_throughput
from netbench.scenario import Scenario, load_scenario
from netbench.simulator import load_transport, simulate_collective
from netbench.simulator.collectives import COLLECTIVES as ALGORITHMS
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Kind
from netbench.simulator.parallel import time_plans
from netbench.simulator.placement_file import read_placed
from netbench.workload.models import MODELS

BASE_DELAY_S, NIC_BPS, AWS_MTU = 50e-6, 10e9, 9001
"""Of the two machines between which transfers were published: one way, of each, bytes.
Sources: results/published/README.md; AWS EC2 User Guide, network MTU."""

COLLECTIVE_NODES = (4, 8)
COLLECTIVE_BYTES = 64 << 20
COLLECTIVE_NETWORKS = ((1e-3, 5e9), (5e-3, 2e9), (10e-3, 1e9))
"""One-way delay in seconds, bit/s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """A transfer over a connection that was idle, timed by its receiver."""

    plan: CollectivePlan


Task = Plan | CollectivePlan | Transfer
Times = Mapping[Task, float]
"""Seconds of each."""

Row = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A row of a table in the making. rest: its cells, given the seconds of its tasks."""

    tasks: tuple[Task, ...]
    row: Callable[[Sequence[float]], Row]


def plan_tables() -> dict[str, list[Cell]]:
    """Every table, not yet simulated."""
    return {
        TIMES: _published(),
        PLACED: _placed(),
        **{name: _sweep(name) for name in SWEEPS},
        PIPELINES: _pipelines(),
        SCALING: _scaling(),
        TRANSFERS: _transfers(),
        COLLECTIVES: _collectives(),
    }


def tasks_of(tables: Mapping[str, Sequence[Cell]]) -> tuple[Task, ...]:
    """What has to be simulated for them, each task once."""
    cells = (cell for table in tables.values() for cell in table)
    return tuple(dict.fromkeys(task for cell in cells for task in cell.tasks))


def rows_of(cells: Iterable[Cell], times: Times) -> list[Row]:
    """The rows of a table."""
    return [cell.row([times[task] for task in cell.tasks]) for cell in cells]


def simulate_tasks(tasks: Sequence[Task]) -> Iterator[tuple[Task, float]]:
    """Each task with its seconds: plans first, over all cores, then the small ones, here."""
    plans = [task for task in tasks if isinstance(task, Plan)]
    for plan, timing in zip(plans, time_plans(plans), strict=True):
        yield plan, timing.iteration_s
    for task in tasks:
        if isinstance(task, Transfer):
            yield task, _transfer_s(task.plan)
        elif isinstance(task, CollectivePlan):
            yield task, simulate_collective(task)


def _transfer_s(plan: CollectivePlan) -> float:
    """On the receiver's clock. Both ends leave a barrier; the sender, who waited there for the
    receiver, a one-way delay earlier (docs/calibration.md)."""
    graph = Graph(Fabric(plan.network, [0, 1], load_transport(plan.backend)))
    members = np.array([[0, 1]])
    gate = graph.work(Kind.MARK, members)
    graph.edge(gate[0, 0], gate[0, 1], plan.network.link(0, 1).one_way_delay_s)
    done = ALGORITHMS[plan.backend]["p2p"](graph, members, float(plan.payload_bytes), gate)
    timeline = graph.run()
    return float(timeline.end_s[done[0, 1]] - timeline.start_s[gate[0, 1]])


def number_text(value: float) -> str:
    """Six digits: below any figure that is compared, above what processors differ by."""
    return f"{value:.6g}"


@cache
def _scenario(name: str) -> Scenario:
    return load_scenario(name)


def _plan(scenario: Scenario, variant: str, layers: int, batch: int, seed: int) -> Plan:
    """seed: counts for a random placement only, so that plans that do not differ are equal."""
    seed = seed if find_variant(variant).scheduler in SEEDED else SEED
    return build_plan(scenario, variant, layers, batch, seed, 1, 0, scale=1.0)


def _published() -> list[Cell]:
    cells = []
    times = iteration_times()
    for time in times.assign(seed=times["seed"].astype("string").fillna("")).itertuples():
        scenario, seed = _scenario(time.case), int(time.seed or SEED)
        plan = _plan(scenario, time.system, time.layers, time.batch, seed)
        key = (time.case, time.system, str(time.layers), str(time.batch), time.seed)
        cells.append(Cell(tasks=(plan,), row=_beside(key, time.iteration_s)))
    return cells


def _placed() -> list[Cell]:
    """Every published setting that was placed."""
    cells = []
    for case in CASES:
        for layers, batch in published_settings(case):
            path = placement_path(case, layers, batch)
            if not path.exists():
                continue
            placed = read_placed(path, _scenario(case))
            plan = placed.plan()
            plan = dataclasses.replace(plan, iterations=1, warmup_iterations=0, scale=1.0)
            key = (case, plan.variant, str(layers), str(batch), plan.scheduler, str(plan.seed))
            bound = "" if placed.bound_s is None else number_text(placed.bound_s)
            cells.append(Cell(tasks=(plan,), row=_after((*key, bound))))
    return cells


def _beside(key: Row, published: float, factor: float = 1.0) -> Callable[[Sequence[float]], Row]:
    """A row of key, published figure, simulated figure, error, and what else was simulated.

    factor: of the figures, in 1/s.
    """

    def row(seconds: Sequence[float]) -> Row:
        first, *rest = (factor * value for value in seconds)
        error = f"{first / published - 1:.4f}"
        return (*key, f"{published:g}", number_text(first), error, *map(number_text, rest))

    return row


def _after(key: Row, factor: float = 1.0, last: Row = ()) -> Callable[[Sequence[float]], Row]:
    """A row of key, simulated figure, and `last`."""
    return lambda seconds: (*key, number_text(factor * seconds[0]), *last)


def _sweep(name: str) -> list[Cell]:
    scenario = _scenario(name)
    sweep = scenario.sweep
    return [
        Cell(
            tasks=(_plan(scenario, variant, layers, batch, seed or SEED),),
            row=_after((variant, str(layers), str(batch), str(seed or ""))),
        )
        for layers in sweep.layers
        for batch in sweep.batch
        for variant in sweep.variants
        for seed in (sweep.seeds if find_variant(variant).scheduler in SEEDED else (None,))
    ]


def _pipelines() -> list[Cell]:
    """Every network, micro-batch and backend; the printed pair with wider numbers too."""
    own = _scenario(PIPELINES)
    cells = []
    for backend in sorted(BACKENDS, reverse=True):
        for dtype in dict.fromkeys((own.workload.dtype, "fp32")):
            workload = dataclasses.replace(own.workload, dtype=dtype)
            scenario = dataclasses.replace(own, backend=backend, workload=workload)
            whole = dtype == own.workload.dtype
            networks = [n.name for n in own.sweep.networks] if whole else [PRINTED_NETWORK]
            sizes = own.sweep.micro_batch if whole else (PRINTED_MICRO_BATCH,)
            for network in networks:
                for variant in PIPELINE_SYSTEMS:
                    for size in sizes:
                        plan = build_plan(
                            scenario, variant, workload.layers, workload.batch, SEED, 1, 0,
                            scale=1.0, network=network, micro_batch=size,
                        )  # fmt: skip
                        key = (network, variant, str(size), backend, dtype)
                        cells.append(Cell(tasks=(plan,), row=_after(key)))
    return cells


def _scaling() -> list[Cell]:
    """Every model, number of replicas and system, and what was published of it."""
    cells = []
    for name in TESTBEDS:
        scenario = _scenario(name)
        sweep = scenario.sweep
        plans = build_plans(
            scenario, sweep.variants, sweep.layers, sweep.batch, (SEED,), 1, 0, scale=1.0,
            models=[model.model for model in sweep.models], replicas=sweep.replicas,
        )  # fmt: skip
        cells += [Cell(tasks=(plan,), row=_throughput(plan)) for plan in plans]
    return cells


def _throughput(plan: Plan) -> Callable[[Sequence[float]], Row]:
    model, replicas = plan.workload.model, plan.layout.dp
    units = plan.workload.batch * MODELS[model].units_per_sample
    published = published_throughput(plan.scenario, model, replicas)
    alone_s = plan.num_micro_batches * (plan.stages[0].forward_s + plan.stages[0].backward_s)

    def row(seconds: Sequence[float]) -> Row:
        found = units / seconds[0]
        scaling = replicas * alone_s / seconds[0]
        return (
            plan.scenario, model, plan.variant, str(replicas),
            "" if published is None else f"{published:.2f}", number_text(found),
            "" if published is None else f"{found / published - 1:.4f}", number_text(scaling),
        )  # fmt: skip

    return row


def _transfers() -> list[Cell]:
    cells = []
    for row in load(TRANSFERS).itertuples():
        delay, rate = (
            "" if x != x else f"{x:g}" for x in (row.delay_one_way_ms, row.bandwidth_gbps)
        )
        network = uniform_network(
            2,
            one_way_delay_s=BASE_DELAY_S + float(delay or 0) / 1e3,
            bandwidth_bps=min(NIC_BPS, float(rate or "inf") * 1e9),
            mtu_bytes=AWS_MTU,
        )
        plan = CollectivePlan(
            op="p2p", num_nodes=2, payload_bytes=int(row.message_mb) << 20, backend=row.backend,
            network=network, iterations=1, warmup_iterations=0,
        )  # fmt: skip
        key = (delay, rate, row.backend, f"{row.message_mb:g}")
        cells.append(Cell(tasks=(Transfer(plan=plan), plan), row=_beside(key, row.time_ms, 1e3)))
    return cells


def _collectives() -> list[Cell]:
    cells = []
    for op in OPS:
        for nodes in COLLECTIVE_NODES if op != "p2p" else (2,):
            for delay_s, rate_bps in COLLECTIVE_NETWORKS:
                for backend in sorted(BACKENDS, reverse=True):
                    plan = CollectivePlan(
                        op=op, num_nodes=nodes, payload_bytes=COLLECTIVE_BYTES, backend=backend,
                        network=uniform_network(
                            nodes, one_way_delay_s=delay_s, bandwidth_bps=rate_bps
                        ),
                        iterations=1, warmup_iterations=0,
                    )  # fmt: skip
                    key = (
                        op, str(nodes), str(COLLECTIVE_BYTES), f"{delay_s * 1e3:g}",
                        f"{rate_bps / 1e9:g}", backend,
                    )  # fmt: skip
                    on_paper_s = closed_form_s(plan)
                    last = ("" if on_paper_s is None else number_text(1e3 * on_paper_s),)
                    cells.append(Cell(tasks=(plan,), row=_after(key, 1e3, last)))
    return cells
