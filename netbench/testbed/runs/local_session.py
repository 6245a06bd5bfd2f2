"""The process that carries out a local run, inside a kernel that netbench may change.

It runs as root in private mount, network and process namespaces (`local:native`) or as the first
program of a guest kernel (`local:guest`); the program is the same. It reads a job file, makes the
testbed and runs a session (`testbed.runs.session`). The events of the session, one JSON object per
line, come between two more:

    hello      kernel, versions
    done | error (message)

The controller (`testbed.runs.controller`) keeps the records; a session writes nothing else.
"""

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from netbench.plan.experiment import Experiment, experiment_from_json, rank_modules, runs_script
from netbench.scenario.sharing import num_routers
from netbench.testbed.local import LocalTestbed, NamespaceTestbed, RankSetup
from netbench.testbed.network import network_of
from netbench.testbed.runs.launch import Emit, carry_out, phase
from netbench.testbed.runs.session import PlanTask, run_session

SMALL_PACKETS = 8.0
"""Scale of segments from which gloo is woken less often (`gloo_shim.c`). Below it, packets are so
large that it would save little, and two runs of a plan are equal to the bit."""

WAKE_BYTES = 32768
"""Twice this fits the receive buffer that a connection begins with, so that the kernel leaves the
buffer, and with it the window, as they are."""


def run(job: Mapping[str, Any], emit: Emit) -> None:
    """Run the `plans` of a job on the testbed it names."""
    emit("hello", kernel=platform.release(), versions=versions())
    tasks = [
        PlanTask(plan=experiment_from_json(text), finished=finished)
        for text, finished in zip(job["plans"], job["finished"], strict=True)
    ]
    plan = tasks[0].plan
    num_nodes = plan.network.num_nodes + num_routers(plan.network)
    make: type[LocalTestbed] = NamespaceTestbed
    if job["ssh"]:
        # Imported only here: paramiko is slow to import and most sessions need none.
        from netbench.testbed.ssh.local_sshd import SshTestbed

        make = SshTestbed
    with phase(emit, "nodes", num_nodes):
        testbed = make(
            plan.node_names,
            network_of(plan, job["testbed"])[0],
            name=job["testbed"],
            tolerance=job["tolerance"],
            ranks=RankSetup(
                environment={**job["rank_environment"], **_fewer_wakes(plan)},
                scripts=runs_script(plan),
                modules=sorted(set[str]().union(*(rank_modules(task.plan) for task in tasks))),
            ),
        )
    with closing(testbed):
        run_session(testbed, tasks, emit, trace=job["trace"], verify=job["verify"])
    emit("done")


def _fewer_wakes(plan: Experiment) -> dict[str, str]:
    """Return the environment in which gloo does not wake for every packet, if these are small."""
    small = plan.network.tcp.acts and plan.scale >= SMALL_PACKETS
    return {"NETBENCH_WAKE_BYTES": str(WAKE_BYTES)} if small else {}


def versions() -> dict[str, str]:
    """Versions of the software that shapes and trains in this session."""
    tc = subprocess.run(["tc", "-V"], capture_output=True, text=True, check=False).stdout
    return {
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "iproute2": tc.strip().partition("iproute2-")[2].partition(",")[0] or "unknown",
    }


if __name__ == "__main__":
    carry_out(run)
