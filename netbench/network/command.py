"""Commands on nodes: what `apply` and `measure` need of a transport, on all nodes at once.

`netbench.testbed` has transports (namespaces, SSH) whose `run` is a `Run`; tests have a double.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from netbench.errors import NetworkError
from netbench.units import counted

Run = Callable[[int, Sequence[str], str], tuple[int, str, str]]
"""Run a command to its end: (node, argv, stdin) -> (exit status, stdout, stderr). May raise."""

ALONE = ("-I", "-S")
"""After `python`: neither the environment nor a folder but Python's own decides what is imported,
and no more than the standard library is looked for."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

DEADLINE_S = 60.0
"""For one `tc` command. Measured: 64 nodes at once, per-destination rules, 2 cores: under 6 s."""


def at_once(tasks: Mapping[K, Callable[[], T]], deadline_s: float) -> dict[K, T | Exception]:
    """Call every task in a thread of its own: key -> result, or the exception it raised.

    What is not done after `deadline_s` has TimeoutError as its result. Its thread is a daemon:
    it can neither delay the caller nor keep the process alive.
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


def all_or_error(results: Mapping[int, T | Exception], what: str) -> dict[int, T]:
    """The results of all nodes, or one NetworkError that lists every node that failed."""
    failures = {node: r for node, r in results.items() if isinstance(r, Exception)}
    if failures:
        lines = [f"  node {node}: {error}" for node, error in sorted(failures.items())]
        head = f"{what} failed on {len(failures)} of {counted(len(results), 'node')}:"
        raise NetworkError("\n".join([head, *lines]))
    return {node: r for node, r in results.items() if not isinstance(r, Exception)}


def output_of(run: Run, node: int, argv: Sequence[str], stdin: str = "") -> str:
    """What the command printed. Raises NetworkError with its last words when it failed."""
    status, stdout, stderr = run(node, argv, stdin)
    if status != 0:
        words = stderr.strip() or stdout.strip() or "it printed nothing"
        raise NetworkError(f"`{' '.join(argv)}` exited with {status}: {words}")
    return stdout
