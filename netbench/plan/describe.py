"""A plan in one line that distinguishes it from the other plans of a run."""

import shlex

from netbench.plan.maps import UNSEEDED
from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.serial import plan_hash
from netbench.systems import system_of
from netbench.units import counted


def describe_plan(plan: Plan) -> str:
    """Describe a plan, starting with its hash. Iterations are warm-up + timed."""
    network = f" on {plan.network_name}" if plan.network_name else ""
    seed = f" seed {plan.seed}" if plan.scheduler not in UNSEEDED else ""
    setting = f"{plan.scenario}{network} {plan.variant} {plan.workload.name}"
    head = f"{plan_hash(plan)}  {setting} B{plan.workload.batch}:"
    placement = f"{plan.scheduler} placement{seed}"
    timed = plan.iterations - plan.warmup_iterations
    iterations = f"{plan.warmup_iterations} + {timed} iterations"
    if plan.churn:
        iterations += f" while machines go and come ({counted(len(plan.churn), 'event')})"
    if plan.script:
        ranks = counted(plan.layout.num_ranks, "rank")
        return f"{head} {ranks}, {placement}, {iterations} of: {shlex.join(plan.script)}"
    if plan.parts:
        fewer, more = plan.parts
        iterations += f" in parts ({fewer} and {count_periods(plan, more)})"
    how = f"scale {plan.scale:g}" if plan.compute == VIRTUAL else f"computed on {plan.compute}"
    synchronised = f"{plan.data_parallel}{_sharding(plan)}"
    return (
        f"{head} {_layout(plan)}{_types(plan)}, {placement}, {_schedule(plan)}, {synchronised}, "
        f"{iterations}, {how}"
    )


def count_periods(plan: Plan, number: int) -> str:
    """Return `number` with the name of what an iteration repeats, e.g. `16 micro-batches`."""
    if plan.repeats_rounds:
        return counted(number, "round")
    if plan.layer_parts:
        return f"{counted(number, 'layer')} beyond the limit, in one micro-step"
    if plan.has_pipelines:
        return counted(number, "micro-batch", "micro-batches")
    return counted(number, "micro-step")


def _layout(plan: Plan) -> str:
    """E.g. `p2t4d8`, `p4d16 of 8+6+6+4 layers`, `p4d16 of 2 chunks`."""
    tensor = f"t{plan.layout.tp}" if plan.layout.tp > 1 else ""
    layers = [stage.num_layers for stage in plan.stages]
    uneven = f" of {'+'.join(map(str, layers))} layers" if len(set(layers)) > 1 else ""
    chunks = f" of {plan.num_chunks} chunks" if plan.num_chunks > 1 else ""
    return f"p{plan.layout.pp}{tensor}d{plan.layout.dp}{uneven}{chunks}"


def _types(plan: Plan) -> str:
    """E.g. ` on 18 V100 + 14 A40`, if devices are of several types."""
    kinds = [plan.device_types[device] for device in plan.placement] if plan.device_types else []
    counts = [(kinds.count(kind), name) for kind, name in enumerate(plan.type_names)]
    found = " + ".join(f"{count} {name}" for count, name in counts if count)
    return f" on {found}" if found else ""


def _schedule(plan: Plan) -> str:
    """E.g. `gpipe 2 x 64 micro-batches of 1`."""
    name = f"{plan.schedule} " if plan.has_pipelines else ""
    rounds = f"{plan.num_rounds} x " if plan.num_rounds > 1 else ""
    return f"{name}{rounds}{plan.num_micro_batches} micro-batches of {plan.workload.micro_batch}"


def _sharding(plan: Plan) -> str:
    """The options of a sharded variant, e.g. ` among 8, gradients kept`."""
    groups = f" among {plan.shard_ranks}" if plan.shard_ranks else ""
    ahead = f", {plan.prefetch_units} of {len(plan.units)} units ahead"
    kept = ", gradients kept" if plan.accumulation == "keep" else ""
    merged = (
        f", last {plan.units[-1]} layers gathered as one" if system_of(plan).is_merged(plan) else ""
    )
    return f"{groups}{ahead if plan.prefetch_units else ''}{kept}{merged}"
