"""Wait until a process's buffers hold what has not left yet.

The kernel takes whole messages, which wait in the queue of a shaped link. Nobody tells when they
leave. So a process that has its queue for itself counts, and others ask for acknowledgements. These
are late where they queue behind data of the other direction.
"""

import time
from typing import Protocol

from netbench.trainers.communication.sockets import wait_for_arrival
from netbench.trainers.communication.world import World
from netbench.trainers.layers.virtual import sleep_until


class Leaving(Protocol):
    """Messages on their way out of a process.

    takes_more: whether `wait` still tells when bytes leave if more are sent behind them.
    """

    takes_more: bool

    def give(self, num_bytes: int) -> None:
        """Count bytes that the kernel has just taken."""

    def wait(self, but_for: float) -> None:
        """Block until all but some bytes have left."""


class OwnQueue:
    """A queue that this process alone fills, and that is emptied at a known rate."""

    takes_more = True

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._empty_s = 0.0

    def give(self, num_bytes: int) -> None:
        """See `Leaving`."""
        self._empty_s = max(self._empty_s, time.monotonic()) + num_bytes / self._bytes_per_s

    def wait(self, but_for: float) -> None:
        """See `Leaving`."""
        sleep_until(self._empty_s - but_for / self._bytes_per_s)


class Acknowledged:
    """A connection to a process, at `bytes_per_s` at most, whose bytes count when acknowledged.

    `limit_rates` must have found it.
    """

    takes_more = False

    def __init__(self, world: World, process: int, bytes_per_s: float) -> None:
        self._world, self._process, self._bytes_per_s = world, process, bytes_per_s

    def give(self, num_bytes: int) -> None:
        """See `Leaving`."""

    def wait(self, but_for: float) -> None:
        """See `Leaving`."""
        wait_for_arrival(self._world.sockets[self._process], self._bytes_per_s, but_for)
