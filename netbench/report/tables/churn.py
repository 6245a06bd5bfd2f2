"""Plans whose machines go and come: their goodput in a run, beside the simulated one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from netbench.cost.churn import Outcome, train
from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.records import Run
from netbench.report.numbers import or_dash, percent_text
from netbench.report.tables.grid import Column, Grid, table_of
from netbench.scenario.churn import GO, machine_seconds

CAPTION = (
    "goodput: samples per second that reached the model, over all iterations. there: machines, the "
    "mean over time. interruptions: machines that went."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted:
    """A plan with churn. found: in the run. simulated: the same trace, for as long."""

    plan: Plan
    found: Outcome
    simulated: Outcome

    @property
    def num_interruptions(self) -> int:
        """Machines that went while the plan ran."""
        events = self.plan.churn
        return sum(event.event == GO and event.time_s < self.found.seconds for event in events)

    @property
    def difference(self) -> float | None:
        """Relative, of goodputs; None if not a round was simulated."""
        if not self.simulated.samples:
            return None
        return self.found.goodput / self.simulated.goodput - 1


def interrupted_plans(run: Run) -> Mapping[str, Interrupted]:
    """Return the plans of a run that have churn and records, by hash."""
    found = {}
    for key, recorded in run.plans.items():
        records = [record for record in run.records if record.plan_hash == key]
        if not recorded.get("churn") or not records:
            continue
        plan = plan_from_json(json.dumps(recorded))
        seconds = sum(record.iteration_s for record in records)
        outcome = Outcome(
            seconds=seconds,
            samples=float(sum(record.samples or 0 for record in records)),
            num_rounds=sum(bool(record.samples) for record in records),
            num_repeated=0,
            machine_s=machine_seconds(plan.churn, len(plan.node_names), seconds),
        )
        simulated = train(plan, plan.churn, seconds)
        found[key] = Interrupted(plan=plan, found=outcome, simulated=simulated)
    return found


def churn_grid(run: Run) -> Grid | None:
    """A row per plan; None if no plan has churn."""
    rows = tuple(interrupted_plans(run).values())
    columns: list[Column[Interrupted]] = [
        ("Interrupted", lambda row: row.plan.variant),
        ("interruptions", lambda row: str(row.num_interruptions)),
        ("there", lambda row: f"{sum(row.found.machine_s) / row.found.seconds:.2f}"),
        ("rounds", lambda row: str(row.found.num_rounds)),
        ("goodput/s", lambda row: f"{row.found.goodput:.4g}"),
        ("simulated", lambda row: f"{row.simulated.goodput:.4g}"),
        ("vs sim.", lambda row: or_dash(percent_text, row.difference)),
    ]
    return table_of(rows, columns) if rows else None
