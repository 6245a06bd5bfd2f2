"""Tables of costs: $ per hour by what is paid for, and per million samples."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from netbench.cost.bill import CLASSES, ON_DEMAND, SPOT, Bill, bill, machines_of
from netbench.cost.churn import interrupted_usd
from netbench.errors import PlanError
from netbench.plan.serial import plan_from_json
from netbench.records import Run
from netbench.report.tables.churn import interrupted_plans
from netbench.report.tables.comparison import compare
from netbench.report.tables.grid import Column, Grid, table_of
from netbench.scenario.model import Prices, Scenario

HEADS = {
    "zone": "inside", "region": "regions", "continent": "continents", "oceania": "Oceania",
}  # fmt: skip
"""Heads of the classes of egress."""

MILLION = "spot $/M"
"""Head of the column of costs in tables of times."""

MILLION_CAPTION = (
    f"{MILLION}: $ per million samples or sequences at this speed; machines on the spot market, "
    "egress of the plan's payload, and data; see netbench cost."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostRow:
    """labels: of the row. bill: of its plan. tokens: per sample, 0 = samples are not sequences."""

    labels: tuple[str, ...]
    bill: Bill
    tokens: int = 0


def cost_grid(heads: Sequence[str], rows: Sequence[CostRow], unit: str = "samples") -> Grid:
    """A row per plan: $ per hour by what is paid for, and per million samples. heads: of labels."""
    columns: list[Column[CostRow]] = [
        (f"{unit}/s", lambda row: f"{row.bill.samples_per_s:.4g}"),
        ("machines", lambda row: money(row.bill.machines_usd[SPOT])),
        ("egress", lambda row: money(sum(row.bill.egress_usd.values()))),
        ("data", lambda row: money(row.bill.loading_usd)),
        ("spot $/h", lambda row: money(row.bill.hourly_usd(SPOT))),
        ("on demand $/h", lambda row: money(row.bill.hourly_usd(ON_DEMAND))),
        ("spot $/M", lambda row: money(row.bill.million_usd(SPOT))),
        ("on demand $/M", lambda row: money(row.bill.million_usd(ON_DEMAND))),
    ]
    if any(row.tokens for row in rows):
        columns.append(
            ("spot $/M tokens", lambda row: money(row.bill.million_usd(SPOT) / row.tokens))
        )
    return table_of(rows, [*_labels(heads), *columns], num_labels=len(heads))


def egress_grid(heads: Sequence[str], rows: Sequence[CostRow]) -> Grid:
    """A row per plan: GB and $ per hour by class of egress, and its share of spot $ per hour."""
    columns: list[Column[CostRow]] = []
    for kind in CLASSES:
        if any(row.bill.egress_gb[kind] for row in rows):
            columns += [
                (f"{HEADS[kind]} GB/h", partial(_gb, kind)),
                (f"{HEADS[kind]} $/h", partial(_usd, kind)),
            ]
    columns.append(("share of cost", lambda row: f"{egress_share(row.bill, SPOT):.0%}"))
    return table_of(rows, [*_labels(heads), *columns], num_labels=len(heads))


def _labels(heads: Sequence[str]) -> list[Column[CostRow]]:
    return [(head, partial(_label, index)) for index, head in enumerate(heads)]


def _label(index: int, row: CostRow) -> str:
    return row.labels[index]


def _gb(kind: str, row: CostRow) -> str:
    return money(row.bill.egress_gb[kind])


def _usd(kind: str, row: CostRow) -> str:
    return money(row.bill.egress_usd[kind])


def run_usd(run: Run, scenario: Scenario, prices: Prices | None = None) -> Mapping[str, float]:
    """Return $ per million samples on the spot market of each row of a run (`compare`), by
    `Comparison.plan_hash`; nothing without prices, or for plans of another scenario.

    Traffic is that of the plan, time that of the run; of plans whose machines go and come also the
    samples, and the machines' hours. prices: None = the scenario's.
    """
    found: dict[str, float] = {}
    interrupted = interrupted_plans(run) if prices or scenario.prices else {}
    for row in compare(run) if prices or scenario.prices else ():
        with suppress(PlanError):  # a script, or a machine without a price
            plan = plan_from_json(json.dumps(run.plans[row.plan_hash]))
            machines = machines_of(scenario, plan)
            if machines is not None and row.found is not None:
                priced = bill(machines, plan, prices, iteration_s=row.found.mean_s)
                found[row.plan_hash] = priced.million_usd(SPOT)
                if churn := interrupted.get(row.plan_hash):
                    usd = interrupted_usd(machines, prices, priced, churn.found)
                    found[row.plan_hash] = usd
    return found


def money(usd: float) -> str:
    """Three significant digits, with cents where they count: `0.018`, `1.44`, `12.4`, `1325`."""
    return f"{usd:.0f}" if usd >= 1000 else f"{usd:.3g}"


def egress_share(bill: Bill, kind: str) -> float:
    """Return the fraction of $ per hour that goes to egress. kind: `SPOT` or `ON_DEMAND`."""
    return sum(bill.egress_usd.values()) / bill.hourly_usd(kind)
