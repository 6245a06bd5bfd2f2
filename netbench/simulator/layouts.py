"""Which plan trains a workload soonest: every layout of every system that trains the same thing.

Candidates are dtfm and megatron in all depths, tensor-parallel degrees, schedules and kinds of data
parallelism, zero3 and ddp. hivemind and diloco are none: stale gradients and local steps change
what is trained, so their times do not compare.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError
from netbench.placement import SEEDED
from netbench.placement.problem import Budget, Problem, Scheduler
from netbench.placement.schedulers import SCHEDULERS
from netbench.plan import (
    Layout,
    Plan,
    Variant,
    build_plan,
    check_memory,
    find_variant,
    memory_warnings,
    plan_memory,
)
from netbench.plan.tensor import LAYER_ALL_REDUCES, num_passes
from netbench.scenario.model import Scenario, Workload
from netbench.simulator.profile import load_transport
from netbench.simulator.scheduling import Request
from netbench.simulator.simulate import simulate
from netbench.units import counted

NUM_FINALISTS = 8
"""Layouts that are placed by the scheduler, as many as a rung of the search begins with."""

MAX_CHUNKS = 4
"""Of a rank, interleaved: every chunk more sends each micro-batch round all stages once more."""

OTHERS = (
    "zero3",
    "zero3-prefetch",
    "zero3-accumulate",
    "zero3-prefetch-accumulate",
    "zero3-hybrid",
    "zero3-hybrid-prefetch",
    "zero3-hybrid-accumulate",
    "zero3-hybrid-prefetch-accumulate",
    "ddp",
    "ddp-tree",
    "ddp-central-ps",
    "ddp-sharded-ps",
)
"""Candidates of one stage, which take all devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Of a layout; None = any."""

    pp: int | None = None
    tp: int | None = None
    dp: int | None = None

    def admit(self, layout: Layout) -> bool:
        """Whether `layout` has these degrees."""
        wanted = ((self.pp, layout.pp), (self.tp, layout.tp), (self.dp, layout.dp))
        return all(asked in (None, has) for asked, has in wanted)

    def may_admit(self, variant: Variant) -> bool:
        """Whether a plan of `variant`, which has degrees of its own, could have these."""
        return self.pp in (None, variant.pipeline) and self.tp in (None, variant.tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A plan that fits the devices. plan: on the first of them. at_least_s: see `at_least_s`."""

    request: Request
    plan: Plan
    at_least_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A candidate on the best placement found. iteration_s, unplaced_s: simulated, of that
    placement and of the identity. fits: the devices' memory, which the identity may not."""

    candidate: Candidate
    plan: Plan
    iteration_s: float
    unplaced_s: float
    fits: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSearch:
    """found: the best first. num_candidates: that fit. num_simulated: of them, those that might
    have been among the best. num_evaluated: what the scheduler tried to place these, as it counts.
    elapsed_s: of search."""

    found: tuple[Found, ...]
    num_candidates: int
    num_simulated: int
    num_evaluated: int
    elapsed_s: float


def parse_layout(text: str) -> Degrees:
    """`auto`, or degrees as in p8, p4t2, p8d8. Raises PlanError for anything else."""
    found = re.fullmatch(r"(?=.)(p([1-9]\d*))?(t([1-9]\d*))?(d([1-9]\d*))?", text, re.ASCII)
    if text == "auto":
        return Degrees()
    if found is None:
        raise PlanError(f'layout "{text}" is none; expected auto, or degrees, e.g. p8, p4t2, p8d8')
    pp, tp, dp = (int(digits) if digits else None for digits in found.group(2, 4, 6))
    return Degrees(pp=pp, tp=tp, dp=dp)


def search_layouts(
    candidates: Sequence[Candidate],
    *,
    scheduler: Scheduler | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Callable[[Found], None] | None = None,
    num_finalists: int = NUM_FINALISTS,
    name: str = "netbench",
) -> LayoutSearch:
    """Simulate `candidates`, and place the best.

    scheduler: None = `netbench`. name: what plans call it. budget: of all its runs together; by
    successive halving, the best 8 (`num_finalists`, a power of 2) share a quarter of it, the better
    half of these another, and so on. The seed and the evaluations decide the result; the seconds
    only cut it short. An interruption ends it with what was simulated by then. progress: told of
    each new best. Systems without stages stay as they are.
    Raises PlanError where none of the best is placed so that it fits its devices' memory.
    """
    budget = budget or Budget()
    started_s = time.perf_counter()
    deadline_s = started_s + budget.seconds
    found, num_simulated = _simulated(candidates, num_finalists, budget)
    best = _Best(progress)
    best.see(found)
    placing = _Placing(scheduler or SCHEDULERS["netbench"], name, seed)
    rungs = num_finalists.bit_length()
    for rung in range(rungs):
        rest = found[: num_finalists >> rung]
        share = budget.evaluations / (rungs * len(rest))
        if share < 1:
            continue
        for index, one in enumerate(rest):
            left_s = deadline_s - time.perf_counter()
            if left_s <= 0 or budget.interrupted():
                break
            seconds = left_s / ((rungs - rung) * len(rest) - index)
            own = Budget(seconds=seconds, evaluations=share, interrupted=budget.interrupted)
            found[index] = placing.place(one, own)
            best.see(found[index : index + 1])
        found.sort(key=_rank)
    fitting = tuple(one for one in found if one.fits)
    if found and not fitting:
        raise PlanError(
            f"none of the {len(found)} best plans was placed so that all stages fit their devices' "
            "memory; search for longer, or with a scheduler that looks at memory, e.g. netbench"
        )
    return LayoutSearch(
        found=fitting,
        num_candidates=len(candidates),
        num_simulated=num_simulated,
        num_evaluated=placing.num_evaluated,
        elapsed_s=time.perf_counter() - started_s,
    )


def find_candidates(
    scenario: Scenario,
    layers: int,
    batch: int,
    *,
    micro_batch: int | None = None,
    network: str = "",
    degrees: Degrees | None = None,
) -> tuple[Candidate, ...]:
    """Every plan that fits the devices and their memory, the one with the lowest bound first.

    Raises PlanError where there is none, with why not: of the one that needs least memory.
    """
    found: list[Candidate] = []
    refusals: list[tuple[float, PlanError]] = []
    for variant, num_ranks in _names(scenario, layers, batch, micro_batch):
        request = Request(
            scenario=scenario,
            variant=variant,
            layers=layers,
            batch=batch,
            micro_batch=micro_batch,
            network=network,
            num_ranks=num_ranks,
        )
        need_bytes = math.inf
        try:
            plan = _plan(request)
            if degrees and not degrees.admit(plan.layout):
                continue
            need_bytes = max(part.total_bytes for part in plan_memory(plan))
            check_memory(plan, scenario)
        except PlanError as error:
            if degrees is None or degrees.may_admit(find_variant(variant)):
                refusals.append((need_bytes, error))
            continue
        found.append(Candidate(request=request, plan=plan, at_least_s=at_least_s(plan)))
    if not found:
        _, refusal = min(refusals, key=lambda one: one[0], default=(0.0, None))
        raise PlanError(
            f"no layout trains {counted(layers, 'layer')} with batch {batch} on the "
            f"{counted(scenario.num_devices, 'device')} of scenario {scenario.name}"
            + (f": {refusal}" if refusal else " with these degrees; try --layout auto")
        )
    return tuple(sorted(found, key=lambda one: (one.at_least_s, one.request.variant)))


def at_least_s(plan: Plan) -> float:
    """No iteration of `plan` takes less, wherever its ranks are: seconds.

    Every stage computes all its micro-batches on the fastest kind of device; where a group is
    larger than a node, what each of its ranks sends on passes a link at the best bandwidth: of
    tensor-parallel all-reduces, and then of gradients in a ring or chain. The slowest counts.
    """
    across_bps = _best_bps(plan)
    largest = max(Counter(plan.device_nodes).values())
    layout, count = plan.layout, plan.num_rounds * plan.num_micro_batches
    kinds = plan.type_stages or (plan.stages,)
    stages_s = [min(s.forward_s + s.backward_s for s in same) for same in zip(*kinds, strict=True)]
    inside_bps = load_transport(plan.backend).inside_node_bps
    tensor_bps = across_bps if layout.tp > largest else max(across_bps, inside_bps)
    all_reduce_s = 2 * (layout.tp - 1) / layout.tp * 8 * plan.activation_bytes / tensor_bps
    reductions = LAYER_ALL_REDUCES * num_passes(plan)
    serial = plan.data_parallel in ("ring", "reduce-broadcast") and plan.system != "ddp"
    byte_s = 8 / across_bps if serial and layout.dp > largest else 0.0
    seconds: float = max(
        count * (stage_s + reductions * stage.num_layers * all_reduce_s)
        + stage.gradient_bytes * byte_s
        for stage_s, stage in zip(stages_s, plan.stages, strict=True)
    )
    return seconds


def best_listed(
    scenario: Scenario,
    layers: int,
    batch: int,
    network: str = "",
    micro_batch: int | None = None,
) -> Found | None:
    """The fastest of the systems that the scenario itself lists and that train the same thing; of
    random placements, the mean over the scenario's seeds counts. None: it lists none that fits."""
    found = []
    for variant in scenario.sweep.variants:
        chosen = find_variant(variant)
        if chosen.staleness or chosen.local_steps:
            continue
        seeds = scenario.sweep.seeds if chosen.scheduler in SEEDED else (0,)
        request = Request(
            scenario=scenario,
            variant=variant,
            layers=layers,
            batch=batch,
            micro_batch=micro_batch,
            network=network,
        )
        with suppress(PlanError):
            plans = [_plan(request, seed) for seed in seeds]
            if any(memory_warnings(plan, scenario) for plan in plans):
                continue
            mean_s = sum(simulate(plan).iteration_s for plan in plans) / len(plans)
            one = Candidate(request=request, plan=plans[0], at_least_s=at_least_s(plans[0]))
            found.append(Found(candidate=one, plan=plans[0], iteration_s=mean_s, unplaced_s=mean_s))
    return min(found, key=_rank, default=None)


class _Best:
    """Tells `progress` of each new best."""

    def __init__(self, progress: Callable[[Found], None] | None) -> None:
        self._progress, self._iteration_s = progress, math.inf

    def see(self, found: Sequence[Found]) -> None:
        best = min((one for one in found if one.fits), key=_rank, default=None)
        if self._progress and best and best.iteration_s < self._iteration_s:
            self._iteration_s = best.iteration_s
            self._progress(best)


def _simulated(
    candidates: Sequence[Candidate], num: int, budget: Budget
) -> tuple[list[Found], int]:
    """The best `num` on identity placements, and how many were simulated to know them: those whose
    bound is above the worst of them cannot be among them. Fewer if the budget is interrupted."""
    found: list[Found] = []
    num_simulated = 0
    for candidate in sorted(candidates, key=lambda one: one.at_least_s):
        if len(found) == num and candidate.at_least_s >= found[-1].iteration_s:
            break
        if found and budget.interrupted():
            break
        num_simulated += 1
        with suppress(PlanError):  # a schedule that waits for itself
            seconds = simulate(candidate.plan).iteration_s
            one = Found(
                candidate=candidate,
                plan=candidate.plan,
                iteration_s=seconds,
                unplaced_s=seconds,
                fits=not memory_warnings(candidate.plan, candidate.request.scenario),
            )
            found = sorted([*found, one], key=_by_time)[:num]
    return found, num_simulated


class _Placing:
    """A scheduler that places plans; one that has been searched knows what it has timed."""

    def __init__(self, scheduler: Scheduler, name: str, seed: int) -> None:
        self._scheduler, self._name, self._seed = scheduler, name, seed
        self._problems: dict[str, Problem] = {}
        self.num_evaluated = 0

    def place(self, found: Found, budget: Budget) -> Found:
        """`found` where the scheduler puts it, if that is better, or fits where it did not."""
        request = found.candidate.request
        if found.plan.schedule == "none":
            return found
        if request.variant not in self._problems:
            self._problems[request.variant] = request.problem()
        try:
            answer = self._scheduler(self._problems[request.variant], self._seed, budget)
        except PlanError:  # it finds nothing that fits
            return found
        self.num_evaluated += answer.num_evaluated
        plan = request.answered(answer, self._name, self._seed)
        seconds = simulate(plan).iteration_s
        if found.fits and seconds >= found.iteration_s:
            return found
        return dataclasses.replace(found, plan=plan, iteration_s=seconds, fits=True)


def _by_time(found: Found) -> tuple[float, str]:
    return found.iteration_s, found.candidate.request.variant


def _rank(found: Found) -> tuple[bool, float, str]:
    """What does not fit comes last."""
    return not found.fits, *_by_time(found)


def _plan(request: Request, seed: int = 0) -> Plan:
    """At full size, which is what a simulation takes; on the first devices where some stay idle."""
    return build_plan(
        request.scenario,
        request.variant,
        request.layers,
        request.batch,
        seed,
        1,
        0,
        scale=1.0,
        network=request.network,
        micro_batch=request.micro_batch,
        placement=None if request.num_ranks is None else range(request.num_ranks),
    )


def _names(
    scenario: Scenario, layers: int, batch: int, micro_batch: int | None
) -> Iterator[tuple[str, int | None]]:
    """Of candidates, each with its number of ranks; None = all devices."""
    devices = scenario.num_devices
    sequences = batch // (micro_batch or scenario.workload.micro_batch)
    for pp in _divisors(layers):
        for tp in _tensor_degrees(scenario.workload):
            pipelines = range(devices // (pp * tp), 0, -1)
            dp = next((dp for dp in pipelines if sequences % dp == 0), 0)
            num_ranks = pp * tp * dp
            for name in _of_degrees(pp, tp, dp, layers) if dp else ():
                yield name, None if num_ranks == devices else num_ranks
    for name in OTHERS:
        yield name, None


def _of_degrees(pp: int, tp: int, dp: int, layers: int) -> Iterator[str]:
    """Schedules and kinds of data parallelism of dtfm and megatron; one kind where dp is 1."""
    if tp == 1:
        for schedule in ("", "-1f1b"):
            for kind in ("", "-allreduce", "-sharded-ps") if dp > 1 else ("",):
                yield f"dtfm-scheduled-p{pp}{schedule}{kind}"
    chunks = [v for v in range(2, MAX_CHUNKS + 1) if pp > 1 and layers % (pp * v) == 0]
    schedules = ["", *(["-zero-bubble"] if pp > 1 else []), *(f"-interleaved{v}" for v in chunks)]
    for sequence in ("", "-sp") if tp > 1 else ("",):
        for schedule in schedules:
            yield f"megatron-p{pp}{f't{tp}' if tp > 1 else ''}{sequence}{schedule}"


def _tensor_degrees(workload: Workload) -> list[int]:
    """Whole heads and whole columns for each rank; a named model is not split."""
    return [1] if workload.model else _divisors(math.gcd(workload.heads, workload.hidden))


def _divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def _best_bps(plan: Plan) -> float:
    """The best bandwidth between two nodes, bit/s; inf where there is one node."""
    bandwidth_bps = plan.network.bandwidth_bps()
    across = bandwidth_bps[~np.eye(len(bandwidth_bps), dtype=bool)]
    return float(across.max()) if across.size else math.inf
