"""The environment of NCCL, as exact text, and who gets which device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from netbench.plan.model import Plan
from netbench.scenario.model import Link
from netbench.testbed.interface import NodeAddress
from netbench.testbed.ranks.devices import device_order, is_shaped, nccl_environment
from tests.plans import small_plan

ON_A_SHAPED_NETWORK = """\
CUDA_DEVICE_MAX_CONNECTIONS=32
CUDA_MODULE_LOADING=EAGER
NCCL_MNNVL_ENABLE=0
NCCL_NET=Socket
NCCL_SOCKET_FAMILY=AF_INET
NCCL_SOCKET_IFNAME==ens5"""

ON_THE_OWN_NETWORK = """\
CUDA_DEVICE_MAX_CONNECTIONS=32
CUDA_MODULE_LOADING=EAGER
NCCL_SOCKET_FAMILY=AF_INET
NCCL_SOCKET_IFNAME==ens5"""

BESIDE_ANOTHER_NODE = """\
CUDA_DEVICE_MAX_CONNECTIONS=32
CUDA_MODULE_LOADING=EAGER
NCCL_HOSTID=netbench-b-1
NCCL_MNNVL_ENABLE=0
NCCL_NET=Socket
NCCL_P2P_DISABLE=1
NCCL_SHM_DISABLE=1
NCCL_SOCKET_FAMILY=AF_INET
NCCL_SOCKET_IFNAME==ens5"""

BESIDE_ANOTHER_NODE_WITH_TWO_RANKS = """\
CUDA_DEVICE_MAX_CONNECTIONS=32
CUDA_MODULE_LOADING=EAGER
NCCL_HOSTID=netbench-b-1
NCCL_MNNVL_ENABLE=0
NCCL_NET=Socket
NCCL_SOCKET_FAMILY=AF_INET
NCCL_SOCKET_IFNAME==ens5"""

OWN = Link(one_way_delay_s=0.0, bandwidth_bps=math.inf)


def plan_on(device_nodes: Sequence[int], link: Link | None = None) -> Plan:
    """A plan whose layers compute on GPUs, with these nodes of its ranks."""
    plan = small_plan(dp=len(device_nodes))
    network = plan.network if link is None else plan.network.with_links(link)
    return dataclasses.replace(
        plan, device_nodes=tuple(device_nodes), compute="cuda", network=network
    )


def nodes_on(*kernels: int) -> list[NodeAddress]:
    """Nodes named a, b, ... on these hosts, each with an interface of its own name."""
    return [
        NodeAddress(index=i, name="abcd"[i], address=f"10.0.0.{i}", interface=name, kernel=kernel)
        for i, (kernel, name) in enumerate(zip(kernels, ("eth0", "ens5", "eth2"), strict=False))
    ]


@pytest.mark.parametrize(
    ("plan", "nodes", "expected"),
    [
        (plan_on([0, 1]), nodes_on(0, 1), ON_A_SHAPED_NETWORK),
        (plan_on([0, 1], OWN), nodes_on(0, 1), ON_THE_OWN_NETWORK),
        (plan_on([0, 1]), nodes_on(0, 0), BESIDE_ANOTHER_NODE),
        (plan_on([0, 1, 1]), nodes_on(0, 0), BESIDE_ANOTHER_NODE_WITH_TWO_RANKS),
        (plan_on([1, 1]), nodes_on(0, 0), ON_A_SHAPED_NETWORK),  # the other node has no rank
    ],
)
def test_the_environment_of_a_node(plan: Plan, nodes: list[NodeAddress], expected: str) -> None:
    found = nccl_environment(plan, nodes, 1)
    assert "\n".join(f"{key}={value}" for key, value in sorted(found.items())) == expected


def test_nodes_of_one_host_have_different_host_ids() -> None:
    """The index of a node is in it, for names may be equal."""
    nodes = [dataclasses.replace(node, name="gpu") for node in nodes_on(0, 0, 0)]
    plan = plan_on([0, 1, 2])
    ids = {nccl_environment(plan, nodes, node)["NCCL_HOSTID"] for node in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize(
    "change",
    [{"one_way_delay_s": 0.01}, {"bandwidth_bps": 1e9}, {"loss": 0.01}, {"jitter_s": 1e-3}],
)
def test_a_network_is_shaped_if_any_link_is(change: dict[str, Any]) -> None:
    network = plan_on([0, 1], OWN).network
    assert not is_shaped(network)
    assert is_shaped(network.with_links(dataclasses.replace(OWN, **change)))
    assert is_shaped(dataclasses.replace(network, nic_bps=(1e9,) * network.num_nodes))


def test_ranks_of_a_host_are_counted_over_its_nodes() -> None:
    """Two nodes of two ranks on the first host, one on the second."""
    plan, nodes = plan_on([0, 1, 0, 2, 1]), nodes_on(0, 0, 1)
    orders = [device_order(plan, nodes, rank) for rank in range(5)]
    assert [order["index"] for order in orders if order] == [0, 1, 2, 0, 3]
    assert all(order["nccl"] for order in orders if order)


def test_gloo_is_used_where_the_workload_says_so() -> None:
    order = device_order(dataclasses.replace(plan_on([0, 1]), backend="gloo"), nodes_on(0, 1), 0)
    assert order is not None
    assert not order["nccl"]


@pytest.mark.parametrize("compute", ["virtual", "cpu"])
def test_other_layers_need_no_device(compute: str) -> None:
    plan = dataclasses.replace(plan_on([0, 1]), compute=compute)
    assert device_order(plan, nodes_on(0, 1), 0) is None
