"""The network that a testbed builds for a plan."""

from dataclasses import replace

from netbench.network.shaping.segments import goodput_ratio, in_fine_segments, on_testbed
from netbench.plan.experiment import Experiment
from netbench.plan.model import Plan
from netbench.scenario.model import Network

VIRTUAL_TIME = "guest-virtual"
"""The testbed whose timers are never late. There, nodes share NICs as machines do."""

DIRECTIONS = 2
"""In and out. A shaped NIC limits what a node sends. It gets half of what the host carries, because
ranks of a training plan receive as much as they send, except first and last stages and servers."""


def limited_network(plan: Experiment) -> Network:
    """Return the network of a plan at full size, with NICs that keep to the limits of hosts."""
    network = plan.network
    if not isinstance(plan, Plan) or not network.host_bps:
        return network
    per_payload = 1 / DIRECTIONS / goodput_ratio(network.mtu_bytes)
    rates = zip(network.nic_bps, network.host_bps, strict=True)
    caps = tuple(min(nic_bps, host_bps * per_payload) for nic_bps, host_bps in rates)
    return replace(network, nic_bps=caps)


def network_of(plan: Experiment, testbed: str = "") -> tuple[Network, float]:
    """Return the network of a plan as a testbed builds it, and the scale that still divides its
    rates. testbed: its name (`records.TESTBEDS`)."""
    network, scale = on_testbed(limited_network(plan), plan.scale)
    return (in_fine_segments(network, scale) if testbed == VIRTUAL_TIME else network), scale
