"""A session of which a peer is killed after the second iteration, inside a guest.

Prints one JSON object: the session's iterations (variant, peers, who went, seconds, late start).
"""

from __future__ import annotations

import io
import json
import os
import signal
from typing import Any

from netbench.plan import build_plans, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.testbed.session import Session

VICTIM = 1


class ShrinkingSession(Session):
    """Kills a rank of every plan."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job, io.StringIO())
        self.iterations: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        if event == "iteration":
            self.iterations.append(fields)
            if fields["iteration"] == 1:
                os.kill(self._pids[VICTIM], signal.SIGKILL)


def main() -> None:
    plans = build_plans(
        load_scenario("example-two-labs"), ["hivemind-sync", "hivemind"], [8], [16], [1], 4, 1
    )
    job = {
        "plans": [plan_to_json(plan) for plan in plans],
        "finished": {},
        "transport": "namespaces",
        "tolerance": 0.02,
        "rank_environment": {},
        "mode": "guest-virtual",
    }
    session = ShrinkingSession(job)
    session.run()
    names = {plan_hash(plan): plan.variant for plan in plans}
    kept = ("peers", "gone", "iteration_s", "late_start_s", "sent_bytes")
    found = [
        {"variant": names[fields["plan_hash"]], **{key: fields[key] for key in kept}}
        for fields in session.iterations
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
