"""`netbench run SCENARIO`: plans, a testbed, records, a table."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from netbench.commands.files import check_formats, check_writable, results_option
from netbench.commands.live import heading, live, print_verdict, wide_console
from netbench.commands.placed import check_placements, is_file, place_plans
from netbench.commands.schedule.request import Limits, limit_options
from netbench.commands.script import check_script
from netbench.commands.simulation import predictions, simulate_plans, write_pictures
from netbench.errors import UsageError
from netbench.network.limits import cautions
from netbench.plan import Plan, build_plans, describe_plan, plan_from_json, plan_hash, plan_to_json
from netbench.plan.checks import check_data
from netbench.plan.command import COMMAND, build_command_plans
from netbench.plan.memory import memory_warnings
from netbench.plan.model import COMPUTE, VIRTUAL
from netbench.records import Environment, RunStore, find_run, read_run
from netbench.report.run import render_run
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.choose import REQUESTS, SIMULATOR, check_request, choose, network_doubts
from netbench.testbed.host import probe_host
from netbench.testbed.kernel import ensure_kernel
from netbench.testbed.local import Outcome, has_trainer, run_plans
from netbench.testbed.shim import ensure_shim
from netbench.units import counted

NEWEST = "newest"
IN_RUN = "in the run's folder"
EVERY = "all"
ITERATIONS, WARMUP = 2, 1
"""Of a plan on a local testbed, where nothing else is asked for."""


class NumberList(click.ParamType[tuple[int, ...]]):
    """Comma-separated whole numbers."""

    name = "N,N,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers; write e.g. 24,32", param, ctx)


@click.command()
@click.argument("scenario")
@click.option(
    "--systems", help="Comma-separated, e.g. dtfm-random,zero3.  [default: the scenario's]"
)
@click.option("--layers", type=NumberList(), help="Model depths, e.g. 24,32.")
@click.option("--batch", type=NumberList(), help="Global batch sizes, in sequences.")
@click.option("--micro-batch", type=NumberList(), help="Micro-batch sizes, in sequences.")
@click.option("--networks", help="Of the scenario's sweep, by name, or all.")
@click.option("--models", help="Of the scenario's sweep, e.g. resnet18,resnet101.")
@click.option("--replicas", type=NumberList(), help="Devices that train a named model, e.g. 1,8.")
@click.option("--seeds", type=NumberList(), help="Seeds of random placements.")
@click.option("--all", "whole_sweep", is_flag=True, help="The scenario's full sweep.")
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    help="Measured iterations per plan.  [default: 2; sim: always 1]",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    help="Warm-up iterations, recorded apart.  [default: 1; sim: always 0]",
)
@click.option("--scale", type=float, help="Divide bytes and bandwidths by this.  [default: auto]")
@click.option(
    "--compute",
    type=click.Choice(COMPUTE),
    default=VIRTUAL,
    show_default=True,
    help="What the layers do: sleep for as long as the device would take, or train there.",
)
@click.option(
    "--command",
    "script",
    metavar="WORDS",
    help="Run this on every rank, as torchrun would, e.g. 'python train.py'.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="What layers that compute train on.  [default: synthetic tokens]",
)
@click.option(
    "--placement",
    metavar="NAME|FILE,...",
    help="Of pipelines: a scheduler, which searches, a file of netbench schedule -o, or own.  "
    "[default: own]",
)
@limit_options
@click.option("--testbed", default="local", show_default=True, help=" | ".join(REQUESTS))
@click.option("--ssh", is_flag=True, help="Reach nodes through a real sshd each.")
@results_option
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    help="Continue a run folder, or the scenario's newest run.",
)
@click.option("--dry-run", is_flag=True, help="Print the plans and stop.")
@click.option(
    "--trace",
    is_flag=False,
    flag_value=IN_RUN,
    metavar="[FILE]",
    help="Keep a Perfetto trace of every plan's last iteration in the run's folder; sim: write the "
    "first plan's to FILE.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="sim: draw the first plan's timeline; {plan} in a name: every plan's.",
)
def command(
    scenario: str,
    placement: str | None,
    limits: Limits,
    testbed: str,
    ssh: bool,
    results: Path,
    resume: str | None,
    dry_run: bool,
    trace: str | None,
    plot: Path | None,
    **wanted: Any,
) -> int:
    """Run SCENARIO (a name, or the path of a YAML file) and print its table.

    What is not given is as in the scenario: its default systems, layers, batches and so on, or with
    --all its whole sweep. `netbench scenario show SCENARIO` prints them.

    Exit code 3: finished, but the network or the machine was outside tolerance.
    """
    check_request(testbed)
    placements = check_placements(placement) if placement else ()
    asked, simulated = Wanted(**wanted), testbed == SIMULATOR
    _check_options(simulated, ssh, asked, trace, plot)
    trace_file = Path(trace) if trace and trace != IN_RUN else None
    loaded = load_scenario(scenario)
    resumed = _run_to_resume(resume, results, loaded.name)
    if resumed is None:
        plans = asked.plans(loaded, simulated)
        if asked.whole_sweep and not asked.systems and not simulated:
            plans = _with_trainers(plans)
        if placements:
            plans = _placed(loaded, plans, placements, limits, asked, simulated)
    elif asked.selects or placements:
        raise UsageError(
            "--resume continues the plans of the run it is given; leave out --systems, --layers, "
            "--batch, --micro-batch, --networks, --models, --replicas, --seeds, --all, --scale, "
            "--placement, --compute, --token-file and --command, or start a new run"
        )
    else:
        plans = _recorded_plans(resumed, simulated)
    for plan in plans:
        check_data(plan)
    if dry_run:
        for plan in plans:
            click.echo(describe_plan(plan))
        return 0
    console = wide_console()
    outcome = carry_out(console, loaded, plans, testbed, ssh, results, resumed, trace is not None)
    console.print(render_run(read_run(outcome.path)))
    console.print(f"records: {outcome.path}", soft_wrap=True)
    if trace_file or plot:
        write_pictures(console, plans, trace_file, plot)
    elif trace:
        console.print("traces: beside the records; compare with netbench trace diff")
    return print_verdict(console, outcome)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What of a scenario was asked for; None: the default slice, or with `--all` the sweep."""

    systems: str | None
    layers: tuple[int, ...] | None
    batch: tuple[int, ...] | None
    micro_batch: tuple[int, ...] | None
    networks: str | None
    seeds: tuple[int, ...] | None
    whole_sweep: bool
    iterations: int | None
    warmup: int | None
    scale: float | None
    models: str | None
    replicas: tuple[int, ...] | None
    compute: str
    token_file: str | None
    script: str | None

    @property
    def selects(self) -> bool:
        """Whether anything but the number of iterations was asked for."""
        chosen = (self.systems, self.layers, self.batch, self.micro_batch, self.networks)
        computes = self.compute != VIRTUAL or self.token_file or self.models or self.replicas
        return any((*chosen, self.script)) or bool(
            self.seeds or self.whole_sweep or self.scale or computes
        )

    def plans(self, scenario: Scenario, simulated: bool) -> tuple[Plan, ...]:
        """A simulated iteration repeats to the bit: one of each, without warm-up, at scale 1."""
        sweep, every = scenario.sweep, self.whole_sweep
        if scenario.workload.model and (self.layers or self.batch or self.micro_batch):
            raise UsageError(
                f"scenario {scenario.name} trains models by name; their sizes and batches are "
                "their own: leave out --layers, --batch and --micro-batch; choose by --models and "
                "--replicas"
            )
        warmup = WARMUP if self.warmup is None else self.warmup
        iterations = ITERATIONS if self.iterations is None else self.iterations
        if self.script is not None:
            return build_command_plans(
                scenario,
                self.systems.split(",") if self.systems else (COMMAND,),
                shlex.split(self.script),
                self.layers or sweep.default_layers,
                self.batch or sweep.default_batch,
                self.seeds or sweep.default_seeds,
                iterations=iterations + warmup,
                warmup_iterations=warmup,
                networks=self._networks(scenario),
                micro_batch=self.micro_batch or sweep.default_micro_batch,
            )
        return build_plans(
            scenario,
            (self.systems.split(",") if self.systems else ())
            or (sweep.variants if every else sweep.default_variants),
            self.layers or (sweep.layers if every else sweep.default_layers),
            self.batch or (sweep.batch if every else sweep.default_batch),
            self.seeds or (sweep.seeds if every else sweep.default_seeds),
            iterations=1 if simulated else iterations + warmup,
            warmup_iterations=0 if simulated else warmup,
            scale=1.0 if simulated else self.scale,
            networks=self._networks(scenario),
            micro_batch=self.micro_batch
            or (sweep.micro_batch if every else sweep.default_micro_batch),
            models=self._models(scenario),
            replicas=self.replicas or (sweep.replicas if every else sweep.default_replicas),
            compute=self.compute,
            token_file=str(Path(self.token_file).resolve()) if self.token_file else "",
        )

    def _models(self, scenario: Scenario) -> tuple[str, ...]:
        if self.models:
            return tuple(self.models.split(","))
        names = tuple(model.model for model in scenario.sweep.models)
        return names if self.whole_sweep else scenario.sweep.default_models

    def _networks(self, scenario: Scenario) -> tuple[str, ...]:
        names = tuple(network.name for network in scenario.sweep.networks)
        if self.networks is None:
            return names if self.whole_sweep else scenario.sweep.default_networks
        if self.networks != EVERY:
            return tuple(self.networks.split(","))
        if not names:
            raise UsageError(
                f"scenario {scenario.name} has one network, its sweep names no others; "
                "leave out --networks"
            )
        return names


def _check_options(
    simulated: bool, ssh: bool, asked: Wanted, trace: str | None, plot: Path | None
) -> None:
    """Raises UsageError for options that the testbed cannot serve."""
    if simulated and asked.compute != VIRTUAL:
        raise UsageError("--testbed sim starts no ranks, so nothing computes; leave out --compute")
    if simulated and (ssh or asked.scale is not None):
        raise UsageError(
            "--testbed sim starts no ranks and simulates at full size; leave out --ssh and --scale"
        )
    check_script(
        asked.script,
        asked.systems,
        simulated=simulated,
        scale=asked.scale,
        others=asked.compute != VIRTUAL or bool(asked.token_file) or asked.whole_sweep,
    )
    if not simulated and plot:
        raise UsageError(
            "--plot shows where a simulated iteration goes; add --testbed sim, or keep a trace "
            "with --trace and draw it with netbench trace diff --plot"
        )
    if not simulated and trace not in (None, IN_RUN):
        raise UsageError(
            f"--trace {trace}: traces of emulated iterations are kept in the run's folder, one per "
            "plan; leave out the file, and give SCENARIO first"
        )
    if asked.script is not None and trace:
        raise UsageError(
            "--trace is of netbench's own trainers; a script of yours has none to keep"
        )
    if simulated and trace == IN_RUN:
        raise UsageError("--trace needs a file with --testbed sim; write e.g. --trace out.json.gz")
    check_writable(Path(trace) if simulated and trace else None, plot)
    check_formats(plot)


def _placed(
    scenario: Scenario,
    plans: tuple[Plan, ...],
    placements: Sequence[str],
    limits: Limits,
    asked: Wanted,
    simulated: bool,
) -> tuple[Plan, ...]:
    """What becomes of `plans` with --placement. Raises UsageError where nothing can be placed."""
    if asked.compute != VIRTUAL or asked.script is not None or scenario.workload.model:
        raise UsageError(
            "--placement is of pipelines of virtual layers; leave it out with --compute, --command "
            "and models by name"
        )
    if asked.systems and all(map(is_file, placements)):
        raise UsageError(
            "--systems is of what own and schedulers place, and a file says which system it is "
            f"for; leave it out, or write --placement own,{','.join(placements)}"
        )
    sizes = (asked.layers, asked.batch, asked.micro_batch, asked.networks)
    return place_plans(
        wide_console(),
        scenario,
        plans,
        placements,
        seeds=asked.seeds or scenario.sweep.default_seeds[:1],
        limits=limits,
        every_setting=any(sizes) or asked.whole_sweep,
        scale=1.0 if simulated else asked.scale,
    )


def _recorded_plans(resumed: Path, simulated: bool) -> tuple[Plan, ...]:
    """Of a run to continue. Raises UsageError where that would mix sources in it."""
    run = read_run(resumed)
    if simulated != (run.sessions[0].environment.mode == "sim"):
        was = "emulated" if simulated else "simulated"
        now = "local" if simulated else SIMULATOR
        raise UsageError(
            f"{resumed} was {was}; continue it with --testbed {now}, or name another with --resume"
        )
    return tuple(plan_from_json(json.dumps(plan)) for plan in run.plans.values())


def _with_trainers(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """What of a scenario's whole sweep can be emulated; says which systems are left out."""
    left_out = dict.fromkeys(plan.variant for plan in plans if not has_trainer(plan))
    if left_out:
        click.echo(f"left out, no trainer runs them (--testbed sim can): {', '.join(left_out)}")
    return tuple(plan for plan in plans if has_trainer(plan))


def _run_to_resume(resume: str | None, results: Path, scenario: str) -> Path | None:
    if resume is None:
        return None
    if resume != NEWEST:
        return Path(resume)
    newest = find_run(results, scenario)
    if newest is None:
        raise UsageError(f"{results} has no run of {scenario} to resume; leave out --resume")
    return newest


def carry_out(
    console: Console,
    scenario: Scenario,
    plans: Sequence[Plan],
    testbed: str,
    ssh: bool,
    results: Path,
    resumed: Path | None,
    trace: bool,
) -> Outcome:
    """Choose a testbed, run what is not finished, keep it."""
    console.print(heading(scenario))
    _warn(console, scenario, plans, emulated=testbed != SIMULATOR)
    finished = _finished(resumed)
    if resumed is not None and not _is_left(console, resumed, plans, finished):
        return _outcome_of(resumed)
    open_store = functools.partial(_open_store, results, scenario, resumed, plans)
    if testbed == SIMULATOR:
        return simulate_plans(console, plans, open_store, finished)
    if testbed in ("local", "local:guest"):
        ensure_kernel()
    host, shim = probe_host(), ensure_shim()
    predicted = predictions(plans)
    choice = choose(testbed, host, len(plans[0].device_nodes), plans[0].compute)
    console.print(f"testbed: {choice.mode} ({choice.reason})")
    console.print(f"nodes: {len(scenario.nodes)}, reached through {'ssh' if ssh else 'namespaces'}")
    for reason in network_doubts(choice.mode, plans):
        console.print(f"[yellow]network[/yellow]: {reason}", soft_wrap=True)
    for plan in plans:
        console.print(f"plan {describe_plan(plan)}", soft_wrap=True)
    with live(console, plans, _num_finished(plans, finished)) as observer:
        return run_plans(
            plans,
            mode=choice.mode,
            transport="ssh" if ssh else "namespaces",
            host=host,
            shim=shim,
            open_store=functools.partial(open_store, predicted=predicted),
            finished=finished,
            observer=observer,
            trace=trace,
        )


def _warn(console: Console, scenario: Scenario, plans: Sequence[Plan], *, emulated: bool) -> None:
    """Of plans that do not fit, and of what netem will not deliver; each once."""
    for warning in dict.fromkeys(w for plan in plans for w in memory_warnings(plan, scenario)):
        console.print(f"[yellow]memory[/yellow]: {warning}", soft_wrap=True)
    networks = dict.fromkeys((plan.network, plan.scale) for plan in plans) if emulated else ()
    for caution in dict.fromkeys(c for asked in networks for c in cautions(*asked)):
        console.print(f"[yellow]network[/yellow]: {caution}", soft_wrap=True)


def _outcome_of(resumed: Path) -> Outcome:
    """Of a run whose last session ran to its end, or had nothing left to do."""
    verdicts = read_run(resumed).verdicts
    return Outcome(path=resumed, reasons=verdicts[-1].reasons if verdicts else ())


def _finished(resumed: Path | None) -> dict[str, list[int]]:
    """Iterations on disk, by plan hash."""
    finished: dict[str, list[int]] = {}
    for record in read_run(resumed).records if resumed else ():
        finished.setdefault(record.plan_hash, []).append(record.iteration)
    return finished


def _num_finished(plans: Sequence[Plan], finished: Mapping[str, Sequence[int]]) -> int:
    return sum(len(finished.get(plan_hash(plan), ())) for plan in plans)


def _is_left(
    console: Console, resumed: Path, plans: Sequence[Plan], finished: Mapping[str, Sequence[int]]
) -> bool:
    """Whether a run has anything left to do; says how much is there already."""
    folder = resumed if resumed.is_dir() else resumed.parent
    there = counted(_num_finished(plans, finished), "iteration")
    console.print(f"resuming {folder}: {there} there already", soft_wrap=True)
    if any(len(finished.get(plan_hash(plan), ())) < plan.iterations for plan in plans):
        return True
    console.print("all of it is finished; a new run needs no --resume")
    return False


def _open_store(
    results: Path,
    scenario: Scenario,
    resumed: Path | None,
    plans: Sequence[Plan],
    environment: Environment,
    predicted: Mapping[str, float] | None = None,
) -> RunStore:
    """A new run, or another session of a resumed one, with its plans and their predictions."""
    created, words = datetime.now(), ["netbench", *sys.argv[1:]]
    if resumed is None:
        store = RunStore.create(
            results,
            scenario=scenario.name,
            created=created,
            command=words,
            environment=environment,
        )
    else:
        store = RunStore.open(resumed)
        store.append_session(created=created, command=words, environment=environment)
    for plan in plans:
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
    for key, iteration_s in (predicted or {}).items():
        store.append_prediction(key, iteration_s)
    return store
