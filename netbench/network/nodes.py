"""The interface to a node: run a command, open a channel to one that stays.

`netbench.testbed` has namespaces of this machine, hosts over SSH, nodes of a persistent network.
"""

import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from netbench.errors import NetworkError
from netbench.units import counted

ALONE = ("-I", "-S")
"""Options of `python`: import only the standard library, whatever the environment says."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

DEADLINE_S = 60.0
"""Deadline of one `tc` command, seconds. 64 nodes at once on 2 cores took under 6 s."""

COMMAND_TIMEOUT_S = 7200.0
"""Deadline of a command on a node, by the controller's clock, seconds. The longest is a probe of
links scaled to 1/1000: two flows over 150 Mbit/s take 20 minutes of virtual time."""


class Completed(NamedTuple):
    """A command that has ended: a tuple, because most callers unpack it."""

    status: int
    stdout: str
    stderr: str


class Channel(Protocol):
    """Lines to and from a command that stays. They never cross the shaped links."""

    def send(self, line: str) -> None:
        """Send one line (without its newline). Raises NetbenchError when the command has ended."""

    def receive(self) -> str | None:
        """Return the next line, blocking, or None when the command has ended."""

    def close(self) -> None:
        """Close the channel, from any thread: `receive` ends, and the command's stdin."""


class Node(Protocol):
    """A machine, or a namespace that plays one, as commands reach it.

    `netbench.scenario.model.Node` describes a node; this one can be used, from many threads.
    """

    def run(
        self, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Completed:
        """Run a command to its end. Raises NetbenchError when it does not end in time."""

    def open(self, argv: Sequence[str]) -> Channel:
        """Start a command that stays. Raises NetbenchError."""


def at_once(tasks: Mapping[K, Callable[[], T]], deadline_s: float) -> dict[K, T | Exception]:
    """Call every task in its own thread: key -> result, or the exception it raised.

    The result of a task that is not done after `deadline_s` is a TimeoutError. Its thread is a
    daemon: it can neither delay the caller nor keep the process alive.
    """
    done: queue.SimpleQueue[tuple[K, T | Exception]] = queue.SimpleQueue()

    def call(key: K, task: Callable[[], T]) -> None:
        try:
            done.put((key, task()))
        except Exception as error:
            done.put((key, error))

    for key, task in tasks.items():
        threading.Thread(target=call, args=(key, task), daemon=True).start()
    results: dict[K, T | Exception] = {}
    end = time.monotonic() + deadline_s
    while len(results) < len(tasks):
        try:
            key, result = done.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        results[key] = result
    late = TimeoutError(f"no answer within {deadline_s:g} s")
    return {key: results.get(key, late) for key in tasks}


def split(results: Mapping[K, T | Exception]) -> tuple[dict[K, T], dict[K, Exception]]:
    """Split results into successes and failures."""
    failures = {key: r for key, r in results.items() if isinstance(r, Exception)}
    return {key: r for key, r in results.items() if not isinstance(r, Exception)}, failures


def all_or_error(results: Mapping[int, T | Exception], what: str) -> dict[int, T]:
    """Return the results of all nodes. Raises NetworkError listing every node that failed."""
    found, failures = split(results)
    if failures:
        lines = [f"  node {node}: {error}" for node, error in sorted(failures.items())]
        head = f"{what} failed on {len(failures)} of {counted(len(results), 'node')}:"
        raise NetworkError("\n".join([head, *lines]))
    return found


def output_of(node: Node, argv: Sequence[str], stdin: str = "") -> str:
    """Return what the command printed. Raises NetworkError with its last output when it failed."""
    status, stdout, stderr = node.run(argv, stdin)
    if status != 0:
        said = stderr.strip() or stdout.strip() or "it printed nothing"
        raise NetworkError(f"`{' '.join(argv)}` exited with {status}: {said}")
    return stdout
