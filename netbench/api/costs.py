"""Price the training of a scenario's plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from netbench.api.plans import PlanChoices, as_scenario, as_tuple
from netbench.api.results import grid_html
from netbench.cost.bill import CLASSES, ON_DEMAND, SPOT, Bill, bill
from netbench.plan.build import Choices, build_plan, settings
from netbench.plan.model import Plan
from netbench.report.pictures.picture import Picture
from netbench.report.tables.cost import CostRow, cost_grid
from netbench.scenario import Scenario
from netbench.scenario.model import Prices

if TYPE_CHECKING:
    from pandas import DataFrame

HEADS = ("Machines", "Model", "Batch", "System")
"""Labels of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """A plan with its bill. scenario: with the plan's machines."""

    scenario: Scenario
    plan: Plan
    bill: Bill

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the machines, the model, its batch and the system."""
        plan = self.plan
        machines = plan.peers or str(len({plan.device_nodes[device] for device in plan.placement}))
        return machines, plan.workload.name, str(plan.workload.batch), plan.variant

    @property
    def row(self) -> CostRow:
        """Return the row of a table. A GPT's samples are sequences of tokens."""
        tokens = 0 if self.scenario.workload.model else self.plan.workload.sequence
        return CostRow(labels=self.labels, bill=self.bill, tokens=tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Simulated costs of plans that train, not `netbench.commands.schedule.request.Costs`."""

    rows: tuple[Priced, ...]

    @property
    def unit(self) -> str:
        """Return what is counted: sequences of a GPT, samples of other models."""
        return "samples" if self.rows[0].scenario.workload.model else "sequences"

    @property
    def table(self) -> DataFrame:
        """Return a row per plan.

        Columns: machines, model, batch, system, num_machines, samples_per_s, spot_usd_per_h,
        on_demand_usd_per_h, egress_usd_per_h, loading_usd_per_h, spot_usd_per_million,
        on_demand_usd_per_million, and egress in GB (10^9 bytes of payload) per hour by class.
        """
        import pandas as pd

        return pd.DataFrame([_cells(row) for row in self.rows])

    def plot(self) -> Picture:
        """Draw cost over throughput, spot machines, with the plans that nothing beats in both."""
        from netbench.report.pictures.pareto import CostPoint, pareto_figure

        found = [(row.bill.samples_per_s, row.bill.million_usd(SPOT)) for row in self.rows]
        points = [
            CostPoint(
                name=" ".join(row.labels),
                samples_per_s=speed,
                usd=usd,
                on_front=not any(
                    other_speed >= speed and other_usd <= usd and (other_speed, other_usd) != each
                    for other_speed, other_usd in found
                ),
                group=row.plan.variant,
            )
            for row, each in zip(self.rows, found, strict=True)
            for speed, usd in [each]
        ]
        scenario = self.rows[0].scenario
        return Picture(figure=pareto_figure(scenario.title or scenario.name, points))

    def _repr_html_(self) -> str:
        return grid_html(cost_grid(HEADS, [row.row for row in self.rows], self.unit))


def cost_plans(
    scenario: Scenario | str, *, prices: Prices | None = None, **choices: Unpack[PlanChoices]
) -> Costs:
    """Simulate plans of a scenario and price their machines, egress and training data.

    prices: None = those of the scenario. choices: as for `make_plans`; `peers` are names of sets of
    machines. Raises PlanError without prices, or for a machine that has none.
    """
    found = as_scenario(scenario)
    chosen = {name: as_tuple(values) for name, values in choices.items()}
    chosen["variants"] = chosen.pop("systems", ())
    return Costs(rows=tuple(priced(found, Choices.of(found.sweep, whole=False, **chosen), prices)))


def priced(scenario: Scenario, choices: Choices, prices: Prices | None = None) -> Iterator[Priced]:
    """Build, simulate and price every combination of `choices`."""
    for part, variant, setting in settings(scenario, choices):
        plan = build_plan(part, variant, setting)
        yield Priced(scenario=part, plan=plan, bill=bill(part, plan, prices))


def _cells(row: Priced) -> dict[str, object]:
    machines, model, _, system = row.labels
    found = row.bill
    return {
        "machines": machines,
        "model": model,
        "batch": row.plan.workload.batch,
        "system": system,
        "num_machines": found.num_machines,
        "samples_per_s": found.samples_per_s,
        "spot_usd_per_h": found.hourly_usd(SPOT),
        "on_demand_usd_per_h": found.hourly_usd(ON_DEMAND),
        "egress_usd_per_h": sum(found.egress_usd.values()),
        "loading_usd_per_h": found.loading_usd,
        "spot_usd_per_million": found.million_usd(SPOT),
        "on_demand_usd_per_million": found.million_usd(ON_DEMAND),
        **{f"{name}_gb_per_h": found.egress_gb[name] for name in CLASSES},
    }
