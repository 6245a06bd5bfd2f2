"""`netbench net agent FILE`: write the agent, for root to install on hosts."""

import hashlib
from pathlib import Path

import click

from netbench.commands.options import FILE
from netbench.files import write_file
from netbench.network.nodes import ALONE
from netbench.network.remote.deployer import agent_zip


@click.command("agent")
@click.argument("file", type=FILE)
def command(*, file: Path) -> None:
    """Write the agent of this version, a zip that Python runs, for hosts with a narrow sudo rule.

    docs/security.md says how to install it. `agent_path` of an inventory says where it is.
    """
    data = agent_zip()
    write_file(file, data)
    click.echo(f"wrote {file}, SHA-256 {hashlib.sha256(data).hexdigest()}")
    click.echo(f"rule: USER ALL=(root) NOPASSWD: /usr/bin/python3 {' '.join(ALONE)} AGENT_PATH *")
