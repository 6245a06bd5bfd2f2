"""Random scenarios: reproducible, uneven, with distances and rates as measured."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from netbench.errors import ScenarioError
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.scenario import Scenario, load_scenario
from netbench.scenario import geography as geo
from netbench.scenario.model import Setting

MEASURED = Path(__file__).parents[2] / "results" / "published" / "aws_region_links_directed.csv"

CITY_OF = {"Oregon": "Boardman", "Virginia": "Ashburn", "Ohio": "Columbus", "Ireland": "Dublin"}
"""Cities of AWS regions that are not named after one."""


def text_of(regions: int = 6, devices: int = 96, seed: int = 1, *, mixed: bool = False) -> str:
    return geo.generate_scenario(
        num_regions=regions,
        num_devices=devices,
        seed=seed,
        mixed=mixed,
        name="random",
        command="a command",
    )


def loaded(folder: Path, text: str) -> Scenario:
    path = folder / "random.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(str(path))


def haversine_m(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Compute great circles by another formula, exact for small angles too."""
    (p, q), (r, s) = ((math.radians(x), math.radians(y)) for x, y in (a, b))
    half = math.sin((r - p) / 2) ** 2 + math.cos(p) * math.cos(r) * math.sin((s - q) / 2) ** 2
    return 2 * 6_371_000 * math.asin(math.sqrt(half))


@pytest.fixture(scope="module")
def measured() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return great circles in m, round trips in s and rates in bit/s of the 90 measured
    directions."""
    names, places = geo.read_cities()
    with MEASURED.open() as file:
        rows = {(row["sender"], row["receiver"]): row for row in csv.DictReader(file)}
    pairs = sorted(pair for pair in rows if pair[0] < pair[1])
    found = []
    for src, dst in [*pairs, *((b, a) for a, b in pairs)]:
        ends = [tuple(places[names.index(CITY_OF.get(place, place))]) for place in (src, dst)]
        row = rows[src, dst]
        found.append(
            (haversine_m(*ends), float(row["ping_rtt_ms"]) / 1e3, float(row["nccl_gbps"]) * 1e9)
        )
    distance_m, round_trip_s, rate_bps = np.array(found).T
    assert len(found) == 90
    return distance_m, round_trip_s, rate_bps


def test_the_delay_is_what_the_measured_round_trips_give(
    measured: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Repeat the fit to half of the round trips; the residuals are as documented."""
    distance_m, round_trip_s, _ = measured
    ideal_s = distance_m / geo.FIBRE_M_S

    def left(parameters: np.ndarray) -> np.ndarray:
        floor_ms, detour = parameters
        return np.asarray(np.log(floor_ms / 1e3 + detour * ideal_s) - np.log(round_trip_s / 2))

    floor_ms, detour = least_squares(left, [1.0, 1.0]).x
    assert floor_ms / 1e3 == pytest.approx(geo.FLOOR_S, rel=0.05)
    assert detour == pytest.approx(geo.DETOUR, rel=0.01)
    away = np.log(geo.one_way_delay_s(distance_m) / (round_trip_s / 2))
    assert away.std() == pytest.approx(0.22, abs=0.005)
    assert np.abs(np.expm1(away)).mean() == pytest.approx(0.16, abs=0.005)


def test_the_bandwidth_is_what_the_measured_throughputs_give(
    measured: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Repeat the fit over the measured round trips; the noise has the spread of the residuals,
    independent for each direction."""
    _, round_trip_s, rate_bps = measured

    def left(parameters: np.ndarray) -> np.ndarray:
        most_gbps, window_gbit = parameters
        rate_gbps = np.minimum(most_gbps, window_gbit / round_trip_s)
        return np.asarray(np.log(rate_gbps) - np.log(rate_bps / 1e9))

    most_gbps, window_gbit = least_squares(left, [1.0, 0.1]).x
    assert most_gbps * 1e9 == pytest.approx(geo.MOST_BPS, rel=0.01)
    assert window_gbit * 1e9 == pytest.approx(geo.WINDOW_BITS, rel=0.01)
    away = np.log(rate_bps / geo.bandwidth_bps(round_trip_s))
    far = round_trip_s > geo.WINDOW_BITS / geo.MOST_BPS
    assert away.std() == pytest.approx(0.21, abs=0.005)
    assert away[far].std() == pytest.approx(geo.SPREAD, abs=0.005)
    assert np.abs(np.expm1(-away)).mean() == pytest.approx(0.17, abs=0.005)
    assert abs(np.corrcoef(away[:45], away[45:])[0, 1]) < 0.1


def test_great_circles_are_those_of_a_sphere() -> None:
    """A quarter of it from pole to equator, half of it to the antipode, and equal to haversines."""
    quarter_m = math.pi / 2 * geo.EARTH_RADIUS_M
    found = geo.great_circle_m(np.array([[90.0, 0.0], [0.0, 17.0], [-90.0, 0.0]]))
    expected = np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]]) * quarter_m
    assert found == pytest.approx(expected)
    _, places = geo.read_cities()
    cities = geo.great_circle_m(places)
    assert cities[3, 40] == pytest.approx(haversine_m(tuple(places[3]), tuple(places[40])))


def test_a_seed_makes_one_scenario() -> None:
    """The text is identical; another seed makes another."""
    assert text_of(seed=5) == text_of(seed=5)
    assert text_of(seed=5) != text_of(seed=6)


def test_links_are_of_the_distance_and_the_delay(tmp_path: Path) -> None:
    """Delays are symmetric to 0.1 ms; rates differ by direction, about what the round trip allows;
    links inside regions are those of worldwide-10."""
    network = loaded(tmp_path, text_of(regions=12)).network
    names, places = geo.read_cities()
    at = [tuple(places[names.index(region)]) for region in network.regions]
    noise = []
    for i, row in enumerate(network.links):
        for j, link in enumerate(row):
            if i == j:
                assert link == load_scenario("worldwide-10").network.links[0][0]
                continue
            delay_s = 2.7e-3 + 1.5 * haversine_m(at[i], at[j]) / 2e8
            assert link.one_way_delay_s == pytest.approx(delay_s, rel=2e-3, abs=6e-5)
            assert link.bandwidth_bps <= 1.05e9
            if link.bandwidth_bps < 1.05e9:
                noise.append(math.log(link.bandwidth_bps / (76e6 / (2 * delay_s))))
            assert link.one_way_delay_s == network.links[j][i].one_way_delay_s
    assert len(noise) > 80
    assert np.std(noise) == pytest.approx(0.22, rel=0.25)
    there, back = (network.links[i][j].bandwidth_bps for i, j in ((0, 1), (1, 0)))
    assert there != back


def test_mixed_devices_do_not_change_the_network(tmp_path: Path) -> None:
    """Counts per region stay too; all three kinds occur."""
    plain, mixed = (loaded(tmp_path, text_of(mixed=value)) for value in (False, True))
    assert plain.network == mixed.network
    assert {node.device for node in plain.nodes} == {"V100"}
    assert {node.device for node in mixed.nodes} == {"V100", "A40", "T4"}


@settings(max_examples=15, deadline=None)
@given(
    regions=st.integers(1, 20),
    more=st.integers(0, 4076),
    seed=st.integers(0, 2**32),
    mixed=st.booleans(),
)
def test_any_size_is_a_scenario_whose_plans_can_be_built(
    tmp_path_factory: pytest.TempPathFactory, regions: int, more: int, seed: int, mixed: bool
) -> None:
    """The number of devices is as asked for, with at least one per region."""
    text = text_of(regions, regions + more, seed, mixed=mixed)
    scenario = loaded(tmp_path_factory.mktemp("random"), text)
    counts = np.bincount(scenario.network.node_regions, minlength=regions)
    assert (counts.sum(), len(counts)) == (regions + more, regions)
    assert counts.min() >= 1
    plan = build_plan(
        scenario,
        "dtfm-random",
        Setting(layers=24, batch=scenario.workload.batch),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert plan.layout.num_ranks == regions + more
    assert plan.num_micro_batches == 64


def test_regions_differ_in_size(tmp_path: Path) -> None:
    """By 0.4 to 1 of their mean, over many scenarios."""
    scenario = loaded(tmp_path, text_of(regions=32, devices=3200))
    counts = np.bincount(scenario.network.node_regions)
    assert 0.4 < counts.std() / counts.mean() < 1.0


@pytest.mark.parametrize(("regions", "devices", "most"), [(5, 4, 4), (72, 1000, 71)])
def test_more_regions_than_devices_or_cities_are_refused(
    regions: int, devices: int, most: int
) -> None:
    """The error states the limit."""
    message = f"{regions} regions for {devices} devices: expected 1 to {most}, "
    with pytest.raises(ScenarioError, match=message):
        text_of(regions, devices)
