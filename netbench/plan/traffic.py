"""How many bytes a plan moves, and by what to divide them so that an emulation can carry them."""

from __future__ import annotations

from netbench.plan.model import Plan
from netbench.plan.tensor import (
    LAYER_ALL_REDUCES,
    message_bytes,
    num_passes,
    on_one_node,
    tensor_groups,
)
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

    First-order: every way to all-reduce sends 2 (n - 1) times the tensor in all. diloco sends
    nothing in most iterations; this is the mean.
    """
    tp, pp, dp = plan.layout.tp, plan.layout.pp, plan.layout.dp
    micro_batches = plan.num_rounds * plan.num_micro_batches
    gradients = tp * sum(stage.gradient_bytes for stage in plan.stages)
    if plan.data_parallel == "shard":
        return _sharded_bytes(plan)
    crossings = 2 * tp * (pp * plan.num_chunks - 1 if pp > 1 else 0)
    activations = dp * micro_batches * crossings * message_bytes(plan)
    shared = num_all_reduces(plan) * _all_reduce_bytes(plan)
    return activations + shared + 2.0 * (dp - 1) * gradients / max(1, plan.local_steps)


def _sharded_bytes(plan: Plan) -> float:
    """zero3 gathers once or, beyond the live limit, twice, and scatters gradients, every
    micro-step; where gradients are kept, the live parameters are gathered and gradients scattered
    once. Groups of ranks with a copy each all-reduce their gradients once."""
    parameters, steps = model_parameters(plan.workload), plan.num_micro_batches
    once = 1 if plan.accumulation == "keep" else steps
    regathered = max(0, parameters - plan.live_parameters) / parameters
    passes = once * (1 - regathered) + 2 * steps * regathered + once
    num_copies = plan.layout.dp // (plan.shard_ranks or plan.layout.dp)
    inside = (plan.layout.dp - num_copies) * passes
    across = 2 * (num_copies - 1)
    return float(plan.stages[0].gradient_bytes * (inside + across))


def network_bytes(plan: Plan) -> float:
    """`iteration_bytes` without what tensor-parallel ranks of one node all-reduce: an emulation
    sleeps for that."""
    inside = num_all_reduces(plan) - num_network_all_reduces(plan)
    return iteration_bytes(plan) - inside * _all_reduce_bytes(plan)


def num_all_reduces(plan: Plan) -> int:
    """Of boundary tensors by all tensor-parallel groups, in an iteration."""
    return sum(_num_all_reduces(plan, group) for group in range(plan.layout.pp * plan.layout.dp))


def num_network_all_reduces(plan: Plan) -> int:
    """Those of groups whose ranks are on several nodes."""
    return sum(
        _num_all_reduces(plan, group)
        for group, devices in enumerate(tensor_groups(plan))
        if not on_one_node(plan, devices)
    )


def _num_all_reduces(plan: Plan, group: int) -> int:
    if plan.layout.tp == 1:
        return 0
    layers = plan.stages[group // plan.layout.dp].num_layers
    micro_batches = plan.num_rounds * plan.num_micro_batches
    return micro_batches * layers * num_passes(plan) * LAYER_ALL_REDUCES


def _all_reduce_bytes(plan: Plan) -> float:
    """What the ranks of a tensor-parallel group send to all-reduce a boundary tensor."""
    return 2.0 * (plan.layout.tp - 1) * plan.activation_bytes


def rank_bytes(plan: Plan) -> int:
    """The largest tensors that one rank touches at full size: gradients, where there are replicas
    to sum them with; under zero3 those of the whole model, beside them the parameters it has
    gathered, and the gradients it keeps whole."""
    if plan.layout.dp == 1:
        return 0
    largest = max(stage.gradient_bytes for stage in plan.stages)
    if plan.data_parallel == "shard":
        return 3 * largest if plan.accumulation == "keep" else 2 * largest
    return largest


def choose_scale(plan: Plan) -> float:
    """The factor to divide bytes and bandwidths by: 1 where ranks send at most 2 GB and a
    rank's tensors fit a guest, else the smallest of 10, 100, 1000 that brings an iteration to at
    most 1 GB, or 1000."""
    # diloco sends what belongs to all its local steps at once.
    total, held = network_bytes(plan) * max(1, plan.local_steps), rank_bytes(plan)
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
