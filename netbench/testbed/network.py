"""The network that a testbed builds for a plan."""

from dataclasses import replace

from netbench.network.shaping.segments import on_testbed
from netbench.plan.experiment import Experiment
from netbench.plan.model import Plan
from netbench.scenario.model import Network

DIRECTIONS = 2
"""In and out. A shaped NIC cannot limit what they carry together, so each gets half of a host's
limit: ranks of a training plan send as much as they receive, but for first and last stages."""


def network_of(plan: Experiment) -> tuple[Network, float]:
    """Return the network of a plan as it is built, and the scale that still divides its rates."""
    network = plan.network
    if isinstance(plan, Plan) and network.host_bps:
        rates = zip(network.nic_bps, network.host_bps, strict=True)
        caps = tuple(min(nic_bps, host_bps / DIRECTIONS) for nic_bps, host_bps in rates)
        network = replace(network, nic_bps=caps)
    return on_testbed(network, plan.scale)
