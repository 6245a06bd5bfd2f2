"""Megatron-LM: synchronous pipelines of tensor-parallel groups, and a ring that sums gradients."""

import dataclasses
import re
from collections.abc import Iterator

from netbench.plan.model import Layout, Plan
from netbench.systems.base import System, Variant
from netbench.workload.costs import DTYPE_BYTES
from netbench.workload.memory import MASTER_BYTES, StateBytes

MAX_CHUNKS = 4
"""Model chunks per rank that a search of layouts tries at most: each one more sends every
micro-batch round all stages once more."""


class Megatron(System):
    """Without degrees the depth is the scenario's. Tensor parallelism alone is one stage."""

    name = "megatron"
    grammar = (
        "megatron[-p<P>|-[p<P>]t<T>[-sp]][-interleaved<V>|-zero-bubble][-random[-nodes]] (V from 2)"
    )
    pattern = re.compile(
        r"megatron"
        r"(-(?=[pt])(p(?P<pipeline>[1-9]\d*))?(t(?P<tensor>[1-9]\d*)(?P<sequence>-sp)?)?)?"
        r"(-interleaved(?P<chunks>[2-9]|[1-9]\d+)|(?P<zero_bubble>-zero-bubble))?"
        r"(-(?P<placement>random|random-nodes))?",
        re.ASCII,
    )
    examples = (
        "megatron",
        "megatron-random",
        "megatron-p8",
        "megatron-p8-random",
        "megatron-t8",
        "megatron-p2t4",
        "megatron-p4t2",
    )
    trainer = "netbench.trainers.systems.megatron:MegatronRank"
    blocking = True
    awaits_arrival = True  # it synchronises the device after every exchange
    sums_loss = True  # for its log: average_losses_across_data_parallel_group
    repairable = True

    def variant(self, found: re.Match[str]) -> Variant:
        pipeline, tensor, num_chunks = found["pipeline"], found["tensor"], found["chunks"]
        interleaved, zero_bubble = num_chunks is not None, found["zero_bubble"] is not None
        return Variant(
            system=self.name,
            scheduler=found["placement"] or "identity",
            schedule="interleaved" if interleaved else "zero-bubble" if zero_bubble else "1f1b",
            data_parallel="ring",
            pipeline=int(pipeline) if pipeline else 1 if tensor else None,
            tensor=int(tensor or 1),
            num_chunks=int(num_chunks or 1),
            sequence_parallel=found["sequence"] is not None,
        )

    def pipeline_layouts(self, layout: Layout, layers: int) -> Iterator[str]:
        pp, tp = layout.pp, layout.tp
        chunks = [v for v in range(2, MAX_CHUNKS + 1) if pp > 1 and layers % (pp * v) == 0]
        schedules = ["", *(["-zero-bubble"] if pp > 1 else [])]
        schedules += [f"-interleaved{count}" for count in chunks]
        for sequence in ("", "-sp") if tp > 1 else ("",):
            for schedule in schedules:
                yield f"megatron-p{pp}{f't{tp}' if tp > 1 else ''}{sequence}{schedule}"

    def gradient_dtype(self, dtype: str) -> str:
        """The model's, except for bf16: then Megatron-LM accumulates and sums in fp32.

        Source: Megatron-LM, `megatron/arguments.py`, --accumulate-allreduce-grads-in-fp32.
        """
        return "fp32" if dtype == "bf16" else dtype

    def state_bytes(self, dtype: str) -> StateBytes:
        """20 bytes per fp16 parameter and 18 per bf16 parameter (Megatron-LM, documentation of the
        distributed optimizer): gradients in fp16 have a copy in fp32 for the update."""
        states = super().state_bytes(dtype)
        sent = DTYPE_BYTES[self.gradient_dtype(dtype)]
        copied = MASTER_BYTES if sent < MASTER_BYTES else 0
        return dataclasses.replace(states, gradient=sent, optimizer=states.optimizer + copied)

    def memory_remedies(self, plan: Plan) -> list[str]:
        return ["more stages or tensor-parallel ranks (-p<P>t<T>)"]
