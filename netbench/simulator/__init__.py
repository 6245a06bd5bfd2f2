"""Plans as flows over links: what an iteration takes, and why, in milliseconds.

- `simulate` turns a plan into a `Simulation`; `simulate_collective` a collective into seconds.
- `kernel` is the event loop, `graph` what it runs, `fabric` the network it runs on.
- `schedules` says what each stage of a pipeline does in which order, `pipeline` makes it a graph.
- `local_steps` has systems that average after work of their own.
- `collectives` are algorithms over the links. `profile` is what a transport library adds.
"""

from netbench.simulator.benchmark import simulate_collective
from netbench.simulator.profile import TransportProfile, load_transport
from netbench.simulator.simulate import Part, Simulation, simulate

__all__ = [
    "Part",
    "Simulation",
    "TransportProfile",
    "load_transport",
    "simulate",
    "simulate_collective",
]
