"""`netbench schedule`: where to put the ranks of a training run.

- `place` searches one placement and keeps it in a file; it is what `netbench schedule SCENARIO` is.
  `layout` does with `--layout auto`, which searches the plan as well.
- `compare` puts all schedulers side by side at equal time.
- `repair` mends a placement that lost or gained nodes.
- `request` reads what is to be placed, `search` runs a scheduler and says how far it is, `contest`
  runs many, `interruption` has Ctrl-C end a search with what it has found.
"""

from __future__ import annotations

import click

from netbench.commands.lazy import Commands, DefaultGroup

LAZY: Commands = {
    "place": ("netbench.commands.schedule.place", "command", "Search a placement."),
    "compare": ("netbench.commands.schedule.compare", "command", "All schedulers, side by side."),
    "repair": ("netbench.commands.schedule.repair", "command", "Go on after nodes were lost."),
}


@click.group(cls=DefaultGroup, commands=LAZY, default="place")
def schedule() -> None:
    """Search where to put the ranks of SCENARIO: which devices make up each pipeline stage and
    data-parallel group, so that a simulated iteration is shortest.

    When the search has ended, up to 20 s more go into a lower bound: how far from the best it is.
    """
