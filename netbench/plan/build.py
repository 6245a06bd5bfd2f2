"""Build plans: choose layout, placement, schedule and costs for a variant of a training system."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from netbench.errors import PlanError, nearest
from netbench.limits import MAX_PLANS
from netbench.plan.checks import (
    check_chunks,
    check_compute,
    check_numbers,
    check_stage_layers,
    check_tensor,
)
from netbench.plan.maps import MAPS, SEEDED
from netbench.plan.model import ONCE, VIRTUAL, Execution, Layout, Plan, emulated_transport
from netbench.plan.replicas import check_model, peer_sets, replicated
from netbench.plan.scale import at_common_scale, at_scale, choose_scale
from netbench.scenario.model import DeviceProfile, Network, Scenario, Setting, Sweep, Workload
from netbench.systems import SYSTEMS, find_variant
from netbench.systems.base import System, Variant
from netbench.units import counted
from netbench.workload.costs import DTYPE_BYTES, Stage, activation_bytes, stage_costs
from netbench.workload.whole import model_stages

MAX_PIPELINE = 8
"""Default limit on the stages of a pipeline: the depth of the published runs."""

SCRIPT_COMPUTE = "script"
"""`Plan.compute` of plans of a user's script, which chooses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """A sweep of plans: every combination of these.

    networks: names of the scenario's `sweep.networks`; none = its own network. micro_batch:
    sequences; none = the workload's. models, replicas: see `replicas.replicated`; peers: see
    `replicas.peer_sets`. The layers, batches and micro-batches of a scenario that names models are
    its own, whatever is given.
    """

    variants: Sequence[str]
    layers: Sequence[int] = ()
    batch: Sequence[int] = ()
    seeds: Sequence[int] = (0,)
    networks: Sequence[str] = ()
    micro_batch: Sequence[int] = ()
    models: Sequence[str] = ()
    replicas: Sequence[int] = ()
    peers: Sequence[str] = ()

    @staticmethod
    def of(sweep: Sweep, *, whole: bool = False, **chosen: Sequence[Any] | None) -> "Choices":
        """The default slice of a sweep, or all of it. chosen: fields to replace, None = keep."""
        named = {
            "networks": [network.name for network in sweep.networks],
            "models": [model.model for model in sweep.models],
            "peers": [each.name for each in sweep.peers],
        }

        def own(name: str) -> Sequence[Any]:
            values = named.get(name) if whole else None
            return values or getattr(sweep, name if whole else f"default_{name}")

        names = [field.name for field in dataclasses.fields(Choices)]
        return Choices(**{name: chosen.get(name) or own(name) for name in names})


def build_plan(
    scenario: Scenario,
    variant: str,
    setting: Setting,
    execution: Execution = ONCE,
    *,
    placement: Sequence[int] | None = None,
    scheduler: str = "",
    stage_layers: Sequence[int] = (),
) -> Plan:
    """Resolve one experiment.

    placement: the device of every rank, None = the variant's own map over all devices. If there are
    fewer ranks than devices, the others are idle. scheduler: the name of what found the placement.
    stage_layers: layers of each stage; none = the scenario's, or evenly.
    Raises PlanError if the variant or network is unknown, a number is out of range, or layers,
    heads, batch and devices do not divide as the variant needs.
    """
    chosen = find_variant(variant)
    check_model(scenario, variant, setting.layers)
    check_numbers(setting, execution)
    check_compute(chosen, scenario.workload, execution)
    plan = _planned(scenario, variant, setting, placement, scheduler, stage_layers)
    plan = dataclasses.replace(
        plan,
        iterations=execution.iterations,
        warmup_iterations=execution.warmup_iterations,
        compute=execution.compute,
        token_file=execution.token_file,
        master_weights=_master_weights(plan, execution.compute),
    )
    if execution.compute != VIRTUAL:
        return plan
    return at_scale(plan, choose_scale(plan) if execution.scale is None else execution.scale)


def build_command_plan(
    scenario: Scenario, variant: str, script: Sequence[str], setting: Setting, execution: Execution
) -> Plan:
    """One rank per device of the scenario, each with `script`, at scale 1: its bytes are its own.

    setting: what the script trains, for labels and FLOPs; the script may read it from the plan.
    execution: only the numbers of iterations are used. Raises PlanError for an unknown variant,
    network or seed.
    """
    chosen = find_variant(variant, script=True)
    if not script:
        raise PlanError("the script is empty; write e.g. --command 'python train.py'")
    check_numbers(setting, execution)
    layout = Layout(dp=scenario.num_devices)
    placement = _placement(scenario, layout, chosen, setting.seed, None)
    return dataclasses.replace(
        _frame(scenario, variant, chosen, setting, placement),
        layout=layout,
        iterations=execution.iterations,
        warmup_iterations=execution.warmup_iterations,
        compute=SCRIPT_COMPUTE,
        script=tuple(script),
    )


def build_command_plans(
    scenario: Scenario, script: Sequence[str], choices: Choices, execution: Execution
) -> tuple[Plan, ...]:
    """Every combination, in the order of `build_plans`."""
    return tuple(
        build_command_plan(scenario, variant, script, setting, execution)
        for _, variant, setting in settings(scenario, choices, script=True)
    )


def build_plans(
    scenario: Scenario, choices: Choices, execution: Execution = ONCE
) -> tuple[Plan, ...]:
    """Every combination once, in the order network, micro-batch, layers, batch, variant, seed.

    A placement that does not depend on the seed is planned once, with the first seed. Scales: see
    `at_common_scale`.
    """
    plans = [
        build_plan(each, variant, setting, execution)
        for each, variant, setting in settings(scenario, choices)
    ]
    return tuple(dict.fromkeys(at_common_scale(plans, execution.scale)))


def settings(
    scenario: Scenario, choices: Choices, *, script: bool = False
) -> list[tuple[Scenario, str, Setting]]:
    """The combinations of `build_plans`, each with the scenario, or part of one, that it is for.

    script: variants are those of a user's script.
    """
    if choices.peers and not script:
        return _peer_settings(scenario, choices)
    sizes = [(scenario, layers, batch) for layers, batch in product(choices.layers, choices.batch)]
    micro_batches: Sequence[int | None] = choices.micro_batch or [None]
    if not script and (scenario.workload.model or choices.models or choices.replicas):
        parts = replicated(scenario, choices.models, choices.replicas)
        sizes = [(part, part.workload.layers, part.workload.batch) for part in parts]
        micro_batches = [None]
    networks = choices.networks or [""]
    counts = (networks, micro_batches, sizes, choices.variants, choices.seeds)
    if (num_plans := math.prod(map(len, counts))) > MAX_PLANS:
        raise PlanError(
            f"{num_plans} plans; expected at most {MAX_PLANS}; choose fewer layers, batches, "
            "micro-batches, networks, systems or seeds"
        )
    return [
        (
            part,
            variant,
            Setting(
                layers=layers, batch=batch, micro_batch=micro_batch, network=network, seed=seed
            ),
        )
        for network in networks
        for micro_batch in micro_batches
        for part, layers, batch in sizes
        for variant in choices.variants
        for seed in _seeds(choices, find_variant(variant, script=script))
    ]


def _peer_settings(scenario: Scenario, choices: Choices) -> list[tuple[Scenario, str, Setting]]:
    """The combinations of a sweep over sets of machines. A set's own variants apply unless other
    systems than the scenario's are chosen."""
    own = tuple(choices.variants) == scenario.sweep.default_variants
    return [
        (
            part,
            variant,
            Setting(layers=part.workload.layers, batch=part.workload.batch, seed=choices.seeds[0]),
        )
        for part, variants in peer_sets(scenario, choices.models, choices.peers)
        for variant in (variants if own and variants else choices.variants)
    ]


def _seeds(choices: Choices, variant: Variant) -> Sequence[int]:
    return choices.seeds if variant.scheduler in SEEDED else choices.seeds[:1]


def _planned(
    scenario: Scenario,
    variant: str,
    setting: Setting,
    placement: Sequence[int] | None,
    scheduler: str,
    stage_layers: Sequence[int],
) -> Plan:
    """A plan of one iteration of virtual layers at full size."""
    chosen = find_variant(variant)
    system, layers = SYSTEMS[chosen.system], setting.layers
    workload = _workload(scenario, setting, chosen.system)
    num_ranks = scenario.num_devices if placement is None else len(placement)
    layout = _layout(scenario, variant, layers, num_ranks)
    workload = system.resolve_workload(workload, layout)
    placement = _placement(scenario, layout, chosen, setting.seed, placement)
    shard_ranks = system.shard_ranks(scenario, variant, chosen, placement)
    micro_batches = system.micro_batches(workload, layout.dp)
    stage_layers = tuple(stage_layers) or _stage_layers(scenario, variant, layers)
    check_stage_layers(stage_layers, layout.pp, layers)
    check_chunks(variant, layout.pp, layers, stage_layers, micro_batches)
    rounds = system.num_rounds(chosen, micro_batches, scenario.sweep.gpipe_round)
    shards = system.num_shards(layout, shard_ranks)
    type_stages = _type_stages(scenario, workload, system, layout, shards, stage_layers)
    plan = dataclasses.replace(
        _frame(scenario, variant, chosen, setting, placement),
        layout=layout,
        scheduler=scheduler or chosen.scheduler,
        workload=workload,
        num_rounds=rounds,
        num_micro_batches=micro_batches // rounds,
        stages=type_stages[0],
        activation_bytes=activation_bytes(workload),
        num_chunks=chosen.num_chunks,
        sequence_parallel=chosen.sequence_parallel,
        local_steps=chosen.local_steps,
        staleness=chosen.staleness,
        compression=chosen.compression,
        shard_ranks=shard_ranks,
        prefetch_units=chosen.prefetch_units,
        accumulation=chosen.accumulation,
        collective_s=_collective_s(scenario, system),
        jitter=max(profile.jitter for profile in device_profiles(scenario)),
        **_of_peers(scenario, system, chosen),
    )
    return system.complete(_with_types(plan, scenario, type_stages), chosen)


def _frame(
    scenario: Scenario, variant: str, chosen: Variant, setting: Setting, placement: tuple[int, ...]
) -> Plan:
    """A plan of one iteration at full size without a layout or work."""
    return Plan(
        scenario=scenario.name,
        variant=variant,
        system=chosen.system,
        layout=Layout(),
        scheduler=chosen.scheduler,
        seed=setting.seed,
        placement=placement,
        device_nodes=scenario.device_nodes(),
        node_names=tuple(node.name for node in scenario.nodes),
        network=choose_network(scenario, setting.network),
        workload=_workload(scenario, setting, chosen.system),
        schedule=chosen.schedule,
        data_parallel=chosen.data_parallel,
        num_rounds=1,
        num_micro_batches=1,
        stages=(),
        activation_bytes=0,
        transport=emulated_transport(),
        iterations=1,
        warmup_iterations=0,
        scale=1.0,
        backend=scenario.backend,
        network_name=setting.network,
        peers=scenario.peers,
    )


def _workload(scenario: Scenario, setting: Setting, system: str) -> Workload:
    size = setting.micro_batch
    if size is None:
        size = scenario.sweep.system_micro_batch.get(system, scenario.workload.micro_batch)
    return dataclasses.replace(
        scenario.workload, layers=setting.layers, batch=setting.batch, micro_batch=size
    )


def _type_stages(
    scenario: Scenario,
    workload: Workload,
    system: System,
    layout: Layout,
    shards: int,
    stage_layers: Sequence[int],
) -> tuple[tuple[Stage, ...], ...]:
    """The cost of each stage on each type of device. shards: ranks that divide the optimizer's
    state among themselves."""
    return tuple(
        model_stages(workload, profile)
        or stage_costs(
            workload,
            profile,
            system=system.costs_as or system.name,
            num_stages=layout.pp,
            gradient_dtype=system.gradient_dtype(workload.dtype),
            tensor_parallel=layout.tp,
            optimizer_shards=shards,
            stage_layers=stage_layers,
        )
        for profile in device_profiles(scenario)
    )


def _of_peers(scenario: Scenario, system: System, chosen: Variant) -> dict[str, Any]:
    """The fields of systems whose ranks are peers, each with its own speed."""
    if not system.has_peers:
        return {}
    profiles = device_profiles(scenario)
    return {
        "matchmaking_s": chosen.matchmaking_s,
        "beside": chosen.beside,
        "type_steps": tuple(profile.step for profile in profiles),
        "host_factors": tuple(profile.host_factor for profile in profiles),
    }


def _with_types(plan: Plan, scenario: Scenario, type_stages: tuple[tuple[Stage, ...], ...]) -> Plan:
    """`plan` with the costs of its stages on each type of device, if there are several."""
    profiles = device_profiles(scenario)
    if len(profiles) == 1:
        return plan
    return dataclasses.replace(
        plan,
        device_types=tuple(
            profiles.index(scenario.devices[scenario.nodes[node].device])
            for node in plan.device_nodes
        ),
        type_stages=type_stages,
        type_names=tuple(profile.name for profile in profiles),
    )


def pipeline_depth(scenario: Scenario, layers: int) -> int:
    """Return the stages of a pipeline: those of the scenario's `sweep.pipeline_layers` or
    `sweep.pipeline`, or the largest depth up to 8 that divides both the devices and the layers."""
    if scenario.sweep.pipeline_layers:
        return len(scenario.sweep.pipeline_layers)
    if scenario.sweep.pipeline:
        return scenario.sweep.pipeline
    common = math.gcd(scenario.num_devices, layers)
    return max(depth for depth in range(1, MAX_PIPELINE + 1) if common % depth == 0)


def device_profiles(scenario: Scenario) -> tuple[DeviceProfile, ...]:
    """Return the types of devices, in the order of the nodes that have them."""
    return tuple(
        scenario.devices[name] for name in dict.fromkeys(node.device for node in scenario.nodes)
    )


def _collective_s(scenario: Scenario, system: System) -> float:
    """The cost of a collective for the host, on the slowest type of device, seconds."""
    if not system.counts_calls:
        return 0.0
    known = [profile.collective_s for profile in device_profiles(scenario)]
    return max(known_s.get(system.name, known_s.get("default", 0.0)) for known_s in known)


def choose_network(scenario: Scenario, name: str) -> Network:
    """Return the scenario's network with the links of the sweep's network `name`, "" = its own.

    Raises PlanError if the sweep has no such network.
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
    """Divide devices into pipelines of tensor-parallel groups."""
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
            f"pipelines of {counted(depth, 'stage')}{each}; choose {choose}, or search for a plan "
            "that leaves some idle: netbench schedule --layout auto"
        )
    return Layout(tp=tensor, pp=depth, dp=devices // ranks)


def _stage_layers(scenario: Scenario, variant: str, layers: int) -> tuple[int, ...]:
    """Layers of each stage: the scenario's if the variant leaves the depth to it; () = evenly.

    Else those of the system. If a variant's own depth does not divide the layers, its first stages
    have one more.
    """
    stages, chosen = scenario.sweep.pipeline_layers, find_variant(variant)
    if chosen.pipeline or not stages:
        depth = chosen.pipeline or pipeline_depth(scenario, layers)
        if own := SYSTEMS[chosen.system].stage_layers(layers, depth):
            return own
    if chosen.pipeline and chosen.num_chunks == 1:
        each, more = divmod(layers, chosen.pipeline)
        return tuple(each + (stage < more) for stage in range(chosen.pipeline)) if more else ()
    if not stages or chosen.pipeline:
        return ()
    if sum(stages) != layers:
        found = counted(sum(stages), "layer")
        raise PlanError(
            f"`pipeline_layers` of scenario {scenario.name} adds up to {found}, not {layers}; "
            f"choose {found}, or stages that add up to {layers}"
        )
    return stages


def _placement(
    scenario: Scenario, layout: Layout, chosen: Variant, seed: int, given: Sequence[int] | None
) -> tuple[int, ...]:
    """Return `given` if it is a valid placement, or that of the variant's map: the scenario's own
    one for all its devices, or that of the seed."""
    published = scenario.sweep.maps.get(chosen.scheduler, ())
    if given is None and len(published) == layout.num_ranks == scenario.num_devices:
        return published
    if given is None:
        return MAPS[chosen.scheduler](scenario.device_nodes()[: layout.num_ranks], seed)
    placement = tuple(int(device) for device in given)
    if len(placement) != layout.num_ranks or len(set(placement)) != layout.num_ranks:
        raise PlanError(
            f"the placement has {counted(len(set(placement)), 'device')} for "
            f"{counted(layout.num_ranks, 'rank')}; expected a different device for every rank"
        )
    if not 0 <= min(placement) <= max(placement) < scenario.num_devices:
        raise PlanError(
            f"the placement has devices {min(placement)} to {max(placement)}, scenario "
            f"{scenario.name} has 0 to {scenario.num_devices - 1}"
        )
    return placement


def _master_weights(plan: Plan, compute: str) -> str:
    """Layers of 16 bits that compute are updated as fp32."""
    if compute == VIRTUAL or DTYPE_BYTES[plan.workload.dtype] > 2:
        return ""
    return SYSTEMS[plan.system].master_weights(compute)
