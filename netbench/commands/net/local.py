"""What `--testbed local` means to the commands of `netbench net`: networks held open here."""

from __future__ import annotations

from contextlib import ExitStack

import click

from netbench.commands.net.shell import describe
from netbench.errors import RecordError, UsageError
from netbench.network.apply import Difference, read_back
from netbench.network.program import Program
from netbench.scenario import Scenario
from netbench.testbed.choose import choose_held, network_doubt
from netbench.testbed.hold import Held, find_held, hold
from netbench.testbed.hold_session import held_addresses
from netbench.testbed.host import probe_host
from netbench.testbed.kernel import ensure_kernel
from netbench.testbed.progress import open_progress
from netbench.testbed.shaping import programs
from netbench.testbed.transport import NodeAddress


def held_scenario(scenario: Scenario) -> Held:
    """The held network of a scenario. Raises UsageError where it has other nodes by now."""
    held = find_held(scenario.name)
    if held.network.node_regions != scenario.network.node_regions:
        raise UsageError(
            f"{scenario.name} has {len(scenario.nodes)} nodes, but is held open with others "
            f"({len(held.node_names)}): the file has changed; hold it again"
        )
    return held


def local_nodes(scenario: Scenario) -> tuple[NodeAddress, ...]:
    """The nodes and routers that a scenario is given here."""
    return held_addresses(scenario.network, [node.name for node in scenario.nodes])


def local_programs(scenario: Scenario) -> dict[str, Program]:
    """The program of every one of `local_nodes`, by its name, in order. Raises NetworkError."""
    nodes = local_nodes(scenario)
    names = [node.name for node in nodes]
    return dict(zip(names, programs(nodes, scenario.network, 1.0), strict=True))


def show_held(scenario: Scenario) -> dict[str, Difference]:
    """What the nodes and routers of a held network hold, against the scenario; by name."""
    held, planned = held_scenario(scenario), local_programs(scenario)
    found = read_back([*planned.values()], held.run)
    return dict(zip(planned, found, strict=True))


def hold_scenario(scenario: Scenario, testbed: str) -> int:
    """Hold the scenario's network open until Ctrl-C, or `netbench net clear --testbed local`.

    testbed: one of `choose.HELD_REQUESTS`. Raises UsageError, TestbedError, NetworkError.
    """
    host = probe_host()
    if testbed == "local" and not (host.is_root and host.has_netem):
        ensure_kernel()
        host = probe_host()
    choice = choose_held(testbed, host)
    click.echo(f"testbed: {choice.mode} ({choice.reason})")
    if doubt := _doubt(choice.mode, scenario):
        click.echo(f"network: {doubt}")
    names = [node.name for node in scenario.nodes]
    with ExitStack() as open_until_end:
        with open_progress() as progress:
            wait = open_until_end.enter_context(
                hold(
                    scenario.name,
                    scenario.network,
                    names,
                    mode=choice.mode,
                    host=host,
                    on_phase=progress.advance,
                )
            )
        click.echo(describe(find_held(scenario.name)))
        click.echo(
            f"\nEnter a node from another terminal:  netbench net shell {names[0]}\n"
            f"Run one command there:               netbench net shell {names[0]} -- ip route\n"
            "Ctrl-C ends the network.",
        )
        try:
            wait()
        except KeyboardInterrupt:
            click.echo()
    click.echo(f"{scenario.name} is gone")
    return 0


def _doubt(mode: str, scenario: Scenario) -> str:
    """Why the testbed may not deliver; not knowing is no reason not to hold a network either."""
    try:
        return network_doubt(mode, scenario.network)
    except RecordError as error:
        return str(error)


def end_held(name: str) -> int:
    """End a network that another process holds open."""
    held = find_held(name)
    held.stop()
    click.echo(f"{held.name} is gone; process {held.pid} held it")
    return 0
