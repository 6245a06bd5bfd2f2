"""The CUDA device of a rank, and the environment that makes NCCL use the shaped network. Pure."""

import math
from collections.abc import Sequence
from typing import Any

from netbench.plan.experiment import Experiment
from netbench.plan.model import Plan
from netbench.scenario.model import Link, Network
from netbench.testbed.interface import NodeAddress

CUDA, NCCL = "cuda", "nccl"

MAX_CONNECTIONS = 32
"""`CUDA_DEVICE_MAX_CONNECTIONS`: hardware queues of a process, at most 32. With the default of 8 a
kernel that waits for a message holds up those of other streams that share its queue."""

EAGER = "EAGER"
"""`CUDA_MODULE_LOADING`: kernels are loaded at the start. By default each is loaded at its first
launch, which may wait until the device is idle: two ranks whose kernels wait for each other's
messages would then wait for ever. Source: CUDA Programming Guide, "Lazy Loading", on concurrent
execution."""


def device_order(
    plan: Experiment, nodes: Sequence[NodeAddress], rank: int
) -> dict[str, Any] | None:
    """Return `device` of a rank's order to connect (`trainers.protocol`).

    None for layers that do not compute on CUDA devices.
    """
    if not isinstance(plan, Plan) or plan.compute != CUDA:
        return None
    by_rank = [nodes[node] for node in plan.device_nodes]
    same_host = [r for r, node in enumerate(by_rank) if node.kernel == by_rank[rank].kernel]
    return {
        "index": same_host.index(rank),
        "nccl": plan.backend == NCCL,
        "environment": nccl_environment(plan, nodes, plan.device_nodes[rank]),
    }


def nccl_environment(plan: Plan, nodes: Sequence[NodeAddress], node: int) -> dict[str, str]:
    """Return NCCL's environment for the ranks on a node of a plan.

    Ranks of one node may use NVLink, PCIe and shared memory. Between nodes everything goes through
    sockets of the node's interface: on a shaped network a faster way would pass it by. Nodes on one
    host have each their own host ID, so that NCCL takes them for hosts. Source: NCCL's manual,
    "Environment Variables".
    """
    here = nodes[node]
    environment = {
        "NCCL_SOCKET_IFNAME": f"={here.interface}",  # exactly: a name alone is a prefix
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "CUDA_DEVICE_MAX_CONNECTIONS": str(MAX_CONNECTIONS),
        "CUDA_MODULE_LOADING": EAGER,
    }
    if is_shaped(plan.network):
        # Neither InfiniBand, nor plug-ins, nor NVLink between machines.
        environment |= {"NCCL_NET": "Socket", "NCCL_MNNVL_ENABLE": "0"}
    used = {*plan.device_nodes}
    beside = [n for n in used if n != node and nodes[n].kernel == here.kernel]
    if beside:
        environment["NCCL_HOSTID"] = f"netbench-{here.name}-{node}"
        if plan.device_nodes.count(node) == 1:
            environment |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    return environment


def is_shaped(network: Network) -> bool:
    """Return whether any link, or any NIC, is other than the machines have it."""
    links = [link for row in network.links for link in row]
    return any(map(_is_shaped, links)) or any(map(math.isfinite, network.nic_bps))


def _is_shaped(link: Link) -> bool:
    return bool(link.one_way_delay_s or math.isfinite(link.bandwidth_bps) or link.impairments)
