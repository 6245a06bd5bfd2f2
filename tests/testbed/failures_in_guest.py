"""A session in which a rank is hit, inside a guest: `failures_in_guest.py SIGNAL RANK`.

Prints one JSON object: what the session said, the iterations it finished, how long it took by its
own clock, and which of its ranks live on.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from netbench.errors import TestbedError
from netbench.plan import build_plans, plan_to_json
from netbench.scenario import load_scenario
from netbench.testbed.session import Session


class HitSession(Session):
    """Hits a rank after the first iteration."""

    def __init__(self, job: dict[str, Any], rank: int, number: signal.Signals) -> None:
        super().__init__(job, io.StringIO())
        self.finished: list[int] = []
        self.hit_at_s = 0.0
        self._target, self._number = rank, number

    def emit(self, event: str, **fields: Any) -> None:
        if event == "iteration":
            self.finished.append(fields["iteration"])
            if len(self.finished) == 1:
                self.hit_at_s = time.monotonic()
                os.kill(self.pids[self._target], self._number)

    @property
    def pids(self) -> list[int]:
        """Of the ranks; one per node."""
        return [self._pids[node] for node in sorted(self._pids)]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> None:
    number, rank = signal.Signals[sys.argv[1]], int(sys.argv[2])
    (plan,) = build_plans(
        load_scenario("example-two-labs"), ["dtfm-scheduled"], [8], [16], [1], 5, 1
    )
    job = {
        "plans": [plan_to_json(plan)],
        "finished": {},
        "transport": "namespaces",
        "tolerance": 0.02,
        "rank_environment": {},
        "mode": "guest-virtual",
    }
    session = HitSession(job, rank, number)
    message = ""
    try:
        session.run()
    except TestbedError as error:
        message = str(error)
    elapsed_s = time.monotonic() - session.hit_at_s
    # The kernel takes a moment to end what was killed.
    deadline_s = time.monotonic() + 10.0
    while (left := [pid for pid in session.pids if lives(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    found = {"message": message, "finished": session.finished, "elapsed_s": elapsed_s, "left": left}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
