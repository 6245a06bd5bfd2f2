"""Search the fastest or cheapest plan for a workload over systems, layouts and schedules.

Candidates are dtfm and megatron in all depths, tensor-parallel degrees, schedules and kinds of data
parallelism, and zero3 and ddp. Each has all devices, or as many as a region, a node, a kind of
device or one pipeline has. hivemind and diloco are excluded: stale gradients and local steps change
what is trained, so their times are not comparable.
"""

import dataclasses
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from netbench.cost.bill import bill, per_million_usd, rent_usd
from netbench.cost.traffic import samples_of
from netbench.errors import PlanError
from netbench.placement.plan_problem import Request
from netbench.placement.problem import Budget, Problem, Scheduler
from netbench.placement.schedulers import SCHEDULERS
from netbench.plan.build import build_plan
from netbench.plan.maps import SEEDED
from netbench.plan.memory import check_memory, memory_warnings, plan_memory
from netbench.plan.model import Layout, Plan
from netbench.plan.tensor import LAYER_ALL_REDUCES, num_passes
from netbench.scenario.model import Prices, Scenario, Setting
from netbench.simulator.iteration import simulate
from netbench.simulator.kernel import TICK_S
from netbench.systems import SYSTEMS, find_variant, system_of
from netbench.systems.base import Variant
from netbench.transport.profile import load_transport
from netbench.units import counted

NUM_FINALISTS = 8
"""Plans that the scheduler places in the first rung of successive halving."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Degrees of parallelism to search; None = any."""

    pp: int | None = None
    tp: int | None = None
    dp: int | None = None

    def admit(self, layout: Layout) -> bool:
        """Return whether `layout` has these degrees."""
        wanted = ((self.pp, layout.pp), (self.tp, layout.tp), (self.dp, layout.dp))
        return all(asked in (None, has) for asked, has in wanted)

    def may_admit(self, variant: Variant) -> bool:
        """Return whether a plan of `variant` could have these degrees."""
        return self.pp in (None, variant.pipeline) and self.tp in (None, variant.tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A plan that fits the devices. plan: on `nearest_devices`. at_least_s: see `at_least_s`."""

    request: Request
    plan: Plan
    at_least_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutObjective:
    """The quantity that a search over layouts minimises.

    value: from a plan and the seconds of its iteration. bound: lower bound of the value, from a
    plan and a lower bound of the seconds.
    """

    value: Callable[[Plan, float], float]
    bound: Callable[[Plan, float], float]


FASTEST = LayoutObjective(value=lambda plan, seconds: seconds, bound=lambda plan, seconds: seconds)


def cheapest(scenario: Scenario, prices: Prices | None, market: str) -> LayoutObjective:
    """Return the objective $ per million samples. prices: None = those of the scenario.

    A plan pays for the machines that it uses, for egress and training data. Raises PlanError
    without prices, when it is used.
    """

    def value(plan: Plan, seconds: float) -> float:
        return bill(scenario, plan, prices, iteration_s=seconds).million_usd(market)

    def bound(plan: Plan, seconds: float) -> float:
        usd = rent_usd(scenario, plan, prices or scenario.prices)[market]
        return per_million_usd(usd, samples_of(plan) / seconds)

    return LayoutObjective(value=value, bound=bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedCandidate:
    """A candidate on the best placement found.

    iteration_s, unplaced_s: simulated on that placement and on `nearest_devices`. value: of the
    objective. fits: whether the stages fit their devices' memory, which they need not there.
    """

    candidate: Candidate
    plan: Plan
    iteration_s: float
    unplaced_s: float
    value: float
    fits: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSearch:
    """Result of a search over layouts.

    best: sorted by the objective. num_candidates: plans that fit the devices. num_simulated: of
    these, those whose bound did not rule them out. num_left: those that time ran out for.
    num_evaluated: candidates of the scheduler. elapsed_s: of the search.
    """

    best: tuple[PlacedCandidate, ...]
    num_candidates: int
    num_simulated: int
    num_left: int
    num_evaluated: int
    elapsed_s: float


def parse_layout(text: str) -> Degrees:
    """Parse `auto`, or degrees such as p8, p4t2, p8d8. Raises PlanError for anything else.

    Without t, a layout with p is not tensor parallel, as in the text of a layout.
    """
    match = re.fullmatch(r"(?=.)(p([1-9]\d*))?(t([1-9]\d*))?(d([1-9]\d*))?", text, re.ASCII)
    if text == "auto":
        return Degrees()
    if match is None:
        raise PlanError(
            f'layout "{text}" is invalid; expected auto, or degrees, e.g. p8, p4t2, p8d8'
        )
    pp, tp, dp = (int(digits) if digits else None for digits in match.group(2, 4, 6))
    return Degrees(pp=pp, tp=1 if pp and tp is None else tp, dp=dp)


def search_layouts(
    candidates: Sequence[Candidate],
    *,
    scheduler: Scheduler | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Callable[[PlacedCandidate], None] | None = None,
    name: str = "netbench",
    objective: LayoutObjective = FASTEST,
) -> LayoutSearch:
    """Simulate `candidates` and place the best by successive halving.

    scheduler: None = `netbench`. name: of the scheduler, in plans. objective: decides which plans
    are best; a scheduler places each for the shortest time.
    budget: of all its runs together. The best `NUM_FINALISTS` (a power of 2) share a quarter of it
    if they are 8, the better half another quarter, and so on. Simulating takes at most half of the
    seconds. Seed and evaluations decide the result; seconds only truncate the search.
    progress: called with each new best. Systems without stages are not placed.

    Raises PlanError where none of the best fits its devices' memory on any placement tried.
    """
    budget = budget or Budget()
    started_s = time.perf_counter()
    deadline_s = started_s + budget.seconds
    half = Budget(seconds=budget.seconds / 2, interrupted=budget.interrupted)
    best, num_simulated, num_left = _simulate_best(candidates, NUM_FINALISTS, half, objective)
    shown = math.inf

    def report() -> None:
        """Call `progress` with a new best."""
        nonlocal shown
        first = min((one for one in best if one.fits), key=_rank, default=None)
        if progress and first and first.value < shown:
            shown = first.value
            progress(first)

    report()
    placing = _Placing(scheduler or SCHEDULERS["netbench"], name, seed, objective)
    rungs = NUM_FINALISTS.bit_length()
    for rung in range(rungs):
        rest = best[: NUM_FINALISTS >> rung]
        evaluations = budget.evaluations / (rungs * len(rest))
        if evaluations < 1:
            continue
        for index, one in enumerate(rest):
            left_s = deadline_s - time.perf_counter()
            if left_s <= 0 or budget.interrupted():
                break
            seconds = left_s / ((rungs - rung) * len(rest) - index)
            limits = Budget(
                seconds=seconds, evaluations=evaluations, interrupted=budget.interrupted
            )
            best[index] = placing.place(one, limits)
            report()
        best.sort(key=_rank)
    # Placing may lead from different devices to the same ones.
    different: dict[tuple[str, tuple[int, ...]], PlacedCandidate] = {}
    for one in best:
        if one.fits:
            different.setdefault((one.plan.variant, one.plan.placement), one)
    fitting = tuple(different.values())
    if best and not fitting:
        raise PlanError(
            f"no placement was found on which any of the {len(best)} best plans fits its devices' "
            "memory; search longer, or use a scheduler that respects memory, e.g. netbench"
        )
    return LayoutSearch(
        best=fitting,
        num_candidates=len(candidates),
        num_simulated=num_simulated,
        num_left=num_left,
        num_evaluated=placing.num_evaluated,
        elapsed_s=time.perf_counter() - started_s,
    )


def find_candidates(
    scenario: Scenario,
    setting: Setting,
    degrees: Degrees | None = None,
    *,
    every_region: bool = False,
) -> tuple[Candidate, ...]:
    """Return every plan that fits the devices and their memory, lowest bound first.

    every_region: plans with idle devices are around each region, not the fastest only. Raises
    PlanError where there is none, with the error of the plan that needs least memory.
    """
    degrees = degrees or Degrees()
    candidates: list[Candidate] = []
    refusals: list[tuple[float, PlanError]] = []
    for variant, num_ranks in _names(scenario, setting, degrees):
        request = Request(scenario=scenario, variant=variant, setting=setting, num_ranks=num_ranks)
        need_bytes = math.inf
        try:
            plan = _plan(request)
            if not degrees.admit(plan.layout):
                continue
            placements = near_devices(plan) if every_region else [nearest_devices(plan)]
            for placement in dict.fromkeys(placements):
                placed = dataclasses.replace(plan, placement=placement)
                need_bytes = max(part.total_bytes for part in plan_memory(placed))
                check_memory(placed, scenario)
                candidates.append(
                    Candidate(request=request, plan=placed, at_least_s=at_least_s(placed))
                )
        except PlanError as error:
            if degrees.may_admit(find_variant(variant)):
                refusals.append((need_bytes, error))
            continue
    if not candidates:
        _, refusal = min(refusals, key=lambda one: one[0], default=(0.0, None))
        raise PlanError(
            f"no layout trains {counted(setting.layers, 'layer')} with batch {setting.batch} on "
            f"the {counted(scenario.num_devices, 'device')} of scenario {scenario.name}"
            + (f": {refusal}" if refusal else " with these degrees; try --layout auto")
        )
    return tuple(sorted(candidates, key=lambda one: (one.at_least_s, one.request.variant)))


def at_least_s(plan: Plan) -> float:
    """Return a lower bound of an iteration of `plan` on any placement, seconds.

    Every stage computes all its micro-batches on the fastest kind of device. Where a group is
    larger than a node, the bytes of its tensor-parallel all-reduces, and of its gradients in a ring
    or chain, cross a link at the best bandwidth. The slowest stage is the bound. The simulator's
    clock may make each of a micro-batch's two passes half a tick shorter.
    """
    bandwidth_bps = plan.network.bandwidth_bps()
    apart = ~np.eye(len(bandwidth_bps), dtype=bool)
    across_bps = float(bandwidth_bps[apart].max()) if apart.any() else math.inf
    largest = max(Counter(plan.device_nodes).values())
    layout, count = plan.layout, plan.num_rounds * plan.num_micro_batches
    kinds = plan.type_stages or (plan.stages,)
    stages_s = [min(s.forward_s + s.backward_s for s in same) for same in zip(*kinds, strict=True)]
    inside_bps = load_transport(plan.backend).inside_node_bps
    tensor_bps = across_bps if layout.tp > largest else max(across_bps, inside_bps)
    all_reduce_s = 2 * (layout.tp - 1) / layout.tp * 8 * plan.activation_bytes / tensor_bps
    reductions = LAYER_ALL_REDUCES * num_passes(plan)
    serial = plan.data_parallel in ("ring", "reduce-broadcast")
    serial = serial and not system_of(plan).overlaps_gradients
    byte_s = 8 / across_bps if serial and layout.dp > largest else 0.0
    return float(
        max(
            count * (stage_s - TICK_S + reductions * stage.num_layers * all_reduce_s)
            + stage.gradient_bytes * byte_s
            for stage_s, stage in zip(stages_s, plan.stages, strict=True)
        )
    )


def best_listed(
    scenario: Scenario, setting: Setting, objective: LayoutObjective = FASTEST
) -> PlacedCandidate | None:
    """Return the best system that the scenario lists, without staleness or local steps.

    Random placements count with their mean over the scenario's seeds. None if none fits.
    """
    listed = []
    for variant in scenario.sweep.variants:
        chosen = find_variant(variant)
        if not chosen.is_synchronous:
            continue
        seeds = scenario.sweep.seeds if chosen.scheduler in SEEDED else (0,)
        request = Request(scenario=scenario, variant=variant, setting=setting)
        with suppress(PlanError):
            plans = [_plan(request, seed) for seed in seeds]
            if any(memory_warnings(plan, scenario) for plan in plans):
                continue
            mean_s = sum(simulate(plan).iteration_s for plan in plans) / len(plans)
            one = Candidate(request=request, plan=plans[0], at_least_s=at_least_s(plans[0]))
            listed.append(
                PlacedCandidate(
                    candidate=one,
                    plan=plans[0],
                    iteration_s=mean_s,
                    unplaced_s=mean_s,
                    value=objective.value(plans[0], mean_s),
                )
            )
    return min(listed, key=_rank, default=None)


def _simulate_best(
    candidates: Sequence[Candidate], num: int, budget: Budget, objective: LayoutObjective
) -> tuple[list[PlacedCandidate], int, int]:
    """Return the best `num`, or fewer, where they are listed, how many were simulated to find them,
    and how many that could be among the best were not, because the budget had ended."""
    best: list[PlacedCandidate] = []
    num_simulated, started_s = 0, time.perf_counter()
    bounds = [objective.bound(one.plan, one.at_least_s) for one in candidates]
    order = sorted(range(len(candidates)), key=bounds.__getitem__)
    for index in order:
        candidate = candidates[index]
        if len(best) == num and bounds[index] >= best[-1].value:
            break
        if best and budget.over(time.perf_counter() - started_s, num_simulated):
            worst = best[-1].value if len(best) == num else math.inf
            left = sum(bound < worst for bound in bounds) - num_simulated
            return best, num_simulated, left
        num_simulated += 1
        with suppress(PlanError):  # a schedule with a deadlock
            seconds = simulate(candidate.plan).iteration_s
            one = PlacedCandidate(
                candidate=candidate,
                plan=candidate.plan,
                iteration_s=seconds,
                unplaced_s=seconds,
                value=objective.value(candidate.plan, seconds),
                fits=not memory_warnings(candidate.plan, candidate.request.scenario),
            )
            best = sorted([*best, one], key=_by_value)[:num]
    return best, num_simulated, 0


class _Placing:
    """Places plans with a scheduler; a plan placed again reuses its simulated parts."""

    def __init__(
        self, scheduler: Scheduler, name: str, seed: int, objective: LayoutObjective
    ) -> None:
        self._scheduler, self._name, self._seed = scheduler, name, seed
        self._objective = objective
        self._problems: dict[tuple[str, int | None], Problem] = {}
        self.num_evaluated = 0

    def place(self, placed: PlacedCandidate, budget: Budget) -> PlacedCandidate:
        """Return the candidate as placed by the scheduler if that is better, or fits at last."""
        request = placed.candidate.request
        if not placed.plan.has_pipelines:
            return placed
        key = request.variant, request.num_ranks
        if key not in self._problems:
            self._problems[key] = request.problem()
        try:
            answer = self._scheduler(self._problems[key], self._seed, budget)
        except PlanError:  # no placement fits
            return placed
        self.num_evaluated += answer.num_evaluated
        plan = request.placed(
            answer.grid, answer.stage_layers, scheduler=self._name, seed=self._seed
        )
        seconds = simulate(plan).iteration_s
        value = self._objective.value(plan, seconds)
        if placed.fits and value >= placed.value:
            return placed
        return dataclasses.replace(placed, plan=plan, iteration_s=seconds, value=value, fits=True)


def _by_value(placed: PlacedCandidate) -> tuple[float, str]:
    return placed.value, placed.candidate.request.variant


def _rank(placed: PlacedCandidate) -> tuple[bool, float, str]:
    """Sort by the objective; candidates that do not fit come last."""
    return not placed.fits, *_by_value(placed)


def _plan(request: Request, seed: int = 0) -> Plan:
    """Build a plan at full size, as simulation requires; on the first devices if some stay idle."""
    return build_plan(
        request.scenario,
        request.variant,
        dataclasses.replace(request.setting, seed=seed),
        placement=None if request.num_ranks is None else range(request.num_ranks),
    )


def nearest_devices(plan: Plan) -> tuple[int, ...]:
    """Return as many devices as `plan` has ranks: the first of `near_devices`."""
    return near_devices(plan)[0]


def near_devices(plan: Plan) -> list[tuple[int, ...]]:
    """Return as many devices as `plan` has ranks around every region: the fast and near ones, in
    the order in which they are listed.

    Near and fast is, from a region's first device, the time of a layer's micro-batch plus that of a
    message between stages. The region whose devices take least in all comes first; of regions that
    are alike, the first.
    """
    count, nodes = plan.layout.num_ranks, np.asarray(plan.device_nodes)
    if count == len(nodes):
        return [tuple(range(count))]
    network, kinds = plan.network, plan.type_stages or (plan.stages,)
    compute_s = np.array([(k[0].forward_s + k[0].backward_s) / k[0].num_layers for k in kinds])
    kind = np.asarray(plan.device_types or [0] * len(nodes))
    regions = np.asarray(network.node_regions)[nodes]
    _, firsts = np.unique(regions, return_index=True)
    pairs = np.ix_(nodes[firsts], nodes)
    message_s = plan.activation_bytes * 8 / network.bandwidth_bps()[pairs]
    cost_s = compute_s[kind] + network.one_way_delay_s()[pairs] + message_s
    chosen = np.argsort(cost_s, axis=1, kind="stable")[:, :count]
    order = np.argsort(np.take_along_axis(cost_s, chosen, axis=1).sum(axis=1), kind="stable")
    return [tuple(sorted(chosen[region].tolist())) for region in order]


def _names(
    scenario: Scenario, setting: Setting, degrees: Degrees
) -> Iterator[tuple[str, int | None]]:
    """Yield the names of candidates, each with its number of ranks; None = all devices."""
    devices, workload = scenario.num_devices, scenario.workload
    # Tensor parallelism splits heads and columns evenly, and no named model.
    splittable = 1 if workload.model else math.gcd(workload.heads, workload.hidden)
    sequences = max(1, setting.batch // (setting.micro_batch or workload.micro_batch))
    sizes = _sizes(scenario)
    for pp in [degrees.pp] if degrees.pp else _depths(setting.layers, devices):
        for tp in _divisors(splittable, devices // pp):
            most = {size // (pp * tp) for size in (*sizes, pp * tp * (degrees.dp or 1))}
            for dp in {max(_divisors(sequences, one)) for one in most if one}:
                layout = Layout(pp=pp, tp=tp, dp=dp)
                for system in SYSTEMS.values():
                    for name in system.pipeline_layouts(layout, setting.layers):
                        yield name, None if layout.num_ranks == devices else layout.num_ranks
    for num_ranks in sizes - {1}:
        for system in SYSTEMS.values():
            for name in system.whole_layouts():
                yield name, None if num_ranks == devices else num_ranks


def _sizes(scenario: Scenario) -> set[int]:
    """Return how many devices a plan may have: all, or those of a region, a node or a kind."""
    groups = [Counter[object](), Counter[object](), Counter[object]()]
    for index, node in enumerate(scenario.nodes):
        for group, key in zip(groups, (index, node.region, node.device), strict=True):
            group[key] += node.num_devices
    return {size for group in groups for size in group.values()} | {scenario.num_devices}


def _depths(layers: int, most: int) -> list[int]:
    """Return the depths of a pipeline that shorten its longest stage, up to `most`."""
    return [
        depth
        for depth in range(1, min(layers, most) + 1)
        if depth == 1 or -(-layers // depth) < -(-layers // (depth - 1))
    ]


def _divisors(number: int, most: int) -> list[int]:
    """Return the divisors of `number` up to `most`."""
    return [value for value in range(1, min(number, most) + 1) if number % value == 0]
