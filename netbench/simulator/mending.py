"""What it costs to go on after devices were lost or came: the mended placement, and its loading."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError, nearest
from netbench.placement.problem import Grid
from netbench.placement.repair import EVALUATIONS, Mended, Slot, held_slots, mend
from netbench.plan import Plan, check_memory
from netbench.scenario.model import Scenario
from netbench.simulator.collectives import COLLECTIVES
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Kind
from netbench.simulator.profile import load_transport
from netbench.simulator.scheduling import Request, placement_of
from netbench.simulator.simulate import simulate
from netbench.workload.memory import restart_bytes

MENDED = ("dtfm", "megatron", "ddp")
"""Systems in which the devices of a group hold the same; in the others a lost one takes its shard
with it, or its own copy of the model."""

MAX_BATCHES = 64
"""Smaller batches that are tried for one that the pipelines divide and that fits their memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a device loads from another that held the same. slot: (tensor-parallel index, stage)."""

    device: int
    source: int
    slot: Slot
    size_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Repair:
    """A mended placement. before_s, after_s: simulated iterations. load_s: until the last device
    has loaded what it holds now, all at once over the real links. idle: living devices left over.
    request: of the mended plan; its batch may be another."""

    request: Request
    mended: Mended
    plan: Plan
    before_s: float
    after_s: float
    loads: tuple[Load, ...]
    load_s: float
    idle: tuple[int, ...]

    @property
    def load_bytes(self) -> float:
        """Of all devices."""
        return sum(load.size_bytes for load in self.loads)


def devices_of(scenario: Scenario, names: Sequence[str]) -> tuple[int, ...]:
    """All devices of nodes. Raises PlanError for a node that is unknown or named twice."""
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
    """Mend `grid` of `request`, with at most `moves` devices loading beyond those that must.

    lost, added: devices. Idle devices of the scenario fill gaps; they, and those added, make new
    pipelines only if some are added and they suffice. If they do not suffice for the gaps, there
    are fewer pipelines. The batch is the largest that the pipelines divide, no larger than before.
    Raises PlanError where there is nothing to mend, or no way to.
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
            f"{size}; search a plan for what is left, as a scenario: netbench schedule mine.yaml "
            "--layout auto"
        )
    held = held_slots(grid, old.layout.tp, lost)
    _check_holders(old, held)
    mended_request = _request(request, dp, dp * size, stage_layers)
    problem = mended_request.problem(tuple(stage_layers))
    found = mend(problem, grid, lost=lost, moves=moves, seed=seed, evaluations=evaluations)
    plan = _placed(mended_request, found.grid, stage_layers)
    loads = choose_sources(plan, found.loads, held)
    taken = {*found.grid.ravel().tolist(), *lost}
    return Repair(
        request=mended_request,
        mended=found,
        plan=plan,
        before_s=simulate(_placed(request, grid, stage_layers)).iteration_s,
        after_s=simulate(plan).iteration_s,
        loads=loads,
        load_s=load_seconds(plan, loads),
        idle=tuple(d for d in range(len(plan.device_nodes)) if d not in taken),
    )


def choose_sources(
    plan: Plan, wanted: Sequence[tuple[int, Slot]], held: dict[int, Slot]
) -> tuple[Load, ...]:
    """From whom each device loads: of those that hold the slot, the one that would be done first,
    taking turns with what it sends already. held: of every slot by one device at least."""
    network, nodes = plan.network, plan.device_nodes
    delay_s, bandwidth_bps = network.one_way_delay_s(), network.bandwidth_bps()
    busy: Counter[int] = Counter()
    loads = []
    for device, slot in wanted:
        holders = [other for other, has in held.items() if has == slot]
        stage = plan.stages_on(device)[slot[1]]
        size_bytes = restart_bytes(plan.system, plan.workload.dtype) * stage.parameters

        def seconds(source: int, target: int = device, size: float = size_bytes) -> float:
            link = nodes[source], nodes[target]
            return float(delay_s[link] + (busy[source] + 1) * 8 * size / bandwidth_bps[link])

        source = min(holders, key=lambda holder: (seconds(holder), holder))
        busy[source] += 1
        loads.append(Load(device=device, source=source, slot=slot, size_bytes=float(size_bytes)))
    return tuple(loads)


def load_seconds(plan: Plan, loads: Sequence[Load]) -> float:
    """Until the last is loaded, seconds: all begin at once, and share the network as it shares."""
    if not loads:
        return 0.0
    graph = Graph(Fabric(plan.network, plan.device_nodes, load_transport(plan.backend)))
    members = np.array([[load.source, load.device] for load in loads])
    sizes = np.array([load.size_bytes for load in loads])
    done = COLLECTIVES[plan.backend]["p2p"](graph, members, sizes, graph.work(Kind.MARK, members))
    return float(graph.run().end_s[done[:, 1]].max())


def _check(old: Plan, grid: Grid, lost: Sequence[int], added: Sequence[int]) -> None:
    if old.system not in MENDED:
        raise PlanError(
            f"a placement of {old.system} cannot be mended: a lost device takes with it what only "
            f"it held; start again from a checkpoint (mended are {', '.join(MENDED)})"
        )
    names = [old.node_names[node] for node in old.device_nodes]
    both = sorted(set(lost) & set(added))
    if both:
        raise PlanError(f'node "{names[both[0]]}" is both lost and added; name it once')
    placed = set(grid.ravel().tolist())
    there = sorted(set(added) & placed)
    if there:
        raise PlanError(f'node "{names[there[0]]}" is added, but is in the placement already')
    if not lost and not added:
        raise PlanError("nothing is lost and nothing added; name a node with --lost or --added")


def _check_holders(old: Plan, held: dict[int, Slot]) -> None:
    """Raises PlanError where nobody is left of whom a slot's parameters can be loaded."""
    gone = sorted(
        {(tensor, stage) for tensor in range(old.layout.tp) for stage in range(old.layout.pp)}
        - set(held.values())
    )
    if gone:
        tensor, stage = gone[0]
        part = f", tensor index {tensor}," if old.layout.tp > 1 else ""
        raise PlanError(
            f"nobody is left who holds stage {stage}{part} of {old.variant}: start again from a "
            "checkpoint, placed anew with netbench schedule"
        )


def _request(request: Request, dp: int, num_ranks: int, stage_layers: Sequence[int]) -> Request:
    """With so many pipelines, and the largest batch that they divide and that fits."""
    refusal: PlanError | None = None
    micro_batch = request.micro_batch or request.scenario.workload.micro_batch
    step = dp * micro_batch
    for sequences in range(request.batch // step, max(0, request.batch // step - MAX_BATCHES), -1):
        changed = dataclasses.replace(request, batch=sequences * step, num_ranks=num_ranks)
        try:
            check_memory(changed.plan(range(num_ranks), stage_layers), request.scenario)
        except PlanError as error:
            refusal = refusal or error
            continue
        return changed
    raise refusal or PlanError(
        f"batch {request.batch} is less than a micro-batch for each of {dp} pipelines; choose at "
        f"least {step}"
    )


def _placed(request: Request, grid: Grid, stage_layers: Sequence[int]) -> Plan:
    template = request.plan(range(grid.size), stage_layers)
    placement = placement_of(template, grid)
    return request.plan(placement, stage_layers, scheduler="repair")
