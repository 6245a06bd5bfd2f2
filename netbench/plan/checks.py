"""What a plan is asked for and cannot be, whatever the network: one message each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from netbench.errors import PlanError, nearest
from netbench.placement import NUM_SEEDS
from netbench.plan.model import COMPUTE, VIRTUAL, Plan
from netbench.plan.variants import Variant, find_variant
from netbench.scenario.model import Workload
from netbench.units import counted
from netbench.workload.tokens import check_token_file, vocabulary_size


def check_numbers(
    layers: int, batch: int, micro_batch: int, iterations: int, warmup_iterations: int, seed: int
) -> None:
    """Raises PlanError for what is no number of its kind, whatever the scenario and variant."""
    sizes = {"layers": layers, "batch": batch, "micro_batch": micro_batch, "iterations": iterations}
    for name, value in sizes.items():
        if value <= 0:
            raise PlanError(f"{name} is {value}; expected a positive whole number")
    if not 0 <= warmup_iterations < iterations:
        raise PlanError(
            f"{warmup_iterations} of {iterations} iterations are warm-up; "
            "expected at least one iteration that is not"
        )
    if not 0 <= seed < NUM_SEEDS:
        raise PlanError(f"seed is {seed}; expected a whole number from 0 to {NUM_SEEDS - 1}")


def check_compute(
    chosen: Variant, workload: Workload, compute: str, token_file: str, scale: float | None
) -> None:
    """Raises PlanError for layers that cannot compute so; compute, token_file: as in `Plan`."""
    if compute not in COMPUTE:
        raise PlanError(f'layers cannot compute on "{compute}"; {nearest(compute, COMPUTE)}')
    if compute == "cuda" and chosen.system == "zero3":
        raise PlanError(
            "zero3 cannot compute on cuda: its collectives move tensors of the CPU; choose cpu"
        )
    if compute != VIRTUAL and workload.heads and workload.hidden % workload.heads:
        raise PlanError(
            f"hidden is {workload.hidden}, which does not divide among {workload.heads} heads, so "
            "layers cannot compute; choose a multiple, or let them be virtual"
        )
    if compute != VIRTUAL and not workload.model:
        vocabulary_size(workload)
    if compute != VIRTUAL and scale not in (None, 1.0):
        raise PlanError(
            f"scale is {scale:g}, but layers that compute (on {compute}) send all of their bytes; "
            "leave the scale out, or let them be virtual"
        )
    if token_file and compute == VIRTUAL:
        raise PlanError("virtual layers read no tokens; let them compute, or leave the file out")
    if token_file and workload.model:
        raise PlanError(
            f"{workload.model} is trained on synthetic data; leave out the token file {token_file}"
        )
    if scale is not None and not 0 < scale < math.inf:
        raise PlanError(f"scale is {scale:g}; expected a positive number, e.g. 1000")


def check_data(plan: Plan) -> None:
    """Raises PlanError unless there is a token file, where there shall be one, and the model knows
    all tokens that the plan reads."""
    if plan.token_file:
        num_sequences = plan.iterations * plan.workload.batch
        check_token_file(Path(plan.token_file), plan.workload, num_sequences)


def check_tensor(workload: Workload, chosen: Variant) -> None:
    """Raises PlanError unless every tensor-parallel rank has whole attention heads and columns, and
    with sequence parallelism as many tokens."""
    tensor = chosen.tensor
    if chosen.sequence_parallel and tensor == 1:
        raise PlanError("sequence parallelism needs tensor-parallel ranks: t<T>-sp with T from 2")
    if chosen.sequence_parallel and workload.sequence % tensor:
        raise PlanError(
            f"sequence is {workload.sequence}, which does not divide among {tensor} ranks that are "
            "sequence parallel; choose t<T> with T a divisor, or leave out -sp"
        )
    for name, value in (("heads", workload.heads), ("hidden", workload.hidden)):
        if value % tensor:
            raise PlanError(
                f"{name} is {value}, which does not divide among {tensor} tensor-parallel ranks; "
                f"choose t<T> with T a divisor of {math.gcd(workload.heads, workload.hidden)}"
            )


def check_stage_layers(stage_layers: Sequence[int], depth: int, layers: int) -> None:
    """Raises PlanError unless there are none, or as many as stages, which come to `layers`."""
    if not stage_layers:
        return
    if len(stage_layers) != depth or sum(stage_layers) != layers or min(stage_layers) < 1:
        raise PlanError(
            f"stages of {', '.join(map(str, stage_layers))} layers: expected "
            f"{counted(depth, 'stage')}, each of a layer at least, that come to {layers}"
        )


def check_chunks(
    variant: str, depth: int, layers: int, stage_layers: Sequence[int], micro_batches: int
) -> None:
    """Raises PlanError where the interleaved schedule asks for more. Source: Narayanan et al. 2021,
    section 2.2."""
    chunks = find_variant(variant).num_chunks
    if chunks == 1:
        return
    if depth == 1:
        raise PlanError(
            f"{variant} has one pipeline stage; interleaving needs at least 2: add -p<P>"
        )
    if any(count % chunks for count in stage_layers):
        raise PlanError(
            f"stages of {', '.join(map(str, stage_layers))} layers (`pipeline_layers`) do not all "
            f"divide into the {chunks} chunks of {variant}; choose multiples of {chunks}"
        )
    if not stage_layers and layers % (depth * chunks):
        raise PlanError(
            f"{counted(layers, 'layer')} cannot be divided into {depth} stages x {chunks} chunks "
            f"of {variant}; choose a multiple of {depth * chunks}, or fewer chunks"
        )
    if micro_batches % depth:
        raise PlanError(
            f"{variant} interleaves, so it needs a multiple of {depth} micro-batches per pipeline, "
            f"found {micro_batches}; choose another batch or micro-batch"
        )
