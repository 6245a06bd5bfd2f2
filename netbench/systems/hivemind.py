"""Hivemind: peers accumulate gradients, average them by a butterfly, and step, all alike.

Source: the Hivemind library (learning@home), as "Training Transformers Together" (Borzunov et al.
2022) ran it. What is taken from it, and what is not: `trainers.systems.hivemind`.
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

WIRE_DTYPE = "fp16"
"""Gradients are sent in this dtype."""


class Hivemind(System):
    """The optimizer is on the CPU, with a copy of the parameters of its own."""

    name = "hivemind"
    grammar = "hivemind[-sync]"
    pattern = re.compile(r"hivemind(?P<sync>-sync)?")
    examples = ("hivemind", "hivemind-sync")
    trainer = "netbench.trainers.systems.hivemind:HivemindRank"
    updates_on_host = True
    elastic = True

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(
            system=self.name,
            data_parallel="butterfly",
            pipeline=1,
            staleness=0 if found["sync"] else 1,
            compression=WIRE_DTYPE,
        )

    def gradient_dtype(self, dtype: str) -> str:
        return WIRE_DTYPE

    def master_weights(self, compute: str) -> str:
        return ""

    def segments(self, plan: Plan) -> tuple[Segment, ...]:
        """Micro-batches, averaging, update. With staleness, micro-batches beside the averaging and
        update of the iteration before."""
        (stage,), builder = plan.stages, SegmentBuilder()
        computed = add_micro_batches(builder, plan)
        call = Call(
            op="butterfly", size_bytes=float(stage.gradient_bytes), group_size=plan.layout.num_ranks
        )
        after = () if plan.staleness else (computed,)
        builder.add("host", COLLECTIVE, calls=[call], after=after)
        builder.add("host", OPTIMIZER, stage.optimizer_s)
        return (builder.build("iteration"),)
