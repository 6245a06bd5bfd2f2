"""`netbench net`: give machines a network, prove that they have it, and give the old one back.

One module per command. `target` reads what it is about, a scenario and an inventory; `machines` are
those of an inventory, `local` those of a network held open here, `nodes` either.
"""

from __future__ import annotations

import click

from netbench.commands.lazy import Commands, LazyGroup

COMMANDS: Commands = {
    "plan": ("netbench.commands.net.plan", "command", "Say what apply would do; change nothing."),
    "apply": ("netbench.commands.net.apply", "command", "Give hosts the network of a scenario."),
    "show": ("netbench.commands.net.show", "command", "What hosts hold, against the scenario."),
    "watch": ("netbench.commands.net.watch", "command", "What links carry, live."),
    "clear": ("netbench.commands.net.clear", "command", "Put hosts back as they were."),
    "inventory": ("netbench.commands.net.inventory", "command", "Say what an inventory means."),
    "shell": ("netbench.commands.net.shell", "command", "Be in a node of a network held open."),
    "verify": ("netbench.commands.net.verify", "command", "Measure it against the scenario."),
    "measure": ("netbench.commands.net.measure", "command", "Measure machines as they are."),
    "import": ("netbench.commands.net.import_", "command", "Make a scenario of measurements."),
    "trace": ("netbench.commands.net.trace", "trace", "Write a trace of links that change."),
    "replay": ("netbench.commands.net.replay", "command", "Play a trace of links that change."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def net() -> None:
    """Shape a network, prove it, and get the old one back."""
