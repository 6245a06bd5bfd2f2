"""`netbench schedule rent SCENARIO`: choose which machines to rent."""

from pathlib import Path

import click

from netbench.commands.options import picture_option
from netbench.commands.output import check_writable, heading, wide_console
from netbench.commands.schedule.request import COST, TIME, on_demand_option
from netbench.cost.bill import ON_DEMAND, SPOT
from netbench.cost.offers import Offer, front, machine_sets, offers
from netbench.progress import track
from netbench.report.pictures.style import save_picture
from netbench.report.tables.cost import CostRow, cost_grid
from netbench.report.tables.grid import rich_table
from netbench.scenario import load_scenario
from netbench.units import counted


@click.command()
@click.argument("scenario")
@click.option(
    "--objective",
    type=click.Choice([COST, TIME]),
    default=COST,
    help="Quantity to minimise: $ per sample, or time per sample.",
)
@click.option("--pareto", is_flag=True, help="Print all machines that nothing beats in both.")
@click.option("--system", help="System.  [default: the scenario's first]")
@on_demand_option
@click.option("--at-most", type=click.IntRange(min=1), default=32, help="Most machines in all.")
@click.option("--budget", type=float, help="Most $ per hour.")
@picture_option
def command(
    scenario: str,
    objective: str,
    pareto: bool,
    system: str | None,
    on_demand: bool,
    at_most: int,
    budget: float | None,
    plot: Path | None,
) -> int:
    """Choose which of SCENARIO's machines to rent: how many of each region.

    Every set of machines is simulated and priced. A set has one region or several, so one provider
    or several.
    """
    check_writable(pictures=[plot])
    found, market = load_scenario(scenario), ON_DEMAND if on_demand else SPOT
    console = wide_console()
    variant = system or found.sweep.default_variants[0]
    number = len(machine_sets(found, at_most))
    priced = list(track(console, offers(found, variant, at_most), number, "sets of machines"))
    affordable = [
        offer for offer in priced if budget is None or offer.bill.hourly_usd(market) <= budget
    ]
    best = front(affordable, market)
    if not best:
        console.print(f"no set of machines costs at most {budget:g} $ per hour")
        return 1
    chosen = best[0] if objective == COST else best[-1]
    console.print(heading(found))
    shown = best if pareto else (chosen,)
    rows = [CostRow(labels=(offer.name,), bill=offer.bill) for offer in shown]
    console.print(rich_table(cost_grid(("Machines",), rows)))
    console.print()
    least = "least $ per sample" if objective == COST else "most samples per second"
    console.print(f"{least}: {chosen.name} ({market})", soft_wrap=True)
    console.print(
        f"simulated: {variant}, {found.workload.name}, {counted(number, 'set')} of machines.",
        style="dim",
    )
    if plot is not None:
        _draw(found.title or found.name, priced, best, market, plot)
        console.print(f"picture: {plot}", soft_wrap=True)
    return 0


def _draw(
    title: str, priced: list[Offer], best: tuple[Offer, ...], market: str, path: Path
) -> None:
    from netbench.report.pictures.pareto import CostPoint, pareto_figure

    points = [
        CostPoint(
            name=offer.name,
            samples_per_s=offer.bill.samples_per_s,
            usd=offer.bill.million_usd(market),
            on_front=offer in best,
            group="one region" if len(offer.machines) == 1 else "several regions",
        )
        for offer in priced
    ]
    save_picture(pareto_figure(f"{title} ({market})", points), path)
