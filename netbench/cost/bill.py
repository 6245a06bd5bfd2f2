"""Price a plan: $ per hour and per million samples, by what is paid for."""

from collections.abc import Mapping
from dataclasses import dataclass

from netbench.cost.traffic import node_bytes, samples_of, simulated_s
from netbench.errors import PlanError
from netbench.plan.model import Plan
from netbench.scenario.model import Prices, Scenario

OCEANIA = "Oceania"
"""The continent whose traffic has a price of its own."""

CLASSES = ("zone", "region", "continent", "oceania")
"""Classes of egress: inside a region, to another region of the continent, to another continent, and
to or from Oceania."""

SPOT, ON_DEMAND = "spot", "on demand"
GB = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """$ per hour of all machines of a plan.

    machines_usd: by `SPOT` and `ON_DEMAND`. egress_usd, egress_gb: by class, per hour. loading_usd:
    of training data. samples_per_s: a GPT's are sequences. num_machines: that are rented.
    """

    machines_usd: Mapping[str, float]
    egress_usd: Mapping[str, float]
    egress_gb: Mapping[str, float]
    loading_usd: float
    samples_per_s: float
    num_machines: int

    @property
    def traffic_usd(self) -> float:
        """$ per hour of egress and training data."""
        return sum(self.egress_usd.values()) + self.loading_usd

    def hourly_usd(self, kind: str) -> float:
        """$ per hour of everything. kind: `SPOT` or `ON_DEMAND`."""
        return self.machines_usd[kind] + self.traffic_usd

    def million_usd(self, kind: str) -> float:
        """$ per million samples."""
        return per_million_usd(self.hourly_usd(kind), self.samples_per_s)


def per_million_usd(hourly_usd: float, samples_per_s: float) -> float:
    """Return $ per million samples."""
    return hourly_usd / 3600 / samples_per_s * 1e6


def egress_class(prices: Prices, source: str, target: str) -> str:
    """Return the class of traffic from one region to another, one of `CLASSES`."""
    if source == target:
        return "zone"
    here, there = prices.places[source].continent, prices.places[target].continent
    if here == there:
        return "region"
    return "oceania" if OCEANIA in (here, there) else "continent"


def machines_of(scenario: Scenario, plan: Plan) -> Scenario | None:
    """Return the scenario with the plan's machines; None if it is not the plan's."""
    for each in scenario.sweep.peers:
        if each.name == plan.peers:
            scenario = scenario.with_peers(each)
    if plan.workload.model and len(plan.node_names) < len(scenario.nodes):
        scenario = scenario.first_devices(len(plan.device_nodes))
    names = tuple(node.name for node in scenario.nodes)
    return scenario if (scenario.name, names) == (plan.scenario, plan.node_names) else None


def bill(
    scenario: Scenario,
    plan: Plan,
    prices: Prices | None = None,
    *,
    iteration_s: float | None = None,
) -> Bill:
    """Return the bill of a plan while it trains. prices: None = those of the scenario. iteration_s:
    None = as simulated.

    scenario: with the plan's machines, as `build_plans` had it. Raises PlanError without prices.
    """
    prices = prices or scenario.prices
    rented_usd = rent_usd(scenario, plan, prices)
    assert prices is not None  # `rent_usd` raises without
    seconds, samples = iteration_s or simulated_s(plan), samples_of(plan)
    hourly = 3600 / seconds
    sent = node_bytes(plan)
    gb, usd = dict.fromkeys(CLASSES, 0.0), dict.fromkeys(CLASSES, 0.0)
    regions = [node.region for node in scenario.nodes]
    for source, row in enumerate(sent):
        for target, payload in enumerate(row):
            if payload:
                kind = egress_class(prices, regions[source], regions[target])
                provider = prices.places[regions[source]].provider
                amount = float(payload) * hourly / GB
                gb[kind] += amount
                usd[kind] += amount * prices.egress_usd[provider][kind]
    loaded_gb = plan.workload.sample_bytes * samples * hourly / GB
    return Bill(
        machines_usd=rented_usd,
        egress_usd=usd,
        egress_gb=gb,
        loading_usd=loaded_gb * prices.loading_usd,
        samples_per_s=samples / seconds,
        num_machines=len(_nodes_of(plan)),
    )


def rent_usd(scenario: Scenario, plan: Plan, prices: Prices | None) -> dict[str, float]:
    """Return $ per hour of the machines of a plan, by `SPOT` and `ON_DEMAND`.

    Raises PlanError without prices, or if they lack a machine of the scenario.
    """
    if prices is None:
        raise PlanError(
            f"scenario {scenario.name} has no prices; add a section `prices`, or give --prices FILE"
        )
    for node in scenario.nodes:
        place = prices.places.get(node.region)
        if place is None or node.device not in place.on_demand_usd:
            raise PlanError(
                f"the prices have no {node.device} in {node.region}; add it to "
                f"prices.regions.{node.region}.machines"
            )
    rented = [scenario.nodes[node] for node in _nodes_of(plan)]
    places = [prices.places[node.region] for node in rented]
    return {
        SPOT: sum(p.spot_usd[n.device] for p, n in zip(places, rented, strict=True)),
        ON_DEMAND: sum(p.on_demand_usd[n.device] for p, n in zip(places, rented, strict=True)),
    }


def _nodes_of(plan: Plan) -> list[int]:
    """Return the nodes that the plan uses."""
    return sorted({plan.device_nodes[device] for device in plan.placement})
