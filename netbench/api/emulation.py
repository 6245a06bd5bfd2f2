"""Run plans on a testbed of this machine, on hosts, or in the simulator, and record them."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from netbench.api.plans import as_plans
from netbench.api.results import Results, open_run
from netbench.api.simulation import Progress, predictions, simulate_into
from netbench.distributed.opening import open_pool
from netbench.errors import UsageError
from netbench.network.shaping.limits import network_warnings
from netbench.plan.checks import dynamics_doubt
from netbench.plan.describe import count_periods, describe_plan
from netbench.plan.experiment import Experiment, runs_script
from netbench.plan.memory import memory_warnings
from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.scale import at_common_scale
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.pool import Pool
from netbench.records import Environment, Record, RunStore, read_run
from netbench.scenario import Scenario
from netbench.scenario.model import Network
from netbench.testbed.guest.cache import ensure_kernel, ensure_shim
from netbench.testbed.machine.capabilities import probe_machine
from netbench.testbed.machine.choose import SIMULATOR, choose, network_doubts
from netbench.testbed.network import network_of
from netbench.testbed.runs.controller import Observer, SessionSetup, run_plans
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.distributed.client import DaskPool

LOCAL = "local"

VIRTUAL_TIME = (LOCAL, "local:guest")
"""Values of `--testbed` that are, or may be, a guest in virtual time."""

ITERATIONS, WARMUP = 2, 1
"""Default number of iterations of a plan on a testbed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Testbed or hosts on which plans are to run.

    testbed: a value of `--testbed`. ssh: with an sshd per node. inventory: hosts to run on, instead
    of this machine. replace: set their foreign root qdiscs aside meanwhile. dask: address of a
    Dask cluster whose workers run the plans. Raises UsageError for options that exclude each other.
    """

    testbed: str = LOCAL
    ssh: bool = False
    inventory: Path | None = None
    replace: bool = False
    dask: str | None = None

    def __post_init__(self) -> None:
        if self.inventory is None and self.replace:
            raise UsageError("--replace is for the hosts of an inventory; add --inventory")
        if self.inventory is not None and (self.ssh or self.testbed != LOCAL):
            raise UsageError(
                "--inventory runs on its hosts, over SSH; leave out --testbed and --ssh"
            )
        if self.inventory is not None and self.dask is not None:
            raise UsageError(
                "--inventory runs one plan on many hosts, --dask many plans, each on one host; "
                "leave out one of the two"
            )


class Display(Protocol):
    """Receiver of what a run says before and while it runs, e.g. a terminal."""

    def say(self, text: str) -> None:
        """Take a line about the run."""

    def warn(self, subject: str, text: str) -> None:
        """Take a warning. subject: its first word, e.g. memory."""

    def track(self, total: int, pool: Pool | None) -> Progress:
        """Return what shows the progress of `total` simulated plans. pool: where, None = here."""

    def observe(
        self, plans: Sequence[Experiment], num_finished: int
    ) -> AbstractContextManager[Observer]:
        """Return what shows the progress of the iterations that are left."""


class LogDisplay:
    """Display of a script or a notebook: warnings and messages go to the log."""

    def say(self, text: str) -> None:
        log.info("%s", text)

    def warn(self, subject: str, text: str) -> None:
        log.warning("%s: %s", subject, text)

    def track(self, total: int, pool: Pool | None) -> Progress:
        return iter

    def observe(
        self, plans: Sequence[Experiment], num_finished: int
    ) -> AbstractContextManager[Observer]:
        return nullcontext(LogObserver())


class LogObserver:
    """Writes iterations to the log, as `netbench.testbed.runs.controller.Observer` reports them."""

    def place(self, session: int, host: str) -> None:
        log.debug("session %d: on %s", session + 1, host)

    def phase(self, session: int, name: str, done: int, total: int) -> None:
        log.debug("session %d: %s, %d of %d", session + 1, name, done, total)

    def part(self, plan: Plan, iteration: int, periods: int, iteration_s: float) -> None:
        part = count_periods(plan, periods)
        log.info("%s iteration %d, %s: %.3f s", plan.variant, iteration, part, iteration_s)

    def iteration(self, plan: Experiment, record: Record) -> None:
        log.info("%s iteration %d: %.3f s", plan.variant, record.iteration, record.iteration_s)

    def certificate(self, hosts: Mapping[str, str]) -> None:
        for host, left in hosts.items():
            log.info("%s: %s", host, left)


def emulate(
    scenario: Scenario,
    plans: Plan | Iterable[Plan],
    *,
    iterations: int = ITERATIONS,
    warmup: int = WARMUP,
    target: Target | None = None,
    results: str | Path = "results",
    display: Display | None = None,
) -> Results:
    """Run plans on shaped links and record every iteration.

    scenario: that of the plans. iterations, warmup: per plan. target: where to run, None = the best
    testbed of this machine. results: folder for the records. display: None = the log.
    Bytes and bandwidths are divided by the scale that the largest plan needs, or by a smaller one
    (`plan.scale.at_common_scale`). Raises TestbedError where this machine or its hosts cannot run
    the plans.
    """
    wanted = as_plans(plans)
    if not wanted:
        raise UsageError("no plans are given; make some with make_plans")
    if strangers := [plan.scenario for plan in wanted if plan.scenario != scenario.name]:
        raise UsageError(f"a plan is of scenario {strangers[0]}, not of {scenario.name}")
    if (target or Target()).testbed == SIMULATOR:
        raise UsageError("the simulator starts no ranks; call simulate instead")
    wanted = tuple(
        dataclasses.replace(plan, iterations=iterations + warmup, warmup_iterations=warmup)
        for plan in at_common_scale(wanted)
    )
    path = run_recorded(
        display or LogDisplay(), scenario, wanted, target or Target(), Path(results)
    )
    return open_run(path)


def run_recorded(
    display: Display,
    scenario: Scenario,
    plans: Sequence[Plan],
    target: Target,
    results: Path,
    resumed: Path | None = None,
    trace: bool = False,
) -> Path:
    """Run the unfinished iterations of `plans` on the target or in the simulator; record them.

    resumed: run to continue. trace: keep a trace of every plan's last iteration. Return the record
    file.
    """
    _warn(display, scenario, plans, emulated=target.testbed != SIMULATOR)
    check_dask(target, plans)
    finished: dict[str, list[int]] = {}
    for record in read_run(resumed).records if resumed else ():
        finished.setdefault(record.plan_hash, []).append(record.iteration)
    if resumed is not None and not _has_work_left(display, resumed, plans, finished):
        return _conclude(resumed)
    open_store = functools.partial(_open_store, results, scenario, resumed, plans)
    with open_pool(target.dask, display.say) as pool:
        if target.testbed == SIMULATOR:
            if text := ignored_impairments(plans):
                display.warn("network", text)
            todo = [plan for plan in plans if not finished.get(plan_hash(plan))]
            return simulate_into(todo, open_store, display.track(len(todo), pool), pool)
        if target.inventory is not None:
            here = prepare_cluster(
                display, scenario.name, scenario.network, target.inventory, target.replace
            )
        else:
            here = prepare(display, target, plans, pool)
            way = "ssh" if target.ssh else "namespaces"
            display.say(f"nodes: {len(scenario.nodes)}, reached through {way}")
            for reason in network_doubts(here.testbed, plans):
                display.warn("network", reason)
        predicted = predictions(plans, pool)
        for plan in plans:
            display.say(f"plan {describe_plan(plan)}")
        with display.observe(plans, _num_finished(plans, finished)) as observer:
            return run_plans(
                plans,
                dataclasses.replace(here, ssh=target.ssh, trace=trace),
                open_store=functools.partial(open_store, predicted=predicted),
                finished=finished,
                observer=observer,
            )


def ignored_impairments(plans: Iterable[Experiment]) -> str:
    """Return a warning about impairments that the simulator ignores, "" if there are none."""
    links = {
        link
        for network in {plan.network for plan in plans}
        for row in network.links
        for link in row
    }
    found = sorted({name for link in links for name in link.impairments})
    if not found:
        return ""
    what = "not simulated, times are those of links without; an emulated run includes them"
    return f"{', '.join(found)}: {what}"


def prepare_cluster(
    display: Display, name: str, network: Network, path: Path, replace: bool
) -> SessionSetup:
    """Read an inventory and say which hosts play the nodes of a network. Raises UsageError.

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
    display.say(f"testbed: {NAME} ({what} of {path})")
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
    display: Display, target: Target, plans: Sequence[Experiment], pool: DaskPool | None = None
) -> SessionSetup:
    """Choose a testbed of this machine, or of the hosts of `pool`; build what it needs, and say
    which it is."""
    testbed, num_ranks = target.testbed, len(plans[0].device_nodes)
    compute = next((plan.compute for plan in plans if isinstance(plan, Plan)), VIRTUAL)
    if pool is not None:
        from netbench.distributed.sessions import prepare_sessions

        return prepare_sessions(pool, num_ranks, target.ssh, display.say)
    if testbed in VIRTUAL_TIME:
        ensure_kernel()
    machine = probe_machine()
    choice = choose(testbed, machine, num_ranks, compute)
    display.say(f"testbed: {choice.testbed} ({choice.reason})")
    preload = ensure_shim() if choice.testbed == "guest-virtual" else None
    return SessionSetup(testbed=choice.testbed, machine=machine, preload=preload)


def _warn(display: Display, scenario: Scenario, plans: Sequence[Plan], *, emulated: bool) -> None:
    """Warn of memory, and of links that netem cannot deliver exactly, once each."""
    for warning in dict.fromkeys(w for plan in plans for w in memory_warnings(plan, scenario)):
        display.warn("memory", warning)
    networks = dict.fromkeys(network_of(plan) for plan in plans) if emulated else ()
    for warning in dict.fromkeys(w for asked in networks for w in network_warnings(*asked)):
        display.warn("network", warning)
    for plan in plans if emulated else ():
        if doubt := dynamics_doubt(plan):
            display.warn(plan.variant, doubt)


def _conclude(resumed: Path) -> Path:
    """Give a run that has nothing left to do the verdict it lacks if it was stopped before it."""
    if not read_run(resumed).verdicts:
        with RunStore.open(resumed) as store:
            store.append_verdict()
    return resumed


def _num_finished(plans: Sequence[Plan], finished: Mapping[str, Sequence[int]]) -> int:
    return sum(len(finished.get(plan_hash(plan), ())) for plan in plans)


def _has_work_left(
    display: Display, resumed: Path, plans: Sequence[Plan], finished: Mapping[str, Sequence[int]]
) -> bool:
    """Return true if iterations are left; say how many are recorded."""
    folder = resumed if resumed.is_dir() else resumed.parent
    recorded = counted(_num_finished(plans, finished), "iteration")
    display.say(f"resuming {folder}: {recorded} already recorded")
    if any(len(finished.get(plan_hash(plan), ())) < plan.iterations for plan in plans):
        return True
    display.say("all iterations are finished; leave out --resume to start a new run")
    return False


def start_run(results: Path, name: str, environment: Environment) -> RunStore:
    """Start a run of this command line in a new folder of `results`."""
    return RunStore.create(
        results,
        scenario=name,
        created=datetime.now(),
        command=_command_line(),
        environment=environment,
    )


def _command_line() -> list[str]:
    """Return the command to record: that of `netbench`, or of a script or notebook as it is."""
    program = Path(sys.argv[0]).name
    name = "netbench" if program in ("netbench", "__main__.py", "-c", "") else program
    return [name, *sys.argv[1:]]


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
        store.append_session(
            created=datetime.now(), command=_command_line(), environment=environment
        )
    for plan in plans:
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
    for key, iteration_s in (predicted or {}).items():
        store.append_prediction(key, iteration_s)
    return store
