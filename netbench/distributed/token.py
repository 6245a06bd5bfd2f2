"""Sign of life of a client, on the scheduler, which also says which cells are cancelled.

`Future.cancel` of Dask does not stop a task that runs. So the client of a run sets a distributed
variable every `BEAT_S`, and the worker of every cell reads it. A cell ends if its number is listed,
or if the variable has not changed for `SILENT_S`: the client, or the scheduler, has gone. If only a
process was killed, its connections end at once, and a worker need not wait.
"""

import threading
import time
from contextlib import suppress
from typing import Any

from distributed import Client, Variable, get_client

BEAT_S = 3.0
"""Interval of beats, and of looks at them, seconds."""

SILENT_S = 20.0
"""Time without a beat after which a client counts as gone, seconds."""

ANSWER_S = 4.0
"""Deadline of an answer of the scheduler, seconds. `SILENT_S`, `BEAT_S` and this are below 30."""


class Heartbeat:
    """The client's side. run: name of the variable."""

    def __init__(self, client: Client, run: str) -> None:
        self._variable = Variable(run, client=client)
        self._cancelled: set[int] = set()
        self._is_over = False
        self._wake = threading.Event()
        self._count = 0
        self._beat()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cancel(self, number: int) -> None:
        """End the cell `number`, at the next look of its worker."""
        self._cancelled.add(number)
        self._wake.set()

    def close(self) -> None:
        """End all cells of the run and stop beating."""
        self._is_over = True
        self._wake.set()
        self._thread.join(ANSWER_S)
        with suppress(Exception):  # the scheduler has gone, and with it the variable
            self._variable.delete()

    def _run(self) -> None:
        while not self._is_over:
            self._wake.wait(BEAT_S)
            self._wake.clear()
            with suppress(Exception):  # of several kinds; Dask ends the futures of a lost scheduler
                self._beat()

    def _beat(self) -> None:
        self._count += 1
        over = self._is_over
        value = {"beat": self._count, "over": over, "cancelled": sorted(self._cancelled)}
        self._variable.set(value, callback_timeout=ANSWER_S)


class Watch:
    """The worker's side, for one cell; not `netbench.testbed.ranks.hangs.Watch`."""

    def __init__(self, run: str, number: int) -> None:
        self._run = run
        self._number = number
        self._variable: Any = None
        self._beat = -1
        self._changed_s = self._looked_s = time.monotonic()

    def why_end(self) -> str:
        """Return why the cell has to end, or "". Asks the scheduler at most every `BEAT_S`."""
        if time.monotonic() < self._looked_s + BEAT_S:
            return ""
        self._looked_s = time.monotonic()
        with suppress(Exception):  # comm errors of several kinds, timeouts
            if self._variable is None:
                self._variable = Variable(self._run, client=get_client(timeout=ANSWER_S))
            value = self._variable.get(timeout=ANSWER_S, callback_timeout=ANSWER_S)
            if value["over"] or self._number in value["cancelled"]:
                return "it was cancelled"
            if value["beat"] != self._beat:
                self._beat, self._changed_s = value["beat"], time.monotonic()
        silent_s = time.monotonic() - self._changed_s
        return f"its client is silent for {silent_s:.0f} s" if silent_s > SILENT_S else ""
