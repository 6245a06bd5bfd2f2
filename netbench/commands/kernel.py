"""`netbench kernel build|status`: the guest kernel in the user's cache."""

from pathlib import Path

import click

from netbench.errors import UsageError
from netbench.testbed.guest.build import KernelSource
from netbench.testbed.guest.cache import (
    GOOD,
    ensure_kernel,
    ensure_shim,
    kernel_status,
    locate_packaged_kernel,
)


@click.group()
def kernel() -> None:
    """Build the virtual-time guest kernel, or show its state."""


@kernel.command()
@click.option("--rebuild", is_flag=True, help="Build even if a good kernel exists.")
@click.option(
    "--source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Archive with the sources of Linux 6.12, instead of Debian's package.",
)
@click.option("--install", is_flag=True, help="Install missing Debian packages first (as root).")
def build(rebuild: bool, source: Path | None, install: bool) -> None:
    """Build the guest kernel, once per user.

    It takes a few minutes. Missing packages are listed, with the command that installs them.
    """
    if source and not source.is_file():
        raise UsageError(f"{source}: not a regular file")
    given = KernelSource(version=source.name, tarball=source.resolve()) if source else None
    path = ensure_kernel(rebuild=rebuild, source=given, may_install=install)
    ensure_shim()
    click.echo(f"guest kernel: {path}")


@kernel.command()
def status() -> int:
    """Show whether the guest kernel is good, corrupt or missing. Exit code 1: not good."""
    found = kernel_status()
    click.echo(f"guest kernel:    {found.state}, {found.detail}")
    click.echo(f"                 {found.path}")
    if found.manifest:
        click.echo(f"                 sha256 {found.manifest.sha256}")
    packaged = locate_packaged_kernel()
    click.echo(f"packaged kernel: {packaged or 'not installed (package user-mode-linux)'}")
    return 0 if found.state == GOOD else 1
