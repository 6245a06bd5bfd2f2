"""Tensor parallelism in a plan: who shares a stage's layers, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence

from netbench.plan.model import Plan

LAYER_ALL_REDUCES = 2
"""All-reduces of the boundary tensor per layer and pass: behind attention and behind feed-forward.
Under sequence parallelism each is an all-gather and a reduce-scatter, with the same bytes. Sources:
Megatron-LM (Shoeybi et al. 2019), section 3; Korthikanti et al. 2022, section 4.2.2."""


def tensor_groups(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Devices that share layers, by tensor index: (pp * dp, tp), in the order of ranks."""
    tp = plan.layout.tp
    return tuple(plan.placement[i : i + tp] for i in range(0, len(plan.placement), tp))


def on_one_node(plan: Plan, devices: Sequence[int]) -> bool:
    """Whether what these devices exchange leaves no node, so that no network carries it."""
    return len({plan.device_nodes[device] for device in devices}) == 1


def num_passes(plan: Plan) -> int:
    """Passes of a micro-batch through a layer: forward, backward and, recomputed, forward again."""
    return 3 if plan.workload.recomputation else 2


def inside_all_reduce_s(plan: Plan) -> float:
    """One all-reduce of the boundary tensor by the tensor-parallel ranks of one node, seconds.

    A ring: every rank sends 2 (n - 1) / n of the tensor at `Transport.inside_node_bps`.
    """
    tp = plan.layout.tp
    return 2 * (tp - 1) / tp * 8 * plan.activation_bytes / plan.transport.inside_node_bps


def message_bytes(plan: Plan) -> float:
    """What a rank sends to its counterpart in the next stage, of one micro-batch at full size.

    Tensor-parallel ranks send a part each of the boundary tensor, and gather it where it arrives
    (Narayanan et al. 2021, section 4.1); under sequence parallelism they have no more than that.
    """
    return plan.activation_bytes / plan.layout.tp
