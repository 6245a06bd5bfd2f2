"""`netbench runs`: list runs. `netbench runs clean`: end what runs have left on hosts."""

from pathlib import Path

import click
from rich.text import Text

from netbench.commands.options import FILE
from netbench.commands.output import plain_table, print_line, results_option, wide_console
from netbench.errors import RecordError
from netbench.records import list_runs, read_run


@click.group(invoke_without_command=True)
@click.pass_context
def runs(ctx: click.Context) -> None:
    """List the runs of the results folder, oldest first.

    `netbench runs clean` ends what runs have left on hosts.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_command, results=Path("results"))


@runs.command("list")
@results_option
def list_command(results: Path) -> None:
    """List the runs of a folder and its subfolder recorded, oldest first."""
    console = wide_console()
    folders = list_runs(results)
    if not folders:
        print_line(console, f"no run in {results}; make one with: netbench run SCENARIO")
        return
    numbers = ("plans", "iterations")
    table = plain_table("run", "testbed", *numbers, "state", right=numbers)
    for folder in folders:
        table.add_row(str(folder), *_describe(folder))
    console.print(table)
    console.print("print one with: netbench table RUN", style="dim")


def _describe(folder: Path) -> tuple[str, str, str, str]:
    """Return testbed, number of plans, finished of planned iterations, and state of a run."""
    try:
        run = read_run(folder)
    except RecordError:
        return "-", "-", "-", "damaged"
    planned = sum(int(plan.get("iterations", 1)) for plan in run.plans.values())
    state = "unfinished" if len(run.records) < planned else "no verdict"
    if run.reasons:
        state = "not trustworthy"
    elif run.verdicts and len(run.records) >= planned:
        state = "finished"
    testbed = ", ".join(dict.fromkeys(session.environment.mode for session in run.sessions))
    return testbed, str(len(run.plans)), f"{len(run.records)} of {planned}", state


@runs.command("clean")
@click.option("--inventory", type=FILE, metavar="FILE", required=True, help="The hosts (YAML).")
def clean_command(inventory: Path) -> int:
    """Remove what ended runs have left on hosts.

    Ends their processes, deletes their files and restores the network. Runs that are still under
    way are left alone. Exit code 1: something is left, or unknown.
    """
    from netbench.commands.net.hosts import host_table, open_console
    from netbench.testbed.cluster.certificate import clean
    from netbench.testbed.ssh.inventory import load_inventory
    from netbench.testbed.ssh.machines import Hosts
    from netbench.testbed.ssh.scenario_hosts import fleet_of

    found, console = load_inventory(inventory), open_console()
    with (
        console.status("connecting") as status,
        Hosts(found.hosts, found.known_hosts) as hosts,
        fleet_of(found, found.hosts, hosts, status.update) as fleet,
    ):
        nodes = range(len(found.hosts))
        left = clean(hosts, nodes, fleet.clear("owner"))
    table = host_table("left")
    for node, what in left.items():
        table.add_row(found.hosts[node].name, Text(str(what), "" if what.is_good else "red"))
    console.print(table)
    return 0 if all(what.is_good for what in left.values()) else 1
