"""A session of which a peer is killed after the second iteration, inside a guest.

`python peers_in_guest.py VARIANT` prints one JSON array: of each iteration the peers, who went, the
seconds and the late start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from typing import Any

from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution
from netbench.scenario import load_scenario
from netbench.testbed.local import NamespaceTestbed, RankSetup
from netbench.testbed.runs.session import PlanTask, run_session
from tests.testbed.processes import processes_in

VICTIM = 1


def main() -> None:
    (plan,) = build_plans(
        load_scenario("example-two-labs"),
        Choices(variants=sys.argv[1:], layers=[8], batch=[16], seeds=[1]),
        Execution(iterations=4, warmup_iterations=1),
    )
    iterations: list[dict[str, Any]] = []

    def emit(event: str, **fields: Any) -> None:
        """Kill a rank after the second iteration."""
        if event == "iteration":
            iterations.append(fields)
            if fields["iteration"] == 1:
                (pid,) = processes_in(f"n{VICTIM}")
                os.kill(pid, signal.SIGKILL)

    testbed = NamespaceTestbed(
        plan.node_names,
        plan.network,
        name="guest-virtual",
        tolerance=0.02,
        ranks=RankSetup(environment={}),
    )
    with closing(testbed):
        run_session(testbed, [PlanTask(plan=plan, finished=())], emit)
    kept = ("peers", "gone", "iteration_s", "late_start_s")
    print(json.dumps([{key: fields[key] for key in kept} for fields in iterations]))


if __name__ == "__main__":
    main()
