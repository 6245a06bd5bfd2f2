"""A plan of either kind, training or one collective: what sessions, ranks and records carry."""

from __future__ import annotations

import json
from typing import Any

from netbench.errors import PlanError
from netbench.plan.collective import COLLECTIVE_SCHEMA_VERSION, SYSTEM, CollectivePlan
from netbench.plan.model import Plan
from netbench.plan.serial import canonical_json, decode, json_hash, plan_from_json
from netbench.records import Record

Experiment = Plan | CollectivePlan
"""What a session runs."""


def experiment_to_json(plan: Experiment) -> str:
    """The plan as one line of canonical JSON: equal plans give equal text."""
    return canonical_json(type(plan), plan)


def experiment_from_json(text: str) -> Experiment:
    """The plan that `experiment_to_json` wrote. Raises PlanError naming the field that is wrong."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict) or data.get("system") != SYSTEM:
        return plan_from_json(text)
    if (version := data.get("schema_version")) != COLLECTIVE_SCHEMA_VERSION:
        raise PlanError(
            f"collective plan: schema_version is {version!r}; "
            f"this netbench reads {COLLECTIVE_SCHEMA_VERSION}"
        )
    plan = decode(CollectivePlan, data, "plan")
    assert isinstance(plan, CollectivePlan)
    return plan


def experiment_hash(plan: Experiment) -> str:
    """As `plan_hash`."""
    return json_hash(experiment_to_json(plan))


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
    """The record of one iteration. measured: fields of `Record` that not every iteration has."""
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
