"""All ranks of a session, driven in step: connect, prepare a plan, run an iteration.

A rank is a process on a node that speaks JSON lines over a `Channel` (`netbench.trainers.protocol`
describes them). One reader thread per channel feeds one queue, so that the session blocks instead
of polling: a poll would keep virtual time from advancing.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from netbench.errors import TestbedError
from netbench.plan.collective import Experiment, experiment_to_json
from netbench.testbed.transport import Channel, NodeAddress, Transport

Message = dict[str, Any]

STEP_TIMEOUT_S = 100_000.0
"""Deadline of one step in the session's own clock, seconds. The longest published iteration takes
6,799 s; in virtual time a lost message is found when the clock jumps here, at no cost."""


class RankPool:
    """The ranks of one session; rank i owns device i and sits on node `device_nodes[i]`."""

    def __init__(self, nodes: Sequence[NodeAddress], device_nodes: Sequence[int]) -> None:
        self._nodes = nodes
        self._device_nodes = tuple(device_nodes)
        self._channels: list[Channel] = []
        self._inbox: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()

    def start(self, transport: Transport, on_ready: Callable[[int], None]) -> list[Message]:
        """Start every rank and wait until each said `started`; `on_ready(count)` as they come."""
        for rank, node in enumerate(self._device_nodes):
            channel = transport.start_rank(node, rank)
            self._channels.append(channel)
            threading.Thread(target=self._read, args=(rank, channel), daemon=True).start()
        return self._collect("started", on_ready)

    def connect(self, store_port: int) -> list[Message]:
        """Join all ranks into one world; rank 0 serves the store. Every connection is made here."""
        store = f"{self._nodes[self._device_nodes[0]].address}:{store_port}"
        for rank, channel in enumerate(self._channels):
            node = self._nodes[self._device_nodes[rank]]
            self._send(
                channel,
                op="connect",
                rank=rank,
                world_size=len(self._channels),
                address=node.address,
                interface=node.interface,
                store=store,
                serve_store=rank == 0,
            )
        return self._collect("ready")

    def prepare(self, plan: Experiment) -> None:
        """Build what `plan` needs on every rank and warm the connections it uses."""
        text = experiment_to_json(plan)
        for channel in self._channels:
            self._send(channel, op="prepare", plan=text)
        self._collect("prepared")

    def run(self, plan_hash: str, iteration: int, start_at_s: float) -> list[Message]:
        """One iteration of a prepared plan on all ranks, from one absolute start; rank order."""
        for channel in self._channels:
            self._send(
                channel, op="run", plan_hash=plan_hash, iteration=iteration, start_at=start_at_s
            )
        return self._collect("iteration")

    def stop(self) -> None:
        """Ask every rank to leave, and drop the channels."""
        for channel in self._channels:
            with suppress(TestbedError):  # gone already, which is what was asked
                self._send(channel, op="stop")
            channel.close()

    def _send(self, channel: Channel, **message: Any) -> None:
        channel.send(json.dumps(message))

    def _read(self, rank: int, channel: Channel) -> None:
        while (line := channel.receive()) is not None:
            try:
                self._inbox.put((rank, json.loads(line)))
            except json.JSONDecodeError:
                self._inbox.put((rank, {"event": "error", "message": f"not a message: {line!r}"}))
        self._inbox.put((rank, None))

    def _collect(
        self, event: str, on_answer: Callable[[int], None] = lambda count: None
    ) -> list[Message]:
        """One `event` from every rank, in rank order; any error or lost rank ends the session."""
        answers: dict[int, Message] = {}
        while len(answers) < len(self._channels):
            try:
                rank, message = self._inbox.get(timeout=STEP_TIMEOUT_S)
            except queue.Empty:
                missing = sorted(set(range(len(self._channels))) - set(answers))
                raise TestbedError(
                    f"no answer ({event}) within {STEP_TIMEOUT_S:g} s from {self._names(missing)}"
                ) from None
            if message is None:
                raise TestbedError(f"{self._names([rank])} ended before it answered ({event})")
            if message["event"] == "error":
                raise TestbedError(f"{self._names([rank])}: {message['message']}")
            if message["event"] == event:
                answers[rank] = message
                on_answer(len(answers))
        return [answers[rank] for rank in sorted(answers)]

    def _names(self, ranks: Sequence[int]) -> str:
        shown = [f"rank {r} on {self._nodes[self._device_nodes[r]].name}" for r in ranks[:8]]
        rest = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
        return ", ".join(shown) + rest
