"""Traces of machines that go and come."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.errors import ScenarioError
from netbench.plan.build import build_plan
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.scenario.churn import (
    COME,
    GO,
    STATE_BYTES,
    ChurnEvent,
    drawn_trace,
    load_s,
    machine_seconds,
    read_trace,
    trace_text,
)
from netbench.scenario.model import Setting
from tests.plans import small_plan


def test_a_drawn_trace_has_its_rate() -> None:
    """2 per hour there, away for 15 minutes: there 2/3 of the time, 4/3 interruptions per hour."""
    num_nodes, hours = 50, 100
    found = drawn_trace(num_nodes, hours * 3600, per_hour=2, away_s=900, seed=1)
    gone = sum(event.event == GO for event in found)
    assert gone / num_nodes / hours == pytest.approx(4 / 3, rel=0.05)
    assert list(found) == sorted(found, key=lambda event: event.time_s)
    assert found == drawn_trace(num_nodes, hours * 3600, per_hour=2, away_s=900, seed=1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("5,0,come", ":2: come of node 0, which is there"),
        ("5,0,go\n4,1,go", ":3: 4 s is before the line above"),
        ("5,9,go", ":2: node is 9; expected 0 to 3"),
        ("x,0,go", "is not a churn trace"),
        ("5,0", ":2: None of node 0, which is there"),
        ("nan,0,go", ":2: nan s is before the line above"),
    ],
)
def test_a_wrong_trace_names_its_line(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "churn.csv"
    path.write_text(f"time_s,node,event\n{lines}\n", encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        read_trace(path, 4)
    assert message in str(caught.value)


def test_a_missing_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"churn.csv: cannot be read: No such file"):
        read_trace(tmp_path / "churn.csv", 4)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    """To the millisecond."""
    drawn = drawn_trace(4, 7200, per_hour=2, away_s=900, seed=1)
    path = tmp_path / "churn.csv"
    path.write_text(trace_text(drawn), encoding="utf-8")
    found = read_trace(path, 4)
    assert [(event.node, event.event) for event in found] == [
        (event.node, event.event) for event in drawn
    ]
    assert [event.time_s for event in found] == pytest.approx(
        [event.time_s for event in drawn], abs=1e-3
    )


def test_a_machine_is_there_until_it_goes_and_after_it_has_come() -> None:
    """The first 100 s count, and no event after them."""
    events = [
        ChurnEvent(time_s=10, node=1, event=GO),
        ChurnEvent(time_s=30, node=1, event=COME),
        ChurnEvent(time_s=60, node=0, event=GO),
        ChurnEvent(time_s=120, node=1, event=GO),
    ]
    assert machine_seconds(events, 3, 100.0) == (60.0, 80.0, 100.0)


def test_the_state_comes_over_the_fastest_link() -> None:
    """From the other machine of the region: a round trip, and 12 bytes per parameter."""
    network = load_scenario("example-two-labs").network
    near, far = network.link(0, 1), network.link(0, 2)
    assert near.bandwidth_bps > far.bandwidth_bps
    expected = 2 * near.one_way_delay_s + 8 * STATE_BYTES * 1e6 / near.bandwidth_bps
    assert load_s(network, 1e6, {1, 2, 3}, 0) == pytest.approx(expected)
    assert load_s(network, 1e6, {2, 3}, 0) > expected
    assert load_s(network, 1e6, set(), 0) == 0


def test_a_trace_makes_another_plan() -> None:
    """Without one, plans have the hashes that they had before there were traces."""
    plan = build_plan(load_scenario("example-two-labs"), "diloco", Setting(layers=8, batch=16))
    assert "churn" not in plan_to_json(plan)
    churned = small_plan(churn=(ChurnEvent(time_s=1.0, node=0, event=GO),))
    assert plan_from_json(plan_to_json(churned)) == churned
    assert plan_hash(churned) != plan_hash(small_plan())
