"""Let a GPU load what layers need, before any rank waits for another: `rehearse`."""

import dataclasses

from netbench.plan.model import Layout, Plan
from netbench.scenario.model import Workload
from netbench.trainers.layers.stage import StageRole, build_stage, gradient_dtype

SEQUENCE = 128
"""Longest sequence of a rehearsal."""


def rehearse(plan: Plan) -> None:
    """Train a small model of one layer, with the plan's data type, head size and optimizer; of a
    named model, all of it. Then discard it.

    CUDA's libraries load at their first use, and may wait until the device is idle. It never is
    while it waits for a message whose sender waits for this rank.
    """
    plan = dataclasses.replace(
        plan,
        workload=plan.workload if plan.workload.model else _small(plan.workload),
        layout=Layout(),
        schedule="1f1b",
        num_chunks=1,
        sequence_parallel=False,
        token_file="",
        stages=(dataclasses.replace(plan.stages[0], num_layers=1),),
    )
    role = StageRole(index=0, replica=0, gradient_dtype=gradient_dtype(plan), gradient_messages=1)
    stage = build_stage(plan, role)
    stage.forward(0, None)
    stage.backward(0, None)
    stage.update()


def _small(workload: Workload) -> Workload:
    """Return a model of one layer with one head of the same size."""
    return dataclasses.replace(
        workload,
        layers=1,
        hidden=workload.hidden // workload.heads,
        heads=1,
        sequence=min(SEQUENCE, workload.sequence),
        batch=1,
        micro_batch=1,
        embedding_parameters=0,
    )
