"""A session on machines of an inventory, in a thread of the controller.

Events are those of `testbed.runs.session`, and before the end:

    certificate    hosts: name -> what of the session is left there
"""

import threading
from collections.abc import Callable
from typing import Any

from netbench.errors import NetbenchError
from netbench.plan.experiment import experiment_hash, rank_modules, runs_script
from netbench.testbed.cluster.testbed import ClusterTestbed
from netbench.testbed.local import RankSetup
from netbench.testbed.network import network_of
from netbench.testbed.runs.controller import SessionTask
from netbench.testbed.runs.launch import phase
from netbench.testbed.runs.session import PlanTask, run_session
from netbench.testbed.ssh.inventory import Inventory

CLOSE_S = 120.0
"""Deadline for a session to end after `close`, seconds."""


class ClusterSession:
    """A running session; see `testbed.runs.launch.SessionProcess`."""

    def __init__(
        self,
        inventory: Inventory,
        replace: bool,
        task: SessionTask,
        on_event: Callable[[dict[str, Any] | None], None],
    ) -> None:
        self._inventory = inventory
        (self._plan,) = task.plans
        self._task = task
        self._on_event = on_event
        self._replace = replace
        self._testbed: ClusterTestbed | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def console_tail(self, *, booted: bool = False) -> str:
        """Return "": errors of hosts are in the messages themselves."""
        return ""

    def close(self) -> None:
        """End the session wherever it is, and wait until the hosts are as they were."""
        self._is_closed = True
        if self._testbed is not None:
            self._testbed.close()
        self._thread.join(CLOSE_S)

    def _emit(self, event: str, **fields: Any) -> None:
        self._on_event({"event": event, **fields})

    def _run(self) -> None:
        try:
            self._session()
            self._emit("done")
        except NetbenchError as error:
            self._emit("error", message=str(error))
        self._on_event(None)

    def _session(self) -> None:
        plan = self._plan
        network, scale = network_of(plan)
        with phase(self._emit, "hosts", network.num_nodes):
            testbed = ClusterTestbed(
                self._inventory,
                network,
                scale,
                RankSetup(
                    environment={}, scripts=runs_script(plan), modules=sorted(rank_modules(plan))
                ),
                self._keep_error,
                replace=self._replace,
            )
        self._testbed = testbed
        try:
            first = next(iter(testbed.versions.values()))
            versions = {
                "python": first["python"],
                "torch": first["torch"] or "none",
                "iproute2": testbed.tc,
            }
            self._emit("hello", kernel=testbed.kernel, versions=versions)
            if not self._is_closed:
                work = PlanTask(plan=plan, finished=self._task.finished[0])
                run_session(testbed, [work], self._emit, trace=self._task.trace)
        finally:
            testbed.close()
            left = {host: str(found) for host, found in testbed.leftovers.items()}
            self._emit("certificate", hosts=left)

    def _keep_error(self, host: str, rank: int | None, text: str) -> None:
        if rank is not None:
            key = experiment_hash(self._plan)
            self._emit("output", plan_hash=key, rank=rank, text=f"{host}: {text}")
