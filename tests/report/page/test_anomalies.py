"""Findings about the published tables, compared with figures worked out independently."""

from __future__ import annotations

import pytest

from netbench.report.page import anomalies
from netbench.report.page.anomalies import COMPUTED, NOTES, Anomaly


def text(anomaly: Anomaly) -> str:
    return f"{anomaly.title}. {anomaly.text}"


@pytest.mark.parametrize(
    ("anomaly", "facts"),
    [
        (anomalies.estimators_differ, ["207", "seed 2022: 135", "single run: 36"]),
        (anomalies.far_from_mean, ["40 cells", "5.9% off: case4", "(wo Scheduler), L24 B1024"]),
        (anomalies.blank_column, ["ZeRO S3 column of case2", "All 27 times"]),
        (anomalies.misprinted_setting, ["L24 B1028", "23.64 / 21.31 s = 1.109", "give 1.114"]),
        (anomalies.rounded_work, ["47.28 at B2048", "94.58", "0.016%", "37 of 207"]),
        (anomalies.few_digits, ["18 printed cells", "case4, case5", "0.024", "±2.1%"]),
        (anomalies.single_runs, ["45 of 252", "0.1% to 11.2%", "case1, dtfm-random, L32 B1024"]),
        (anomalies.heads_differ, ["7 columns"]),
        (anomalies.one_direction, ["45 of 45", "14 of case 5's 28 links differ", "1.14 and 0.447"]),
        (anomalies.one_link_two_rates, ["Virginia - Oregon: 1.15 Gbit/s in case 4, 0.79 in case"]),
        (anomalies.rate_in_notes, ["1.2 Gbit/s", "is 1.12 Gbit/s and 11 ms"]),
        (anomalies.delay_applied_twice, ["round trip of 11 ms", "with 22 ms"]),
        (anomalies.regions_in_notes, ["Europe", "6 links join California, Ohio, Oregon, Virginia"]),
        (anomalies.throughput_as_rate, ["98.5% to 99.4%"]),
    ],
)
def test_a_finding_has_its_numbers(anomaly: object, facts: list[str]) -> None:
    """Counts and figures agree with those found in the data by hand or by another program."""
    assert callable(anomaly)
    for fact in facts:
        assert fact in text(anomaly())


def test_the_blank_column_is_filled_with_the_mean_of_three_seeds() -> None:
    """L24 B1024, by hand: 23.64 / ((28.25 + 28.27 + 27.64) / 3) = 0.843."""
    table = anomalies.blank_column().table
    assert table is not None
    assert (table.head[0], table.rows[0][0]) == ("L24 B1024", "0.843")
    assert len(table.rows[0]) == 9


def test_the_farthest_cells_come_first() -> None:
    """Ten rows, worst first, with the sign of the deviation."""
    table = anomalies.far_from_mean().table
    assert table is not None
    off = [float(row[-1].rstrip("%")) for row in table.rows]
    assert off[0] == 5.9
    assert len(off) == 10
    assert [abs(value) for value in off] == sorted(map(abs, off), reverse=True)


def test_every_finding_is_listed_once_with_what_it_rests_on() -> None:
    """Fourteen, numbered; the reference between two of them is right."""
    listed = anomalies.anomalies()
    assert len({finding.title for finding in listed}) == len(listed) == 14
    assert {finding.rests_on for finding in listed} == {COMPUTED, NOTES}
    page = anomalies.anomalies_page()
    assert "\n## 14. " in page
    assert "(see number 6)" in page
    assert "\n## 6. Three decimals leave two digits\n" in page
