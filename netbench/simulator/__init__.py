"""Simulate a plan: the time of an iteration, in milliseconds, without executing anything.

- `iteration` turns a plan into a `Simulation`.
- `kernel` is the event loop, `graph` the task graph it runs, `fabric` the network underneath.
- `pipeline` builds the graph of a pipeline schedule (`plan.schedules`), `segments` that of systems
  whose ranks all do the same (`systems.iteration`).
- `collectives` times the specifications of `plan.collectives`, within an iteration or alone.
- `parallel` simulates many plans in worker processes.

`netbench.explain` says why an iteration takes as long as it does.
"""

import logging
from pathlib import Path

from numba.core import event

from netbench.simulator import kernel
from netbench.simulator.collectives import simulate_collective
from netbench.simulator.iteration import Part, Simulation, simulate
from netbench.transport.profile import TransportProfile, load_transport

__all__ = [
    "Part",
    "Simulation",
    "TransportProfile",
    "load_transport",
    "simulate",
    "simulate_collective",
]


class FirstCompilation(event.Listener):
    """Logs when numba begins to compile, once: half a minute of silence looks like a hang.

    Compiled code is kept beside the modules or in the user's cache. A later command that compiles
    what the first ones did not need says nothing.
    """

    told = False

    def on_start(self, _: event.Event) -> None:
        if not self.told:
            self.told = True
            if not compiled_before():
                log = logging.getLogger(__name__)
                log.warning("compiling, once per installation: this may take half a minute")

    def on_end(self, _: event.Event) -> None:
        """Nothing: others may follow."""


def compiled_before() -> bool:
    """Return whether the cache has code of this version of the kernel."""
    source, cache = Path(kernel.__file__), Path(str(kernel._run.stats.cache_path))
    written_s = source.stat().st_mtime
    return any(one.stat().st_mtime > written_s for one in cache.glob(f"{source.stem}.*.nbi"))


event.register("numba:compile", FirstCompilation())  # type: ignore[no-untyped-call]
