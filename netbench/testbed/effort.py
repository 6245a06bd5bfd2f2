"""Host time of emulations, and iterations that are emulated in part.

An iteration repeats a period: a round of GPipe, a micro-batch of another pipeline, a micro-step of
zero3. Filling and draining pipelines, synchronising and updating take as long whatever the number
of periods. Two short iterations, of F and of M periods, then give the time of one of N periods:

    t(N) = t(M) + (N - M) x (t(M) - t(F)) / (M - F)

Of a pipeline, t is the end of the passes; what follows is that of the longer iteration.
Plans that differ in nothing but the number of periods, as for several batches, share the two.

Where zero3 gathers layers one by one (`Plan.layer_parts`), layers are the periods: of one
micro-step, which is then repeated. The update follows once.
"""

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from netbench.plan.experiment import Experiment
from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.scale import network_bytes
from netbench.systems import has_random_passes, system_of
from netbench.systems.base import num_crossings
from netbench.systems.sharded import Sharded, has_equal_steps

MESSAGE_S, CROSSING_S = 0.4e-3, 2e-3
"""Least host time in a guest of a message of a collective, and of one between stages, seconds. In
four pieces, those of case 3's dtfm-scheduled take 2.7 ms on an AMD EPYC."""

GUEST_BPS, SEGMENTS_BPS = 1.8e9, 0.7e9
"""Simulated bits that a guest carries in a second of host time: with segments as large as on the
machines, and with segments divided by 32 (measured)."""

LONG_S = 10.0
"""Host time of an iteration from which it is emulated in part, seconds."""

ROUNDS = (1, 2)
"""Rounds of GPipe that run. All ranks meet at a barrier in each."""

ROUND_DEPTHS = (1, 3)
"""Micro-batches of a round that run, in multiples of the stages, where there are no more rounds."""

STEPS = (1, 2)
"""Micro-steps of sharded data parallelism that run, if all are equal, and micro-batches of a single
stage, which nothing fills or drains."""

LAYERS, MAX_LAYERS = (8, 16), 24
"""Layers of zero3 beyond its live limit that run, where each is gathered alone, and the number up
to which all of them do. Then the shorter part, one layer, adds nothing to the result. It takes
several layers until the ranks of a ring follow one another steadily: from 1 and 2 layers, case 4's
time (L24) was 1.1% shorter than from 2 and 4."""

STEPS_WITH_ENDS = (2, 3)
"""Micro-steps that run if the first and the last differ from others."""

DEPTHS = (4, 8)
"""Micro-batches of other pipelines that run, in multiples of the stages."""

RANDOM_DEPTHS, RANDOM_STAGES = (4, 16), 8
"""The same where pipelines meet, in multiples of at least this many stages. Runs then differ, and
an extension would multiply that."""


AnyPlan = TypeVar("AnyPlan", bound=Experiment)


def emulation_s(plan: Plan) -> float:
    """Return the host time that one iteration of virtual layers takes in a guest, seconds."""
    system = system_of(plan)
    if isinstance(system, Sharded):
        messages_s = system.num_messages(plan) * MESSAGE_S
    else:
        messages_s = num_crossings(plan) * CROSSING_S + _num_tensor_messages(plan) * MESSAGE_S
    bps = SEGMENTS_BPS if plan.network.tcp.acts and plan.scale > 1 else GUEST_BPS
    return messages_s + network_bytes(plan) * 8 / plan.scale / bps


def _num_tensor_messages(plan: Plan) -> int:
    """Return the least messages of the all-reduces of tensor-parallel ranks between nodes."""
    tp = plan.layout.tp
    return system_of(plan).num_network_all_reduces(plan) * 2 * (tp - 1) * tp


def in_parts(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return the plans, those with long iterations in part if that is fewer periods in all.

    A plan that shares the parts of others runs so too, also if it is short.
    """
    plans = tuple(plans)
    divided = [_in_two(plan) for plan in plans]
    alone = {
        family[0]
        for family in families(plan for plan in divided if plan.parts)
        if all(plan.repeats_rounds and plan.num_rounds <= ROUNDS[1] for plan in family)
    }
    divided = [
        dataclasses.replace(plan, parts=_in_rounds(plan)) if plan in alone else plan
        for plan in divided
    ]
    whole = {
        plan
        for family in families(plan for plan in divided if plan.parts)
        if sum(family[0].parts) >= sum(map(_num_periods, family))
        or max(map(emulation_s, family)) < LONG_S
        for plan in family
    }
    return tuple(
        original if plan in whole else plan for original, plan in zip(plans, divided, strict=True)
    )


def warm_part(plan: Plan) -> Plan | None:
    """Return the part that a session first runs unrecorded, for TCP's windows to settle.

    None if TCP does not act, or the plan runs whole. It is the longer part if a round trip exceeds
    the least retransmission timeout: windows then take dozens of micro-batches to settle, and would
    be smaller in the longer part than in the shorter one, which follows it.
    """
    tcp, parts = plan.network.tcp, plan.shortened()
    if not tcp.acts or len(parts) == 1:
        return None
    delays_s = np.array([[link.one_way_delay_s for link in row] for row in plan.network.links])
    is_far = (delays_s + delays_s.T).max() > tcp.min_rto_s
    return parts[-1] if is_far else parts[0]


def families(plans: Iterable[AnyPlan]) -> list[list[AnyPlan]]:
    """Return the plans, those that run as one together: their parts are equal."""
    found: dict[Experiment, list[AnyPlan]] = {}
    for plan in plans:
        shared = plan.shortened()[0] if isinstance(plan, Plan) else plan
        found.setdefault(shared, []).append(plan)
    return [*found.values()]


def extend(plan: Plan, short: float, long: float, once: float = 0.0) -> float:
    """Return what an iteration of `plan` takes or sends, from those of its two parts. once: of it,
    what does not belong to a micro-step, if the parts are layers of one."""
    fewer, more = plan.parts
    extended = long + (plan.num_periods - more) / (more - fewer) * (long - short)
    return once + plan.num_micro_batches * (extended - once) if plan.layer_parts else extended


def _num_periods(plan: Plan) -> int:
    """Return how often an iteration of a plan repeats what its parts count."""
    return plan.num_periods * (plan.num_micro_batches if plan.layer_parts else 1)


def _in_two(plan: Plan) -> Plan:
    """Return a plan with `parts`; without if it is shorter than the shorter part, or repeats
    nothing."""
    if plan.compute != VIRTUAL or plan.churn:
        return plan
    if plan.has_pipelines:
        parts = ROUNDS if plan.num_rounds > 1 else _in_micro_batches(plan)
    elif plan.units:
        plan = system_of(plan).by_layers(plan) if len(plan.units) > 2 else plan
        parts = STEPS if has_equal_steps(plan) else STEPS_WITH_ENDS
        if plan.layer_parts:
            parts = LAYERS if plan.num_periods > MAX_LAYERS else (1, plan.num_periods)
    else:
        return plan
    return dataclasses.replace(plan, parts=parts) if _num_periods(plan) >= parts[0] else plan


def _in_micro_batches(plan: Plan) -> tuple[int, ...]:
    """Return `Plan.parts` for the micro-batches of a pipeline without rounds."""
    if plan.depth == 1:
        return STEPS
    if has_random_passes(plan):
        return tuple(max(plan.depth, RANDOM_STAGES) * times for times in RANDOM_DEPTHS)
    return tuple(plan.depth * times for times in DEPTHS)


def _in_rounds(plan: Plan) -> tuple[int, ...]:
    """Return `Plan.parts` for micro-batches in each round; as they are if a round has fewer."""
    fewer, more = (plan.depth * times for times in ROUND_DEPTHS)
    return (fewer, more) if plan.num_micro_batches > more else plan.parts
