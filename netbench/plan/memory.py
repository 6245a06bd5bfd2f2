"""Estimate device memory, warn of plans that may not fit, and refuse plans that fit nowhere."""

from collections import Counter

from netbench.errors import PlanError
from netbench.plan.build import device_profiles
from netbench.plan.model import Plan
from netbench.plan.schedules import activation_layers
from netbench.scenario.model import DeviceProfile, Scenario
from netbench.systems import position_of, system_of
from netbench.units import counted, format_bytes
from netbench.workload.costs import Stage
from netbench.workload.memory import MemoryEstimate, RankModel, estimate_memory


def plan_memory(plan: Plan) -> tuple[MemoryEstimate, ...]:
    """Estimate what a rank of every stage needs, in the order of `plan.stages`."""
    system = system_of(plan)
    state, gathered = system.state_bytes(plan.workload.dtype), system.gathered_parameters(plan)

    def rank_model(index: int, stage: Stage) -> RankModel:
        return RankModel(
            state=state,
            parameters=stage.parameters,
            live_layers=activation_layers(
                plan.schedule,
                stage=index,
                num_stages=plan.layout.pp,
                num_layers=stage.num_layers,
                num_micro_batches=plan.num_micro_batches,
                num_chunks=plan.num_chunks,
            ),
            tensor_parallel=plan.layout.tp,
            sequence_parallel=plan.sequence_parallel,
            shards=system.num_shards(plan.layout, plan.shard_ranks),
            keeps_gradients=plan.accumulation == "keep",
            gathered_parameters=gathered,
            optimizer_shards=system.optimizer_shards(plan.layout),
        )

    return tuple(
        estimate_memory(plan.workload, rank_model(index, stage))
        for index, stage in enumerate(plan.stages)
    )


def memory_warnings(plan: Plan, scenario: Scenario) -> tuple[str, ...]:
    """Return a line if a rank of `plan` probably does not fit its device's memory.

    It names the stage and device of the rank that exceeds its memory by the largest factor.
    """
    if not plan.stages:
        return ()  # a script's memory is not known
    needs = [estimate.total_bytes for estimate in plan_memory(plan)]
    devices = [scenario.devices[scenario.nodes[node].device] for node in plan.device_nodes]
    ranks = [
        (position_of(plan, rank).stage, devices[device])
        for rank, device in enumerate(plan.placement)
    ]
    too_big = [(stage, device) for stage, device in ranks if needs[stage] > device.memory_bytes]
    if not too_big:
        return ()
    stage, device = max(too_big, key=lambda rank: needs[rank[0]] / rank[1].memory_bytes)
    where = f"stage {stage}" if len(needs) > 1 else "every rank"
    count, total = len({stage for stage, _ in too_big}), f"{len(needs)} stages"
    if plan.type_names:  # then not all ranks of a stage are alike
        count, total = len(too_big), f"{len(ranks)} ranks"
    many = f" ({count} of {total} do not fit)" if count > 1 else ""
    return (
        f"{plan.variant} {plan.workload.name}: {where} needs about {_needed(needs[stage])}, "
        f"{_memory_of(device)}{many}; use {_remedies(plan)}",
    )


def stages_that_fit(plan: Plan, scenario: Scenario) -> tuple[tuple[bool, ...], ...]:
    """(num_types, pp): True if a rank of each stage fits a device of each type, in the order of
    `Plan.type_stages`."""
    needs = [estimate.total_bytes for estimate in plan_memory(plan)]
    return tuple(
        tuple(need <= profile.memory_bytes for need in needs)
        for profile in device_profiles(scenario)
    )


def check_memory(plan: Plan, scenario: Scenario) -> None:
    """Raise PlanError unless some placement fits the devices' memory, whatever the plan's own is.

    The stages that need most go to the devices that have most: if any assignment fits, this one
    does.
    """
    if not plan.stages:
        return  # a script's memory is not known
    profiles = [scenario.devices[scenario.nodes[n].device] for n in plan.device_nodes]
    profiles.sort(key=lambda device: -device.memory_bytes)
    needs = [estimate.total_bytes for estimate in plan_memory(plan)]
    per_stage = plan.layout.num_ranks // len(needs)
    order = sorted(range(len(needs)), key=lambda stage: -needs[stage])
    stages = [stage for stage in order for _ in range(per_stage)]
    for stage, device in zip(stages, profiles, strict=False):
        if needs[stage] > device.memory_bytes:
            break
    else:
        return
    have = Counter(_memory_of(device) for device in profiles)
    found = ", ".join(f"{text} (x{count})" for text, count in have.items())
    raise PlanError(
        f"{plan.variant} {plan.workload.name} fits nowhere in scenario {scenario.name}: stage "
        f"{stage} of {len(needs)} needs {counted(per_stage, 'device')} of about "
        f"{_needed(needs[stage])}, and {found}; use {_remedies(plan)}"
    )


def _needed(need_bytes: float) -> str:
    return format_bytes(need_bytes, 3)  # an estimate


def _memory_of(device: DeviceProfile) -> str:
    return f"{device.name} has {format_bytes(device.memory_bytes, 4)}"


def _remedies(plan: Plan) -> str:
    """Changes that would make a plan smaller, in words."""
    remedies = system_of(plan).memory_remedies(plan)
    if plan.accumulation == "keep":
        remedies.append("a variant without -accumulate")
    if not plan.workload.recomputation:
        remedies.append("recomputation")
    if plan.workload.micro_batch > 1:
        remedies.append("a smaller micro-batch")
    *others, last = remedies
    return f"{', '.join(others)} or {last}" if others else last
