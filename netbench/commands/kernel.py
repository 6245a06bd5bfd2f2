"""`netbench kernel build|status`: the guest kernel in the user's cache."""

from __future__ import annotations

from pathlib import Path

import click

from netbench.testbed.kernel import GOOD, ensure_kernel, kernel_status, locate_packaged_kernel
from netbench.testbed.kernel_build import Source
from netbench.testbed.shim import ensure_shim


@click.group()
def kernel() -> None:
    """Build the virtual-time guest kernel, or say how it is."""


@kernel.command()
@click.option("--rebuild", is_flag=True, help="Build even if a good kernel is there.")
@click.option(
    "--source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sources of Linux 6.12 in an archive, instead of Debian's package.",
)
def build(rebuild: bool, source: Path | None) -> None:
    """Build the guest kernel, unless it is there: once per user.

    It takes some minutes. As root on Debian this installs the packages it needs; otherwise it says
    which.
    """
    given = Source(version=source.name, tarball=source.resolve()) if source else None
    path = ensure_kernel(rebuild=rebuild, source=given)
    ensure_shim()
    click.echo(f"guest kernel: {path}")


@kernel.command()
def status() -> int:
    """Say whether the guest kernel is good, corrupt or missing. Exit code 1 if not good."""
    found = kernel_status()
    click.echo(f"guest kernel:    {found.state}, {found.detail}")
    click.echo(f"                 {found.path}")
    if found.manifest:
        click.echo(f"                 sha256 {found.manifest.sha256}")
    packaged = locate_packaged_kernel()
    click.echo(f"packaged kernel: {packaged or 'not installed (package user-mode-linux)'}")
    return 0 if found.state == GOOD else 1
