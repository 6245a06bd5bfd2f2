"""Sets of machines that one could rent of those that a scenario lists, and the best of them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from netbench.cost.bill import Bill, bill
from netbench.errors import PlanError
from netbench.plan.build import build_plan
from netbench.scenario.model import PeerSet, Scenario

MAX_OFFERS = 2000
"""Most sets of machines that are priced; a set takes about 10 ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """Machines, how many of each region, and what they cost and do. bill.samples_per_s: samples."""

    machines: tuple[tuple[str, int], ...]
    bill: Bill

    @property
    def name(self) -> str:
        """E.g. `2 GC-US + 4 Lambda`."""
        return " + ".join(f"{count} {region}" for region, count in self.machines)


def offers(scenario: Scenario, variant: str, at_most: int) -> Iterator[Offer]:
    """Yield every set of machines, up to `at_most` in all, with its bill.

    If there are too many sets, the numbers of a region are 0, 1, 2, 4, 8, ... and all. Raises
    PlanError without prices, or if there are too many even so.
    """
    for machines in machine_sets(scenario, at_most):
        part = scenario.with_peers(PeerSet(name="", nodes=machines))
        sizes = part.sweep.first_setting(
            layers=part.workload.layers, batch=part.workload.batch, network=""
        )
        yield Offer(machines=machines, bill=bill(part, build_plan(part, variant, sizes)))


def machine_sets(scenario: Scenario, at_most: int) -> list[tuple[tuple[str, int], ...]]:
    """Return the sets of machines of `offers`, the smallest first."""
    available: dict[str, int] = {}
    for node in scenario.nodes:
        available[node.region] = available.get(node.region, 0) + 1
    choices: list[Sequence[int]] = [range(min(count, at_most) + 1) for count in available.values()]
    if math.prod(map(len, choices)) > MAX_OFFERS:
        choices = [_doubling(min(count, at_most)) for count in available.values()]
    if (number := math.prod(map(len, choices))) > MAX_OFFERS:
        raise PlanError(
            f"{number} sets of machines; expected at most {MAX_OFFERS}; list fewer regions, or "
            "choose fewer machines with --at-most"
        )
    found = [
        tuple((region, count) for region, count in zip(available, counts, strict=True) if count)
        for counts in itertools.product(*choices)
        if 0 < sum(counts) <= at_most
    ]
    return sorted(found, key=lambda machines: sum(count for _, count in machines))


def front(found: Sequence[Offer], market: str) -> tuple[Offer, ...]:
    """Return the Pareto front, cheapest first: no other offer is both cheaper per sample and
    faster. market: `bill.SPOT` or `bill.ON_DEMAND`."""
    best: list[Offer] = []
    order = sorted(found, key=lambda o: (o.bill.million_usd(market), -o.bill.samples_per_s))
    for offer in order:
        if not best or offer.bill.samples_per_s > best[-1].bill.samples_per_s:
            best.append(offer)
    return tuple(best)


def _doubling(most: int) -> Sequence[int]:
    sizes = {0, most} | {1 << power for power in range(most.bit_length())}
    return sorted(size for size in sizes if size <= most)
