"""A session in which a rank is hit, inside a guest: `failures_in_guest.py SIGNAL RANK`.

Prints one JSON object: the session's error, the iterations it finished, how long it took by its
own clock, and which of its ranks live on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from netbench.errors import TestbedError
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution
from netbench.scenario import load_scenario
from netbench.testbed.local import NamespaceTestbed, RankSetup
from netbench.testbed.runs.session import PlanTask, run_session
from tests.testbed.processes import processes_in


class Hitter:
    """Hits a rank after the first iteration."""

    def __init__(self, rank: int, number: signal.Signals) -> None:
        self.finished: list[int] = []
        self.hit_at_s = 0.0
        self.pids: list[int] = []
        self._target, self._number = rank, number

    def emit(self, event: str, **fields: Any) -> None:
        if event == "iteration":
            self.finished.append(fields["iteration"])
            if len(self.finished) == 1:
                # One rank per node.
                self.pids = [pid for node in range(4) for pid in processes_in(f"n{node}")]
                self.hit_at_s = time.monotonic()
                os.kill(self.pids[self._target], self._number)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> None:
    number, rank = signal.Signals[sys.argv[1]], int(sys.argv[2])
    (plan,) = build_plans(
        load_scenario("example-two-labs"),
        Choices(variants=["dtfm-scheduled"], layers=[8], batch=[16], seeds=[1]),
        Execution(iterations=5, warmup_iterations=1),
    )
    hitter, message = Hitter(rank, number), ""
    testbed = NamespaceTestbed(
        plan.node_names,
        plan.network,
        name="guest-virtual",
        tolerance=0.02,
        ranks=RankSetup(environment={}),
    )
    with closing(testbed):
        try:
            run_session(testbed, [PlanTask(plan=plan, finished=())], hitter.emit)
        except TestbedError as error:
            message = str(error)
    elapsed_s = time.monotonic() - hitter.hit_at_s
    # The kernel takes a moment to end what was killed.
    deadline_s = time.monotonic() + 10.0
    while (left := [pid for pid in hitter.pids if lives(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    found = {
        "message": message,
        "finished": hitter.finished,
        "elapsed_s": elapsed_s,
        "num_ranks": len(hitter.pids),
        "left": left,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
