"""Networks that testbeds build for plans."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.network.shaping.segments import goodput_ratio
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution, Plan
from netbench.report.page.under_tc.machines import collective
from netbench.scenario import load_scenario
from netbench.testbed.network import network_of


def make_plan(scenario: str) -> Plan:
    choices = Choices(variants=["dtfm-scheduled"], layers=[24], batch=[1024], seeds=[2022])
    (plan,) = build_plans(load_scenario(scenario), choices, Execution(scale=1000.0))
    return plan


def test_either_direction_gets_half_of_what_a_host_carries() -> None:
    """Machines of case 2 with four GPUs have no such limit; nor has any of case 1."""
    plan = make_plan("case2")
    built, scale = network_of(plan)
    assert scale == plan.scale
    nics, hosts = plan.network.nic_bps, plan.network.host_limits_bps
    limited, free = sorted({*zip(nics, hosts, built.nic_bps, strict=True)})
    half_bps = 8.6e9 / goodput_ratio(plan.network.mtu_bytes)  # of payload
    assert limited == pytest.approx((10e9, 17.2e9, half_bps))
    assert free == (10e9, float("inf"), 10e9)
    assert built == dataclasses.replace(plan.network, nic_bps=built.nic_bps)
    assert network_of(make_plan("case1"))[0] == make_plan("case1").network


def test_only_virtual_time_divides_segments_behind_a_shared_nic() -> None:
    """A cluster's interfaces keep their MTU, and real time would have 14 times the packets."""
    plan = make_plan("case1")
    fine, scale = network_of(plan, "guest-virtual")
    assert (fine.mtu_bytes, scale) == (573 + 52, 1000.0)
    for testbed in ("native", "guest-real", "cluster"):
        assert network_of(plan, testbed) == (plan.network, 1000.0)
    assert network_of(make_plan("case3"), "guest-virtual")[0] == make_plan("case3").network


def test_a_collective_keeps_its_network() -> None:
    """A broadcast goes one way."""
    plan = collective("broadcast", 4, (0.05, 10), "gloo", 64)
    assert network_of(plan)[0] == plan.network
