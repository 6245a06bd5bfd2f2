"""Say where an emulation without TCP's windows says nothing about the machines. Pure."""

import math

from netbench.network.shaping.segments import segment_bytes
from netbench.plan.experiment import Experiment
from netbench.transport.profile import load_transport
from netbench.units import counted, format_bytes


def dynamics_doubt(plan: Experiment) -> str:
    """Return why a plan at a scale without segments says nothing about TCP on some links, or "".

    There a message may be smaller than the first window, which TCP sends at once. It does not
    matter on links whose bandwidth-delay product fits the first window.
    """
    if plan.scale <= 1 or plan.network.tcp.acts or plan.network.num_nodes < 2:
        return ""
    network, transport = plan.network, load_transport(plan.backend)
    window = transport.first_window_segments * transport.sockets * segment_bytes(network)
    regions = sorted(set(network.node_regions))
    products = [
        min(network.links[src][dst].bandwidth_bps, max(network.nic_bps, default=math.inf)) / 8
        * (network.links[src][dst].one_way_delay_s + network.links[dst][src].one_way_delay_s)
        for src in regions
        for dst in regions
        if src != dst or network.node_regions.count(src) > 1
    ]  # fmt: skip
    beyond = [product for product in products if window < product < math.inf]
    if not beyond:
        return ""
    return (
        f"scale {plan.scale:g} divides bytes, but not segments, so that TCP's windows do not act, "
        f"and the bandwidth-delay product of {counted(len(beyond), 'kind')} of links, up to "
        f"{format_bytes(max(beyond))}, exceeds the first window of {format_bytes(window)}; "
        "use --faithful"
    )
