"""How many bytes a plan moves, and by what to divide them so that an emulation can carry them."""

from __future__ import annotations

from netbench.plan.model import Plan
from netbench.workload.costs import model_parameters

FULL_SIZE_BYTES = 2e9
"""An iteration that moves at most this many bytes runs at scale 1."""

FULL_SIZE_RANK_BYTES = 60e6
"""A rank in a guest holds tensors up to this size several times over. User-Mode Linux maps a
process's pages one by one, the host allows 65,530 mappings, and torch alone takes 31,000."""

SCALED_BYTES = 1e9
"""What an iteration should move at most once scaled: under virtual time the guest kernel
carries about 1.8 simulated Gbit per second of wall time (measured)."""

SCALES = (10.0, 100.0, 1000.0)
"""Beyond 1000 an 8 MiB activation would no longer fill one jumbo frame."""


def iteration_bytes(plan: Plan) -> float:
    """Bytes that all ranks together send in one iteration at full size, loopback included.

    First-order: every way to all-reduce sends 2 (n - 1) times the tensor in all; zero3 gathers once
    or, beyond the live limit, twice, and scatters gradients, every micro-step. Tensor parallelism
    all-reduces a boundary tensor twice per layer and pass (Megatron-LM, Shoeybi et al. 2019).
    """
    tp, pp, dp = plan.layout.tp, plan.layout.pp, plan.layout.dp
    micro_batches = plan.num_rounds * plan.num_micro_batches
    gradients = tp * sum(stage.gradient_bytes for stage in plan.stages)
    if plan.data_parallel == "shard":
        parameters = model_parameters(plan.workload)
        regathered = max(0, parameters - plan.live_parameters) / parameters
        return micro_batches * (dp - 1) * gradients * (2 + regathered)
    crossings = 2 * tp * (pp * plan.num_chunks - 1 if pp > 1 else 0)
    passes = 3 if plan.workload.recomputation else 2
    all_reduces = 2 * passes * plan.workload.layers * 2 * (tp - 1)
    activations = dp * micro_batches * plan.activation_bytes * (crossings + all_reduces)
    return activations + 2.0 * (dp - 1) * gradients


def rank_bytes(plan: Plan) -> int:
    """The largest tensors that one rank holds at full size: gradients, or a gathered model."""
    return max(stage.gradient_bytes for stage in plan.stages)


def choose_scale(plan: Plan) -> float:
    """The factor to divide bytes and bandwidths by: 1 where an iteration moves at most 2 GB and a
    rank's tensors fit a guest, else the smallest of 10, 100, 1000 that brings an iteration to at
    most 1 GB, or 1000."""
    total, held = iteration_bytes(plan), rank_bytes(plan)
    if total <= FULL_SIZE_BYTES and held <= FULL_SIZE_RANK_BYTES:
        return 1.0
    return next(
        (
            scale
            for scale in SCALES
            if total / scale <= SCALED_BYTES and held / scale <= FULL_SIZE_RANK_BYTES
        ),
        SCALES[-1],
    )
