"""Which iterations a session runs, without ranks."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import pytest

from netbench.plan import build_plans, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.testbed.peers import PeerPool
from netbench.testbed.session import Session


class Counting(Session):
    """Counts the iterations it is asked for."""

    count = 0

    def _iterate(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.count += 1
        return {"number": self.count - 1}


@pytest.mark.parametrize(
    ("variant", "num_finished", "num_again"),
    [("megatron", 0, 0), ("megatron", 6, 2), ("diloco-h4", 6, 2), ("diloco-h4", 7, 3)],
)
def test_a_resumed_session_is_warm_and_where_it_was_in_a_round(
    variant: str, num_finished: int, num_again: int
) -> None:
    """Two warm-ups; an iteration of local steps is as many after the last average as before."""
    (plan,) = build_plans(
        load_scenario("example-two-labs"), [variant], [8], [16], [1], 10, 2, scale=10
    )
    job = {
        "plans": [plan_to_json(plan)],
        "finished": {plan_hash(plan): list(range(num_finished))},
    }
    output = io.StringIO()
    session = Counting(job, output)
    session._run_plan(cast(PeerPool, None), plan)
    events = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [event["iteration"] for event in events] == list(range(num_finished, 10))
    assert events[0]["number"] == num_again
    steps = max(1, plan.local_steps)
    assert events[0]["number"] % steps == num_finished % steps
