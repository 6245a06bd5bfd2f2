"""Tables of `netbench reproduce --simulate`: published runs, predictions, transfers, collectives.

A row of a table needs the times of one or more tasks. Each task is simulated once, on all cores.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np
import pandas as pd

from netbench.placement.file import read_placed
from netbench.plan.benchmark import BACKENDS, OPS, CollectivePlan, uniform_network
from netbench.plan.build import Choices, build_plan, build_plans
from netbench.plan.maps import SEEDED
from netbench.plan.memory import plan_memory
from netbench.plan.model import Plan
from netbench.report.numbers import exact_text
from netbench.report.page.blind import MILLISECONDS, BlindPrediction, predictions
from netbench.report.page.predictions import PIPELINE_SYSTEMS, PRINTED_MICRO_BATCH, PRINTED_NETWORK
from netbench.report.page.published import (
    CASES,
    KEY,
    SEED,
    iteration_times,
    load,
    published_settings,
)
from netbench.report.page.simulated import (
    BLIND,
    COLLECTIVES,
    COLUMNS,
    PIPELINES,
    PLACED,
    SCALING,
    SMALL,
    SWEEPS,
    TIMES,
    TRANSFERS,
    UNDER_TC,
    layout_path,
    placement_path,
)
from netbench.report.page.under_tc.machines import IN_PARTS, collective
from netbench.report.page.under_tc.small import cells
from netbench.report.tables.collective import closed_form_s
from netbench.report.tables.throughput import TESTBEDS, published_throughput
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import load_transport, simulate_collective
from netbench.simulator.collectives import COLLECTIVES as ALGORITHMS
from netbench.simulator.collectives import simulate_parts
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind
from netbench.simulator.parallel import time_plans
from netbench.systems import find_variant
from netbench.workload.models import MODELS

BASE_DELAY_S, NIC_BPS, AWS_MTU = 50e-6, 10e9, 9001
"""The machines of the published transfers: one-way delay, rate of each NIC, MTU in bytes.
Sources: results/published/README.md; AWS EC2 User Guide, network MTU."""

MS_PER_S = 1e3

COLLECTIVE_NODES = (4, 8)
COLLECTIVE_BYTES = 64 << 20
COLLECTIVE_NETWORKS = ((1e-3, 5e9), (5e-3, 2e9), (10e-3, 1e9))
"""One-way delay in seconds, rate in bit/s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """A transfer over an idle connection, timed by its receiver."""

    plan: CollectivePlan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InParts:
    """A collective as many operations as there are machines, one after another."""

    plan: CollectivePlan


Task = Plan | CollectivePlan | Transfer | InParts
Times = Mapping[Task, float]
"""Seconds of each task."""

Row = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """A row of a table before simulation. row: its cells, given the seconds of its tasks."""

    tasks: tuple[Task, ...]
    row: Callable[[Sequence[float]], Row]


def plan_tables() -> dict[str, list[TableRow]]:
    """All tables, not yet simulated."""
    tables = {
        TIMES: _published(),
        PLACED: _placed(),
        **{name: _sweep(name) for name in SWEEPS},
        SMALL: _small(),
        UNDER_TC: _under_tc(),
        BLIND: _blind(),
        PIPELINES: _pipelines(),
        SCALING: _scaling(),
        TRANSFERS: _transfers(),
        COLLECTIVES: _collectives(),
    }
    return {name: list(rows) for name, rows in tables.items()}


def tasks_of(tables: Mapping[str, Sequence[TableRow]]) -> tuple[Task, ...]:
    """The tasks of all tables, each once."""
    cells = (cell for table in tables.values() for cell in table)
    return tuple(dict.fromkeys(task for cell in cells for task in cell.tasks))


def rows_of(cells: Iterable[TableRow], times: Times) -> list[Row]:
    """The rows of a table, given the times of its tasks."""
    return [cell.row([times[task] for task in cell.tasks]) for cell in cells]


def simulate_tasks(tasks: Sequence[Task]) -> Iterator[tuple[Task, float]]:
    """Yield each task with its seconds: plans on all cores first, then the small tasks here."""
    plans = [task for task in tasks if isinstance(task, Plan)]
    for plan, timing in zip(plans, time_plans(plans), strict=True):
        yield plan, timing.iteration_s
    for task in tasks:
        if isinstance(task, Transfer):
            yield task, _transfer_s(task.plan)
        elif isinstance(task, InParts):
            yield task, simulate_parts(task.plan)
        elif isinstance(task, CollectivePlan):
            yield task, simulate_collective(task)


def predicted(blind: Iterable[BlindPrediction]) -> Iterator[tuple[BlindPrediction, float]]:
    """Yield every prediction with its value, in its unit and in order; equal plans are simulated
    once."""
    tasks = {each: _task_of(each) for each in blind}
    seconds = dict(simulate_tasks(tuple(dict.fromkeys(tasks.values()))))
    for each, task in tasks.items():
        yield each, seconds[task] * (MS_PER_S if each.quantity == MILLISECONDS else 1.0)


def _task_of(each: BlindPrediction) -> Task:
    plan = each.plan()
    return InParts(plan=plan) if each.in_parts and isinstance(plan, CollectivePlan) else plan


def _transfer_s(plan: CollectivePlan) -> float:
    """Seconds on the receiver's clock. Both ends leave a barrier, the sender a one-way delay
    earlier, because it waited there for the receiver (docs/calibration.md)."""
    graph = Graph(Fabric(plan.network, [0, 1], load_transport(plan.backend)))
    members = np.array([[0, 1]])
    gate = graph.work(TaskKind.MARK, members)
    graph.edge(gate[0, 0], gate[0, 1], plan.network.link(0, 1).one_way_delay_s)
    done = ALGORITHMS[plan.backend]["p2p"](graph, members, float(plan.payload_bytes), gate)
    timeline = graph.run()
    return float(timeline.end_s[done[0, 1]] - timeline.start_s[gate[0, 1]])


@cache
def _scenario(name: str) -> Scenario:
    return load_scenario(name)


def _plan(scenario: Scenario, variant: str, layers: int, batch: int, seed: int) -> Plan:
    """Build a plan at full size. The seed is used for random placements only, so that equal plans
    are simulated once."""
    seed = seed if find_variant(variant).scheduler in SEEDED else SEED
    return build_plan(scenario, variant, Setting(layers=layers, batch=batch, seed=seed))


def _published() -> Iterator[TableRow]:
    times = iteration_times()
    for time in times.assign(seed=times["seed"].astype("string").fillna("")).itertuples():
        scenario, seed = _scenario(time.case), int(time.seed or SEED)
        plan = _plan(scenario, time.system, time.layers, time.batch, seed)
        key = (time.case, time.system, str(time.layers), str(time.batch), time.seed)
        yield TableRow(tasks=(plan,), row=_beside(key, time.iteration_s))


def _placed() -> Iterator[TableRow]:
    """All published settings with a placement."""
    for case in CASES:
        for layers, batch in published_settings(case):
            path = placement_path(case, layers, batch)
            if not path.exists():
                continue
            placed = read_placed(path, _scenario(case))
            plan = placed.plan()
            plan = dataclasses.replace(plan, iterations=1, warmup_iterations=0, scale=1.0)
            key = (case, plan.variant, str(layers), str(batch), plan.scheduler, str(plan.seed))
            bound = "" if placed.bound_s is None else exact_text(placed.bound_s)
            yield TableRow(tasks=(plan,), row=_after((*key, bound)))


def _beside(key: Row, published: float, factor: float = 1.0) -> Callable[[Sequence[float]], Row]:
    """A row of key, published figure, simulated figure, error, and further simulated figures.

    factor: from seconds to the unit of the figures.
    """

    def row(seconds: Sequence[float]) -> Row:
        first, *rest = (factor * value for value in seconds)
        error = f"{first / published - 1:.4f}"
        return (*key, f"{published:g}", exact_text(first), error, *map(exact_text, rest))

    return row


def _after(key: Row, factor: float = 1.0, last: Row = ()) -> Callable[[Sequence[float]], Row]:
    """A row of key, simulated figure, and `last`."""
    return lambda seconds: (*key, exact_text(factor * seconds[0]), *last)


def _sweep(name: str) -> Iterator[TableRow]:
    times = load(f"{name}_iteration_times").astype({"seed": "Int64"})
    for time in times.assign(seed=times["seed"].astype("string").fillna("")).itertuples():
        seed = int(time.seed or SEED)
        plan = _plan(_scenario(name), time.system, time.layers, time.batch, seed)
        key = (time.system, str(time.layers), str(time.batch), time.seed)
        yield TableRow(tasks=(plan,), row=_beside(key, time.iteration_s))


def _small() -> Iterator[TableRow]:
    for cell in cells():
        yield TableRow(tasks=(cell.plan(),), row=_beside(cell.key, cell.published_s))


def _under_tc() -> Iterator[TableRow]:
    for row in load(UNDER_TC).itertuples():
        link = (float(row.delay_one_way_ms), float(row.bandwidth_gbps))
        plan = collective(row.op, row.nodes, link, row.backend, int(row.message_mb))
        task = InParts(plan=plan) if row.op.startswith(IN_PARTS) else plan
        numbers = (f"{value:g}" for value in link)
        key = (row.op, str(row.nodes), *numbers, row.backend, str(row.message_mb))
        yield TableRow(tasks=(task,), row=_beside(key, row.time_ms, MS_PER_S))


def _blind() -> Iterator[TableRow]:
    """The predictions of the ledger as the simulator makes them now."""
    for each in predictions():
        if not each.superseded:
            factor = MS_PER_S if each.quantity == MILLISECONDS else 1.0
            key = (each.scenario, each.experiment, each.model, each.batch, each.quantity[1])
            yield TableRow(tasks=(_task_of(each),), row=_after(key, factor))


def _pipelines() -> Iterator[TableRow]:
    """All networks, micro-batches and backends; the printed pair also with fp32."""
    default = _scenario(PIPELINES)
    dtypes = dict.fromkeys((default.workload.dtype, "fp32"))
    for backend, dtype in product(sorted(BACKENDS, reverse=True), dtypes):
        workload = dataclasses.replace(default.workload, dtype=dtype)
        scenario = dataclasses.replace(default, backend=backend, workload=workload)
        whole = dtype == default.workload.dtype
        networks = [n.name for n in default.sweep.networks] if whole else [PRINTED_NETWORK]
        sizes = default.sweep.micro_batch if whole else (PRINTED_MICRO_BATCH,)
        for network, variant, size in product(networks, PIPELINE_SYSTEMS, sizes):
            setting = Setting(
                layers=workload.layers, batch=workload.batch, micro_batch=size, network=network,
                seed=SEED,
            )  # fmt: skip
            plan = build_plan(scenario, variant, setting)
            key = (network, variant, str(size), backend, dtype)
            yield TableRow(tasks=(plan,), row=_after(key))


def _scaling() -> Iterator[TableRow]:
    """All models, numbers of replicas and systems, with the published throughput if any."""
    for scenario in map(_scenario, TESTBEDS):
        choices = Choices.of(scenario.sweep, whole=True, seeds=(SEED,))
        for plan in build_plans(scenario, choices):
            yield TableRow(tasks=(plan,), row=_throughput(plan))


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
            "" if published is None else f"{published:.2f}", exact_text(found),
            "" if published is None else f"{found / published - 1:.4f}", exact_text(scaling),
        )  # fmt: skip

    return row


def _transfers() -> Iterator[TableRow]:
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
        yield TableRow(tasks=(Transfer(plan=plan), plan), row=_beside(key, row.time_ms, 1e3))


def _collectives() -> Iterator[TableRow]:
    backends = sorted(BACKENDS, reverse=True)
    for op in OPS:
        numbers = COLLECTIVE_NODES if op != "p2p" else (2,)
        for nodes, network, backend in product(numbers, COLLECTIVE_NETWORKS, backends):
            delay_s, rate_bps = network
            plan = CollectivePlan(
                op=op, num_nodes=nodes, payload_bytes=COLLECTIVE_BYTES, backend=backend,
                network=uniform_network(nodes, one_way_delay_s=delay_s, bandwidth_bps=rate_bps),
                iterations=1, warmup_iterations=0,
            )  # fmt: skip
            key = (
                op, str(nodes), str(COLLECTIVE_BYTES), f"{delay_s * 1e3:g}",
                f"{rate_bps / 1e9:g}", backend,
            )  # fmt: skip
            on_paper_s = closed_form_s(plan)
            last = ("" if on_paper_s is None else exact_text(1e3 * on_paper_s),)
            yield TableRow(tasks=(plan,), row=_after(key, 1e3, last))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FastestPublished:
    """The fastest published system of a setting, simulated. simulated_s: mean over the seeds."""

    case: str
    layers: int
    batch: int
    system: str
    simulated_s: float


def layout_rows(settings: Sequence[FastestPublished]) -> Iterator[Row]:
    """Yield a row for each setting with a searched layout; all cores simulate."""
    paths = {setting: layout_path(setting.case, setting.layers, setting.batch)
             for setting in settings}  # fmt: skip
    found = [(setting, read_placed(path, load_scenario(setting.case)))
             for setting, path in paths.items() if path.exists()]  # fmt: skip
    plans = [plan for _, placed in found for plan in (placed.request.listed(), placed.plan())]
    seconds = [timing.iteration_s for timing in time_plans(plans)]
    columns = (found, plans[1::2], seconds[::2], seconds[1::2])
    for (setting, placed), plan, listed_s, placed_s in zip(*columns, strict=True):
        layout, need_bytes = plan.layout, max(part.total_bytes for part in plan_memory(plan))
        yield (
            setting.case, str(setting.layers), str(setting.batch), setting.system,
            exact_text(setting.simulated_s), placed.request.variant,
            str(layout.pp), str(layout.tp), str(layout.dp), f"{need_bytes / 1e9:.1f}",
            exact_text(listed_s), exact_text(placed_s), exact_text(setting.simulated_s / placed_s),
        )  # fmt: skip


def best_published(times: Sequence[Row]) -> list[FastestPublished]:
    """The system with the lowest mean over the seeds, for each setting of the table of times."""
    columns = {"layers": int, "batch": int, "simulated_s": float}
    table = pd.DataFrame(times, columns=COLUMNS[TIMES]).astype(columns)
    means = table.groupby(KEY, sort=False)["simulated_s"].mean().reset_index()
    settings = means[["case", "layers", "batch"]].drop_duplicates()
    best = means.sort_values(["simulated_s", "system"]).drop_duplicates([*settings])
    return [FastestPublished(**row) for row in settings.merge(best).to_dict("records")]
