"""Whether a plan fits its devices' memory, by estimate: to warn, or refuse what fits nowhere."""

from __future__ import annotations

from collections import Counter

from netbench.errors import PlanError
from netbench.plan.build import device_profiles
from netbench.plan.model import Plan
from netbench.plan.timeline import stage_of
from netbench.scenario.model import DeviceProfile, Scenario
from netbench.units import counted, format_bytes
from netbench.workload.costs import layer_parameters, live_layers
from netbench.workload.memory import MemoryEstimate, estimate_memory, held_layers


def plan_memory(plan: Plan) -> tuple[MemoryEstimate, ...]:
    """What a rank of every stage needs, in the order of `plan.stages`."""
    return tuple(
        estimate_memory(
            plan.workload,
            system=plan.system,
            parameters=stage.parameters,
            held_layers=held_layers(
                plan.schedule,
                stage=index,
                num_stages=plan.layout.pp,
                num_layers=stage.num_layers,
                num_micro_batches=plan.num_micro_batches,
                num_chunks=plan.num_chunks,
            ),
            tensor_parallel=plan.layout.tp,
            shards=plan.shard_ranks or plan.layout.dp if plan.system == "zero3" else 1,
            keeps_gradients=plan.accumulation == "keep",
            gathered_parameters=_gathered(plan),
            sequence_parallel=plan.sequence_parallel,
        )
        for index, stage in enumerate(plan.stages)
    )


def memory_warnings(plan: Plan, scenario: Scenario) -> tuple[str, ...]:
    """One line if a rank of `plan` probably does not fit, about the stage and the device of the
    rank that needs most of what it has."""
    if not plan.stages:
        return ()  # a script's memory is its own
    needs = [estimate.total_bytes for estimate in plan_memory(plan)]
    devices = [scenario.devices[scenario.nodes[node].device] for node in plan.device_nodes]
    ranks = [(stage_of(plan, rank), devices[device]) for rank, device in enumerate(plan.placement)]
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
        f"{_held(device)}{many}; use {_remedies(plan)}",
    )


def stages_that_fit(plan: Plan, scenario: Scenario) -> tuple[tuple[bool, ...], ...]:
    """(num_types, pp): whether a rank of each stage fits a device of each type, those of
    `Plan.type_stages`."""
    needs = [estimate.total_bytes for estimate in plan_memory(plan)]
    return tuple(
        tuple(need <= profile.memory_bytes for need in needs)
        for profile in device_profiles(scenario)
    )


def check_memory(plan: Plan, scenario: Scenario) -> None:
    """Raises PlanError unless there are devices enough for the ranks of every stage, wherever the
    plan puts them now.

    What needs most goes where there is most: if any assignment fits, this one does.
    """
    if not plan.stages:
        return  # a script's memory is its own
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
    have = Counter(_held(device) for device in profiles)
    found = ", ".join(f"{text} (x{count})" for text, count in have.items())
    raise PlanError(
        f"{plan.variant} {plan.workload.name} fits nowhere in scenario {scenario.name}: stage "
        f"{stage} of {len(needs)} needs {counted(per_stage, 'device')} of about "
        f"{_needed(needs[stage])}, and {found}; use {_remedies(plan)}"
    )


def _needed(need_bytes: float) -> str:
    return format_bytes(need_bytes, 3)  # an estimate


def _held(device: DeviceProfile) -> str:
    return f"{device.name} has {format_bytes(device.memory_bytes, 4)}"


def _gathered(plan: Plan) -> int:
    """Parameters that a zero3 rank has gathered at the peak: the embeddings and layers within the
    live limit, and the one layer it computes where not all are; or, where units are prefetched, the
    unit it computes and those ahead."""
    if plan.system != "zero3":
        return 0
    live = live_layers(plan.workload, plan.live_parameters)
    ahead = max(plan.units) * (1 + plan.prefetch_units) if plan.prefetch_units else 1
    layers = min(live + ahead, plan.workload.layers)
    return plan.workload.embedding_parameters + layers * layer_parameters(plan.workload)


def _remedies(plan: Plan) -> str:
    """What would make it smaller, of this system's means."""
    remedies = {
        "dtfm": ["more stages", "a variant with -1f1b"],
        "megatron": ["more stages or tensor-parallel ranks (-p<P>t<T>)"],
        "zero3": ["larger groups (-hybrid<R>)" if plan.shard_ranks else "more devices"],
    }.get(plan.system, ["a system that splits the model (zero3, megatron)"])
    if plan.schedule == "1f1b":
        remedies = [text for text in remedies if "1f1b" not in text]
    if plan.accumulation == "keep":
        remedies.append("a variant without -accumulate")
    if not plan.workload.recomputation:
        remedies.append("recomputation")
    if plan.workload.micro_batch > 1:
        remedies.append("a smaller micro-batch")
    *others, last = remedies
    return f"{', '.join(others)} or {last}" if others else last
