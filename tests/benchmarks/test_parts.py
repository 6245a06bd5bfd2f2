"""The four parts of an iteration's time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.fit_v100 import Residual
from benchmarks.parts import mean_scatter, parts, parts_of, parts_table

SETTINGS = tuple(itertools.product((24, 32, 40), (1024, 2048, 4096)))


def time_s(layers: int, batch: int) -> float:
    """5 s + 2 s per layer of a stage beyond 4, 3 s per 1024 sequences, 0.5 s per both."""
    steps, sizes = (layers - 32) / 8, batch / 1024
    return 5 + 2 * steps + (3 + 0.5 * steps) * sizes


def rows(*, published_factors: dict[tuple[int, int], float]) -> list[Residual]:
    return [
        Residual(
            case="case3",
            variant="dtfm-random",
            layers=layers,
            batch=batch,
            published_s=time_s(layers, batch) * published_factors.get((layers, batch), 1.0),
            simulated_s=2 * time_s(layers, batch),
        )
        for layers, batch in SETTINGS
    ]


def test_exact_times_give_their_parts_without_scatter() -> None:
    layers, batches = zip(*SETTINGS, strict=True)
    found = parts(layers, batches, [time_s(*setting) for setting in SETTINGS])
    np.testing.assert_allclose(found.values, [5, 2, 3, 0.5])
    assert found.scatter < 1e-9
    assert found.errors.max() < 1e-9


def test_one_time_that_is_off_shows_in_the_scatter_and_in_the_standard_errors() -> None:
    """10% in one of nine settings: the 5 degrees of freedom that are left take a part of it."""
    ((published, simulated),) = parts_of(rows(published_factors={(32, 2048): 1.1})).values()
    assert 0.01 < published.scatter < 0.1 / 5**0.5
    assert abs(published.values[0] - 5) < 3 * published.errors[0]
    assert simulated.scatter < 1e-9


def test_standard_errors_are_those_of_repeated_measurements() -> None:
    random = np.random.default_rng(0)
    layers, batches = zip(*SETTINGS, strict=True)
    found = [
        parts(layers, batches, [time_s(*s) * random.normal(1, 0.01) for s in SETTINGS])
        for _ in range(2000)
    ]
    spread = np.std([one.values for one in found], axis=0)
    expected = np.mean([one.errors**2 for one in found], axis=0) ** 0.5
    np.testing.assert_allclose(spread, expected, rtol=0.1)
    assert np.mean([one.scatter**2 for one in found]) ** 0.5 == pytest.approx(0.01, rel=0.05)


def test_the_table_has_published_parts_with_errors_and_simulated_ones() -> None:
    line = parts_table(rows(published_factors={})).splitlines()[-1]
    assert line == (
        "| case3 | dtfm-random | 5.00 ±0.00 → 10.00 | 2.00 ±0.00 → 4.00 | 3.00 ±0.00 → 6.00 "
        "| 0.50 ±0.00 → 1.00 | 0.0% |"
    )


def test_too_few_settings_have_no_parts() -> None:
    few = rows(published_factors={})
    assert not parts_of(few[:4])
    assert mean_scatter(few) < 1e-9
