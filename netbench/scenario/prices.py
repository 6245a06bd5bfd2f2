"""Build the prices of a scenario, and check that they cover its machines and regions."""

from pathlib import Path

from netbench.errors import nearest
from netbench.scenario.model import Prices, RegionPrices
from netbench.scenario.schema import PricesFile, PricesForm, ScenarioForm
from netbench.scenario.source import SourceFile, read_source
from netbench.scenario.validate import validate


def build_prices(source: SourceFile, form: ScenarioForm) -> Prices | None:
    """Return the prices of a file, None if it has none.

    Raises ScenarioError for an unknown region, for a region or machine of the nodes that has no
    price, and for a provider without prices of egress.
    """
    if form.prices is None:
        return None
    prices = form.prices
    for region in prices.regions:
        if region not in form.regions:
            hint = nearest(region, form.regions)
            raise source.error(("prices", "regions", region), f"is not in regions; {hint}")
    for i, group in enumerate(form.nodes):
        place = prices.regions.get(group.region)
        if place is None or group.device not in place.machines:
            raise source.error(
                ("nodes", i),
                f"has no price; add {group.device} to prices.regions.{group.region}.machines, or "
                "remove prices",
            )
    for region, place in prices.regions.items():
        if place.provider not in prices.egress:
            hint = nearest(place.provider, prices.egress)
            raise source.error(
                ("prices", "regions", region, "provider"),
                f'"{place.provider}" is not in prices.egress; {hint}',
            )
    return prices_of(prices)


def prices_of(form: PricesForm) -> Prices:
    """Return the prices of a valid form."""
    return Prices(
        places={
            region: RegionPrices(
                provider=place.provider,
                continent=place.continent,
                spot_usd={
                    device: price.on_demand if price.spot is None else price.spot
                    for device, price in place.machines.items()
                },
                on_demand_usd={device: price.on_demand for device, price in place.machines.items()},
            )
            for region, place in form.regions.items()
        },
        egress_usd={
            provider: {
                "zone": price.zone,
                "region": price.region,
                "continent": price.continent,
                "oceania": price.continent if price.oceania is None else price.oceania,
            }
            for provider, price in form.egress.items()
        },
        loading_usd=form.data_loading,
    )


def read_prices(path: Path) -> Prices:
    """Read the section `prices` of a file that has nothing else. Raises ScenarioError naming file,
    line and key."""
    return prices_of(validate(read_source(path), PricesFile).prices)
