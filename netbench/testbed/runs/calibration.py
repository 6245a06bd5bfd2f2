"""Client of the process that measures a device of this machine (`trainers.calibrate`)."""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from netbench.errors import TestbedError

Message = dict[str, Any]

START_S = 180.0
"""Deadline for importing torch and finding the device, wall seconds. It takes half a minute on a
busy machine."""

PATIENCE, GRACE_S = 4.0, 120.0
"""Deadline of an answer: this many budgets, plus this many seconds for runs that have begun."""


class DeviceProcess:
    """A process that measures a device. name: of a GPU, "" = the machine's processor."""

    def __init__(self, process: subprocess.Popen[str], device: str, threads: int) -> None:
        self._process = process
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        opened = self._ask(START_S, {"op": "open", "device": device, "threads": threads})
        self.name: str = opened["name"]
        self.memory_bytes: int = opened["memory_bytes"]
        self.versions: dict[str, str] = opened["versions"]

    def ask(self, op: str, budget_s: float, **order: Any) -> Message:
        """Return the answer to an order.

        Raises TestbedError for an error, or if none comes in time.
        """
        return self._ask(PATIENCE * budget_s + GRACE_S, {"op": op, "budget_s": budget_s, **order})

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _ask(self, timeout_s: float, order: Message) -> Message:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout_s)
        except (BrokenPipeError, queue.Empty):
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
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield DeviceProcess(process, device, threads)
    finally:
        process.kill()
        process.wait()
