"""What the plan's network allows from one process to another. Pure; sizes at full scale."""

from __future__ import annotations

import math

from netbench.plan import Plan
from netbench.plan.tensor import message_bytes

TCP_HEADER_BYTES = 52
"""IPv4 20 + TCP 20 + timestamps 12: what an MTU loses to headers."""

ETHERNET_HEADER_BYTES = 14
"""What a frame on the wire has beside its MTU, as the shaper counts it."""

GLOO_PREAMBLE_BYTES = 48
"""gloo writes one before a message and one to announce it (`Pair::sendNotifySendReady`)."""

GLOO_WIRE_BYTES = 2 * GLOO_PREAMBLE_BYTES + TCP_HEADER_BYTES + ETHERNET_HEADER_BYTES
"""Bytes a gloo message puts on the wire beside its data: preambles and the announcement's frame."""


def ahead_bytes(plan: Plan, src: int, dst: int) -> float:
    """What either end of the path between two processes (device indices) buffers, full size."""
    src_node, dst_node = plan.device_nodes[src], plan.device_nodes[dst]
    if src_node == dst_node:
        return plan.transport.fifo_bytes
    network = plan.network
    link, back = network.link(src_node, dst_node), network.link(dst_node, src_node)
    rate_bps = min(link.bandwidth_bps, network.nic_bps[src_node])
    rtt_s = link.one_way_delay_s + back.one_way_delay_s
    # inf * 0 is not a number: an unlimited or undelayed link holds no window.
    window_bytes = rate_bps / 8 * rtt_s if math.isfinite(rate_bps) else 0.0
    return plan.transport.fifo_bytes + plan.transport.window_factor * window_bytes


def copy_s(plan: Plan, src: int, dst: int) -> float:
    """What either end needs to move a message between stages through its sockets, seconds."""
    if plan.device_nodes[src] == plan.device_nodes[dst]:
        return 0.0
    return 8 * message_bytes(plan) / plan.transport.host_bps


def payload_bytes(full_bytes: float, scale: float, num_messages: int = 1) -> int:
    """Bytes to put into gloo for `full_bytes` sent as `num_messages`, at least one per message.

    Scaled down, a transfer is shortened by what gloo adds, which would otherwise weigh `scale`
    times as much as it does at full size.
    """
    if full_bytes <= 0:
        return 0
    overhead = num_messages * GLOO_WIRE_BYTES if scale > 1 else 0
    return max(num_messages, round(full_bytes / scale) - overhead)
