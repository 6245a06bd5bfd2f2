"""Matrices of readings: merged, completed, and written as scenarios."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import ScenarioError
from netbench.scenario import load_scenario
from netbench.scenario.measured.export import Frame, scenario_yaml
from netbench.scenario.measured.matrices import Matrix, Reading, completed, merge, renamed
from netbench.scenario.measured.readings import read_matrix
from netbench.scenario.model import Link, Network

AWS = Path(__file__).parents[3] / "results" / "published" / "aws_region_links_directed.csv"
SHOWN = ("one_way_delay_s", "bandwidth_bps", "jitter_s", "loss")


def matrix_of(network: Network) -> Matrix:
    """Return the links of a network as readings; inside a region only if it has two nodes."""
    regions = network.regions
    readings = {}
    for i, src in enumerate(regions):
        for j, dst in enumerate(regions):
            link = network.links[i][j]
            if i != j or network.node_regions.count(i) > 1:
                readings[src, dst] = Reading(
                    one_way_delay_s=link.one_way_delay_s,
                    bandwidth_bps=link.bandwidth_bps,
                    jitter_s=link.jitter_s,
                    loss=link.loss,
                )
    return Matrix(places=regions, readings=readings)


def loaded(text: str, tmp_path: Path) -> Matrix:
    """Load the links of a scenario file."""
    path = tmp_path / "made.yaml"
    path.write_text(text, encoding="utf-8")
    return matrix_of(load_scenario(str(path)).network)


def figures(matrix: Matrix) -> dict[tuple[str, str], tuple[float | None, ...]]:
    return {
        pair: tuple(getattr(reading, name) for name in SHOWN)
        for pair, reading in matrix.readings.items()
    }


names = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1
).filter(lambda name: name.strip() == name)


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Draw complete matrices with an inside for every place."""
    places = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    reading = st.builds(
        Reading,
        one_way_delay_s=st.integers(1000, 10**6).map(lambda us: float(f"{us}e-6")),
        bandwidth_bps=st.one_of(st.just(math.inf), st.floats(1e3, 1e12)),
        jitter_s=st.sampled_from([0.0, 0.001]),
        loss=st.sampled_from([0.0, 0.001, 0.25]),
    )
    return Matrix(
        places=tuple(places),
        readings={pair: draw(reading) for pair in itertools.product(places, places)},
    )


@settings(deadline=None)
@given(matrices())
def test_a_scenario_reads_back_as_the_very_same_matrix(
    tmp_path_factory: pytest.TempPathFactory, matrix: Matrix
) -> None:
    """To the last digit, for any names of places."""
    text = scenario_yaml(matrix, Frame(name="made", nodes_per_region=2, jitter=True))
    found = loaded(text, tmp_path_factory.mktemp("made"))
    assert found.places == matrix.places
    assert figures(found) == figures(matrix)


def test_equal_ways_are_one_line_and_different_ones_two(tmp_path: Path) -> None:
    """Every line has its source, unless all have the same."""
    slow = Reading(one_way_delay_s=0.02, bandwidth_bps=1e9, source="ping, a.txt")
    fast = Reading(one_way_delay_s=0.02, bandwidth_bps=2e9, source="iperf3, b.json")
    readings = {("a", "b"): slow, ("b", "a"): fast}
    text = scenario_yaml(
        Matrix(places=("a", "b"), readings=readings, notes=("RTT / 2",)), Frame(name="m")
    )
    assert "# RTT / 2" in text
    assert "- {from: a, to: b, one_way_delay: 20ms, bandwidth: 1Gbit} # ping, a.txt" in text
    assert "- {from: b, to: a, one_way_delay: 20ms, bandwidth: 2Gbit} # iperf3, b.json" in text
    readings["b", "a"] = slow
    text = scenario_yaml(Matrix(places=("a", "b"), readings=readings), Frame(name="m"))
    assert (
        "links: # ping, a.txt\n    - {between: [a, b], one_way_delay: 20ms, bandwidth: 1Gbit}\n"
        in text
    )
    assert figures(loaded(text, tmp_path))["b", "a"] == (0.02, 1e9, 0.0, 0.0)


def test_pairs_that_are_missing_are_listed() -> None:
    """Up to a dozen, with what to do."""
    readings = {("a", "b"): Reading(one_way_delay_s=0.01, bandwidth_bps=1e9)}
    matrix = Matrix(places=("a", "b", "c"), readings=readings)
    with pytest.raises(ScenarioError) as error:
        completed(matrix)
    assert "5 of 6 directed pairs are not known; measure them too, or take the way back" in str(
        error.value
    )
    assert "  b -> a: no delay and no bandwidth\n" in str(error.value)
    with pytest.raises(ScenarioError, match="4 of 6 directed pairs are not known:"):
        completed(matrix, symmetric=True)
    many = Matrix(places=tuple("abcdefgh"), readings=readings)
    with pytest.raises(ScenarioError, match="and 43 more"):
        completed(many)


def test_half_a_round_trip_is_known_for_both_ways_but_a_rate_is_not() -> None:
    """A rate applies to the other direction only on request."""
    there = Reading(one_way_delay_s=0.01, bandwidth_bps=1e9, halved=True, source="p")
    matrix = Matrix(places=("a", "b"), readings={("a", "b"): there})
    with pytest.raises(ScenarioError, match="b -> a: no bandwidth"):
        completed(matrix)
    filled = completed(matrix, symmetric=True).readings["b", "a"]
    assert (filled.one_way_delay_s, filled.bandwidth_bps) == (0.01, 1e9)
    assert filled.source == "p, the way back"
    delays = Matrix(places=("a", "b"), readings={("a", "b"): replace(there, bandwidth_bps=None)})
    assert completed(delays).readings["b", "a"].one_way_delay_s == 0.01


def test_a_delay_under_load_gives_way_to_a_ping() -> None:
    """In any order; two of one kind must not differ."""
    iperf = Reading(one_way_delay_s=0.02, bandwidth_bps=1e9, loaded=True, halved=True, source="i")
    ping = Reading(one_way_delay_s=0.01, halved=True, source="p")
    for order in ((iperf, ping), (ping, iperf)):
        joined = merge([Matrix(places=("a", "b"), readings={("a", "b"): r}) for r in order])
        reading = joined.readings["a", "b"]
        assert (reading.one_way_delay_s, reading.bandwidth_bps) == (0.01, 1e9)
    other = replace(ping, one_way_delay_s=0.011, source="q")
    with pytest.raises(
        ScenarioError, match=r"from a to b is given twice: 0.01 \(p\) and 0.011 \(q"
    ):
        merge([Matrix(places=("a", "b"), readings={("a", "b"): r}) for r in (ping, other)])


def test_places_can_be_renamed() -> None:
    """Addresses become names; an unknown place is an error."""
    matrix = Matrix(places=("10.0.0.1", "b"), readings={("10.0.0.1", "b"): Reading(loss=0.1)})
    new = renamed(matrix, {"10.0.0.1": "ohio"})
    assert (new.places, set(new.readings)) == (("ohio", "b"), {("ohio", "b")})
    with pytest.raises(ScenarioError, match="there is no c to rename; places are 10"):
        renamed(matrix, {"c": "d"})


def test_several_nodes_need_the_network_inside() -> None:
    """Missing values are not invented."""
    readings = {pair: Reading(one_way_delay_s=0.01) for pair in (("a", "b"), ("b", "a"))}
    matrix = Matrix(places=("a", "b"), readings=readings)
    with pytest.raises(ScenarioError, match="no measurements of the network inside a, b"):
        scenario_yaml(matrix, Frame(name="m", nodes_per_region=2))


def test_worldwide_10_is_what_was_measured() -> None:
    """The included scenario equals the published rows."""
    network = load_scenario("worldwide-10").network
    made = figures(matrix_of(network))
    published = read_matrix("aws", AWS.read_text())
    assert len(published.readings) == 90
    for pair, reading in published.readings.items():
        assert made[pair][:2] == (reading.one_way_delay_s, reading.bandwidth_bps)
    assert network.link(0, 1) == Link(one_way_delay_s=0.005, bandwidth_bps=2e9)
    assert network.num_nodes == 60
