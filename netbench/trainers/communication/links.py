"""Limits of the paths between processes, from the plan's network and transport.

All functions are pure. Sizes are at full scale.
"""

import math

from netbench.plan.model import Plan
from netbench.plan.tensor import message_bytes


def ahead_bytes(plan: Plan, src: int, dst: int) -> float:
    """Return what either end of the path between two processes (device indices) buffers."""
    transport = plan.transport
    src_node, dst_node = plan.device_nodes[src], plan.device_nodes[dst]
    if src_node == dst_node:
        return transport.fifo_bytes
    network = plan.network
    link, back = network.link(src_node, dst_node), network.link(dst_node, src_node)
    rate_bps = min(link.bandwidth_bps, network.nic_bps[src_node])
    rtt_s = link.one_way_delay_s + back.one_way_delay_s
    # inf * 0 is not a number: an unlimited or undelayed link holds no window.
    in_flight_bytes = rate_bps / 8 * rtt_s if math.isfinite(rate_bps) else 0.0
    window_bytes = transport.window_bytes + transport.window_factor * in_flight_bytes
    return transport.fifo_bytes + window_bytes


def copy_s(plan: Plan, src: int, dst: int) -> float:
    """Return the seconds that either end needs to move a message between stages through sockets."""
    if plan.device_nodes[src] == plan.device_nodes[dst]:
        return 0.0
    return 8 * message_bytes(plan) / plan.transport.host_bps


def payload_bytes(plan: Plan, full_bytes: float, num_messages: int = 1) -> int:
    """Return the bytes to put into gloo for `full_bytes` sent as `num_messages`.

    At least one byte per message. Scaled down, a transfer is shortened by what gloo adds to it,
    which would otherwise weigh `scale` times as much as at full size.
    """
    if full_bytes <= 0:
        return 0
    overhead = num_messages * plan.transport.overhead_bytes if plan.scale > 1 else 0
    return max(num_messages, round(full_bytes / plan.scale) - overhead)
