"""Change the network of a plan: links with another delay or bandwidth, or an ideal network."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from netbench.errors import PlanError
from netbench.scenario.model import Link, Network

LINKS = ("between", "inside", "all")
"""Choices of links to change: between regions, inside regions, or both and the nodes' NICs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """A value (bit/s or seconds), or a factor on the present value of a link."""

    value: float
    relative: bool = False

    def of(self, present: float) -> float:
        return present * self.value if self.relative else self.value


def default_links(network: Network) -> str:
    """Return `between` if nodes are in several regions, else `all`."""
    return "between" if len(set(network.node_regions)) > 1 else "all"


def check_links(network: Network, which: str) -> None:
    """Raise PlanError if no link of `which` joins two nodes."""
    if network.num_nodes < 2:
        raise PlanError("the scenario has one node, so there is no link to change; give it two")
    used = set(network.node_regions)
    if which == "between" and len(used) < 2:
        raise PlanError(
            f"all nodes are in {network.regions[min(used)]}, so there is no link between regions; "
            "use --links inside or all"
        )
    if which == "inside" and len(used) == network.num_nodes:
        raise PlanError(
            "no region has two nodes, so there is no link inside one; use --links between"
        )


def changed_links(network: Network, which: str) -> tuple[Link, ...]:
    """Return the links of `which` that two nodes use."""
    regions = sorted(set(network.node_regions))
    return tuple(
        network.links[src][dst]
        for src in regions
        for dst in regions
        if _changes(src, dst, which) and (src != dst or network.node_regions.count(src) > 1)
    )


def with_bandwidth(network: Network, amount: Amount, which: str) -> Network:
    """Return the network with other bandwidths, bit/s, on the links of `which`; `all` has the NICs.

    Raises PlanError for a factor on links without a limit.
    """
    nics = network.nic_bps if which == "all" else ()
    limits = [*(link.bandwidth_bps for link in changed_links(network, which)), *nics]
    if amount.relative and not any(math.isfinite(limit) for limit in limits):
        raise PlanError("no link to change has a limited bandwidth; give rates, not factors")
    if nics:
        network = dataclasses.replace(network, nic_bps=tuple(amount.of(nic) for nic in nics))
    return _with(
        network,
        which,
        lambda link: dataclasses.replace(link, bandwidth_bps=amount.of(link.bandwidth_bps)),
    )


def with_delay(network: Network, amount: Amount, which: str) -> Network:
    """Return the network with other one-way delays, seconds, on the links of `which`.

    Raises PlanError for a factor on zero delays.
    """
    if amount.relative and not any(link.one_way_delay_s for link in changed_links(network, which)):
        raise PlanError("no link to change has a delay; give times, not factors")
    return _with(
        network,
        which,
        lambda link: dataclasses.replace(link, one_way_delay_s=amount.of(link.one_way_delay_s)),
    )


def ideal_network(network: Network) -> Network:
    """Return the network with zero delay and infinite bandwidth on every link and NIC."""
    unlimited = dataclasses.replace(network, nic_bps=(math.inf,) * network.num_nodes)
    return unlimited.with_links(Link(one_way_delay_s=0.0, bandwidth_bps=math.inf))


def _changes(src: int, dst: int, which: str) -> bool:
    return which == "all" or (src == dst) == (which == "inside")


def _with(network: Network, which: str, change: Callable[[Link], Link]) -> Network:
    links = tuple(
        tuple(change(link) if _changes(src, dst, which) else link for dst, link in enumerate(row))
        for src, row in enumerate(network.links)
    )
    return dataclasses.replace(network, links=links)
