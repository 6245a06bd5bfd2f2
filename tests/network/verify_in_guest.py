"""Measure links with everything netem does to packets: run in a kernel with netem, as root, with
/run private and in virtual time.

`python -m tests.network.verify_in_guest` exits with 1 and says what was wrong, or with 0. Every
figure has to be within the error that is stated with it, and a network that is not the one which
was asked for has to be found out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from netbench.network.probing.measure import Endpoints, measure
from netbench.network.probing.samples import LinkSample, sample_links
from netbench.network.probing.verify import LinkCheck, evaluate
from netbench.network.shaping.apply import apply, clear
from netbench.network.shaping.program import compile_programs
from netbench.scenario.model import BurstLoss, Link, Network
from netbench.scenario.sharing import num_routers
from netbench.testbed.interface import NodeAddress
from netbench.testbed.namespaces import (
    build,
    gateways,
    namespace_nodes,
    node_addresses,
    router_addresses,
)
from netbench.testbed.shaping import tune
from tests.networks import two_regions

TOLERANCE = 0.01
BASE = Link(one_way_delay_s=0.02, bandwidth_bps=100e6)
TRUNK = Link(one_way_delay_s=0.01, bandwidth_bps=200e6)
FAST = replace(TRUNK, bandwidth_bps=2 * TRUNK.bandwidth_bps)
INSIDE = Link(one_way_delay_s=0.001, bandwidth_bps=1e9)
TRUNKS = two_regions(INSIDE, TRUNK, num_nodes=8, sharing="trunk")

DISTURBED: dict[str, Link] = {
    "jitter, normal": replace(BASE, jitter_s=0.002),
    "jitter, uniform": replace(BASE, jitter_s=0.002, jitter_distribution="uniform"),
    "jitter, pareto": replace(BASE, jitter_s=0.002, jitter_distribution="pareto"),
    "jitter, paretonormal": replace(BASE, jitter_s=0.002, jitter_distribution="paretonormal"),
    "jitter that reorders": replace(BASE, jitter_s=0.002, jitter_reorders=True),
    "jitter without a rate": replace(BASE, bandwidth_bps=math.inf, jitter_s=0.002),
    "jitter and loss": replace(BASE, jitter_s=0.001, loss=0.01),
    "loss of 0.1%": replace(BASE, loss=0.001),
    "loss of 20%": replace(BASE, loss=0.2),
    "bursts": replace(BASE, bursts=BurstLoss(to_bad=0.005, to_good=0.2)),
    "duplication": replace(BASE, duplication=0.02),
    "corruption": replace(BASE, corruption=0.02),
    "reordering": replace(BASE, reordering=0.05),
}
"""Both ways between two nodes."""

WRONG: dict[str, tuple[Link, Link, str]] = {
    "loss that was not asked for": (replace(BASE, loss=0.01), BASE, "loss"),
    "no loss where there should be": (BASE, replace(BASE, loss=0.01), "loss"),
    "twice the jitter": (replace(BASE, jitter_s=0.004), replace(BASE, jitter_s=0.002), "jitter_s"),
    "no duplicates where there should be": (BASE, replace(BASE, duplication=0.01), "duplication"),
}
"""The kernel's link, the wanted link, and the figure that must show the difference."""


def one_region(link: Link) -> Network:
    """Two nodes that need no router."""
    return Network(
        regions=("a",),
        links=((link,),),
        node_regions=(0, 0),
        sharing="pair",
        nic_bps=(math.inf,) * 2,
    )


def measured(
    made: Network, wanted: Network, samples: Sequence[LinkSample], nodes: Sequence[NodeAddress]
) -> Iterator[LinkCheck | str]:
    """Shape as `made`, and judge by `wanted`: every check, then every reason."""
    used = nodes[: made.num_nodes + num_routers(made)]
    addresses = [(node.address,) for node in used]
    reached = namespace_nodes(used)
    tune(reached, used, made, 1.0)
    programs = compile_programs(made, addresses, nodes[0].interface)
    apply(programs, reached)
    found = measure(wanted, samples, Endpoints(addresses=addresses, nodes=reached))
    clear(programs, reached)
    probe = evaluate(found, wanted, 1.0, TOLERANCE)
    yield from probe.checks
    yield from probe.reasons


def check_good(nodes: Sequence[NodeAddress]) -> Iterator[str]:
    """Every disturbance is measured as what it is."""
    networks = {name: (one_region(link), 1) for name, link in DISTURBED.items()}
    networks |= {"eight connections": (one_region(BASE), 8), "trunks": (TRUNKS, 1)}
    for name, (network, streams) in networks.items():
        samples: tuple[LinkSample, ...] = (
            LinkSample(kind="link", src=0, dsts=(1,), streams=streams, thorough=True),
        )
        if network.sharing == "trunk":
            samples = sample_links(network)
        print(name)
        # A figure is outside three standard deviations once in 400 times: never twice.
        if list(problems(network, samples, nodes)):
            yield from (f"{name}: {problem}" for problem in problems(network, samples, nodes))


def problems(
    network: Network, samples: Sequence[LinkSample], nodes: Sequence[NodeAddress]
) -> Iterator[str]:
    """Report figures outside their tolerance in a correct network; print all figures."""
    for found in measured(network, network, samples, nodes):
        if isinstance(found, str):
            yield found
        else:
            print(
                f"  {found.kind} {found.quantity} {found.measured} expected {found.expected} "
                f"± {found.allowed:.3g} ({found.num_packets} packets, {found.streams} streams)"
            )


def check_wrong(nodes: Sequence[NodeAddress]) -> Iterator[str]:
    """A wrong link is detected by the figure that shows it."""
    for name, (made, asked, quantity) in WRONG.items():
        sample = LinkSample(kind="link", src=0, dsts=(1,), thorough=True)
        found = measured(one_region(made), one_region(asked), (sample,), nodes)
        failed = {c.quantity for c in found if isinstance(c, LinkCheck) and not c.passed}
        print(f"{name}: {sorted(failed)} outside")
        if quantity not in failed:
            yield f"{name}: {quantity} was taken for good"
    alone = replace(TRUNKS, links=((INSIDE, FAST), (FAST, INSIDE)))
    trunks = [sample for sample in sample_links(TRUNKS) if sample.kind == "trunk"]
    direct = [
        found for found in measured(alone, TRUNKS, trunks, nodes) if isinstance(found, LinkCheck)
    ]
    if all(check.passed for check in direct if check.quantity == "goodput_bps"):
        yield "a trunk of twice the rate was taken for the one that was asked for"


def main() -> int:
    """Run all checks; print what failed."""
    names = [f"node{i}" for i in range(TRUNKS.num_nodes)]
    nodes = (*node_addresses(names), *router_addresses(TRUNKS))
    build(nodes, TRUNKS.mtu_bytes, gateways(TRUNKS))
    failures = [*check_good(nodes), *check_wrong(nodes)]
    for failure in failures:
        print(f"FAILED: {failure}")
    print("all as planned" if not failures else f"{len(failures)} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
