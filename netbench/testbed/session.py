"""One session: nodes, ranks and shaping inside a kernel netbench may change, from start to end.

Runs as root in private mount, network and process namespaces (`local:native`) or as the first
program of a guest kernel (`local:guest`); the program is the same. It reads a job file and writes
one JSON event per line:

    hello      kernel, versions
    phase      name, done, total: what is going on, for progress
    probe      the network verification
    iteration  plan_hash, iteration, iteration_s, phases; trace: events of every rank, or null;
               peers: ranks that ended it, where they may go (else null), gone: those that went
    output     plan_hash, rank, text: a line that a script has printed
    drops      packets that full queues dropped: the limits were too short
    done | error (message)

The controller (`netbench.testbed.local`) keeps the records; a session writes nothing else.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from netbench.errors import TestbedError
from netbench.plan import Plan, plan_hash, plan_to_json
from netbench.plan.command import COMMAND
from netbench.plan.experiment import Experiment, experiment_from_json, experiment_hash
from netbench.testbed import namespaces
from netbench.testbed.command import ScriptPool
from netbench.testbed.job import Job, carry_out
from netbench.testbed.peers import ELASTIC, PeerPool
from netbench.testbed.ranks import Message
from netbench.testbed.shaping import dropped_packets, shape, tune, verify
from netbench.testbed.transport import NodeAddress, Transport

STORE_PORT = 29500

START_MARGIN_S = {"guest-virtual": 0.05, "guest-real": 0.5, "native": 0.5}
"""From the order to run to the common start of an iteration, seconds, by mode: long enough for
every rank to have read the order. In virtual time reading costs nothing."""


class Session(Job):
    """Carries out a job: `plans` on one network, in one mode, writing events to `output`."""

    def __init__(self, job: Mapping[str, Any], output: TextIO) -> None:
        super().__init__(job, output)
        self._plans = [experiment_from_json(text) for text in job["plans"]]

    def run(self) -> None:
        """The whole session. Raises NetbenchError; the caller reports it."""
        self.emit("hello", kernel=platform.release(), versions=versions())
        first = self._plans[0]
        network, scale = first.network, first.scale
        nodes = (
            *namespaces.node_addresses(first.node_names),
            *namespaces.router_addresses(network),
        )
        self.phase("nodes", 0, len(nodes))
        namespaces.build(nodes, network.mtu_bytes, namespaces.gateways(network))
        self.phase("nodes", len(nodes), len(nodes))
        with self._transport(nodes) as transport:
            tune(transport.run, nodes, network, scale)
            if isinstance(first, Plan) and first.script:
                self._shape(transport, nodes)
                for number, plan in enumerate(self._plans):
                    assert isinstance(plan, Plan)
                    self._run_script(transport, nodes, plan, STORE_PORT + number)
            else:
                self._train(transport, nodes)
            self.emit("drops", packets=dropped_packets(transport.run, nodes, network, scale))
        self.emit("done")

    def _train(self, transport: Transport, nodes: Sequence[NodeAddress]) -> None:
        """All plans, each on the same ranks."""
        pool = PeerPool(nodes, self._plans[0].device_nodes)
        self._start_ranks(pool, transport)
        self._prepare(pool)
        self._shape(transport, nodes)
        for plan in self._plans:
            self._run_plan(pool, plan)
        pool.stop()

    @contextmanager
    def _transport(self, nodes: Sequence[NodeAddress]) -> Iterator[Transport]:
        scratch = Path("/run/netbench")
        scratch.mkdir(mode=0o700)
        transport: Transport
        if self._job["transport"] == "ssh":
            # Imported only here: paramiko is slow to import and most sessions need none.
            from netbench.testbed.sshd import SshTransport

            transport = SshTransport(nodes, scratch, self._job["rank_environment"])
        else:
            transport = namespaces.NamespaceTransport(
                scratch,
                self._job["rank_environment"],
                trains=self._plans[0].system != COMMAND,
            )
        try:
            yield transport
        finally:
            transport.close()

    def _start_ranks(self, pool: PeerPool, transport: Transport) -> None:
        total = len(self._plans[0].device_nodes)
        self.phase("ranks", 0, total)
        started = pool.start(transport, lambda done: self.phase("ranks", done, total))
        nodes = self._plans[0].device_nodes
        self._pids = {node: answer["pid"] for node, answer in zip(nodes, started, strict=True)}
        self.phase("connect", 0, 1)
        pool.connect(STORE_PORT)
        self.phase("connect", 1, 1)

    def _prepare(self, pool: PeerPool) -> None:
        # Before shaping: connections are set up at full speed, not at 1/scale of it.
        for done, plan in enumerate(self._plans):
            self.phase("prepare", done, len(self._plans))
            pool.prepare(plan)
        self.phase("prepare", len(self._plans), len(self._plans))

    def _shape(self, transport: Transport, nodes: Sequence[NodeAddress]) -> None:
        plan = self._plans[0]
        self.phase("shape", 0, len(nodes))
        shape(transport.run, nodes, plan.network, plan.scale)
        self.phase("shape", len(nodes), len(nodes))
        self.phase("verify", 0, 1)
        virtual = self._job["mode"] == "guest-virtual"
        tolerance = self._job["tolerance"]
        probe = verify(transport.run, nodes, plan.network, plan.scale, tolerance, virtual)
        self.phase("verify", 1, 1)
        self.emit("probe", probe=probe)

    def _run_script(
        self, transport: Transport, nodes: Sequence[NodeAddress], plan: Plan, store_port: int
    ) -> None:
        """Start a plan's script on every rank and pass on what it reports, until that is enough."""
        key, num_ranks = plan_hash(plan), len(plan.placement)
        finished = set(self._job["finished"].get(key, ()))
        wanted = [i for i in range(plan.iterations) if i not in finished]
        # Resumed: it starts from the beginning, and is cold again.
        again = plan.warmup_iterations if wanted and wanted[0] >= plan.warmup_iterations else 0
        order, num_reported = [*[None] * again, *wanted], 0
        plan_file = Path(f"/run/netbench/{key}.json")
        plan_file.write_text(plan_to_json(plan))
        pool = ScriptPool(nodes, plan, functools.partial(self._print, key))
        self.phase("ranks", 0, num_ranks)
        try:
            pool.start(transport, lambda done: self.phase("ranks", done, num_ranks))
            pool.launch(Path.cwd(), plan_file, store_port)
            for index, iteration in zip(order, pool.iterations(), strict=False):
                num_reported += 1
                if index is not None:
                    measured = {**asdict(iteration), "late_start_s": 0.0}
                    self.emit("iteration", plan_hash=key, iteration=index, **measured)
        finally:
            pool.stop()
        if num_reported < len(order):
            raise TestbedError(
                f"the scripts of plan {key} ended well after reporting {num_reported} of "
                f"{len(order)} iterations; let them do NETBENCH_ITERATIONS, and report each "
                "(docs/own-trainer.md)"
            )

    def _print(self, plan_hash: str, rank: int, text: str) -> None:
        self.emit("output", plan_hash=plan_hash, rank=rank, text=text)

    def _run_plan(self, pool: PeerPool, plan: Experiment) -> None:
        key = experiment_hash(plan)
        finished = set(self._job["finished"].get(key, ()))
        wanted = [i for i in range(plan.iterations) if i not in finished]
        if wanted and wanted[0] >= plan.warmup_iterations:
            # Resumed: these connections are cold again, and a cold iteration is not comparable;
            # and ranks that synchronise now and then are to do so in the same iterations.
            local_steps = plan.local_steps if isinstance(plan, Plan) else 0
            into_round = (wanted[0] - plan.warmup_iterations) % max(1, local_steps)
            for index in range(plan.warmup_iterations + into_round):
                self._iterate(pool, key, index)
        for index in wanted:
            trace = self._job.get("trace", False) and index == wanted[-1]
            measured = self._iterate(pool, key, index, trace)
            self.emit("iteration", plan_hash=key, iteration=index, **measured)

    def _iterate(self, pool: PeerPool, plan_hash: str, index: int, trace: bool = False) -> Message:
        """One iteration: from the absolute common start to the last rank's end, seconds.

        It starts on a whole second: TCP's timers tick every 10 ms, and where between two ticks an
        iteration starts would decide when an acknowledgement goes out.
        """
        elastic = pool.plan(plan_hash).system in ELASTIC
        if elastic:
            for rank, pid in pool.readmit().items():
                self._pids[self._plans[0].device_nodes[rank]] = pid
        start_at_s = float(math.ceil(time.monotonic() + START_MARGIN_S[self._job["mode"]]))
        before = self._sent_bytes()
        ended = pool.run(plan_hash, index, start_at_s, trace)
        after = self._sent_bytes()
        last = max(ended, key=lambda answer: float(answer["end_s"]))
        late_s = max(float(answer["start_s"]) for answer in ended) - start_at_s
        shares = [answer["loss"] for answer in ended if answer.get("loss") is not None]
        return {
            "iteration_s": float(last["end_s"]) - start_at_s,
            "phases": last["phases"],
            "late_start_s": late_s,
            "loss": sum(shares) if shares else None,
            "trace": {answer["rank"]: answer["events"] for answer in ended} if trace else None,
            "sent_bytes": [max(0, now - then) for now, then in zip(after, before, strict=True)],
            "peers": len(ended) if elastic else None,
            "gone": pool.take_gone(),
        }

    def _sent_bytes(self) -> list[int]:
        """What every node has sent since it was made, read where a rank of its sees it."""
        return [sent_bytes(self._pids[node]) for node in sorted(self._pids)]


def sent_bytes(pid: int) -> int:
    """Bytes that the node of process `pid` has sent over its shaped interface, headers included; 0
    once the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0
    for line in lines:
        name, _, counts = line.partition(":")
        if name.strip() == namespaces.INTERFACE:
            return int(counts.split()[8])  # after eight of what was received
    raise TestbedError(f"process {pid} sees no interface {namespaces.INTERFACE}")


def versions() -> dict[str, str]:
    """Versions of what shapes and trains in this session."""
    tc = subprocess.run(["tc", "-V"], capture_output=True, text=True, check=False).stdout
    return {
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "iproute2": tc.strip().partition("iproute2-")[2].partition(",")[0] or "unknown",
    }


if __name__ == "__main__":
    carry_out(Session)
