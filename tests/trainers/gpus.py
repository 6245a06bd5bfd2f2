"""Ranks that share this machine's GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

from netbench.plan.model import Plan
from netbench.testbed.interface import NodeAddress
from netbench.testbed.ranks.devices import device_order
from netbench.trainers.protocol import Message
from tests.plans import small_plan
from tests.trainers.parity import real_plan
from tests.trainers.rank_processes import LOOPBACK


def device_orders(count: int, backend: str = "nccl") -> list[Message]:
    """`device` of the orders to connect, for ranks that are nodes of their own on loopback.

    NCCL takes them for hosts: it lets them share a GPU, and sends over sockets.
    """
    nodes = [
        NodeAddress(index=rank, name="lab", address=LOOPBACK, interface="lo", kernel=0)
        for rank in range(count)
    ]
    plan = dataclasses.replace(
        small_plan(pp=count, dp=1),
        compute="cuda",
        backend=backend,
        device_nodes=tuple(range(count)),
    )
    orders = [device_order(plan, nodes, rank) for rank in range(count)]
    return [order for order in orders if order is not None]


def on_gpus(system: str, **changes: Any) -> Plan:
    """`real_plan` on GPUs."""
    return dataclasses.replace(real_plan(system, **changes), compute="cuda")
