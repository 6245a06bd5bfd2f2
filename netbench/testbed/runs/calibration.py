"""Client of the process that measures a device (`trainers.calibrate`), here or on a host."""

import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from netbench.errors import TestbedError
from netbench.network.nodes import Channel
from netbench.testbed.namespaces import SocketChannel

Message = dict[str, Any]

START_S = 180.0
"""Deadline for importing torch and finding the device, wall seconds. It takes half a minute on a
busy machine."""

PATIENCE, GRACE_S = 4.0, 120.0
"""Deadline of an answer: this many budgets, plus this many seconds for runs that have begun."""


class DeviceProcess:
    """A process that measures a device.

    channel: to it. name: of a GPU, "" = the machine's processor. machine: that it runs on.
    """

    def __init__(self, channel: Channel, device: str, threads: int) -> None:
        self._channel = channel
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        opened = self._ask(START_S, {"op": "open", "device": device, "threads": threads})
        self.name: str = opened["name"]
        self.memory_bytes: int = opened["memory_bytes"]
        self.versions: dict[str, str] = opened["versions"]
        self.machine: str = opened["machine"]
        self.pid: int = opened["pid"]

    def ask(self, op: str, budget_s: float, **order: Any) -> Message:
        """Return the answer to an order.

        Raises TestbedError for an error, or if none comes in time.
        """
        return self._ask(PATIENCE * budget_s + GRACE_S, {"op": op, "budget_s": budget_s, **order})

    def _read(self) -> None:
        while (line := self._channel.receive()) is not None:
            self._answers.put(line)
        self._answers.put(None)

    def _ask(self, timeout_s: float, order: Message) -> Message:
        try:
            self._channel.send(json.dumps(order))
            line = self._answers.get(timeout=timeout_s)
        except (TestbedError, queue.Empty):
            line = None
        if line is None:
            raise TestbedError(
                f"the process that measures ended or gave no answer ({order['op']}) within "
                f"{timeout_s:.0f} s"
            )
        answer: Message = json.loads(line)
        if answer["event"] == "error":
            raise TestbedError(answer["message"])
        return answer


@contextmanager
def open_bench(device: str, threads: int) -> Iterator[DeviceProcess]:
    """Start a process that measures `device` (cpu or cuda). It ends with the context.

    Raises TestbedError if there is no such device.
    """
    command = [sys.executable, "-m", "netbench.trainers", "--calibrate"]
    here, there = socket.socketpair()
    with there:
        process = subprocess.Popen(command, stdin=there.fileno(), stdout=there.fileno())
    channel = SocketChannel(here)
    try:
        yield DeviceProcess(channel, device, threads)
    finally:
        channel.close()
        process.kill()
        process.wait()
