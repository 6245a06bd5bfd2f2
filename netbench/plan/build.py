"""Builds plans: picks layout, placement, schedule and costs for a variant of a training system."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from netbench.errors import PlanError, nearest
from netbench.placement import MAPS, SEEDED
from netbench.plan.checks import (
    check_chunks,
    check_compute,
    check_numbers,
    check_stage_layers,
    check_tensor,
)
from netbench.plan.model import VIRTUAL, Layout, Plan, Transport
from netbench.plan.replicas import check_model, replicated
from netbench.plan.traffic import choose_scale
from netbench.plan.variants import Variant, find_variant
from netbench.plan.zero3 import (
    ZERO3_LIVE_PARAMETERS,
    zero3_micro_batch,
    zero3_shard_ranks,
    zero3_units,
)
from netbench.scenario.model import DeviceProfile, Network, Scenario, Setting, Workload
from netbench.units import counted
from netbench.workload.costs import Stage, activation_bytes, stage_costs
from netbench.workload.whole import model_stages

MAX_PIPELINE = 8
"""Stages of a pipeline where the scenario does not say; the depth of the published runs."""

GPIPE_ROUND = 64
"""Micro-batches of one GPipe round per pipeline. Source: DT-FM's release, B = 512 x rounds."""

DDP_BUCKET_BYTES = 25 * 2**20
"""PyTorch's documented default, `bucket_cap_mb=25` of DistributedDataParallel (MiB)."""


def build_plan(
    scenario: Scenario,
    variant: str,
    layers: int,
    batch: int,
    seed: int,
    iterations: int,
    warmup_iterations: int,
    scale: float | None = None,
    *,
    network: str = "",
    micro_batch: int | None = None,
    compute: str = VIRTUAL,
    token_file: str = "",
    scheduler: str = "",
    placement: Sequence[int] | None = None,
    stage_layers: Sequence[int] = (),
) -> Plan:
    """Resolve one experiment. scale: None = `choose_scale`; 1 where layers compute.

    network: name of one of the scenario's `sweep.networks`, "" = its own.
    micro_batch: sequences, None = the workload's. compute, token_file: as in `Plan`.
    placement, scheduler: the device of every rank, and who found it; None = the variant's own map,
    over all devices. With fewer ranks than devices, the others are idle.
    stage_layers: of each stage; empty = the scenario's, or as many each.
    Raises PlanError when the variant or network is unknown, the seed is none, or layers, heads,
    batch and devices do not fit together.
    """
    chosen = find_variant(variant)
    check_model(scenario, variant, layers)
    if micro_batch is None:
        micro_batch = scenario.workload.micro_batch
    check_numbers(layers, batch, micro_batch, iterations, warmup_iterations, seed)
    check_compute(chosen, scenario.workload, compute, token_file, scale)
    workload = dataclasses.replace(
        scenario.workload, layers=layers, batch=batch, micro_batch=micro_batch
    )
    plan = _planned(
        scenario, variant, workload, seed, network, scheduler or chosen.scheduler, placement,
        stage_layers,
    )  # fmt: skip
    plan = dataclasses.replace(
        plan,
        iterations=iterations,
        warmup_iterations=warmup_iterations,
        compute=compute,
        token_file=token_file,
        master_weights=_master_weights(chosen.system, workload.dtype, compute),
    )
    if compute != VIRTUAL:
        return plan
    return dataclasses.replace(plan, scale=choose_scale(plan) if scale is None else float(scale))


def full_size_plan(scenario: Scenario, variant: str, setting: Setting) -> Plan:
    """One iteration at scale 1, to simulate. Raises as `build_plan`."""
    return build_plan(
        scenario,
        variant,
        setting.layers,
        setting.batch,
        setting.seed,
        iterations=1,
        warmup_iterations=0,
        scale=1.0,
        network=setting.network,
        micro_batch=setting.micro_batch,
    )


def _planned(
    scenario: Scenario,
    variant: str,
    workload: Workload,
    seed: int,
    network: str,
    scheduler: str,
    placement: Sequence[int] | None,
    stage_layers: Sequence[int],
) -> Plan:
    """What is trained where, and what it costs: for one iteration of virtual layers, unscaled."""
    chosen, layers = find_variant(variant), workload.layers
    num_ranks = scenario.num_devices if placement is None else len(placement)
    layout = _layout(scenario, variant, layers, num_ranks)
    workload, shard_ranks = _sharded(scenario, variant, workload, layout)
    micro_batches = _micro_batches(workload, layout.dp)
    stage_layers = tuple(stage_layers) or _stage_layers(scenario, variant, layers)
    check_stage_layers(stage_layers, layout.pp, layers)
    check_chunks(variant, layout.pp, layers, stage_layers, micro_batches)
    rounds = _gpipe_rounds(micro_batches) if chosen.schedule == "gpipe" else 1
    shards = shard_ranks or layout.dp if chosen.system == "zero3" else 1
    type_stages = _type_stages(scenario, workload, chosen.system, layout, shards, stage_layers)
    plan = Plan(
        scenario=scenario.name,
        variant=variant,
        system=chosen.system,
        layout=layout,
        scheduler=scheduler,
        seed=seed,
        placement=_placement(scenario, layout, chosen, seed, placement),
        device_nodes=scenario.device_nodes(),
        node_names=tuple(node.name for node in scenario.nodes),
        network=choose_network(scenario, network),
        workload=workload,
        schedule=chosen.schedule,
        data_parallel=chosen.data_parallel,
        num_rounds=rounds,
        num_micro_batches=micro_batches // rounds,
        stages=type_stages[0],
        activation_bytes=activation_bytes(workload),
        transport=Transport(),
        iterations=1,
        warmup_iterations=0,
        scale=1.0,
        shard_ranks=shard_ranks,
        collective_s=_collective_s(scenario, chosen.system),
        backend=scenario.backend,
        network_name=network,
    )
    plan = _with_types(plan, scenario, type_stages)
    return _with_variant(plan, chosen)


def _sharded(
    scenario: Scenario, variant: str, workload: Workload, layout: Layout
) -> tuple[Workload, int]:
    """What zero3 makes of a workload, and how many ranks share a copy of the model (0 = all); of
    other systems nothing."""
    chosen = find_variant(variant)
    if chosen.system != "zero3":
        return workload, 0
    workload = dataclasses.replace(workload, micro_batch=zero3_micro_batch(workload, layout.dp))
    return workload, zero3_shard_ranks(scenario, variant, chosen)


def _type_stages(
    scenario: Scenario,
    workload: Workload,
    system: str,
    layout: Layout,
    shards: int,
    stage_layers: Sequence[int],
) -> tuple[tuple[Stage, ...], ...]:
    """What each stage costs, on each type of device. shards: ranks among which the optimizer's
    state is divided."""
    return tuple(
        model_stages(workload, profile)
        or stage_costs(
            workload,
            profile,
            system=system,
            num_stages=layout.pp,
            tensor_parallel=layout.tp,
            optimizer_shards=shards,
            stage_layers=stage_layers,
        )
        for profile in device_profiles(scenario)
    )


def _with_types(plan: Plan, scenario: Scenario, type_stages: tuple[tuple[Stage, ...], ...]) -> Plan:
    """`plan` with what its stages cost on each type of device, where there are several."""
    profiles = device_profiles(scenario)
    if len(profiles) == 1:
        return plan
    return dataclasses.replace(
        plan,
        device_types=_device_types(scenario, profiles),
        type_stages=type_stages,
        type_names=tuple(profile.name for profile in profiles),
    )


def _with_variant(plan: Plan, chosen: Variant) -> Plan:
    """`plan` with what some variants of its system have, and others have not."""
    plan = dataclasses.replace(
        plan,
        num_chunks=chosen.num_chunks,
        sequence_parallel=chosen.sequence_parallel,
        local_steps=chosen.local_steps,
        staleness=chosen.staleness,
        compression=chosen.compression,
        prefetch_units=chosen.prefetch_units,
        accumulation=chosen.accumulation,
        bucket_bytes=DDP_BUCKET_BYTES if chosen.system == "ddp" else 0,
    )
    if chosen.system != "zero3":
        return plan
    return dataclasses.replace(
        plan,
        units=zero3_units(plan.workload, chosen.prefetch_units),
        live_parameters=ZERO3_LIVE_PARAMETERS,
    )


def build_plans(
    scenario: Scenario,
    variants: Sequence[str],
    layers: Sequence[int],
    batch: Sequence[int],
    seeds: Sequence[int],
    iterations: int,
    warmup_iterations: int,
    scale: float | None = None,
    *,
    networks: Sequence[str] | None = None,
    micro_batch: Sequence[int] | None = None,
    compute: str = VIRTUAL,
    token_file: str = "",
    models: Sequence[str] | None = None,
    replicas: Sequence[int] | None = None,
) -> tuple[Plan, ...]:
    """Every combination, in the order network, micro-batch, layers, batch, variant, seed; all at
    one scale, each plan once.

    A placement that does not depend on the seed is planned once, with the first seed.
    scale: None = the largest that `choose_scale` asks for, so that one shaping serves all.
    networks: names of the scenario's `sweep.networks`; none, or None = its own network.
    micro_batch: sequences; none, or None = the workload's. compute, token_file: as in `Plan`.
    models, replicas: see `replicas.replicated`; the layers, batches and micro-batches of a scenario
    that names models are their own, whatever is given.
    """
    settings = [(scenario, num_layers, size) for num_layers in layers for size in batch]
    if scenario.workload.model or models or replicas:
        choices = replicated(scenario, models, replicas)
        settings = [(own, own.workload.layers, own.workload.batch) for own in choices]
        micro_batch = None
    sizes: Sequence[int | None] = micro_batch or [None]
    plans = [
        build_plan(
            own,
            variant,
            num_layers,
            size,
            seed,
            iterations,
            warmup_iterations,
            scale,
            network=network,
            micro_batch=sequences,
            compute=compute,
            token_file=token_file,
        )
        for network in networks or [""]
        for sequences in sizes
        for own, num_layers, size in settings
        for variant in variants
        for seed in (seeds if find_variant(variant).scheduler in SEEDED else seeds[:1])
    ]
    common = max((plan.scale for plan in plans), default=1.0)
    return tuple(dict.fromkeys(dataclasses.replace(plan, scale=common) for plan in plans))


def pipeline_depth(scenario: Scenario, layers: int) -> int:
    """Stages of a pipeline: those of the scenario's `sweep.pipeline_layers`, `sweep.pipeline`, or
    the largest depth up to 8 that divides both the devices and the layers."""
    if scenario.sweep.pipeline_layers:
        return len(scenario.sweep.pipeline_layers)
    if scenario.sweep.pipeline:
        return scenario.sweep.pipeline
    common = math.gcd(scenario.num_devices, layers)
    return max(depth for depth in range(1, MAX_PIPELINE + 1) if common % depth == 0)


def device_profiles(scenario: Scenario) -> tuple[DeviceProfile, ...]:
    """The types of devices, in the order in which nodes have them."""
    return tuple(
        scenario.devices[name] for name in dict.fromkeys(node.device for node in scenario.nodes)
    )


def _device_types(scenario: Scenario, profiles: Sequence[DeviceProfile]) -> tuple[int, ...]:
    """Of each device, which of `profiles` it has."""
    index = {profile.name: kind for kind, profile in enumerate(profiles)}
    return tuple(index[scenario.nodes[node].device] for node in scenario.device_nodes())


def _collective_s(scenario: Scenario, system: str) -> float:
    """Of the slowest type of device. Only zero3 and ddp call collectives often enough for the
    host's share to be known."""
    if system not in ("zero3", "ddp"):
        return 0.0
    known = [profile.collective_s for profile in device_profiles(scenario)]
    return max(known_s.get(system, known_s.get("default", 0.0)) for known_s in known)


def choose_network(scenario: Scenario, name: str) -> Network:
    """The scenario's network, or what it becomes in the sweep's network called `name`.

    Raises PlanError where there is none.
    """
    if not name:
        return scenario.network
    choices = {choice.name: choice for choice in scenario.sweep.networks}
    if not choices:
        raise PlanError(
            f'scenario {scenario.name} has no network "{name}": its sweep has no `networks`'
        )
    if name not in choices:
        raise PlanError(
            f'scenario {scenario.name} has no network "{name}"; {nearest(name, choices)}'
        )
    return scenario.network.with_links(choices[name].link)


def _layout(scenario: Scenario, variant: str, layers: int, devices: int) -> Layout:
    """Pipelines of tensor-parallel groups over so many devices."""
    chosen = find_variant(variant)
    depth = chosen.pipeline or pipeline_depth(scenario, layers)
    tensor, ranks = chosen.tensor, depth * chosen.tensor
    check_tensor(scenario.workload, chosen)
    each = f" of {tensor} tensor-parallel ranks each" if tensor > 1 else ""
    if ranks > devices:
        raise PlanError(
            f"{variant} needs {counted(depth, 'pipeline stage')}{each}, so at least {ranks} ranks, "
            f"but scenario {scenario.name} has {counted(devices, 'device')}; use a variant without "
            "fixed degrees (dtfm-scheduled, megatron), a smaller `pipeline` in the sweep, or more "
            "nodes"
        )
    if devices % ranks:
        choose = f"a `pipeline` in the scenario's sweep that divides {devices}"
        if chosen.pipeline:
            choose = f"a variant whose degrees multiply to a divisor of {devices}"
        raise PlanError(
            f"{counted(devices, 'device')} of scenario {scenario.name} cannot be divided into "
            f"pipelines of {counted(depth, 'stage')}{each}; choose {choose}, or search a plan that "
            "leaves some idle: netbench schedule --layout auto"
        )
    return Layout(tp=tensor, pp=depth, dp=devices // ranks)


def _stage_layers(scenario: Scenario, variant: str, layers: int) -> tuple[int, ...]:
    """`sweep.pipeline_layers`, for a variant that leaves the depth to the scenario; () = evenly."""
    stages = scenario.sweep.pipeline_layers
    if not stages or find_variant(variant).pipeline:
        return ()
    if sum(stages) != layers:
        found = counted(sum(stages), "layer")
        raise PlanError(
            f"`pipeline_layers` of scenario {scenario.name} comes to {found}, not {layers}; choose "
            f"{found}, or write stages that come to {layers}"
        )
    return stages


def _placement(
    scenario: Scenario, layout: Layout, chosen: Variant, seed: int, given: Sequence[int] | None
) -> tuple[int, ...]:
    """`given`, checked, or what the variant's map says."""
    if given is None:
        return MAPS[chosen.scheduler](layout.num_ranks, seed)
    placement = tuple(int(device) for device in given)
    if len(placement) != layout.num_ranks or len(set(placement)) != layout.num_ranks:
        raise PlanError(
            f"the placement has {counted(len(set(placement)), 'device')} for "
            f"{counted(layout.num_ranks, 'rank')}; expected one of its own for every rank"
        )
    if not 0 <= min(placement) <= max(placement) < scenario.num_devices:
        raise PlanError(
            f"the placement has devices {min(placement)} to {max(placement)}, scenario "
            f"{scenario.name} has 0 to {scenario.num_devices - 1}"
        )
    return placement


def _master_weights(system: str, dtype: str, compute: str) -> str:
    """Layers of 16 bits are updated as fp32, where there are any: dtfm's on the CPU, the others' on
    their device. hivemind has its own copy."""
    if dtype not in ("fp16", "bf16") or compute == VIRTUAL or system == "hivemind":
        return ""
    return "cpu" if system == "dtfm" else compute


def _micro_batches(workload: Workload, num_replicas: int) -> int:
    """Micro-batches of one replica (a pipeline, or a rank) in an iteration."""
    step = num_replicas * workload.micro_batch
    if workload.batch % step:
        raise PlanError(
            f"batch {workload.batch} does not divide into micro-batches of {workload.micro_batch} "
            f"for {counted(num_replicas, 'replica')}; choose a multiple of {step}"
        )
    return workload.batch // step


def _gpipe_rounds(micro_batches: int) -> int:
    """Rounds of 64 micro-batches where they divide, else one round of all."""
    return micro_batches // GPIPE_ROUND if micro_batches % GPIPE_ROUND == 0 else 1
