"""The node server of a host: start it and speak with it (`netbench.trainers.node_server`)."""

import base64
import hashlib
import itertools
import json
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from netbench.errors import TestbedError
from netbench.testbed.cluster.certificate import FOLDER
from netbench.testbed.cluster.code import BOOTSTRAP, code_zip
from netbench.testbed.ssh.nodes import HostChannel

START_S = 120.0
"""Deadline for a host to start its node server, seconds."""

END_S = 20.0
"""Deadline for a host to end all ranks, seconds."""

BEAT_INTERVAL_S = 2.0
"""Interval of beats, seconds."""

ANSWER_S = 20.0
"""Deadline of an answer of a node server, seconds."""

LOST_S = 12.0
"""Time without any answer after which a host counts as lost, seconds. A host without power does not
close its connection."""

CLOCK_READINGS = 8
"""Readings of a clock, of which that with the shortest round trip counts."""

TAIL_LINES = 5
"""Number of lines of a rank's standard error in a message about its end."""


class OpensChannels(Protocol):
    """A host, or a node on it."""

    def open(self, argv: Sequence[str]) -> HostChannel: ...


def start_server(
    node: OpensChannels,
    python: str,
    name: str,
    token: str,
    interface: str,
    on_error: Callable[[int | None, str], None] = lambda rank, text: None,
) -> "ServerLink":
    """Start the server of a run on a host and send it its code. Raises TestbedError.

    python: there. name: of the host. token: of the run. interface: that is shaped. on_error: as
    `ServerLink` has.
    """
    code = base64.b64encode(code_zip()).decode()
    checksum = hashlib.sha256(code_zip()).hexdigest()
    arguments = [FOLDER + token, token, str(len(code) + 1), checksum, interface]
    channel = node.open([python, "-c", BOOTSTRAP, *arguments])
    server = ServerLink(channel, name, on_error)
    channel.send(code)
    return server


class ServerLink:
    """The server of one host.

    channel: to it. name: of the host, for messages. on_error: gets the rank (None = of the server)
    and text of every line of standard error. lost: why the host was given up, "" = it was not.
    is_silent: because it has not answered.
    """

    def __init__(
        self, channel: HostChannel, name: str, on_error: Callable[[int | None, str], None]
    ) -> None:
        self.name = name
        self._channel = channel
        self._on_error = on_error
        self._hello: Future[dict[str, Any]] = Future()
        self._asked: dict[int, Future[Any]] = {}
        self._ids = itertools.count()
        self._ranks: dict[int, RankLines] = {}
        self._own_errors: deque[str] = deque(maxlen=TAIL_LINES)
        self._heard_s = time.monotonic()
        self._lock = threading.Lock()
        self.lost = ""
        self.is_silent = False
        threading.Thread(target=self._read, daemon=True).start()

    def hello(self, timeout_s: float) -> dict[str, Any]:
        """Return what the server says of its host. Raises TestbedError."""
        try:
            return self._hello.result(timeout_s)
        except TimeoutError:
            raise TestbedError(f"{self.name}: its node server is silent") from None

    def ask(self, operation: str, timeout_s: float = ANSWER_S, **fields: Any) -> Any:
        """Return the answer to an order. Raises TestbedError."""
        answer: Future[Any] = Future()
        with self._lock:
            if self.lost:
                raise TestbedError(self.lost)
            number = next(self._ids)
            self._asked[number] = answer
        self._send({"op": operation, "id": number, **fields})
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            raise TestbedError(
                f"{self.name}: no answer to `{operation}` within {timeout_s:g} s"
            ) from None

    def beat(self) -> None:
        """Tell the server that the controller is there, and give the host up if it is silent."""
        self._send({"op": "beat"})
        silent_s = time.monotonic() - self._heard_s
        if silent_s > LOST_S and not self.lost:
            self.is_silent = True
            self.give_up(
                f"{self.name}: silent for {silent_s:.0f} s: it has lost power, hangs, or cannot be "
                "reached"
            )

    def clock(self) -> tuple[float, float]:
        """Return the host's clock minus this process's, and the bound of its error, seconds."""
        offset_s, error_s = 0.0, math.inf
        for _ in range(CLOCK_READINGS):
            before_s = time.monotonic()
            read_s = self.ask("clock")
            after_s = time.monotonic()
            if (after_s - before_s) / 2 < error_s:
                error_s = (after_s - before_s) / 2
                offset_s = read_s - (before_s + after_s) / 2
        return offset_s, error_s

    def start(
        self,
        rank: int,
        *,
        script: bool,
        modules: Sequence[str] = (),
        environment: Mapping[str, str],
        option: str = "--command",
    ) -> "RankLines":
        """Start a rank and return the channel to it.

        option: of `netbench.trainers`, for a script.
        """
        lines = self._ranks[rank] = RankLines(self._send, rank)
        if self.lost:
            lines.end(self.lost)
        order = {"script": script, "modules": [*modules], "environment": dict(environment)}
        self._send({"op": "start", "rank": rank, "option": option, **order})
        return lines

    def give_up(self, why: str) -> None:
        """Give the host up: whoever waits for it gets `why`."""
        with self._lock:
            if self.lost:
                return
            self.lost = why
            waiting = [self._hello, *self._asked.values()]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(TestbedError(why))
        for lines in list(self._ranks.values()):
            lines.end(why)

    def close(self) -> None:
        """Close the connection: the server ends its ranks and itself."""
        self._channel.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(TestbedError):  # the end of the channel is reported by `_read`
            self._channel.send(json.dumps(message))

    def _read(self) -> None:
        why = ""
        try:
            while (line := self._channel.receive()) is not None:
                self._heard_s = time.monotonic()
                self._take(json.loads(line))
        except (TestbedError, ValueError, KeyError) as error:
            why = str(error)
        words = why or self._channel.last_words() or " | ".join(self._own_errors)
        self.give_up(f"{self.name}: its node server has ended" + (f": {words}" if words else ""))

    def _take(self, message: dict[str, Any]) -> None:
        if "hello" in message:
            self._hello.set_result(message["hello"])
        elif "id" in message:
            answer = self._asked.pop(message["id"])
            if "failed" in message:
                answer.set_exception(TestbedError(f"{self.name}: {message['failed']}"))
            else:
                answer.set_result(message["answer"])
        elif "error" in message:
            self._error(message["rank"], message["error"])
        elif "beat" in message:
            return
        elif message.get("end"):
            self._ranks[message["rank"]].end()
        else:
            self._ranks[message["rank"]].put(message["text"])

    def _error(self, rank: int | None, text: str) -> None:
        self._on_error(rank, text)
        (self._own_errors if rank is None else self._ranks[rank].errors).append(text)


class RankLines:
    """Lines to and from one rank: a `netbench.network.nodes.Channel`. errors: its last ones."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None], rank: int) -> None:
        self._send = send
        self._rank = rank
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.errors: deque[str] = deque(maxlen=TAIL_LINES)

    def put(self, text: str) -> None:
        """Take a line of the rank."""
        self._lines.put(text)

    def end(self, why: str = "") -> None:
        """Take the end of the rank. why: its host failed, and how."""
        words = why or " | ".join(self.errors)
        if words:
            self._lines.put(json.dumps({"event": "error", "message": words}))
        self._lines.put(None)

    def send(self, line: str) -> None:
        self._send({"op": "line", "rank": self._rank, "text": line})

    def receive(self) -> str | None:
        return self._lines.get()

    def close(self) -> None:
        self._send({"op": "close", "rank": self._rank})
        self._lines.put(None)
