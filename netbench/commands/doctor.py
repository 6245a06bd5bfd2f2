"""`netbench doctor`: what this machine can run, and what to install for the rest."""

from __future__ import annotations

import click

from netbench.testbed.boot_check import BootResult, boot_check
from netbench.testbed.doctor import can_run, machine_findings, mode_findings, render
from netbench.testbed.host import Host, probe_host
from netbench.testbed.packages import FEATURES, install, missing_packages


@click.command()
@click.option(
    "--install",
    "features",
    multiple=True,
    type=click.Choice(sorted(FEATURES)),
    help="Install the Debian packages this needs (as root); may be repeated.",
)
def doctor(features: tuple[str, ...]) -> int:
    """Say what this machine can run, and what to install for the rest.

    Boots the guest kernel for a moment. Exit code 1 if no testbed works.
    """
    if features:
        commands = [name for feature in features for name in FEATURES[feature]]
        missing = missing_packages(commands)
        install(missing, purpose="netbench", say=click.echo)
        click.echo(f"{', '.join(features)}: installed")
        return 0
    host = probe_host()
    virtual, packaged = _boots(host)
    modes = mode_findings(host, virtual, packaged)
    click.echo(render("This machine", machine_findings(host)))
    click.echo(render("\nWhere netbench can run", modes))
    return 0 if can_run(modes) else 1


def _boots(host: Host) -> tuple[BootResult | None, BootResult | None]:
    """A boot of our kernel in virtual time and of Debian's, where there is one."""
    if host.guest_tmpdir is None:
        return None, None
    virtual = packaged = None
    if host.guest_kernel:
        virtual = boot_check(host.guest_kernel, host.guest_tmpdir, virtual_time=True)
    if host.packaged_kernel:
        packaged = boot_check(host.packaged_kernel, host.guest_tmpdir, virtual_time=False)
    return virtual, packaged
