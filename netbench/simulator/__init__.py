"""Plans as flows over links: what an iteration takes, and why, in milliseconds.

- `simulate` turns a plan into a `Simulation`, `benchmark` a collective into seconds; `parallel`
  runs many plans at once, `search` looks for the poorest network that will do.
- `kernel` is the event loop, `graph` what it runs, `fabric` the network it runs on.
- `pipeline` makes a graph of a schedule (`plan.schedules`), `zero3` of micro-steps over shards;
  `local_steps` has systems that average after work of their own.
- `collectives` are algorithms over the links. `profile` is what a transport library adds
  (`profiles/*.yaml`, each constant with its source).
- `explain` says where the time goes: `trail` walks back through waits, `losses` puts the largest
  into words, `usage` has busy links, `activity` what ranks do, for a picture.
- `unfold` is an iteration from end to end, rank by rank; `trace` writes one for Perfetto.
- `scheduling` poses a plan to a scheduler as a problem, which `objective` times (`parts` of an
  iteration apart) and `floors` bounds; `layouts` searches the plan too, `mending` says what lost
  devices cost, `placement_file` keeps an answer.
- `compiling` says so when numba compiles first.
"""

from netbench.simulator.benchmark import simulate_collective
from netbench.simulator.compiling import listen
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

listen()
