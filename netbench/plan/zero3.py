"""What zero3 adds to a plan: its own micro-batch, units of layers, groups that share a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from netbench.errors import PlanError
from netbench.plan.model import Plan
from netbench.plan.variants import Variant
from netbench.scenario.model import Scenario, Workload
from netbench.units import counted
from netbench.workload.costs import layer_parameters, live_layers

ZERO3_MICRO_BATCH = 4
"""Sequences per GPU and micro-step under zero3. The published value is not documented and cannot
have been 1: the parameters would cross the network 16 times an iteration at B1024."""

ZERO3_LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's documented default of `stage3_max_live_parameters`."""

PREFETCHED_UNITS = 8
"""Units of a model whose units are prefetched: what cannot hide is the first one's gather, an
eighth. More would hide more, and cost an emulation as many messages more."""


def zero3_micro_batch(workload: Workload, num_ranks: int) -> int:
    """Sequences per rank and micro-step: the largest divisor of a rank's share of the batch up to
    4, or up to the workload's micro-batch where that is larger."""
    if workload.batch % num_ranks:
        raise PlanError(
            f"batch {workload.batch} does not divide among {num_ranks} zero3 ranks; "
            f"choose a multiple of {num_ranks}"
        )
    share = workload.batch // num_ranks
    limit = max(ZERO3_MICRO_BATCH, workload.micro_batch)
    return max(size for size in range(1, limit + 1) if share % size == 0)


def zero3_units(workload: Workload, prefetch_units: int = 0) -> tuple[int, ...]:
    """Layers of each unit that zero3 gathers together: those that stay gathered between forward and
    backward under the live limit, embeddings first, and the rest. Where units are prefetched, 8
    nearly equal ones.

    As few as the rule allows. DeepSpeed gathers layer by layer and far ahead, so what counts is the
    bytes, which are the same; each unit costs 64 emulated ranks 63 messages per collective.
    """
    layers = workload.layers
    if prefetch_units:
        count = min(PREFETCHED_UNITS, layers)
        return tuple(b - a for a, b in pairwise(layers * i // count for i in range(count + 1)))
    live = live_layers(workload, ZERO3_LIVE_PARAMETERS)
    return tuple(number for number in (live, layers - live) if number)


def unit_parameters(plan: Plan) -> list[int]:
    """Parameters of each unit at full size; the embeddings are in the first."""
    if not plan.units or sum(plan.units) != plan.workload.layers:
        raise PlanError(
            f"units {plan.units} hold {sum(plan.units)} layers; the model has "
            f"{plan.workload.layers}"
        )
    sizes = [layers * layer_parameters(plan.workload) for layers in plan.units]
    sizes[0] += plan.workload.embedding_parameters
    return sizes


def stays_gathered(sizes: Sequence[int], live_parameters: int) -> list[bool]:
    """Which units stay gathered between forward and backward: the first, up to the live limit.

    Source: DeepSpeed, `stage3_max_live_parameters`, parameters resident before releasing.
    """
    return [total <= live_parameters for total in accumulate(sizes)]


def zero3_shard_ranks(scenario: Scenario, variant: str, chosen: Variant) -> int:
    """Ranks that share one copy of the model; 0 = all. Raises PlanError where devices or regions do
    not divide into groups of as many."""
    devices, size = scenario.num_devices, chosen.shard_ranks
    if size is None:
        size = _region_devices(scenario, variant, by_region=chosen.scheduler == "identity")
    if size and devices % size:
        raise PlanError(
            f"{counted(devices, 'device')} of scenario {scenario.name} cannot be divided into "
            f"groups of {size}; choose zero3-hybrid<R> with R a divisor of {devices}"
        )
    return size if size < devices else 0


def _region_devices(scenario: Scenario, variant: str, *, by_region: bool) -> int:
    """Devices of a region, of which all must have as many. by_region: groups of as many neighbours
    must be regions too."""
    regions = [scenario.nodes[node].region for node in scenario.device_nodes()]
    counts = Counter(regions)
    choose = f"name the size of a group: {variant.replace('-hybrid', '-hybrid<R>')}"
    if len(counts) == 1:
        raise PlanError(
            f"{variant} shards inside a region and replicates across, but scenario {scenario.name} "
            f"has its devices in one; use zero3, or {choose}"
        )
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{region} {count}" for region, count in counts.items())
        raise PlanError(
            f"{variant} needs as many devices in every region; scenario {scenario.name} has "
            f"{listed}; {choose}"
        )
    (size,) = set(counts.values())
    groups = [set(regions[i : i + size]) for i in range(0, len(regions), size)]
    if by_region and any(len(group) > 1 for group in groups):
        raise PlanError(
            f"{variant} shards among neighbours, but scenario {scenario.name} does not list its "
            f"nodes region by region; list them so, or {choose}"
        )
    return size
