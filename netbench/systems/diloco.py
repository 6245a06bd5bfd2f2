"""DiLoCo: every rank trains by itself, and periodically all take one outer step together.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(2023). What ranks average are differences of parameters, in fp32 or more. The outer step's state is
on the CPU.
"""

import re

from netbench.plan.model import Plan
from netbench.systems.base import System, Variant
from netbench.systems.iteration import (
    COLLECTIVE,
    OPTIMIZER,
    Call,
    Segment,
    SegmentBuilder,
    add_micro_batches,
)
from netbench.workload.costs import at_least_fp32

LOCAL_STEPS = 500
"""Inner steps where the name does not say. Source: Douillard et al. 2023, section 3."""


class Diloco(System):
    """An iteration is one inner step; every `local_steps`-th has an outer step too."""

    name = "diloco"
    grammar = "diloco[-h<H>]"
    pattern = re.compile(r"diloco(-h(?P<steps>[1-9]\d*))?", re.ASCII)
    examples = ("diloco",)
    trainer = "netbench.trainers.systems.diloco:DilocoRank"
    optimizer = "adamw"
    survives_churn = True

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(
            system=self.name,
            data_parallel="ring",
            pipeline=1,
            local_steps=int(found["steps"] or LOCAL_STEPS),
        )

    def gradient_dtype(self, dtype: str) -> str:
        return at_least_fp32(dtype)

    def segments(self, plan: Plan) -> tuple[Segment, ...]:
        (stage,), inner, outer = plan.stages, SegmentBuilder(), SegmentBuilder()
        add_micro_batches(inner, plan)
        inner.add("device", OPTIMIZER, stage.optimizer_s)
        call = Call(
            op="all-reduce",
            size_bytes=float(stage.gradient_bytes),
            group_size=plan.layout.num_ranks,
        )
        outer.add("host", COLLECTIVE, calls=[call])
        return inner.build("inner step"), outer.build("outer step", 1.0 / plan.local_steps)
