"""Prices and sets of machines in scenario files."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.errors import ScenarioError
from netbench.scenario import load_scenario
from netbench.scenario.prices import read_prices

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "three-clouds.yaml"


def changed(tmp_path: Path, before: str, after: str) -> str:
    """Write the example with one text replaced, and return its path."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert before in text
    path = tmp_path / "changed.yaml"
    path.write_text(text.replace(before, after), encoding="utf-8")
    return str(path)


def test_prices_are_read() -> None:
    """A region without spot machines has one price; Oceania's default is another continent's."""
    prices = load_scenario(str(EXAMPLE)).prices
    assert prices
    assert prices.places["Texas"].spot_usd == prices.places["Texas"].on_demand_usd == {"A10": 0.75}
    assert prices.places["Iowa"].spot_usd == {"L4": 0.28}
    assert prices.egress_usd["B"]["oceania"] == prices.egress_usd["B"]["continent"] == 0.02


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("    Texas: {prov", "    Nevada: {prov", "prices.regions.Nevada is not in regions"),
        ("{A10: {on_demand", "{A100: {on_demand", "has no price; add A10 to prices.regions.Texas"),
        ("provider: C", "provider: D", '"D" is not in prices.egress'),
        (
            "throughput: {mine: 250}",
            "throughput: {my: 250}",
            "is not a model; expected one of mine, resnet18",
        ),
        (
            "\nprices:",
            "\nsweep: {peers: [{name: x, nodes: {Iowa: 9}}]}\nprices:",
            "has 9 of Iowa, which has 6 nodes",
        ),
        (
            "\nprices:",
            "\nsweep: {peers: [{name: x, nodes: {Ohio: 1}}]}\nprices:",
            '"Ohio" is not in regions',
        ),
        (
            "\nprices:",
            "\nsweep: {peers: [{name: x, nodes: {Iowa: 1}, models: [mime]}]}\nprices:",
            '"mime" is unknown; did you mean mine',
        ),
    ],
)
def test_parts_that_disagree_are_named(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(changed(tmp_path, before, after))
    assert message in str(caught.value)


def test_a_file_may_have_prices_alone(tmp_path: Path) -> None:
    """The section of the example, in a file of its own."""
    path = tmp_path / "prices.yaml"
    text = EXAMPLE.read_text(encoding="utf-8")
    path.write_text(text[text.index("prices:") :], encoding="utf-8")
    assert read_prices(path) == load_scenario(str(EXAMPLE)).prices
