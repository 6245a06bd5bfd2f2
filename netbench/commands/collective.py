"""`netbench collective OP...`: time collectives and transfers on one network."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from netbench import units
from netbench.api.emulation import LOCAL, Target, check_dask, prepare, prepare_cluster, start_run
from netbench.api.simulation import record_simulated, simulator_environment
from netbench.commands.options import DELAY, RATE, QuantityType
from netbench.commands.output import (
    check_results,
    plain_console,
    print_line,
    print_verdict,
    results_option,
)
from netbench.commands.pool import dask_option, open_pool
from netbench.commands.run.observer import TerminalDisplay
from netbench.commands.run.simulation import warn_of_impairments
from netbench.commands.run.target import inventory_options
from netbench.errors import PlanError, UsageError
from netbench.limits import MAX_ITERATIONS
from netbench.plan.benchmark import (
    BACKENDS,
    OPS,
    CollectivePlan,
    first_nodes,
    held_bytes,
    uniform_network,
)
from netbench.plan.experiment import experiment_hash, experiment_to_json
from netbench.pool import Pool
from netbench.records import Environment, RunStore, read_run
from netbench.report.tables.collective import collective_grid
from netbench.report.tables.grid import rich_table
from netbench.scenario import load_scenario
from netbench.scenario.model import Network
from netbench.scenario.sharing import SHARING
from netbench.testbed.machine.choose import REQUESTS, SIMULATOR, check_request
from netbench.testbed.runs.controller import run_plans

if TYPE_CHECKING:
    from netbench.distributed.client import DaskPool

MTU_RANGE = (576, 65_535)
"""Smallest MTU that IPv4 allows, and the longest packet, bytes."""

MAX_NODES = 4096
"""Maximum number of simulated nodes: an all-reduce takes 2.4 GB, which grows quadratically, and
18 s."""

UNIFORM = "uniform"
"""Name of the network of --delay and --rate, in place of a scenario's."""

GUEST_RANK_BYTES = 120_000_000
"""Maximum size of a rank's tensors in a guest, which maps its memory page by page: the host allows
65,530 mappings, and torch alone takes 31,000."""


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse comma-separated sizes, e.g. `1MiB,64MiB`, as bytes."""
    return tuple(units.parse_bytes(part) for part in text.split(","))


def parse_ops(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Parse operations, separated by blanks or commas."""
    names = [name for value in values for name in value.split(",")]
    choice: click.Choice[str] = click.Choice(OPS)
    return tuple(choice.convert(name, param, ctx) for name in names)


SIZES = QuantityType("SIZE,...", parse_sizes)


@click.command()
@click.argument("ops", metavar="OP...", nargs=-1, required=True, callback=parse_ops)
@click.option(
    "--nodes",
    required=True,
    type=click.IntRange(2, MAX_NODES),
    help="Number of nodes, with one rank each.",
)
@click.option("--bytes", "sizes", required=True, type=SIZES, help="Payload sizes, e.g. 1MiB,64MiB.")
@click.option(
    "--delay",
    type=DELAY,
    help="One-way delay between any two nodes, e.g. 10ms. A round trip takes twice as long.",
)
@click.option(
    "--rate", type=RATE, help="One-way bandwidth per unit selected by --sharing, e.g. 1Gbit."
)
@click.option(
    "--scenario",
    help="Scenario whose first nodes provide the network, instead of --delay and --rate.",
)
@click.option(
    "--backend",
    default="gloo",
    type=click.Choice(BACKENDS),
    help="Communication library; nccl needs --testbed sim.",
)
@click.option("--testbed", default=LOCAL, help=f"Where to run: {' | '.join(REQUESTS)}.")
@inventory_options
@click.option(
    "--iterations",
    default=5,
    type=click.IntRange(1, MAX_ITERATIONS),
    help="Number of measured iterations.",
)
@click.option(
    "--warmup",
    default=2,
    type=click.IntRange(0, MAX_ITERATIONS),
    help="Number of warm-up iterations, recorded separately.",
)
@click.option(
    "--sharing",
    type=click.Choice(tuple(SHARING)),
    help="Unit that has the rate, as in a scenario; all nodes are in one region.  [default: pair]",
)
@click.option(
    "--mtu", type=click.IntRange(*MTU_RANGE), help="Maximum packet size, bytes.  [default: 1500]"
)
@dask_option
@results_option
def command(
    ops: tuple[str, ...],
    nodes: int,
    sizes: tuple[int, ...],
    delay: float | None,
    rate: float | None,
    scenario: str | None,
    backend: str,
    testbed: str,
    inventory: Path | None,
    replace: bool,
    iterations: int,
    warmup: int,
    sharing: str | None,
    mtu: int | None,
    dask: str | None,
    results: Path,
) -> int:
    """Time one or more operations and print their bandwidths as nccl-tests defines them.

    OP is p2p, all-reduce, broadcast, reduce, all-gather, reduce-scatter, central-ps or sharded-ps.
    central-ps reduces to rank 0 and broadcasts from it. sharded-ps exchanges shards all to all,
    sums them, and gathers the sums. The size is also defined as by nccl-tests: the bytes that a
    rank ends with (all-gather) or starts with (all others).

    Exit code 3: the run finished, but the network or the machine was outside tolerance.
    """
    check_request(testbed)
    target = Target(testbed=testbed, inventory=inventory, replace=replace, dask=dask)
    if backend == "nccl" and testbed != SIMULATOR:
        raise UsageError(
            f"nccl needs GPUs, which --testbed {testbed} does not have; "
            "use --testbed sim or --backend gloo"
        )
    name, network = _network(nodes, delay, rate, scenario, sharing, mtu)
    if testbed == SIMULATOR:
        iterations, warmup = 1, 0  # a simulated iteration repeats to the bit
    plans = [
        CollectivePlan(
            scenario=name,
            op=op,
            num_nodes=nodes,
            payload_bytes=size,
            backend=backend,
            network=network,
            iterations=iterations + warmup,
            warmup_iterations=warmup,
        )
        for size in dict.fromkeys(sizes)
        for op in dict.fromkeys(ops)
    ]
    check_results(results)
    console = plain_console()
    print_line(console, _describe(plans[0]))
    check_dask(target, plans)
    with open_pool(dask) as pool:
        if testbed == SIMULATOR:
            path = _simulate(console, plans, results, pool)
        else:
            path = _run(console, plans, target, results, pool)
    run = read_run(path)
    console.print(rich_table(collective_grid(run)))
    console.print(
        "median, min, max: of n iterations without warm-ups, from the common start to the last "
        f"rank's end. closed form: computed from {backend}'s messages; - if links differ. "
        "Bandwidths: as in nccl-tests, from the median.",
        style="dim",
    )
    print_line(console, f"records: {run.path}")
    return print_verdict(console, run)


def _network(
    nodes: int,
    delay_s: float | None,
    rate_bps: float | None,
    scenario: str | None,
    sharing: str | None,
    mtu_bytes: int | None,
) -> tuple[str, Network]:
    """Name and network: the uniform one of the options, or the scenario's."""
    if scenario is not None:
        if (delay_s, rate_bps, sharing, mtu_bytes) != (None,) * 4:
            raise UsageError(
                "--scenario brings its own network; leave out --delay, --rate, --sharing and --mtu"
            )
        loaded = load_scenario(scenario)
        return loaded.name, first_nodes(loaded, nodes)
    if delay_s is None or rate_bps is None:
        raise UsageError(
            "no network is given; add --delay and --rate (e.g. 10ms and 1Gbit), or --scenario"
        )
    network = uniform_network(
        nodes,
        one_way_delay_s=delay_s,
        bandwidth_bps=rate_bps,
        sharing=sharing or "pair",
        mtu_bytes=mtu_bytes or 1500,
    )
    return UNIFORM, network


def _describe(plan: CollectivePlan) -> str:
    """Describe the network in one line."""
    network = plan.network
    where = f"{plan.num_nodes} nodes, {plan.backend}, MTU {network.mtu_bytes}"
    if plan.scenario != UNIFORM:
        return f"{plan.scenario}: its first {where}"
    link = network.link(0, 1)
    rate_bps = min(link.bandwidth_bps, network.nic_bps[0])
    return (
        f"{where}: {units.format_time(link.one_way_delay_s)} one way "
        f"({units.format_time(2 * link.one_way_delay_s)} round trip), "
        f"{units.format_bandwidth(rate_bps)} per {network.sharing}"
    )


def _run(
    console: Console,
    plans: Sequence[CollectivePlan],
    target: Target,
    results: Path,
    pool: "DaskPool | None",
) -> Path:
    """Run the plans on this machine, on hosts or on the workers of `pool`, with the real gloo."""
    display = TerminalDisplay(console)
    if target.inventory is not None:
        name, network = plans[0].scenario, plans[0].network
        here = prepare_cluster(display, name, network, target.inventory, target.replace)
    else:
        for plan in plans:
            check_fits(plan)
        here = prepare(display, target, plans, pool)
    with display.observe(plans, 0) as observer:
        return run_plans(
            plans,
            here,
            open_store=lambda environment: _open_store(results, plans, environment),
            finished={},
            observer=observer,
        )


def check_fits(plan: CollectivePlan) -> None:
    """Raises PlanError if a rank's tensors do not fit into a guest."""
    if (held := held_bytes(plan)) > GUEST_RANK_BYTES:
        most = int(plan.payload_bytes * GUEST_RANK_BYTES / held) >> 20
        raise PlanError(
            f"{plan.op} of {units.format_bytes(plan.payload_bytes)} needs {held / 1e6:.0f} MB of "
            f"tensors per rank, but a rank in a guest can hold {GUEST_RANK_BYTES / 1e6:.0f} MB; "
            f"give --bytes {most}MiB or less, or --testbed sim"
        )


def _simulate(
    console: Console, plans: Sequence[CollectivePlan], results: Path, pool: Pool | None
) -> Path:
    """Simulate one iteration of each plan, in this process or on the workers of `pool`."""
    from netbench.simulator import simulate_collective
    from netbench.simulator.parallel import LocalPool, simulation_work  # numba: only when asked for

    warn_of_impairments(console, plans)
    times = (pool or LocalPool(1)).run(simulation_work(simulate_collective), plans)
    no_fields: dict[str, Any] = {}
    found = ((plans[index], iteration_s, no_fields) for index, iteration_s in times)
    return record_simulated(_open_store(results, plans, simulator_environment()), found)


def _open_store(
    results: Path, plans: Sequence[CollectivePlan], environment: Environment
) -> RunStore:
    """Open a run, named so that `netbench table case3` does not find case 3's collectives."""
    store = start_run(results, f"collective-{plans[0].scenario}", environment)
    for plan in plans:
        store.append_plan(experiment_hash(plan), json.loads(experiment_to_json(plan)))
    return store
