"""Let a GPU load what layers need, before any rank waits for another: `rehearse`."""

import dataclasses

from netbench.plan.model import Layout, Plan
from netbench.trainers.layers.stage import StageRole, build_stage, gradient_dtype


def rehearse(plan: Plan) -> None:
    """Run a model of one layer of the plan's sizes, forward, backward and update, and discard it.

    At their first use, CUDA's libraries load kernels and reserve memory, for which the device may
    have to be idle. It never is while it waits for a message whose sender waits for this rank.
    """
    plan = dataclasses.replace(
        plan,
        workload=dataclasses.replace(plan.workload, layers=1),
        layout=Layout(),
        schedule="1f1b",
        num_chunks=1,
        sequence_parallel=False,
        stages=(dataclasses.replace(plan.stages[0], num_layers=1),),
    )
    role = StageRole(index=0, replica=0, gradient_dtype=gradient_dtype(plan), gradient_messages=1)
    stage = build_stage(plan, role)
    stage.forward(0, None)
    stage.backward(0, None)
    stage.update()
