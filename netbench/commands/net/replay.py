"""`netbench net replay`: give nodes a network whose links change as a trace says."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from netbench.commands.net.hosts import (
    check_deviations,
    clear_hosts,
    nodes_options,
    open_console,
    open_fleet,
    wait,
)
from netbench.commands.options import FILE
from netbench.commands.output import plain_table, print_line
from netbench.errors import EXIT_NOT_TRUSTWORTHY, UsageError
from netbench.network.remote.facts import compile_replays_for, settings
from netbench.network.remote.fleet import ARM_LEASE_S, Fleet
from netbench.network.remote.preflight import inspect
from netbench.network.traces.replay import PRECISION_S, Played
from netbench.network.traces.trace import Change, Replay, fastest, read_trace
from netbench.scenario import load_scenario
from netbench.testbed.persistent.replay import replay_persistent
from netbench.testbed.persistent.scenario import find_network
from netbench.units import counted, format_time


@click.command("replay")
@nodes_options
@click.argument("trace", metavar="TRACE", type=FILE)
@click.option(
    "--then",
    type=click.Choice(["clear", "hold"]),
    default="clear",
    help="Action after the last change. hold: keep the network until Ctrl-C.",
)
@click.option("--replace", is_flag=True, help="Set foreign root qdiscs aside meanwhile.")
@click.option("--anyway", is_flag=True, help="Try even if hosts cannot deliver all of it.")
def command(
    scenario: str, trace: Path, inventory: Path | None, then: str, replace: bool, anyway: bool
) -> int:
    """Give nodes the network of SCENARIO, and change its links when TRACE says so.

    With an inventory it works like `apply --hold`: Ctrl-C, or the end, restores the hosts. With
    --testbed local the nodes are those of the persistent network of this machine, which gets its
    former links back. Exit code 3: some change was, or may have been, more than 1 ms late.
    """
    changes = read_trace(trace, load_scenario(scenario).network.regions)
    console = open_console()
    if inventory is None:
        if replace or anyway:
            raise UsageError("--replace and --anyway are for hosts of an inventory")
        return _replay_persistent(console, scenario, changes, stays=then == "hold")
    with open_fleet(scenario, inventory, console) as (hosts, fleet):
        network = hosts.scenario.network
        most = fastest(network, changes)
        found = inspect(fleet, most, hosts.exempt_ports, replace=replace)
        check_deviations(console, hosts, found, anyway=anyway)
        replays = compile_replays_for(network, changes, found.facts, hosts.exempt_ports)
        programs = [replays[node].program for node in sorted(replays)]
        fleet.apply(
            programs,
            settings(network, changes),
            lease_s=ARM_LEASE_S,
            replace=replace,
            release=False,
        )
        return _replay(console, fleet, replays, changes, stays=then == "hold")


def _replay(
    console: Console,
    fleet: Fleet,
    replays: Mapping[int, Replay],
    changes: Sequence[Change],
    *,
    stays: bool,
) -> int:
    def say(text: str) -> None:
        console.print(text)

    left, status = 0, 0
    try:
        say(_beginning(changes))
        played = fleet.replay(replays, say)
        status = _print_played(
            console, {fleet.name(node): found for node, found in sorted(played.items())}
        )
        if stays:
            say("the last change stays; Ctrl-C clears the hosts")
            fleet.keep_leases([replay.program for replay in replays.values()], wait, say)
    except KeyboardInterrupt:
        console.print()
    finally:
        left = clear_hosts(console, fleet)
    return 1 if left else status


def _replay_persistent(
    console: Console, scenario: str, changes: Sequence[Change], *, stays: bool
) -> int:
    persistent = find_network(load_scenario(scenario))
    results: list[int] = []

    def end(played: Played) -> None:
        results.append(_print_played(console, {f"all {len(persistent.node_names)} nodes": played}))
        if stays:
            console.print(f"the last change stays; Ctrl-C restores the links of {persistent.name}")
            while not wait(1.0):
                pass

    try:
        console.print(_beginning(changes))
        with console.status("starting") as status:
            replay_persistent(persistent, changes, status.update, end)
    except KeyboardInterrupt:
        console.print()
    console.print(f"{persistent.name} has its own links again")
    return results[0] if results else 0


def _beginning(changes: Sequence[Change]) -> str:
    times_s = sorted({change.time_s for change in changes})
    return f"{counted(len(times_s), 'change')}, the last one at {format_time(times_s[-1])}"


def _print_played(console: Console, played: Mapping[str, Played]) -> int:
    """Print how late changes were, by name of the node; return the exit status."""
    figures = ("changes", "latest by", "its clock known to")
    table = plain_table("host", *figures, right=figures)
    for name, found in played.items():
        error = f"± {format_time(found.clock_error_s, 3)}" if found.clock_error_s else "one clock"
        latest = format_time(max(found.late_s), 3) if found.late_s else "-"
        table.add_row(name, str(len(found.late_s)), latest, error)
    console.print(table)
    limit = format_time(PRECISION_S)
    late = [name for name, found in played.items() if max(found.late_s, default=0.0) > PRECISION_S]
    doubtful = [
        name
        for name, found in played.items()
        if name not in late and found.late_s and found.worst_s > PRECISION_S
    ]
    if late:
        print_line(console, f"more than {limit} late: {', '.join(late)}")
    if doubtful:
        words = (
            f"on time by their own clocks, whose offsets are not known to within "
            f"{limit}: {', '.join(doubtful)}; run this nearer to them"
        )
        print_line(console, words)
    return EXIT_NOT_TRUSTWORTHY if late or doubtful else 0
