"""Says that numba compiles.

The first simulation of an installation waits for it, and half a minute without a word looks like a
hang. What is compiled is kept beside the modules or in the user's cache.
"""

from __future__ import annotations

import logging

from numba.core import event

log = logging.getLogger(__name__)


class FirstCompilation(event.Listener):
    """Logs a warning when numba begins its first compilation, and none for others."""

    def __init__(self) -> None:
        self._told = False

    def on_start(self, _: event.Event) -> None:
        if not self._told:
            self._told = True
            log.warning("compiling, once per installation: this may take half a minute")

    def on_end(self, _: event.Event) -> None:
        """Nothing: others may follow."""


def listen() -> None:
    """Tell of the first compilation of this process."""
    event.register("numba:compile", FirstCompilation())  # type: ignore[no-untyped-call]
