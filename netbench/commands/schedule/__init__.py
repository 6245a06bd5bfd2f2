"""`netbench schedule`: search where to put the ranks of a training run.

- `place` searches one placement and writes it to a file: `netbench schedule SCENARIO`.
- `layout` also searches the plan: `--layout auto`.
- `compare` compares all schedulers at equal search time.
- `repair` adapts a placement to lost or added nodes.
- `rent` chooses which of the scenario's machines to rent, by time or cost.
- `request` defines the shared options, `search` runs one scheduler, `contest` runs many, and
  `interruption` makes Ctrl-C end a search with its best result.
"""

import click

from netbench.commands.lazy import Commands, DefaultGroup

LAZY: Commands = {
    "place": ("netbench.commands.schedule.place", "Search a placement."),
    "compare": ("netbench.commands.schedule.compare", "Compare all schedulers."),
    "rent": ("netbench.commands.schedule.rent", "Choose which machines to rent."),
    "repair": ("netbench.commands.schedule.repair", "Adapt to lost or added nodes."),
}


@click.group(cls=DefaultGroup, commands=LAZY, default="place")
def schedule() -> None:
    """Search the placement of SCENARIO's ranks with the shortest simulated iteration.

    A placement says which devices make up each pipeline stage and data-parallel group. After the
    search, up to 20 s more go into a lower bound on the iteration time of any placement.
    """
