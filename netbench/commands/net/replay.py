"""`netbench net replay`: give nodes a network whose links change as a trace says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from netbench.commands.net.local import held_scenario
from netbench.commands.net.machines import (
    Machines,
    check_problems,
    clear_hosts,
    look,
    open_console,
    open_machines,
    wait,
)
from netbench.commands.net.nodes import check_where, nodes_options
from netbench.errors import EXIT_NOT_TRUSTWORTHY, UsageError
from netbench.network.fleet import ARM_LEASE_S, compile_replays_for, settings
from netbench.network.replay import PRECISION_S, Played
from netbench.network.trace import Change, Replay, fastest, read_trace
from netbench.scenario import load_scenario
from netbench.testbed.replay_held import replay_held
from netbench.units import counted, format_time


@click.command("replay")
@nodes_options
@click.argument("trace", metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--then",
    type=click.Choice(["clear", "hold"]),
    default="clear",
    show_default=True,
    help="After the last change; hold: until Ctrl-C.",
)
@click.option("--replace", is_flag=True, help="Put foreign root qdiscs aside meanwhile.")
@click.option("--anyway", is_flag=True, help="Try although hosts cannot deliver all of it.")
def command(
    scenario: str,
    trace: Path,
    inventory: Path | None,
    testbed: str | None,
    then: str,
    replace: bool,
    anyway: bool,
) -> int:
    """Give nodes the network of SCENARIO, and change its links when TRACE says so.

    With an inventory it is as `apply --hold`: Ctrl-C, or the end, puts the hosts back as they were.
    With --testbed local the nodes are those of a network held open on this machine, which then has
    its own links again. Exit code 3: some change was, or may have been, more than 1 ms late.
    """
    check_where(inventory, testbed)
    changes = read_trace(trace, load_scenario(scenario).network.regions)
    console = open_console()
    if inventory is None:
        if replace or anyway:
            raise UsageError("--replace and --anyway are for hosts of an inventory")
        return _replay_held(console, scenario, changes, is_held=then == "hold")
    with open_machines(scenario, inventory, console) as machines:
        network = machines.target.scenario.network
        found = look(machines, replace=replace, network=fastest(network, changes))
        check_problems(console, machines, found, anyway=anyway)
        replays = compile_replays_for(network, changes, found.facts, machines.target.exempt_ports)
        programs = [replays[node].program for node in sorted(replays)]
        machines.fleet.apply(
            programs,
            settings(network, changes),
            lease_s=ARM_LEASE_S,
            replace=replace,
            release=False,
        )
        return _replay(console, machines, replays, changes, is_held=then == "hold")


def _replay(
    console: Console,
    machines: Machines,
    replays: Mapping[int, Replay],
    changes: Sequence[Change],
    *,
    is_held: bool,
) -> int:
    def say(text: str) -> None:
        console.print(text, markup=False)

    left, status = 0, 0
    say(_beginning(changes))
    try:
        played = machines.fleet.replay(replays, say)
        status = _print_played(
            console, {machines.names[node]: found for node, found in sorted(played.items())}
        )
        if is_held:
            say("the last change is held; Ctrl-C clears the hosts")
            machines.fleet.hold([replay.program for replay in replays.values()], wait, say)
    except KeyboardInterrupt:
        console.print()
    finally:
        left = clear_hosts(console, machines)
    return 1 if left else status


def _replay_held(
    console: Console, scenario: str, changes: Sequence[Change], *, is_held: bool
) -> int:
    held = held_scenario(load_scenario(scenario))
    results: list[int] = []

    def end(played: Played) -> None:
        results.append(_print_played(console, {f"all {len(held.node_names)} nodes": played}))
        if is_held:
            console.print(f"the last change is held; Ctrl-C gives {held.name} its links back")
            while not wait(1.0):
                pass

    console.print(_beginning(changes), markup=False)
    try:
        with console.status("starting") as status:
            replay_held(held, changes, status.update, end)
    except KeyboardInterrupt:
        console.print()
    console.print(f"{held.name} has its own links again")
    return results[0] if results else 0


def _beginning(changes: Sequence[Change]) -> str:
    times_s = sorted({change.time_s for change in changes})
    return f"{counted(len(times_s), 'change')}, the last one at {format_time(times_s[-1])}"


def _print_played(console: Console, played: Mapping[str, Played]) -> int:
    """How late changes were, by name of the node; the exit status."""
    table = Table(box=None, pad_edge=False)
    for column in ("host", "changes", "latest by", "its clock known to"):
        table.add_column(column, justify="left" if column == "host" else "right")
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
        console.print(f"more than {limit} late: {', '.join(late)}", markup=False, soft_wrap=True)
    if doubtful:
        words = (
            f"on time by their own clocks, which are not known well enough to say that it was "
            f"within {limit}: {', '.join(doubtful)}; run this nearer to them"
        )
        console.print(words, markup=False, soft_wrap=True)
    return EXIT_NOT_TRUSTWORTHY if late or doubtful else 0
