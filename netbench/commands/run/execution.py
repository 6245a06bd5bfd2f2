"""Run plans on a testbed or in the simulator, and record their iterations."""

import dataclasses
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from netbench.commands.output import check_results, heading, print_warning
from netbench.commands.pool import open_pool
from netbench.commands.run.observer import observe
from netbench.commands.run.simulation import predictions, simulate_plans
from netbench.commands.run.target import Target
from netbench.errors import UsageError
from netbench.network.shaping.limits import network_warnings
from netbench.network.shaping.segments import on_testbed
from netbench.plan.checks import dynamics_doubt
from netbench.plan.describe import describe_plan
from netbench.plan.experiment import Experiment, runs_script
from netbench.plan.memory import memory_warnings
from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Environment, RunStore, read_run
from netbench.scenario import Scenario
from netbench.scenario.model import Network
from netbench.testbed.guest.cache import ensure_kernel, ensure_shim
from netbench.testbed.machine.capabilities import probe_machine
from netbench.testbed.machine.choose import SIMULATOR, choose, network_doubts
from netbench.testbed.runs.controller import SessionSetup, run_plans
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.distributed.client import DaskPool

VIRTUAL_TIME = ("local", "local:guest")
"""Values of `--testbed` that are, or may be, a guest in virtual time."""


def execute(
    console: Console,
    scenario: Scenario,
    plans: Sequence[Plan],
    target: Target,
    results: Path,
    resumed: Path | None = None,
    trace: bool = False,
) -> Path:
    """Choose a testbed, run the unfinished iterations of `plans` there, and record them.

    Return the record file.
    """
    if resumed is None:
        check_results(results)
    console.print(heading(scenario))
    _warn(console, scenario, plans, emulated=target.testbed != SIMULATOR)
    check_dask(target, plans)
    finished: dict[str, list[int]] = {}
    for record in read_run(resumed).records if resumed else ():
        finished.setdefault(record.plan_hash, []).append(record.iteration)
    if resumed is not None and not _has_work_left(console, resumed, plans, finished):
        return _conclude(resumed)
    open_store = functools.partial(_open_store, results, scenario, resumed, plans)
    with open_pool(target.dask) as pool:
        if target.testbed == SIMULATOR:
            return simulate_plans(console, plans, open_store, finished, pool)
        if target.inventory is not None:
            here = prepare_cluster(
                console, scenario.name, scenario.network, target.inventory, target.replace
            )
        else:
            here = prepare(console, target, plans, pool)
            way = "ssh" if target.ssh else "namespaces"
            console.print(f"nodes: {len(scenario.nodes)}, reached through {way}")
            for reason in network_doubts(here.testbed, plans):
                print_warning(console, "network", reason)
        predicted = predictions(plans, pool)
        for plan in plans:
            console.print(f"plan {describe_plan(plan)}", soft_wrap=True)
        with observe(console, plans, _num_finished(plans, finished)) as observer:
            return run_plans(
                plans,
                dataclasses.replace(here, ssh=target.ssh, trace=trace),
                open_store=functools.partial(open_store, predicted=predicted),
                finished=finished,
                observer=observer,
            )


def prepare_cluster(
    console: Console, name: str, network: Network, path: Path, replace: bool
) -> SessionSetup:
    """Read an inventory and print which hosts play the nodes of a network. Raises UsageError.

    name: of the scenario, for messages.
    """
    # paramiko takes a quarter of a second, which other runs do without.
    from netbench.testbed.cluster.session import ClusterSession
    from netbench.testbed.cluster.testbed import NAME
    from netbench.testbed.ssh.inventory import load_inventory
    from netbench.testbed.ssh.scenario_hosts import hosts_of

    inventory = load_inventory(path)
    hosts = hosts_of(name, network, inventory)
    what = counted(len(hosts), "host")
    if inventory.is_divided:
        what += f" with {counted(network.num_nodes, 'node')}"
    console.print(f"testbed: {NAME} ({what} of {path})")
    return SessionSetup(
        testbed=NAME,
        start=functools.partial(ClusterSession, inventory, replace),
        place=f"{what}: {', '.join(host.name for host in hosts)}",
    )


def check_dask(target: Target, plans: Sequence[Experiment]) -> None:
    """Raises UsageError if workers of a Dask cluster cannot run `plans`: in real time, cells on one
    host would disturb each other."""
    if target.dask is None or target.testbed == SIMULATOR:
        return
    if target.testbed not in VIRTUAL_TIME:
        raise UsageError(
            f"--dask emulates in virtual time; leave out --testbed {target.testbed}, or --dask"
        )
    training = [plan for plan in plans if isinstance(plan, Plan)]
    if any(plan.compute != VIRTUAL for plan in training) or any(map(runs_script, plans)):
        raise UsageError(
            "--dask emulates in virtual time, in which what is computed would take none; leave "
            "out --compute and --command, or run without --dask"
        )


def prepare(
    console: Console, target: Target, plans: Sequence[Experiment], pool: "DaskPool | None" = None
) -> SessionSetup:
    """Choose a testbed of this machine, or of the hosts of `pool`; build what it needs, and print
    the choice."""
    testbed, num_ranks = target.testbed, len(plans[0].device_nodes)
    compute = next((plan.compute for plan in plans if isinstance(plan, Plan)), VIRTUAL)
    if pool is not None:
        from netbench.distributed.sessions import prepare_sessions

        return prepare_sessions(pool, num_ranks, target.ssh, console.print)
    if testbed in ("local", "local:guest"):
        ensure_kernel()
    machine, shim = probe_machine(), ensure_shim()
    choice = choose(testbed, machine, num_ranks, compute)
    console.print(f"testbed: {choice.testbed} ({choice.reason})")
    return SessionSetup(testbed=choice.testbed, machine=machine, preload=shim)


def _warn(console: Console, scenario: Scenario, plans: Sequence[Plan], *, emulated: bool) -> None:
    """Print warnings on memory, and on links that netem cannot deliver exactly, each once."""
    for warning in dict.fromkeys(w for plan in plans for w in memory_warnings(plan, scenario)):
        print_warning(console, "memory", warning)
    networks = (
        dict.fromkeys(on_testbed(plan.network, plan.scale) for plan in plans) if emulated else ()
    )
    for warning in dict.fromkeys(w for asked in networks for w in network_warnings(*asked)):
        print_warning(console, "network", warning)
    for plan in plans if emulated else ():
        if doubt := dynamics_doubt(plan):
            print_warning(console, plan.variant, doubt)


def _conclude(resumed: Path) -> Path:
    """Give a run that has nothing left to do the verdict it lacks if it was stopped before it."""
    if not read_run(resumed).verdicts:
        with RunStore.open(resumed) as store:
            store.append_verdict()
    return resumed


def _num_finished(plans: Sequence[Plan], finished: Mapping[str, Sequence[int]]) -> int:
    return sum(len(finished.get(plan_hash(plan), ())) for plan in plans)


def _has_work_left(
    console: Console, resumed: Path, plans: Sequence[Plan], finished: Mapping[str, Sequence[int]]
) -> bool:
    """Return true if iterations are left; print how many are recorded."""
    folder = resumed if resumed.is_dir() else resumed.parent
    recorded = counted(_num_finished(plans, finished), "iteration")
    console.print(f"resuming {folder}: {recorded} already recorded", soft_wrap=True)
    if any(len(finished.get(plan_hash(plan), ())) < plan.iterations for plan in plans):
        return True
    console.print("all iterations are finished; leave out --resume to start a new run")
    return False


def start_run(results: Path, name: str, environment: Environment) -> RunStore:
    """Start a run of this command line in a new folder of `results`."""
    return RunStore.create(
        results,
        scenario=name,
        created=datetime.now(),
        command=["netbench", *sys.argv[1:]],
        environment=environment,
    )


def _open_store(
    results: Path,
    scenario: Scenario,
    resumed: Path | None,
    plans: Sequence[Plan],
    environment: Environment,
    predicted: Mapping[str, float] | None = None,
) -> RunStore:
    """Open a new run, or a new session of a resumed one, and record plans and predictions."""
    if resumed is None:
        store = start_run(results, scenario.name, environment)
    else:
        store = RunStore.open(resumed)
        command = ["netbench", *sys.argv[1:]]
        store.append_session(created=datetime.now(), command=command, environment=environment)
    for plan in plans:
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
    for key, iteration_s in (predicted or {}).items():
        store.append_prediction(key, iteration_s)
    return store
