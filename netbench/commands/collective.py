"""`netbench collective OP`: one collective or transfer on one network, timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console

from netbench import units
from netbench.commands.files import results_option
from netbench.commands.live import live, print_verdict
from netbench.commands.quantity import RATE, TIME, Quantity
from netbench.commands.simulation import simulator_environment, warn_of_disturbances
from netbench.errors import PlanError, UsageError
from netbench.plan.collective import (
    BACKENDS,
    OPS,
    CollectivePlan,
    first_nodes,
    held_bytes,
    uniform_network,
)
from netbench.plan.experiment import experiment_hash, experiment_record, experiment_to_json
from netbench.records import Environment, RunStore, read_run
from netbench.report.collective import collective_grid
from netbench.report.grid import rich_table
from netbench.scenario import load_scenario
from netbench.scenario.model import SHARING, Network
from netbench.testbed.choose import REQUESTS, SIMULATOR, check_request, choose
from netbench.testbed.host import probe_host
from netbench.testbed.kernel import ensure_kernel
from netbench.testbed.local import Outcome, run_plans
from netbench.testbed.shim import ensure_shim

MTU_RANGE = (576, 65_535)
"""Bytes: what every IPv4 node must take, and the longest packet."""

MAX_NODES = 4096
"""To simulate: 2.4 GB and 18 s for an all-reduce; memory grows with the square."""

UNIFORM = "uniform"
"""In place of a scenario's name: the network of --delay and --rate."""

GUEST_RANK_BYTES = 120_000_000
"""Tensors that one rank can hold in a guest, which maps its memory page by page: the host allows
65,530 mappings, and torch alone takes 31,000."""


def parse_sizes(text: str) -> tuple[int, ...]:
    """Comma-separated sizes, e.g. `1MiB,64MiB`: bytes."""
    return tuple(units.parse_bytes(part) for part in text.split(","))


SIZES = Quantity("SIZE,...", parse_sizes)


@click.command()
@click.argument("ops", metavar="OP...", nargs=-1, required=True, type=click.Choice(OPS))
@click.option("--nodes", required=True, type=int, help="Nodes, with one rank each.")
@click.option("--bytes", "sizes", required=True, type=SIZES, help="Payload, e.g. 1MiB,64MiB.")
@click.option(
    "--delay",
    type=TIME,
    help="One way: what netem adds on every node's egress, e.g. 10ms. A round trip takes twice it.",
)
@click.option(
    "--rate",
    type=RATE,
    help="Of what --sharing says, one way, e.g. 1Gbit.",
)
@click.option("--scenario", help="Take the network of a scenario's first nodes instead.")
@click.option(
    "--backend",
    default="gloo",
    show_default=True,
    type=click.Choice(BACKENDS),
    help="Whose messages; nccl with --testbed sim alone.",
)
@click.option("--testbed", default="local", show_default=True, help=" | ".join(REQUESTS))
@click.option(
    "--iterations",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="Measured iterations.",
)
@click.option(
    "--warmup",
    default=2,
    show_default=True,
    type=click.IntRange(min=0),
    help="Warm-up iterations, recorded apart.",
)
@click.option(
    "--sharing",
    type=click.Choice(SHARING),
    help="What has the rate: a pair of nodes, a class of equal destinations, a node's NIC; trunk, "
    "among equals, is pair.  [default: pair]",
)
@click.option("--mtu", type=click.IntRange(*MTU_RANGE), help="Bytes.  [default: 1500]")
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
    iterations: int,
    warmup: int,
    sharing: str | None,
    mtu: int | None,
    results: Path,
) -> int:
    """Time OP, one or more of p2p, all-reduce, broadcast, reduce, all-gather, reduce-scatter,
    central-ps and sharded-ps, and print its bandwidths, defined as by nccl-tests.

    central-ps reduces to rank 0 and broadcasts from it; sharded-ps exchanges shards all to all,
    sums, and gathers. The size is nccl-tests' too: all that a rank ends with (all-gather) or starts
    with (all others).

    Exit code 3: finished, but the network or the machine was outside tolerance.
    """
    check_request(testbed)
    if backend == "nccl" and testbed != SIMULATOR:
        raise UsageError(
            f"nccl needs GPUs, and --testbed {testbed} has none; "
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
    console = Console(highlight=False)
    console.print(_describe(plans[0]), soft_wrap=True)
    outcome = (_simulate if testbed == SIMULATOR else _run)(console, plans, testbed, results)
    console.print(rich_table(collective_grid(read_run(outcome.path))))
    console.print(
        "median, min, max: of n iterations without warm-ups, from the common start to the last "
        f"rank's end. closed form: {backend}'s messages on this network, on paper; "
        "- where its links differ. Bandwidths: nccl-tests, of the median.",
        style="dim",
    )
    console.print(f"records: {outcome.path}", soft_wrap=True)
    return print_verdict(console, outcome)


def _network(
    nodes: int,
    delay_s: float | None,
    rate_bps: float | None,
    scenario: str | None,
    sharing: str | None,
    mtu_bytes: int | None,
) -> tuple[str, Network]:
    """The uniform network of the options, or the scenario's, with its name."""
    if nodes > MAX_NODES:
        raise UsageError(f"{nodes} nodes; expected at most {MAX_NODES}")
    if scenario is not None:
        if (delay_s, rate_bps, sharing, mtu_bytes) != (None,) * 4:
            raise UsageError(
                "--scenario brings its own network; leave out --delay, --rate, --sharing and --mtu"
            )
        loaded = load_scenario(scenario)
        return loaded.name, first_nodes(loaded, nodes)
    if delay_s is None or rate_bps is None:
        raise UsageError(
            "there is no network; give --delay and --rate (e.g. 10ms and 1Gbit), or --scenario"
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
    """The network in one line."""
    network = plan.network
    where = f"{plan.num_nodes} nodes, {plan.backend}, MTU {network.mtu_bytes}"
    if plan.scenario != UNIFORM:
        return f"[bold]{plan.scenario}[/bold]: its first {where}"
    link = network.link(0, 1)
    rate_bps = min(link.bandwidth_bps, network.nic_bps[0])
    return (
        f"{where}: {units.format_time(link.one_way_delay_s)} one way "
        f"({units.format_time(2 * link.one_way_delay_s)} round trip), "
        f"{units.format_bandwidth(rate_bps)} per {network.sharing}"
    )


def _run(console: Console, plans: Sequence[CollectivePlan], testbed: str, results: Path) -> Outcome:
    """On this machine, with the real gloo."""
    for plan in plans:
        check_fits(plan)
    if testbed in ("local", "local:guest"):
        ensure_kernel()
    host, shim = probe_host(), ensure_shim()
    choice = choose(testbed, host, plans[0].num_nodes)
    console.print(f"testbed: {choice.mode} ({choice.reason})")
    with live(console, plans, 0) as observer:
        return run_plans(
            plans,
            mode=choice.mode,
            transport="namespaces",
            host=host,
            shim=shim,
            open_store=lambda environment: _open_store(results, plans, environment),
            finished={},
            observer=observer,
            max_sessions=1,  # a second guest takes longer to start than an op
        )


def check_fits(plan: CollectivePlan) -> None:
    """Raises PlanError when a rank's tensors do not fit a guest."""
    if (held := held_bytes(plan)) > GUEST_RANK_BYTES:
        most = int(plan.payload_bytes * GUEST_RANK_BYTES / held) >> 20
        raise PlanError(
            f"{plan.op} of {units.format_bytes(plan.payload_bytes)} needs {held / 1e6:.0f} MB of "
            f"tensors per rank, and a rank in a guest holds {GUEST_RANK_BYTES / 1e6:.0f} MB; "
            f"give --bytes {most}MiB or less, or --testbed sim"
        )


def _simulate(
    console: Console, plans: Sequence[CollectivePlan], testbed: str, results: Path
) -> Outcome:
    """One iteration of each plan in the simulator."""
    from netbench.simulator import simulate_collective  # numba: only when asked for

    warn_of_disturbances(console, [plan.network for plan in plans])
    environment = simulator_environment()
    times_s = [simulate_collective(plan) for plan in plans]
    with _open_store(results, plans, environment) as store:
        for plan, iteration_s in zip(plans, times_s, strict=True):
            record = experiment_record(plan, store.run_id, iteration_s, "simulated")
            store.append_iteration(record)
        store.append_verdict(trustworthy=True)
        return Outcome(path=store.path, reasons=())


def _open_store(
    results: Path, plans: Sequence[CollectivePlan], environment: Environment
) -> RunStore:
    """A run in a folder of its own: `netbench table case3` must not find case 3's collectives."""
    store = RunStore.create(
        results,
        scenario=f"collective-{plans[0].scenario}",
        created=datetime.now(),
        command=["netbench", *sys.argv[1:]],
        environment=environment,
    )
    for plan in plans:
        store.append_plan(experiment_hash(plan), json.loads(experiment_to_json(plan)))
    return store
