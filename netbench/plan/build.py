"""Builds plans: picks layout, placement, schedule and costs for a variant of a training system."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from netbench.errors import PlanError, nearest
from netbench.placement import SCHEDULERS, SEEDED
from netbench.plan.model import Layout, Plan, Transport
from netbench.plan.serial import plan_hash
from netbench.scenario.model import DeviceProfile, Scenario, Workload
from netbench.workload.costs import (
    activation_bytes,
    layer_parameters,
    model_parameters,
    stage_costs,
)

MAX_PIPELINE = 8
"""Stages of a pipeline where the scenario does not say; the depth of the published runs."""

GPIPE_ROUND = 64
"""Micro-batches of one GPipe round per pipeline. Source: DT-FM's release, B = 512 x rounds."""

ZERO3_MICRO_BATCH = 4
"""Sequences per GPU and micro-step under zero3. The published value is not documented and cannot
have been 1: the parameters would cross the network 16 times an iteration at B1024."""

ZERO3_LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's documented default of `stage3_max_live_parameters`."""

FULL_SIZE_BYTES = 2e9
"""An iteration that moves at most this many bytes runs at scale 1."""

FULL_SIZE_RANK_BYTES = 60e6
"""A rank in a guest holds tensors up to this size several times over. User-Mode Linux maps a
process's pages one by one, the host allows 65,530 mappings, and torch alone takes 31,000."""

SCALED_BYTES = 1e9
"""What an iteration should move at most once scaled: under virtual time the guest kernel
carries about 1.8 simulated Gbit per second of wall time (measured)."""

SCALES = (10.0, 100.0, 1000.0)
"""Beyond 1000 an 8 MiB activation would no longer fill one jumbo frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A training system with the choices that make it one column of a table.

    pipeline: stages the variant insists on; None = the scenario's (see `pipeline_depth`).
    """

    system: str
    scheduler: str
    schedule: str
    data_parallel: str
    pipeline: int | None = None


def _dtfm(scheduler: str) -> Variant:
    return Variant(
        system="dtfm", scheduler=scheduler, schedule="gpipe", data_parallel="reduce-broadcast"
    )


def _megatron(scheduler: str, pipeline: int | None = None) -> Variant:
    return Variant(
        system="megatron",
        scheduler=scheduler,
        schedule="1f1b",
        data_parallel="ring",
        pipeline=pipeline,
    )


VARIANTS: dict[str, Variant] = {
    "dtfm-scheduled": _dtfm("identity"),
    "dtfm-random": _dtfm("random"),
    "megatron": _megatron("identity"),
    "megatron-random": _megatron("random"),
    "megatron-p8": _megatron("identity", pipeline=8),
    "megatron-p8-random": _megatron("random", pipeline=8),
    "zero3": Variant(
        system="zero3", scheduler="identity", schedule="none", data_parallel="shard", pipeline=1
    ),
}
"""`dtfm-scheduled` is the identity placement: each pipeline inside one region when nodes are
listed by region, the manually optimised placement of the published cases 3-5."""


def find_variant(name: str) -> Variant:
    """The variant called `name`. Raises PlanError suggesting the nearest."""
    if name not in VARIANTS:
        raise PlanError(f'unknown system "{name}"; {nearest(name, VARIANTS)}')
    return VARIANTS[name]


def build_plan(
    scenario: Scenario,
    variant: str,
    layers: int,
    batch: int,
    seed: int,
    iterations: int,
    warmup_iterations: int,
    scale: float | None = None,
) -> Plan:
    """Resolve one experiment. scale: None = `choose_scale`.

    Raises PlanError when the variant is unknown or layers, batch and devices do not fit together.
    """
    chosen = find_variant(variant)
    _check_sizes(layers, batch, iterations, warmup_iterations)
    if scale is not None and not 0 < scale < math.inf:
        raise PlanError(f"scale is {scale:g}; expected a positive number, e.g. 1000")
    workload = dataclasses.replace(scenario.workload, layers=layers, batch=batch)
    layout = _layout(scenario, variant, layers)
    if chosen.system == "zero3":
        workload = dataclasses.replace(workload, micro_batch=zero3_micro_batch(workload, layout.dp))
    micro_batches = _micro_batches(workload, layout.dp)
    rounds = _gpipe_rounds(micro_batches) if chosen.schedule == "gpipe" else 1
    stages = stage_costs(
        workload,
        _device(scenario),
        system=chosen.system,
        num_stages=layout.pp,
        optimizer_shards=layout.dp if chosen.system == "zero3" else 1,
    )
    plan = Plan(
        scenario=scenario.name,
        variant=variant,
        system=chosen.system,
        layout=layout,
        scheduler=chosen.scheduler,
        seed=seed,
        placement=SCHEDULERS[chosen.scheduler](layout.num_ranks, seed),
        device_nodes=scenario.device_nodes(),
        node_names=tuple(node.name for node in scenario.nodes),
        network=scenario.network,
        workload=workload,
        schedule=chosen.schedule,
        data_parallel=chosen.data_parallel,
        num_rounds=rounds,
        num_micro_batches=micro_batches // rounds,
        stages=stages,
        activation_bytes=activation_bytes(workload),
        transport=Transport(),
        iterations=iterations,
        warmup_iterations=warmup_iterations,
        scale=1.0,
        units=zero3_units(workload) if chosen.system == "zero3" else (),
        live_parameters=ZERO3_LIVE_PARAMETERS if chosen.system == "zero3" else 0,
    )
    return dataclasses.replace(plan, scale=choose_scale(plan) if scale is None else float(scale))


def build_plans(
    scenario: Scenario,
    variants: Sequence[str],
    layers: Sequence[int],
    batch: Sequence[int],
    seeds: Sequence[int],
    iterations: int,
    warmup_iterations: int,
    scale: float | None = None,
) -> tuple[Plan, ...]:
    """Every combination, in the order layers, batch, variant, seed; all at one scale.

    A placement that does not depend on the seed is planned once, with the first seed.
    scale: None = the largest that `choose_scale` asks for, so that one shaping serves all.
    """
    plans = [
        build_plan(scenario, variant, num_layers, size, seed, iterations, warmup_iterations, scale)
        for num_layers in layers
        for size in batch
        for variant in variants
        for seed in (seeds if find_variant(variant).scheduler in SEEDED else seeds[:1])
    ]
    common = max((plan.scale for plan in plans), default=1.0)
    return tuple(dataclasses.replace(plan, scale=common) for plan in plans)


def pipeline_depth(scenario: Scenario, layers: int) -> int:
    """Stages of a pipeline: `sweep.pipeline` of the scenario, or the largest depth up to 8 that
    divides both the devices and the layers."""
    if scenario.sweep.pipeline:
        return scenario.sweep.pipeline
    common = math.gcd(scenario.num_devices, layers)
    return max(depth for depth in range(1, MAX_PIPELINE + 1) if common % depth == 0)


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


def zero3_units(workload: Workload) -> tuple[int, ...]:
    """Layers of each unit that zero3 gathers together: those that stay gathered between forward and
    backward under the live limit, embeddings first, and the rest.

    As few as the rule allows. DeepSpeed gathers layer by layer and far ahead, so what counts is the
    bytes, which are the same; each unit costs 64 emulated ranks 63 messages per collective.
    """
    room = ZERO3_LIVE_PARAMETERS - workload.embedding_parameters
    live = min(workload.layers, max(0, room // layer_parameters(workload)))
    return tuple(layers for layers in (live, workload.layers - live) if layers)


def iteration_bytes(plan: Plan) -> float:
    """Bytes that all ranks together send in one iteration at full size, loopback included.

    First-order: ring = reduce + broadcast = 2 (dp - 1) gradients per stage; zero3 gathers once or,
    beyond the live limit, twice, and scatters gradients, every micro-step.
    """
    pp, dp = plan.layout.pp, plan.layout.dp
    micro_batches = plan.num_rounds * plan.num_micro_batches
    gradients = sum(stage.gradient_bytes for stage in plan.stages)
    if plan.data_parallel == "shard":
        parameters = model_parameters(plan.workload)
        regathered = max(0, parameters - plan.live_parameters) / parameters
        return micro_batches * (dp - 1) * gradients * (2 + regathered)
    activations = 2 * (pp - 1) * dp * micro_batches * plan.activation_bytes
    return activations + 2.0 * (dp - 1) * gradients


def rank_bytes(plan: Plan) -> int:
    """The largest tensors that one rank holds at full size: gradients, or a gathered model."""
    return max(stage.gradient_bytes for stage in plan.stages)


def choose_scale(plan: Plan) -> float:
    """The factor to divide bytes and bandwidths by: 1 where an iteration moves at most 2 GB and a
    rank's tensors fit a guest, else the smallest of 10, 100, 1000 that brings an iteration to at
    most 1 GB, or 1000."""
    total, held = iteration_bytes(plan), rank_bytes(plan)
    if total <= FULL_SIZE_BYTES and held <= FULL_SIZE_RANK_BYTES:
        return 1.0
    return next(
        (
            scale
            for scale in SCALES
            if total / scale <= SCALED_BYTES and held / scale <= FULL_SIZE_RANK_BYTES
        ),
        SCALES[-1],
    )


def describe_plan(plan: Plan) -> str:
    """One line that tells this plan from its neighbours; iterations are warm-up + timed."""
    rounds = f"{plan.num_rounds} x " if plan.num_rounds > 1 else ""
    seed = f" seed {plan.seed}" if plan.scheduler in SEEDED else ""
    schedule = "" if plan.schedule == "none" else f"{plan.schedule} "
    return (
        f"{plan_hash(plan)}  {plan.scenario} {plan.variant} L{plan.workload.layers} "
        f"B{plan.workload.batch}: p{plan.layout.pp}d{plan.layout.dp}, {plan.scheduler} placement"
        f"{seed}, {schedule}{rounds}{plan.num_micro_batches} micro-batches of "
        f"{plan.workload.micro_batch}, {plan.data_parallel}, "
        f"{plan.warmup_iterations} + {plan.iterations - plan.warmup_iterations} iterations, "
        f"scale {plan.scale:g}"
    )


def _check_sizes(layers: int, batch: int, iterations: int, warmup_iterations: int) -> None:
    for name, value in (("layers", layers), ("batch", batch), ("iterations", iterations)):
        if value <= 0:
            raise PlanError(f"{name} is {value}; expected a positive whole number")
    if not 0 <= warmup_iterations < iterations:
        raise PlanError(
            f"{warmup_iterations} of {iterations} iterations are warm-up; "
            "expected at least one iteration that is not"
        )


def _layout(scenario: Scenario, variant: str, layers: int) -> Layout:
    """Pipelines over all devices."""
    devices = scenario.num_devices
    depth = VARIANTS[variant].pipeline or pipeline_depth(scenario, layers)
    if depth > devices:
        raise PlanError(
            f"{variant} needs {depth} pipeline stages, so at least {depth} ranks, but scenario "
            f"{scenario.name} has {devices} devices; use a variant without a fixed depth "
            "(dtfm-scheduled, megatron), a smaller `pipeline` in the sweep, or more nodes"
        )
    if devices % depth:
        raise PlanError(
            f"{devices} devices of scenario {scenario.name} do not divide into pipelines of "
            f"{depth} stages; choose a `pipeline` in the scenario's sweep that divides {devices}"
        )
    return Layout(pp=depth, dp=devices // depth)


def _device(scenario: Scenario) -> DeviceProfile:
    """The one device type of the scenario."""
    names = sorted({node.device for node in scenario.nodes})
    if len(names) != 1:
        raise PlanError(
            f"scenario {scenario.name} mixes devices {', '.join(names)}; stages are costed for one "
            "device type so far: give every node the same device"
        )
    return scenario.devices[names[0]]


def _micro_batches(workload: Workload, num_pipelines: int) -> int:
    """Micro-batches of one pipeline (or zero3 rank) in an iteration."""
    step = num_pipelines * workload.micro_batch
    if workload.batch % step:
        raise PlanError(
            f"batch {workload.batch} does not divide into micro-batches of {workload.micro_batch} "
            f"for {num_pipelines} pipelines; choose a multiple of {step}"
        )
    return workload.batch // step


def _gpipe_rounds(micro_batches: int) -> int:
    """Rounds of 64 micro-batches where they divide, else one round of all."""
    return micro_batches // GPIPE_ROUND if micro_batches % GPIPE_ROUND == 0 else 1
