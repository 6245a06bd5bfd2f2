"""`netbench net`: give machines a network, verify it, and restore the old one.

One module per command. `options` says where the network is: `hosts` opens those of an inventory,
`persistent` a network of this machine.
"""

import click

from netbench.commands.lazy import Commands, LazyGroup

COMMANDS: Commands = {
    "plan": ("netbench.commands.net.plan", "Print what apply would do; change nothing."),
    "apply": ("netbench.commands.net.apply", "Give hosts the network of a scenario."),
    "show": ("netbench.commands.net.show", "Compare what hosts hold with the scenario."),
    "watch": ("netbench.commands.net.watch", "Show the traffic on links, live."),
    "clear": ("netbench.commands.net.clear", "Restore hosts as they were."),
    "agent": ("netbench.commands.net.agent", "Write the agent, to install it on hosts."),
    "inventory": ("netbench.commands.net.inventory", "Print the hosts of an inventory."),
    "shell": ("netbench.commands.net.shell", "Open a shell in a node of a persistent network."),
    "verify": ("netbench.commands.net.verify", "Measure hosts and compare with the scenario."),
    "measure": ("netbench.commands.net.measure", "Measure the network that machines have."),
    "import": ("netbench.commands.net.import_", "Convert measurements to a scenario."),
    "trace": ("netbench.commands.net.trace", "Write a trace of links that change."),
    "replay": ("netbench.commands.net.replay", "Play a trace of links that change."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def net() -> None:
    """Shape a network, verify it, and restore the old one."""
