"""Sharded data parallelism: each rank holds a shard of the model, and gathers the rest to compute.

Shared by `zero3` (DeepSpeed's rule) and `fsdp` (torch's): micro-steps, units of layers that are
gathered together, and groups of ranks that share a copy of the model.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product

from netbench.errors import PlanError
from netbench.plan.collectives import RingCut
from netbench.plan.model import Layout, Plan
from netbench.scenario.model import Scenario, Workload
from netbench.systems.base import System, Variant
from netbench.systems.iteration import COLLECTIVE, OPTIMIZER, WAIT, Call, Segment, SegmentBuilder
from netbench.units import counted
from netbench.workload.costs import DTYPE_BYTES, layer_parameters, model_parameters

MICRO_BATCH = 4
"""Sequences per GPU and micro-step. The published value is not documented and cannot have been 1:
the parameters would cross the network 16 times an iteration at B1024."""


MAX_CUT_RING, MAX_PART_MESSAGES = 16, 16
"""Longest ring, in ranks, whose emulation cuts a rank's part into NCCL's slices and passes, and the
most messages that it cuts it into. More would be hundreds of thousands in an iteration. In large
parts bytes take longer than delays, so that whole ones take about as long."""


class Sharded(System):
    """A system whose ranks hold a shard of the model each."""

    trainer = "netbench.trainers.systems.segments:SegmentRank"
    real_trainer = "netbench.trainers.systems.sharded:FullyShardRank"
    counts_calls = True

    def sharded_variant(self, found: re.Match[str], prefetch_units: int = 0) -> Variant:
        """The variant with the options that both systems have."""
        return Variant(
            system=self.name,
            scheduler="random" if found["random"] else "identity",
            data_parallel="shard",
            pipeline=1,
            shard_ranks=(int(found["ranks"]) if found["ranks"] else None) if found["hybrid"] else 0,
            prefetch_units=prefetch_units,
            accumulation="keep" if found["accumulate"] else "",
        )

    def whole_layouts(self) -> Iterator[str]:
        for options in product(("", "-hybrid"), ("", "-accumulate")):
            yield self.name + "".join(options)

    def resolve_workload(self, workload: Workload, layout: Layout) -> Workload:
        return dataclasses.replace(workload, micro_batch=micro_batch(workload, layout.dp))

    def shard_ranks(
        self, scenario: Scenario, variant_name: str, variant: Variant, placement: Sequence[int]
    ) -> int:
        """Ranks that share one copy of the model; 0 = all. Raises PlanError if devices or regions
        cannot be divided into such groups."""
        ranks, size = len(placement), variant.shard_ranks
        if size is None:
            by_region = variant.scheduler == "identity"
            size = _region_devices(scenario, variant_name, placement, by_region=by_region)
        if size and ranks % size:
            used = f"{ranks} of " if ranks < scenario.num_devices else ""
            raise PlanError(
                f"{used}{counted(scenario.num_devices, 'device')} of scenario {scenario.name} "
                f"cannot be divided into groups of {size}; choose {self.name}-hybrid<R> with R a "
                f"divisor of {ranks}"
            )
        return size if size < ranks else 0

    def num_shards(self, layout: Layout, shard_ranks: int) -> int:
        return shard_ranks or layout.dp

    def memory_remedies(self, plan: Plan) -> list[str]:
        return ["larger groups (-hybrid<R>)" if plan.shard_ranks else "more devices"]

    def iteration_bytes(self, plan: Plan) -> float:
        """Every micro-step gathers the parameters within the live limit once, the others twice, and
        scatters the gradients. If gradients are kept, the live parameters are gathered and the
        gradients scattered once. Groups with a copy each all-reduce their gradients once."""
        parameters, steps = model_parameters(plan.workload), plan.num_micro_batches
        once = 1 if plan.accumulation == "keep" else steps
        regathered = max(0, parameters - plan.live_parameters) / parameters
        passes = once * (1 - regathered) + 2 * steps * regathered + once
        num_copies = plan.layout.dp // group_size(plan)
        inside = (plan.layout.dp - num_copies) * passes
        across = 2 * (num_copies - 1)
        return float(plan.stages[0].gradient_bytes * (inside + across))

    def largest_tensors_bytes(self, plan: Plan) -> int:
        """The gradients of the whole model, the parameters it has gathered, and the gradients it
        keeps whole."""
        tensors = 3 if plan.accumulation == "keep" else 2
        return tensors * super().largest_tensors_bytes(plan)

    def num_messages(self, plan: Plan) -> float:
        """Messages of the rings of an iteration's calls."""
        return sum(
            segment.repeat * _ring_messages(call, plan)
            for segment in self.segments(plan)
            for task in segment.tasks
            for call in task.calls
        )

    def smallest_message_bytes(self, plan: Plan) -> float:
        return min(
            call.size_bytes / _num_members(plan, call) / ring_cut(plan, call).num_messages
            for segment in self.segments(plan)
            for task in segment.tasks
            for call in task.calls
            if call.op == "all-gather"  # of gradients, a small rest may be scattered
        )

    def describe_collectives(self, plan: Plan) -> str:
        return f"parameters and gradients in a ring of {group_size(plan)} ranks"

    def segments(self, plan: Plan) -> tuple[Segment, ...]:
        """Micro-steps, then the update."""
        segments = []
        for name, repeat, is_first, is_last in _micro_steps(plan):
            step = MicroStep(plan, is_first=is_first, is_last=is_last)
            self.add_passes(plan, step)
            segments.append(step.builder.build(name, repeat))
        update = SegmentBuilder()
        update.add("device", OPTIMIZER, plan.stages[0].optimizer_s)
        return (*segments, update.build("update"))

    def add_passes(self, plan: Plan, step: "MicroStep") -> None:
        """Append a micro-step's forward and backward pass, with their collectives."""
        raise NotImplementedError


def group_size(plan: Plan) -> int:
    """Ranks that share one copy of the model."""
    return plan.shard_ranks or plan.layout.dp


def has_equal_steps(plan: Plan) -> bool:
    """Return whether the micro-steps of an iteration are equal: each gathers and scatters all."""
    return not plan.shard_ranks and plan.accumulation != "keep"


def micro_batch(workload: Workload, num_ranks: int) -> int:
    """Sequences per rank and micro-step: the largest divisor of a rank's part of the batch up to
    4, or up to the workload's micro-batch if that is larger."""
    if workload.batch % num_ranks:
        raise PlanError(
            f"batch {workload.batch} does not divide among {num_ranks} ranks; "
            f"choose a multiple of {num_ranks}"
        )
    sequences = workload.batch // num_ranks
    limit = max(MICRO_BATCH, workload.micro_batch)
    return max(size for size in range(1, limit + 1) if sequences % size == 0)


def unit_parameters(plan: Plan) -> list[int]:
    """Parameters of each unit at full size. The embeddings are in the first."""
    if not plan.units or sum(plan.units) != plan.workload.layers:
        raise PlanError(
            f"units {plan.units} have {sum(plan.units)} layers; the model has "
            f"{plan.workload.layers}"
        )
    sizes = [layers * layer_parameters(plan.workload) for layers in plan.units]
    sizes[0] += plan.workload.embedding_parameters
    return sizes


def stays_gathered(sizes: Sequence[int], live_parameters: int) -> list[bool]:
    """For each unit, True if it stays gathered between forward and backward: the first ones do, up
    to the live limit.

    Source: DeepSpeed, `stage3_max_live_parameters`: parameters resident before any is released.
    """
    return [total <= live_parameters for total in accumulate(sizes)]


def ring_cut(plan: Plan, call: Call) -> RingCut:
    """Messages into which a rank's part is cut: NCCL's, or one if those are too many."""
    members = _num_members(plan, call)
    cut = plan.transport.ring_cut(call.size_bytes, members)
    is_short = members <= MAX_CUT_RING and cut.num_messages <= MAX_PART_MESSAGES
    return cut if is_short else RingCut()


def _ring_messages(call: Call, plan: Plan) -> int:
    """Messages of a call in all groups: each rank sends n - 1 parts, twice in an all-reduce."""
    rounds = 2 if call.op == "all-reduce" else 1
    steps = plan.layout.dp * (_num_members(plan, call) - 1) * rounds
    return steps * ring_cut(plan, call).num_messages


def _num_members(plan: Plan, call: Call) -> int:
    return plan.layout.dp // call.group_size if call.across else call.group_size


def _region_devices(
    scenario: Scenario, variant: str, placement: Sequence[int], *, by_region: bool
) -> int:
    """Devices of `placement` in each region. Raises PlanError if the number differs. by_region: the
    devices of a region must be neighbours in the order of ranks."""
    nodes = scenario.device_nodes()
    regions = [scenario.nodes[nodes[device]].region for device in sorted(placement)]
    counts = Counter(regions)
    choose = f"name the size of a group: {variant.replace('-hybrid', '-hybrid<R>')}"
    if len(counts) == 1:
        raise PlanError(
            f"{variant} shards inside a region and replicates across regions, but all its devices "
            f"in scenario {scenario.name} are in one; leave out -hybrid, or {choose}"
        )
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{region} {count}" for region, count in counts.items())
        raise PlanError(
            f"{variant} needs the same number of devices in every region; in scenario "
            f"{scenario.name} it has {listed}; {choose}"
        )
    (size,) = set(counts.values())
    groups = [set(regions[i : i + size]) for i in range(0, len(regions), size)]
    if by_region and any(len(group) > 1 for group in groups):
        raise PlanError(
            f"{variant} shards among neighbours, but scenario {scenario.name} does not list its "
            f"nodes region by region; list them so, or {choose}"
        )
    return size


def _micro_steps(plan: Plan) -> Iterator[tuple[str, int, bool, bool]]:
    """The micro-steps that differ: name, how many, is the first, is the last of the iteration."""
    steps = plan.num_micro_batches
    if has_equal_steps(plan):
        yield "micro-step", steps, False, False
    elif steps == 1:
        yield "micro-step", 1, True, True
    else:
        yield "first micro-step", 1, True, False
        if steps > 2:
            yield "micro-step", steps - 2, False, False
        yield "last micro-step", 1, False, True


class MicroStep:
    """Tasks of a micro-step on three lanes: the device, the communicator of the ranks that share a
    copy (inside), and that of the ranks with the same shard of each copy (across).

    Kept parameters are gathered in the first micro-step of an iteration. Kept gradients are
    scattered, and all gradients reduced across copies, in the last.
    """

    def __init__(self, plan: Plan, *, is_first: bool, is_last: bool) -> None:
        keeps = plan.accumulation == "keep"
        self.gathers_kept = is_first or not keeps
        self.scatters = is_last or not keeps
        self.builder = SegmentBuilder()
        self.start = self.builder.add("device", WAIT)
        self._plan = plan
        self._crosses = is_last and group_size(plan) < plan.layout.dp

    @property
    def device(self) -> int:
        """The last task of the device."""
        return self.builder.last("device")[0]

    def compute(self, kind: str, seconds: float, after: Iterable[int] = ()) -> None:
        """Compute once the tasks `after` have ended."""
        self.builder.add("device", kind, seconds, after=after)

    def wait(self, after: Iterable[int]) -> None:
        """Let the device wait for tasks."""
        self.builder.add("device", WAIT, after=after)

    def gather(self, tensors: Iterable[float], after: int) -> int:
        """Gather tensors one after the other. tensors: parameters of each."""
        calls = [self._call("all-gather", size) for size in tensors]
        return self.builder.add("inside", COLLECTIVE, calls=calls, after=[after])

    def scatter(self, parameters: float) -> int:
        """Scatter gradients that the device has computed; reduce them across copies if due."""
        calls = [self._call("reduce-scatter", parameters)]
        inside = self.builder.add("inside", COLLECTIVE, calls=calls, after=[self.device])
        if self._crosses:
            calls = [self._call("all-reduce", parameters / group_size(self._plan), across=True)]
            self.builder.add("across", COLLECTIVE, calls=calls, after=[inside])
        return inside

    def _call(self, op: str, parameters: float, *, across: bool = False) -> Call:
        return Call(
            op=op,
            size_bytes=parameters * DTYPE_BYTES[self._plan.workload.dtype],
            group_size=group_size(self._plan),
            across=across,
            host_s=self._plan.collective_s,
        )
