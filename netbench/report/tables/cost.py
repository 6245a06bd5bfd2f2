"""Tables of costs: $ per hour by what is paid for, and per million samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from netbench.cost.bill import CLASSES, ON_DEMAND, SPOT, Bill
from netbench.report.tables.grid import Column, Grid, table_of

HEADS = {
    "zone": "inside", "region": "regions", "continent": "continents", "oceania": "Oceania",
}  # fmt: skip
"""Heads of the classes of egress."""


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


def money(usd: float) -> str:
    """Three significant digits, with cents where they count: `0.018`, `1.44`, `12.4`, `1325`."""
    return f"{usd:.0f}" if usd >= 1000 else f"{usd:.3g}"


def egress_share(bill: Bill, kind: str) -> float:
    """Return the fraction of $ per hour that goes to egress. kind: `SPOT` or `ON_DEMAND`."""
    return sum(bill.egress_usd.values()) / bill.hourly_usd(kind)
