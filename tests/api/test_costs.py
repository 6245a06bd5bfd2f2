"""Costs of plans in notebooks and scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

import netbench as nb


def test_the_table_adds_up() -> None:
    """$ per hour are machines, egress and data; $ per million samples follow from the speed."""
    (row,) = nb.cost_plans("multicloud-a", models="CONV", peers="A-8").rows
    table = nb.cost_plans("multicloud-a", models="CONV", peers="A-8").table.iloc[0]
    machines = row.bill.machines_usd["spot"]
    hourly = machines + table["egress_usd_per_h"] + table["loading_usd_per_h"]
    assert table["spot_usd_per_h"] == pytest.approx(hourly)
    per_million = hourly / 3600 / table["samples_per_s"] * 1e6
    assert table["spot_usd_per_million"] == pytest.approx(per_million)
    assert (table["machines"], table["num_machines"]) == ("A-8", 8)


def test_a_picture_and_a_table_for_notebooks(tmp_path: Path) -> None:
    """Cheaper is not faster here, so that both are on the front."""
    costs = nb.cost_plans("multicloud-a", models="CONV", peers=["A-2", "A-8"])
    costs.plot().save(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert "A-2 CONV" in text
    assert "A-8 CONV" in text
    assert "<td" in costs._repr_html_()


def test_a_scenario_without_prices_is_an_error() -> None:
    """The message says what to add."""
    with pytest.raises(nb.NetbenchError, match="case5 has no prices; add a section `prices`"):
        nb.cost_plans("case5")
