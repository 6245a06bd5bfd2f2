"""`netbench doctor`: show what this machine can run, and what to install for the rest."""

import click

from netbench.testbed.guest.boot import BootResult, boot_check
from netbench.testbed.machine.capabilities import Capabilities, probe_machine
from netbench.testbed.machine.doctor import can_run, machine_findings, render, testbed_findings
from netbench.testbed.machine.packages import FEATURES, install, missing_packages


@click.command()
@click.option(
    "--install",
    "features",
    multiple=True,
    type=click.Choice(sorted(FEATURES)),
    help="Install the Debian packages for this feature (as root); may be repeated.",
)
def doctor(features: tuple[str, ...]) -> int:
    """Show what this machine can run, and what to install for the rest.

    Boots the guest kernel briefly. Exit code 1: no testbed works.
    """
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
