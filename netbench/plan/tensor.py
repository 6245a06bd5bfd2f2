"""Tensor parallelism in a plan: the groups of ranks that share layers, and their all-reduces."""

from collections.abc import Sequence

from netbench.plan.model import Plan

LAYER_ALL_REDUCES = 2
"""All-reduces of the boundary tensor per layer and pass: after attention and after feed-forward.
Under sequence parallelism each is an all-gather and a reduce-scatter, with the same bytes. Sources:
Megatron-LM (Shoeybi et al. 2019), section 3; Korthikanti et al. 2022, section 4.2.2."""


def tensor_groups(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each group that shares layers: (pp * dp, tp), in the order of ranks."""
    tp = plan.layout.tp
    return tuple(plan.placement[i : i + tp] for i in range(0, len(plan.placement), tp))


def on_one_node(plan: Plan, devices: Sequence[int]) -> bool:
    """Return True if all devices are on one node, so that no network carries their messages."""
    return len({plan.device_nodes[device] for device in devices}) == 1


def num_passes(plan: Plan) -> int:
    """Return the passes of a micro-batch through a layer; a recomputed forward pass is one more."""
    return 3 if plan.workload.recomputation else 2


def num_all_reduces(plan: Plan, num_layers: int) -> int:
    """All-reduces of boundary tensors by one tensor-parallel group of `num_layers` layers, in an
    iteration."""
    if plan.layout.tp == 1:
        return 0
    micro_batches = plan.num_rounds * plan.num_micro_batches
    return micro_batches * num_layers * num_passes(plan) * LAYER_ALL_REDUCES


def all_reduce_bytes(plan: Plan) -> float:
    """Bytes that the ranks of a tensor-parallel group send to all-reduce a boundary tensor."""
    return 2.0 * (plan.layout.tp - 1) * plan.activation_bytes


def num_all_reduce_messages(plan: Plan) -> int:
    """Return the messages into which a ring between nodes cuts the boundary tensor: at least one
    per rank."""
    return max(plan.transport.num_slices(plan.activation_bytes), plan.layout.tp)


def inside_all_reduce_s(plan: Plan) -> float:
    """Return the seconds of one all-reduce of the boundary tensor by ranks of one node.

    A ring: every rank sends 2 (n - 1) / n of the tensor at `Transport.inside_node_bps`.
    """
    tp = plan.layout.tp
    return 2 * (tp - 1) / tp * 8 * plan.activation_bytes / plan.transport.inside_node_bps


def message_bytes(plan: Plan) -> float:
    """Return the bytes that a rank sends to the next stage for one micro-batch, at full size.

    Each tensor-parallel rank sends a part of the boundary tensor, and the receivers gather it
    (Narayanan et al. 2021, section 4.1). Under sequence parallelism a rank has only its part.
    """
    return plan.activation_bytes / plan.layout.tp
