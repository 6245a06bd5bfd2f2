"""Events of emulated plans in cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbench.distributed.sessions import DaskSession
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution
from netbench.scenario import load_scenario
from netbench.testbed.runs.controller import Event, SessionTask


class Cell:
    """A pool of one cell, whose events the test sends."""

    def submit(
        self,
        work: object,
        items: Sequence[object],
        *,
        on_message: Callable[[Event], None],
        on_end: object,
        key: str,
    ) -> int:
        self.send = on_message
        return 0


def test_what_a_cell_that_runs_again_has_reported_before_is_left_out() -> None:
    """A cell runs again on another worker: its place is new, its iterations and parts are not."""
    example = load_scenario("example-two-labs")
    choices = Choices.of(example.sweep)
    plan, *_ = build_plans(example, choices, Execution(iterations=3))
    task = SessionTask(plans=[plan], finished=[[0]], trace=False, verify=True)
    cell: Any = Cell()
    told: list[Event | None] = []
    DaskSession(cell, False, task, told.append)
    place = {"event": "place", "host": "a"}
    probe = {"event": "probe", "probe": {}}
    part, iteration = ({"event": kind, "iteration": 1} for kind in ("part", "iteration"))
    later = {"event": "part", "iteration": 2}
    recorded = {"event": "iteration", "iteration": 0}
    for event in (place, probe, recorded, part, iteration, place, probe, part, iteration, later):
        cell.send(event)
    assert told == [place, probe, part, iteration, place, later]
