"""Limits of the paths between processes, from the plan's network and transport.

All functions are pure. Sizes are at full scale.
"""

import math
from collections.abc import Hashable

import numpy as np

from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.tensor import message_bytes
from netbench.scenario.sharing import Queues
from netbench.systems import pipelines_meet


def ahead_bytes(plan: Plan, src: int, dst: int) -> float:
    """Return what either end of the path between two processes (device indices) buffers; inf inside
    a node, as in the simulator."""
    transport = plan.transport
    if plan.device_nodes[src] == plan.device_nodes[dst]:
        return math.inf
    growing_bytes = transport.window_factor * round_trip_bytes(plan, src, dst)
    return transport.fifo_bytes + transport.window_bytes + growing_bytes


def own_queue(plan: Plan, src: int, dst: int) -> Hashable | None:
    """Return what identifies the slowest queue between two processes, if `src` fills it alone; else
    None."""
    if plan.device_nodes.count(plan.device_nodes[src]) > 1:
        return None
    ends = (np.array([plan.device_nodes[each]]) for each in (src, dst))
    passed = [each for each in Queues(plan.network).between(*ends) if each.passes.all()]
    # Among equally slow ones, one that others fill too.
    slowest = min(passed, key=lambda each: (float(each.bps[0]), "src" in each.kind.by))
    return slowest.ids(np.array([0]))[0] if "src" in slowest.kind.by else None


def round_trip_bytes(plan: Plan, src: int, dst: int) -> float:
    """Return what the path between processes of two nodes carries in a round trip."""
    src_node, dst_node = plan.device_nodes[src], plan.device_nodes[dst]
    network, rate_bps = plan.network, _rate_bps(plan, src, dst)
    link, back = network.link(src_node, dst_node), network.link(dst_node, src_node)
    # inf * 0 is not a number: an unlimited or undelayed link holds no window.
    rtt_s = link.one_way_delay_s + back.one_way_delay_s
    return rate_bps / 8 * rtt_s if math.isfinite(rate_bps) else 0.0


def _rate_bps(plan: Plan, src: int, dst: int) -> float:
    """Return the rate of the network between processes of two nodes, bit/s."""
    src_node, dst_node = plan.device_nodes[src], plan.device_nodes[dst]
    return min(plan.network.link(src_node, dst_node).bandwidth_bps, plan.network.nic_bps[src_node])


def copy_s(plan: Plan, src: int, dst: int) -> float:
    """Return the seconds that either end needs to move a message between stages through sockets."""
    if plan.device_nodes[src] == plan.device_nodes[dst]:
        return 0.0
    return 8 * message_bytes(plan) / plan.transport.host_bps


def passage_s(plan: Plan, src: int, dst: int) -> float:
    """Return the seconds until a message between stages has crossed an idle path."""
    src_node, dst_node = plan.device_nodes[src], plan.device_nodes[dst]
    if src_node == dst_node:
        return 0.0
    delay_s = plan.network.link(src_node, dst_node).one_way_delay_s
    return 8 * message_bytes(plan) / _rate_bps(plan, src, dst) + delay_s


def pace_s(plan: Plan, src: int, dst: int) -> float:
    """Return the seconds that the channels of a collective take for a byte of a scaled message.

    0.0 where they are no slower than the network, or are not modelled: between devices that compute
    or share a node.
    """
    transport = plan.transport
    src_node, dst_node = plan.device_nodes[src], plan.device_nodes[dst]
    channels_bps = transport.channels * transport.host_bps
    if src_node == dst_node or plan.compute != VIRTUAL or _rate_bps(plan, src, dst) <= channels_bps:
        return 0.0
    return 8 * plan.scale / channels_bps


def socket_bytes_per_s(plan: Plan, src: int, dst: int) -> float:
    """Return the payload that one connection between stages carries, bytes/s of an emulation.

    inf where the network is no faster, where pipelines do not meet, so that its copies take the
    time already, or between devices that compute or share a node.
    """
    rate_bps = plan.transport.host_bps
    src_node, dst_node = plan.device_nodes[src], plan.device_nodes[dst]
    if src_node == dst_node or plan.compute != VIRTUAL or _rate_bps(plan, src, dst) <= rate_bps:
        return math.inf
    return rate_bps / 8 / plan.scale if pipelines_meet(plan) else math.inf


def path_bytes_per_s(plan: Plan, src: int, dst: int) -> float:
    """Return the payload that a message between processes of two nodes moves at, at most, bytes/s
    of an emulation."""
    return min(_rate_bps(plan, src, dst), plan.transport.host_bps) / 8 / plan.scale


def payload_bytes(plan: Plan, full_bytes: float, num_messages: int = 1) -> int:
    """Return the bytes to put into gloo for `full_bytes` sent as `num_messages`.

    At least one byte per message. Scaled down, a transfer is shortened by what gloo adds to it,
    which would otherwise weigh `scale` times as much as at full size.
    """
    if full_bytes <= 0:
        return 0
    overhead = num_messages * plan.transport.overhead_bytes if plan.scale > 1 else 0
    return max(num_messages, round(full_bytes / plan.scale) - overhead)
