"""Plans of either kind, training or one collective, that sessions, ranks and records carry."""

from typing import Any

from netbench.plan.benchmark import COLLECTIVE_SCHEMA_VERSION, SYSTEM, CollectivePlan
from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.serial import canonical_json, decode_version, plan_from_json, read_json
from netbench.plan.tensor import message_bytes
from netbench.records import Record, content_hash
from netbench.systems import system_of

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message of `message_sizes`."""

Experiment = Plan | CollectivePlan
"""Plans that a session runs."""


def experiment_to_json(plan: Experiment) -> str:
    """The plan as one line of canonical JSON: equal plans give equal text."""
    return canonical_json(type(plan), plan)


def experiment_from_json(text: str) -> Experiment:
    """The plan that `experiment_to_json` wrote. Raises PlanError naming the field that is wrong."""
    data = read_json(text)
    if not isinstance(data, dict) or data.get("system") != SYSTEM:
        return plan_from_json(text)
    plan = decode_version(CollectivePlan, data, "collective plan", COLLECTIVE_SCHEMA_VERSION)
    assert isinstance(plan, CollectivePlan)
    return plan


def experiment_hash(plan: Experiment) -> str:
    """Return the hash of a plan of either kind, like `plan_hash`."""
    return content_hash(experiment_to_json(plan))


def is_elastic(plan: Experiment) -> bool:
    """Return True if ranks may leave and join while others go on."""
    return isinstance(plan, Plan) and (system_of(plan).elastic or bool(plan.churn))


def runs_script(plan: Experiment) -> bool:
    """Return True if every rank is a user's script."""
    return isinstance(plan, Plan) and system_of(plan).runs_script


def message_sizes(plan: Experiment) -> tuple[int, ...]:
    """Return the sizes of messages by which a plan's network is verified, bytes at full size:
    a boundary tensor of a pipeline, else a slice of a collective."""
    if not isinstance(plan, Plan):
        return (min(plan.payload_bytes, MAX_MESSAGE_BYTES),)
    return (round(message_bytes(plan)) if plan.has_pipelines else plan.transport.chunk_bytes,)


def rank_modules(plan: Experiment) -> set[str]:
    """Return the modules that a rank imports for `plan`, beside those that every rank needs.

    DTensors and FSDP take a second each. Ranks that are forked from a process with these modules
    share them.
    """
    if not isinstance(plan, Plan):
        return set()
    modules = {system_of(plan).trainer_of(plan).partition(":")[0]}
    if plan.compute != VIRTUAL and plan.layout.tp > 1:
        modules.add("netbench.trainers.layers.tensor")
    if plan.compute != VIRTUAL and plan.splits_backward:
        modules.add("torch.distributed.pipelining._backward")
    return modules


def experiment_record(
    plan: Experiment,
    run_id: str,
    iteration_s: float,
    source: str,
    *,
    iteration: int = 0,
    warmup: bool = False,
    **measured: Any,
) -> Record:
    """Return the record of one iteration. measured: optional fields of `Record`."""
    training = plan if isinstance(plan, Plan) else None
    return Record(
        run_id=run_id,
        plan_hash=experiment_hash(plan),
        scenario=plan.scenario,
        variant=plan.variant,
        system=plan.system,
        layers=training.workload.layers if training else 0,
        batch=training.workload.batch if training else 0,
        seed=training.seed if training else 0,
        iteration=iteration,
        warmup=warmup,
        iteration_s=iteration_s,
        source=source,
        **measured,
    )
