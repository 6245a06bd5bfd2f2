"""`netbench doctor`: show what this machine can run, and what to install for the rest."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from netbench.commands.options import FILE
from netbench.commands.output import print_line
from netbench.errors import UsageError
from netbench.testbed.guest.boot import BootResult, boot_check
from netbench.testbed.interface import STORE_PORT
from netbench.testbed.machine.capabilities import Capabilities, probe_machine
from netbench.testbed.machine.doctor import can_run, machine_findings, render, testbed_findings
from netbench.testbed.machine.packages import FEATURES, install, missing_packages
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.testbed.cluster.doctor import Examination

MARKS = {"failed": "red", "no": "red", "missing": "red"}
"""Colour of a cell, by its text."""


@click.command()
@click.option(
    "--install",
    "features",
    multiple=True,
    type=click.Choice(sorted(FEATURES)),
    help="Install the Debian packages for this feature (as root); may be repeated.",
)
@click.option(
    "--inventory", type=FILE, metavar="FILE", help="Examine the hosts of this inventory instead."
)
def doctor(features: tuple[str, ...], inventory: Path | None) -> int:
    """Show what this machine can run, and what to install for the rest.

    Boots the guest kernel briefly. With --inventory: show what each host can do, and try every
    ordered pair of them. Exit code 1: no testbed works, or not the hosts.
    """
    if inventory is not None:
        if features:
            raise UsageError("--install is for this machine; leave out --inventory")
        return _examine_hosts(inventory)
    if features:
        commands = [name for feature in features for name in FEATURES[feature]]
        missing = missing_packages(commands)
        install(missing, purpose="netbench", say=click.echo)
        click.echo(f"{', '.join(features)}: installed")
        return 0
    machine = probe_machine()
    virtual, packaged = _boots(machine)
    testbeds = testbed_findings(machine, virtual, packaged)
    click.echo(render("This machine", machine_findings(machine)))
    click.echo(render("\nWhere netbench can run", testbeds))
    return 0 if can_run(testbeds) else 1


def _examine_hosts(path: Path) -> int:
    """Print a table of hosts and checks, then what is wrong, with a remedy."""
    from netbench.commands.net.hosts import host_table, open_console, print_deviations
    from netbench.testbed.cluster.doctor import COLUMNS, examine
    from netbench.testbed.ssh.inventory import load_inventory

    inventory, console = load_inventory(path), open_console()
    with console.status("logging in") as status:
        found = examine(inventory, status.update)
    table = host_table(*COLUMNS)
    for name, cells in found.cells.items():
        table.add_row(name, *(Text(text, MARKS.get(text, "")) for text in cells.values()))
    console.print(table)
    print_deviations(console, found.names, found.deviations)
    if found.versions:
        print_line(console, found.versions)
    hosts = counted(len(found.cells), "host")
    if found.num_nodes != len(found.cells):
        hosts += f" with {counted(found.num_nodes, 'node')}"
    console.print(f"{hosts}, ordered pairs: {_pairs(found)}")
    console.print("a run can start" if found.can_run else "no run can start: see the errors above")
    return 0 if found.can_run else 1


def _pairs(found: "Examination") -> str:
    if found.pairs is None:
        return "not tried; every host must be known first"
    if found.pairs:
        return "some failed, see above"
    number = found.num_nodes * (found.num_nodes - 1)
    return f"all {number} passed, at port {STORE_PORT}, at other ports, with full frames"


def _boots(machine: Capabilities) -> tuple[BootResult | None, BootResult | None]:
    """Boot netbench's kernel in virtual time and Debian's kernel, where they exist."""
    if machine.guest_tmpdir is None:
        return None, None
    virtual = packaged = None
    if machine.guest_kernel:
        virtual = boot_check(machine.guest_kernel, machine.guest_tmpdir, virtual_time=True)
    if machine.packaged_kernel:
        packaged = boot_check(machine.packaged_kernel, machine.guest_tmpdir, virtual_time=False)
    return virtual, packaged
