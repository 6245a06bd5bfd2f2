"""Generate random scenarios: cities of the world, delays by distance, bandwidths by delay. Pure.

Both relations are fitted to the 90 directions between ten AWS regions in
results/published/aws_region_links_directed.csv, assumed to be in Boardman, Ashburn, Columbus,
Tokyo, Seoul, Singapore, Sydney, London, Frankfurt and Dublin. Tests repeat the fit.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from netbench.errors import ScenarioError
from netbench.scenario.measured.export import yaml_text
from netbench.units import counted, format_bandwidth, format_time

Floats = NDArray[np.float64]

CITIES = Path(__file__).parent / "cities.csv"
"""Locations of data centres, to a tenth of a degree."""

EARTH_RADIUS_M = 6_371_000.0
"""Mean radius of the earth."""

FIBRE_M_S = 299_792_458.0 * 2 / 3
"""Speed of light in glass with a refractive index of about 1.5."""

DETOUR = 1.5
FLOOR_S = 2.7e-3
"""One-way delay = floor + detour x great circle / speed in fibre. Least squares of the logarithm;
the residuals have a standard deviation of 0.22."""

MOST_BPS = 1.05e9
WINDOW_BITS = 76e6
SPREAD = 0.22
"""Bandwidth of an application over a few sockets = min(most, window / round trip). Least squares of
the logarithm; the residuals have a standard deviation of 0.21, of 0.22 where the round trip
decides. Those of the two directions of a pair correlate by less than 0.1."""

INSIDE_DELAY_S, INSIDE_BPS = 5e-3, 2e9
"""Link inside a region. Source: scenarios/worldwide-10.yaml."""

EVENNESS = 2.0
"""Dirichlet parameter: devices per region scatter by up to 0.7 of their mean."""

DEVICES = ("V100", "A40", "T4")
"""Built-in profiles; only the first where devices are not mixed."""

LAYERS, MAX_PIPELINE, MICRO_BATCHES = 24, 8, 64
"""Layers of GPT-XL; at most the stages of cases 1-5; micro-batches per pipeline and round."""

HEAD = """\
# Made by: {command}
#
# One-way delay: {floor} plus {detour:g} times the great circle in fibre. Bandwidth: {window} in
# flight per round trip, times e^x, x normal with deviation {spread:g} for each direction; at most
# {most}. Both are fitted to the 90 directions of results/published/aws_region_links_directed.csv,
# from which they differ by 16% and 17% on average. Links inside are those of worldwide-10.
"""

WORKLOAD = """\
workload: # GPT-XL, as cases 1-5
  layers: {layers}
  hidden: 2048
  heads: 16
  sequence: 2048
  batch: {batch}
  embedding_parameters: 64M

sweep:
  pipeline: {depth}
  variants: [dtfm-scheduled, dtfm-random]
"""


def generate_scenario(
    *, num_regions: int, num_devices: int, seed: int, mixed: bool, name: str, command: str
) -> str:
    """Return the text of a scenario file with nodes of one device, spread unevenly over cities.

    mixed: use devices of several types. command: for the comment at the head. Raises ScenarioError
    for more regions than cities or devices.
    """
    names, places_deg = read_cities()
    most = min(len(names), num_devices)
    if not 0 < num_regions <= most:
        raise ScenarioError(
            f"{counted(num_regions, 'region')} for {counted(num_devices, 'device')}: expected 1 to "
            f"{most}, since there are {len(names)} cities and each region needs a device"
        )
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(names), num_regions, replace=False)
    regions, where = [yaml_text(names[city]) for city in chosen], places_deg[chosen].tolist()
    counts = 1 + _split(rng, num_devices - num_regions, num_regions, EVENNESS)
    delay_s = one_way_delay_s(great_circle_m(places_deg[chosen]))
    rate_bps = bandwidth_bps(2 * delay_s, rng.standard_normal(delay_s.shape))
    np.fill_diagonal(delay_s, INSIDE_DELAY_S)
    np.fill_diagonal(rate_bps, INSIDE_BPS)
    depth = next(d for d in range(MAX_PIPELINE, 0, -1) if not (num_devices % d or LAYERS % d))
    lines = [
        f"name: {name}",
        f"title: {counted(num_devices, 'device')} in {counted(num_regions, 'city', 'cities')}, "
        f"seed {seed}",
        "",
        "regions: # latitude, longitude",
        *(f"  - {region} # {a:g}, {b:g}" for region, (a, b) in zip(regions, where, strict=True)),
        "",
        "nodes:",
        *_node_lines(rng, regions, counts, mixed),
        "",
        "network:",
        "  links: # from a row's region to each of `regions`; to itself: inside",
        "    one_way_delay:",
        *_rows(regions, [[format_time(round(s, 4)) for s in row] for row in delay_s.tolist()]),
        "    bandwidth:",
        *_rows(
            regions, [[format_bandwidth(round(b, -6)) for b in row] for row in rate_bps.tolist()]
        ),
        "",
    ]
    batch = MICRO_BATCHES * num_devices // depth
    workload = WORKLOAD.format(layers=LAYERS, batch=batch, depth=depth)
    head = HEAD.format(
        command=command,
        floor=format_time(FLOOR_S),
        detour=DETOUR,
        window=f"{WINDOW_BITS / 1e6:g} Mbit",
        spread=SPREAD,
        most=format_bandwidth(MOST_BPS),
    )
    return head + "\n".join(lines) + "\n" + workload


def read_cities() -> tuple[list[str], Floats]:
    """Return names, and latitudes and longitudes in degrees, (num_cities, 2)."""
    with CITIES.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    places = [(float(row["latitude_deg"]), float(row["longitude_deg"])) for row in rows]
    return [row["city"] for row in rows], np.array(places)


def great_circle_m(places_deg: Floats) -> Floats:
    """Return distances on a sphere: latitudes and longitudes (n, 2) -> (n, n)."""
    latitude, longitude = np.radians(places_deg).T
    cosine = np.sin(latitude)[:, None] * np.sin(latitude) + (
        np.cos(latitude)[:, None] * np.cos(latitude) * np.cos(longitude[:, None] - longitude)
    )
    return np.asarray(EARTH_RADIUS_M * np.arccos(np.clip(cosine, -1.0, 1.0)))


def one_way_delay_s(distance_m: Floats) -> Floats:
    """Return the one-way delay over the internet for a distance."""
    return FLOOR_S + DETOUR * distance_m / FIBRE_M_S


def bandwidth_bps(round_trip_s: Floats, noise: Floats | float = 0.0) -> Floats:
    """Return the bandwidth of an application for a round trip. noise: standard normal."""
    return np.minimum(MOST_BPS, WINDOW_BITS / round_trip_s * np.exp(SPREAD * noise))


def _split(
    rng: np.random.Generator, total: int, num_parts: int, evenness: float
) -> NDArray[np.int64]:
    """Split `total` into parts of random size."""
    return rng.multinomial(total, rng.dirichlet(np.full(num_parts, evenness)))


def _node_lines(
    rng: np.random.Generator, regions: list[str], counts: NDArray[np.int64], mixed: bool
) -> Iterator[str]:
    """Yield a line per region and type of device."""
    devices = DEVICES if mixed else DEVICES[:1]
    for region, count in zip(regions, counts.tolist(), strict=True):
        for device, number in zip(devices, _split(rng, count, len(devices), 1.0), strict=True):
            if number:
                yield f"  - {{region: {region}, count: {number}, device: {device}}}"


def _rows(regions: list[str], cells: list[list[str]]) -> Iterator[str]:
    for region, row in zip(regions, cells, strict=True):
        yield f"      - [{', '.join(row)}] # {region}"
