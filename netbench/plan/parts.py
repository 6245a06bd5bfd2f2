"""Emulations of long iterations in part.

An iteration repeats a period: a round of GPipe, a micro-batch of another pipeline, a micro-step of
zero3. Filling and draining pipelines, synchronising and updating take as long whatever the number
of periods. Two short iterations, of F and of M periods, then give the time of one of N periods:

    t(N) = t(M) + (N - M) x (t(M) - t(F)) / (M - F)

Plans that differ in nothing but the number of periods, as for several batches, share the two.
`effort.in_parts` chooses which plans run so.
"""

import dataclasses

from netbench.plan.model import Plan


def num_periods(plan: Plan) -> int:
    """Return how many periods an iteration has."""
    return plan.num_rounds if plan.num_rounds > 1 else plan.num_micro_batches


def shortened(plan: Plan) -> tuple[Plan, ...]:
    """Return the plans of the two iterations that run for one of `plan`, or `plan` itself.

    They are equal for plans that share them.
    """
    if not plan.parts:
        return (plan,)
    batch = plan.workload.batch // num_periods(plan)
    return tuple(_of_length(plan, periods, periods * batch) for periods in plan.parts)


def _of_length(plan: Plan, periods: int, batch: int) -> Plan:
    workload = dataclasses.replace(plan.workload, batch=batch)
    if plan.num_rounds > 1:
        return dataclasses.replace(plan, workload=workload, num_rounds=periods, parts=())
    return dataclasses.replace(plan, workload=workload, num_micro_batches=periods, parts=())


def extend(plan: Plan, short: float, long: float) -> float:
    """Return what an iteration of `plan` takes or sends, from those of its two parts."""
    fewer, more = plan.parts
    return long + (num_periods(plan) - more) / (more - fewer) * (long - short)
