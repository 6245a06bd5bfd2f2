"""Repair a placement after devices were lost or added, and time the loading of parameters."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError, nearest
from netbench.placement.plan_problem import Request
from netbench.placement.problem import Grid
from netbench.placement.search.repair import (
    EVALUATIONS,
    RepairedGrid,
    Slot,
    find_repair,
    held_slots,
)
from netbench.plan.memory import check_memory
from netbench.plan.model import Plan
from netbench.scenario.model import Scenario
from netbench.simulator.collectives import COLLECTIVES
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind
from netbench.simulator.iteration import simulate
from netbench.systems import SYSTEMS, system_of
from netbench.transport.profile import load_transport

MAX_BATCHES = 64
"""Smaller batches to try for one that the pipelines divide and that fits their memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Parameters that a device loads from another. slot: (tensor-parallel index, stage)."""

    device: int
    source: int
    slot: Slot
    size_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Repair:
    """A repaired placement.

    request: of the repaired plan; its batch may differ. before_s, after_s: simulated iterations.
    load_s: until the last device has loaded its parameters, all at once over the shared links.
    idle: devices that are neither lost nor used.
    """

    request: Request
    repaired: RepairedGrid
    plan: Plan
    before_s: float
    after_s: float
    loads: tuple[Load, ...]
    load_s: float
    idle: tuple[int, ...]

    @property
    def load_bytes(self) -> float:
        """Sum over all devices."""
        return sum(load.size_bytes for load in self.loads)


def devices_of(scenario: Scenario, names: Sequence[str]) -> tuple[int, ...]:
    """Return all devices of nodes. Raises PlanError for a node that is unknown or named twice."""
    known = {node.name: index for index, node in enumerate(scenario.nodes)}
    for name, count in Counter(names).items():
        if name not in known:
            hint = nearest(name, known)
            if len(known) > 8 and not hint.startswith("did you mean"):
                hint = f"expected names from {scenario.nodes[0].name} to {scenario.nodes[-1].name}"
            raise PlanError(f'scenario {scenario.name} has no node "{name}"; {hint}')
        if count > 1:
            raise PlanError(f'node "{name}" is named {count} times; name it once')
    chosen = {known[name] for name in names}
    return tuple(d for d, node in enumerate(scenario.device_nodes()) if node in chosen)


def repair(
    request: Request,
    grid: Grid,
    stage_layers: Sequence[int],
    *,
    lost: Sequence[int] = (),
    added: Sequence[int] = (),
    moves: int = 0,
    seed: int = 0,
    evaluations: int = EVALUATIONS,
) -> Repair:
    """Repair `grid` of `request`, with at most `moves` devices loading beyond those that must.

    lost, added: devices. Idle devices of the scenario fill gaps; if they do not suffice, there are
    fewer pipelines. New pipelines are made only if devices are added and none lost. The batch is
    the largest that the pipelines divide, no larger than before.
    Raises PlanError where there is nothing to repair, or no way to.
    """
    old = request.plan(range(grid.size), stage_layers)
    _check(old, grid, lost, added)
    size, usable = old.layout.pp * old.layout.tp, len(old.device_nodes) - len(set(lost))
    dp = min(old.layout.dp, usable // size)
    if added and not lost:
        dp = usable // size
    if dp == 0:
        raise PlanError(
            f"too few devices are left for a pipeline of {request.variant}: {usable}, expected "
            f"{size}; describe what is left as a scenario and search a plan: netbench schedule "
            "mine.yaml --layout auto"
        )
    held = held_slots(grid, old.layout.tp, lost)
    _check_complete(old, held)
    repaired_request = _request(request, dp, dp * size, stage_layers)
    problem = repaired_request.problem(tuple(stage_layers))
    repaired = find_repair(
        problem, grid, lost=lost, moves=moves, seed=seed, evaluations=evaluations
    )
    plan = repaired_request.placed(repaired.grid, stage_layers, scheduler="repair")
    before = request.placed(grid, stage_layers, scheduler="repair")
    loads = choose_sources(plan, repaired.loads, held)
    taken = {*repaired.grid.ravel().tolist(), *lost}
    return Repair(
        request=repaired_request,
        repaired=repaired,
        plan=plan,
        before_s=simulate(before).iteration_s,
        after_s=simulate(plan).iteration_s,
        loads=loads,
        load_s=load_seconds(plan, loads),
        idle=tuple(d for d in range(len(plan.device_nodes)) if d not in taken),
    )


def choose_sources(
    plan: Plan, wanted: Sequence[tuple[int, Slot]], held: dict[int, Slot]
) -> tuple[Load, ...]:
    """Choose the source of each load: the device with the slot that would finish first, given what
    it already sends. held: the slot of each surviving device; every slot occurs."""
    network, nodes = plan.network, plan.device_nodes
    delay_s, bandwidth_bps = network.one_way_delay_s(), network.bandwidth_bps()
    busy: Counter[int] = Counter()
    loads = []
    for device, slot in wanted:
        sources = [other for other, has in held.items() if has == slot]
        stage = plan.stages_on(device)[slot[1]]
        size_bytes = system_of(plan).restart_bytes(plan.workload.dtype) * stage.parameters

        def seconds(source: int, target: int = device, size: float = size_bytes) -> float:
            link = nodes[source], nodes[target]
            return float(delay_s[link] + (busy[source] + 1) * 8 * size / bandwidth_bps[link])

        source = min(sources, key=lambda other: (seconds(other), other))
        busy[source] += 1
        loads.append(Load(device=device, source=source, slot=slot, size_bytes=float(size_bytes)))
    return tuple(loads)


def load_seconds(plan: Plan, loads: Sequence[Load]) -> float:
    """Simulate all loads at once over the shared network; return when the last ends, seconds."""
    if not loads:
        return 0.0
    graph = Graph(Fabric(plan.network, plan.device_nodes, load_transport(plan.backend)))
    members = np.array([[load.source, load.device] for load in loads])
    sizes = np.array([load.size_bytes for load in loads])
    done = COLLECTIVES[plan.backend]["p2p"](
        graph, members, sizes, graph.work(TaskKind.MARK, members)
    )
    return float(graph.run().end_s[done[:, 1]].max())


def _check(old: Plan, grid: Grid, lost: Sequence[int], added: Sequence[int]) -> None:
    """Raise PlanError for a system or devices that cannot be repaired."""
    system = system_of(old)
    if not system.repairable:
        why = "its ranks do not hold the same state; restart from a checkpoint"
        if system.elastic:
            why = "its other ranks go on without a lost one, and need no new placement"
        elif system.num_shards(old.layout, old.shard_ranks) > 1:
            why = (
                "a lost device takes its part of the parameters with it; restart from a checkpoint"
            )
        repairable = ", ".join(name for name, each in SYSTEMS.items() if each.repairable)
        raise PlanError(
            f"a placement of {old.system} cannot be repaired: {why} (repairable: {repairable})"
        )
    names = [old.node_names[node] for node in old.device_nodes]
    both = sorted(set(lost) & set(added))
    if both:
        raise PlanError(f'node "{names[both[0]]}" is both lost and added; name it once')
    placed = set(grid.ravel().tolist())
    there = sorted(set(added) & placed)
    if there:
        raise PlanError(f'node "{names[there[0]]}" is added, but it is already in the placement')
    if not lost and not added:
        raise PlanError("no node is lost or added; name one with --lost or --added")


def _check_complete(old: Plan, held: dict[int, Slot]) -> None:
    """Raise PlanError where no device is left with the parameters of some slot."""
    gone = sorted(
        {(tensor, stage) for tensor in range(old.layout.tp) for stage in range(old.layout.pp)}
        - set(held.values())
    )
    if gone:
        tensor, stage = gone[0]
        part = f", tensor index {tensor}," if old.layout.tp > 1 else ""
        raise PlanError(
            f"no device is left that holds stage {stage}{part} of {old.variant}; restart from a "
            "checkpoint with a new placement: netbench schedule"
        )


def _request(request: Request, dp: int, num_ranks: int, stage_layers: Sequence[int]) -> Request:
    """Return the request with dp pipelines and the largest batch that they divide and that fits."""
    refusal: PlanError | None = None
    micro_batch = request.setting.micro_batch or request.scenario.workload.micro_batch
    step = dp * micro_batch
    most = request.setting.batch // step
    for sequences in range(most, max(0, most - MAX_BATCHES), -1):
        setting = dataclasses.replace(request.setting, batch=sequences * step)
        changed = dataclasses.replace(request, setting=setting, num_ranks=num_ranks)
        try:
            check_memory(changed.plan(range(num_ranks), stage_layers), request.scenario)
        except PlanError as error:
            refusal = refusal or error
            continue
        return changed
    raise refusal or PlanError(
        f"batch {request.setting.batch} is smaller than a micro-batch for each of {dp} pipelines; "
        f"choose at least {step}"
    )
