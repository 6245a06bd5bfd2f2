"""Interface of the places where independent cells of work run.

A cell is one call of a function, or a batch of calls. `simulator.parallel.LocalPool` runs cells in
processes of this machine, `distributed.client.DaskPool` on the workers of a Dask cluster. Both
return results and write nothing: the caller is the only writer of records.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from netbench.limits import memory_variable_bytes

CELL_BYTES = 1 << 30
"""Default memory of a cell. A process with the compiled simulator takes a quarter of it."""

OnMessage = Callable[[int, Any], None]
"""Takes the index of an item and a message of its cell, JSON data."""


def ignore(index: int, message: Any) -> None:
    """Ignore the messages of cells."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Function of a module, applied to many items; not `netbench.plan.schedules.Work`.

    name: of its cells, one word. reports: the function takes a second argument, which sends a
    message to the caller. max_batch: maximum number of items per cell. memory_bytes: limit of a
    cell, with its child processes. warm: called once in the process that cells are forked from,
    e.g. to load compiled code.
    """

    name: str
    function: Callable[..., Any]
    reports: bool = False
    max_batch: int = 1
    memory_bytes: int = CELL_BYTES
    warm: Callable[[], None] | None = None


class Pool(Protocol):
    """Place where cells run."""

    def run(
        self, work: Work, items: Sequence[Any], on_message: OnMessage = ignore
    ) -> Iterator[tuple[int, Any]]:
        """Yield the index and the result of every item as cells end, in any order.

        All cells end when the iterator is closed. Raises the errors of the function, and
        TestbedError when a cell is killed.
        """

    def describe(self) -> str:
        """Describe what each worker has done, for a progress bar, or return ""."""


def in_order(results: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    """Yield the results of `Pool.run` in the order of the items."""
    early: dict[int, Any] = {}
    expected = 0
    for index, result in results:
        early[index] = result
        while expected in early:
            yield early.pop(expected)
            expected += 1


def cell_memory_bytes(default: int = CELL_BYTES) -> int:
    """Return the memory of a cell: the value of `limits.MEMORY_VARIABLE` if it is set."""
    given = memory_variable_bytes()
    return default if given is None else int(given)
