"""`netbench run SCENARIO`: run plans on a testbed and print their table."""

import dataclasses
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from netbench.api.emulation import LOCAL, VIRTUAL_TIME, Target, run_recorded
from netbench.api.placement import Limits
from netbench.api.results import open_run
from netbench.commands.options import FILE, NUMBERS, aliased_option, picture_option, prices_option
from netbench.commands.output import (
    check_results,
    check_writable,
    exit_code,
    heading,
    print_line,
    print_warning,
    results_option,
    wide_console,
)
from netbench.commands.pool import dask_option
from netbench.commands.run.observer import TerminalDisplay
from netbench.commands.run.placed import check_placements, is_file, place_plans
from netbench.commands.run.selection import Selection, check_script
from netbench.commands.run.simulation import write_timelines
from netbench.commands.run.target import inventory_options
from netbench.commands.schedule.request import limit_options
from netbench.errors import UsageError
from netbench.limits import MAX_ITERATIONS
from netbench.plan.checks import check_churn, check_data, micro_batch_warnings
from netbench.plan.describe import describe_plan
from netbench.plan.model import COMPUTE, VIRTUAL, Plan
from netbench.plan.scale import at_scale, is_quick, keep_dynamics, unmerge
from netbench.plan.serial import plan_from_json
from netbench.records import find_run, read_run
from netbench.report.tables.comparison import find_others
from netbench.report.tables.cost import run_usd
from netbench.report.tables.run import render_run
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.churn import read_trace
from netbench.scenario.load import scenario_argument
from netbench.scenario.prices import read_prices
from netbench.systems import find_variant, system_of
from netbench.testbed.effort import LONG_S, emulation_s, in_parts
from netbench.testbed.machine.choose import REQUESTS, SIMULATOR, check_request
from netbench.testbed.runs.controller import has_trainer
from netbench.version import TRAINER_RULES

NEWEST = "newest"
IN_RUN = "in the run's folder"


@click.command()
@click.argument("scenario")
@aliased_option(
    "--systems",
    "--system",
    metavar="NAME,...",
    help="Systems, comma-separated, e.g. dtfm-random,zero3.  [default: the scenario's]",
)
@click.option("--layers", type=NUMBERS, help="Numbers of layers, e.g. 24,32.")
@click.option("--batch", type=NUMBERS, help="Global batch sizes, in sequences.")
@click.option("--micro-batch", type=NUMBERS, help="Micro-batch sizes, in sequences.")
@aliased_option(
    "--networks",
    "--network",
    metavar="NAME,...",
    help="Networks of the scenario's sweep, by name, or all.",
)
@aliased_option(
    "--models",
    "--model",
    metavar="NAME,...",
    help="Models of the scenario's sweep, e.g. resnet18,resnet101.",
)
@click.option(
    "--replicas", type=NUMBERS, help="Numbers of devices that train a named model, e.g. 1,8."
)
@click.option("--peers", metavar="NAME,...", help="Sets of machines of the scenario's sweep.")
@click.option(
    "--churn",
    type=FILE,
    help="Machines go and come at the times of this CSV file, as netbench cost --write-churn "
    "writes it; without warm-ups.",
)
@aliased_option("--seeds", "--seed", type=NUMBERS, help="Seeds of random placements.")
@click.option(
    "--all",
    "whole_sweep",
    is_flag=True,
    help="Run the scenario's full sweep, except for what other options choose.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1, MAX_ITERATIONS),
    help="Number of measured iterations per plan.  [default: 2, or 1 if one takes more than 10 s "
    "here; sim: always 1]",
)
@click.option(
    "--warmup",
    type=click.IntRange(0, MAX_ITERATIONS),
    help="Number of warm-up iterations, recorded separately.  [default: 1, or 0 in parts and for "
    "long iterations with --fast; sim: always 0]",
)
@click.option(
    "--scale", type=float, help="Divisor of bytes and bandwidths.  [default: by size of the model]"
)
@click.option(
    "--fast/--faithful",
    default=None,
    help="Emulate rates and delays only, without TCP's windows, or TCP as on the machines too.  "
    "[default: faithful if an iteration of every plan then sends at most 1 GB, or runs at full "
    "size, else fast]",
)
@click.option(
    "--whole",
    is_flag=True,
    help="Emulate every iteration to its end. Else two short ones stand for those that take long "
    "here and repeat a period many times.",
)
@click.option(
    "--unmerged",
    is_flag=True,
    help="Have an emulated zero3 gather matrix by matrix, as DeepSpeed does. Without --whole, "
    "GPT-XL of 32 and 40 layers then sends 6 and 11 times the messages. Else it gathers all layers "
    "beyond its live limit at once, if they are many messages.",
)
@click.option(
    "--compute",
    type=click.Choice(COMPUTE),
    default=VIRTUAL,
    help="Kind of compute: virtual layers sleep for the device's time, cpu and cuda train.",
)
@click.option(
    "--command",
    "script",
    metavar="COMMAND",
    help="Command to run on every rank, as torchrun would, e.g. 'python train.py'.",
)
@click.option(
    "--iteration-regex",
    metavar="REGEX",
    help="Lines of --command's output that report an iteration, with its seconds in a group s (or "
    "ms), else timed from line to line, and its loss in a group loss.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File of tokens to train on, with --compute.  [default: synthetic tokens]",
)
@click.option(
    "--placement",
    metavar="NAME|FILE,...",
    help="Placement of pipelines: a scheduler to search with, a file of netbench schedule -o, or "
    "default, which follows the system's name.  [default: default]",
)
@limit_options
@click.option("--testbed", default=LOCAL, help=f"Where to run: {' | '.join(REQUESTS)}.")
@inventory_options
@click.option("--ssh", is_flag=True, help="Reach every node through its own sshd.")
@dask_option
@prices_option
@results_option
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[FOLDER]",
    help="Continue the run in a folder, or the scenario's newest run.",
)
@click.option(
    "--foreign-command",
    is_flag=True,
    help="Run the command in a record of another user, with --resume. Read it first.",
)
@click.option("--dry-run", is_flag=True, help="Print the plans and stop.")
@click.option(
    "--trace",
    is_flag=False,
    flag_value=IN_RUN,
    metavar="[FILE]",
    help="Write a Perfetto trace of every plan's last iteration to the run's folder; sim: write "
    "the first plan's to FILE.",
)
@picture_option
@click.option(
    "--timeline",
    type=FILE,
    help="Draw the first plan's timeline (sim only); with {plan} in the name, every plan's.",
)
def command(
    scenario: str,
    placement: str | None,
    limits: Limits,
    testbed: str,
    inventory: Path | None,
    replace: bool,
    ssh: bool,
    dask: str | None,
    prices: Path | None,
    churn: Path | None,
    results: Path,
    resume: str | None,
    foreign_command: bool,
    dry_run: bool,
    trace: str | None,
    plot: Path | None,
    timeline: Path | None,
    fast: bool | None,
    whole: bool,
    unmerged: bool,
    **selected: Any,
) -> int:
    """Run SCENARIO (a name, or the path of a YAML file) and print its table.

    The scenario provides defaults for systems, layers, batches and so on; with --all, its whole
    sweep runs. `netbench scenario show SCENARIO` prints both.

    Exit code 3: the run finished, but the network or the machine was outside tolerance.
    """
    check_request(testbed)
    target = Target(testbed=testbed, ssh=ssh, inventory=inventory, replace=replace, dask=dask)
    placements = check_placements(placement) if placement else ()
    selection, simulated = Selection(**selected), testbed == SIMULATOR
    _check_options(simulated, ssh, selection, trace, timeline)
    check_writable(Path(trace) if simulated and trace else None, pictures=[plot, timeline])
    trace_file = Path(trace) if trace and trace != IN_RUN else None
    loaded, given = load_scenario(scenario), None if prices is None else read_prices(prices)
    resumed = _run_to_resume(resume, results, loaded.name)
    if resumed is None:
        plans = selection.plans(loaded, simulated)
        if selection.whole_sweep and not selection.systems and not simulated:
            plans = _with_trainers(plans)
        if placements:
            plans = _placed(loaded, plans, placements, limits, selection, simulated)
        if churn is not None:
            _check_churn_options(simulated, inventory, selection)
            plans = tuple(_interrupted(plan, churn) for plan in plans)
    elif any((selection.selects, placements, churn is not None, fast is not None, whole, unmerged)):
        raise UsageError(
            "--resume continues the plans of an earlier run; leave out --systems, --layers, "
            "--batch, --micro-batch, --networks, --models, --replicas, --peers, --churn, --seeds, "
            "--all, --scale, --fast, --faithful, --whole, --unmerged, --placement, --compute, "
            "--token-file, --command and --iteration-regex, or start a new run"
        )
    else:
        plans = _recorded_plans(resumed, simulated)
    for plan in plans:
        check_data(plan)
    console = wide_console()
    for warning in micro_batch_warnings(plans, selection.micro_batch or ()):
        print_warning(console, "micro-batch", warning)
    if selection.whole_sweep and any(selection.sizes):
        print_warning(console, "--all", "of the sweep, only what the other options choose")
    if resumed is None and not simulated:
        plans = _with_dynamics(loaded, plans, selection, fast, inventory is not None)
        if unmerged:
            plans = tuple(unmerge(plan, selection.scale) for plan in plans)
        if testbed in VIRTUAL_TIME and inventory is None:
            plans = plans if whole or trace else in_parts(plans)
            if selection.iterations is None and selection.warmup is None:
                plans = tuple(map(as_often_as_needed, plans))
    if dry_run:
        for plan in plans:
            click.echo(describe_plan(plan))
        return 0
    if resumed is not None and not foreign_command:
        _check_owner(resumed, plans)
    if resumed is None:
        check_results(results)
    console.print(heading(loaded))
    display = TerminalDisplay(console)
    path = run_recorded(display, loaded, plans, target, results, resumed, trace is not None)
    found = open_run(path)
    usd = run_usd(found.run, loaded, given)
    console.print(render_run(found.run, find_others(results, found.run), usd))
    print_line(console, f"records: {path}")
    command_line = shlex.join(["netbench", "report", str(path.parent)])
    print_line(console, f"page to read and forward: {command_line}")
    if hint := schedule_hint(loaded, plans):
        print_line(console, hint, style="dim")
    if plot:
        found.plot().save(plot)
        print_line(console, f"picture: {plot}")
    if trace_file or timeline:
        write_timelines(console, plans, trace_file, timeline)
    elif trace:
        console.print("traces: beside the records; compare with netbench trace diff")
    return exit_code(found.run)


def schedule_hint(scenario: Scenario, plans: Sequence[Plan]) -> str:
    """Say which search may find a faster plan; "" where nothing can be searched."""
    if scenario.workload.model or any(plan.script or plan.compute != VIRTUAL for plan in plans):
        return ""
    name = scenario_argument(scenario)
    pipelines = [plan for plan in plans if plan.layout.pp > 1]
    if any(plan.scheduler != find_variant(plan.variant).scheduler for plan in plans):
        return ""  # a search has placed them
    if not pipelines:
        return f"search a faster system and layout with: netbench schedule {name} --layout auto"
    return (
        f"search a faster placement with: netbench schedule {name} --system "
        f"{pipelines[0].variant}; a faster system and layout with --layout auto instead of --system"
    )


def _check_options(
    simulated: bool, ssh: bool, selection: Selection, trace: str | None, timeline: Path | None
) -> None:
    """Raises UsageError for options that the testbed does not support."""
    if simulated and selection.compute != VIRTUAL:
        raise UsageError("--testbed sim starts no ranks, so no layer computes; leave out --compute")
    if simulated and (ssh or selection.scale is not None):
        raise UsageError(
            "--testbed sim starts no ranks and simulates at full size; leave out --ssh and --scale"
        )
    check_script(
        selection.script,
        selection.systems,
        simulated=simulated,
        scale=selection.scale,
        others=selection.compute != VIRTUAL or bool(selection.token_file) or selection.whole_sweep,
    )
    if not simulated and timeline:
        raise UsageError(
            "--timeline draws a simulated iteration; add --testbed sim, or write a trace with "
            "--trace and draw it with netbench trace diff --plot"
        )
    if not simulated and trace not in (None, IN_RUN):
        raise UsageError(
            f"--trace {trace}: traces of emulated iterations go to the run's folder, one per plan; "
            "leave out the file, and give SCENARIO before --trace"
        )
    if selection.script is not None and trace:
        raise UsageError(
            "--trace works with netbench's own trainers only; leave it out with --command"
        )
    if selection.iteration_regex is not None and selection.script is None:
        raise UsageError(
            "--iteration-regex reads the output of a script; add --command, or leave it out"
        )
    if simulated and trace == IN_RUN:
        raise UsageError("--trace needs a file with --testbed sim; write e.g. --trace out.json.gz")


def _check_churn_options(simulated: bool, inventory: Path | None, selection: Selection) -> None:
    """Raises UsageError for options that exclude --churn."""
    if simulated:
        raise UsageError("--churn ends ranks; netbench cost --churn simulates it: use that")
    if inventory is not None:
        raise UsageError(
            "--churn ends ranks on this machine; hosts go when they go: leave out --inventory"
        )
    if selection.warmup:
        raise UsageError(
            "--churn has no warm-ups, since its trace begins with the first iteration; leave out "
            "--warmup"
        )


def _interrupted(plan: Plan, churn: Path) -> Plan:
    """Return `plan` with machines that go and come. Raises PlanError."""
    check_churn(plan)
    return dataclasses.replace(
        plan,
        churn=read_trace(churn, len(plan.node_names)),
        iterations=plan.iterations - plan.warmup_iterations,
        warmup_iterations=0,
    )


def _with_dynamics(
    scenario: Scenario,
    plans: tuple[Plan, ...],
    selection: Selection,
    fast: bool | None,
    on_hosts: bool,
) -> tuple[Plan, ...]:
    """Return plans in which TCP acts, where it is to. Raises UsageError where it cannot."""
    if fast is False and on_hosts:
        raise UsageError(
            "--faithful divides the segments of a machine that netbench makes; hosts keep theirs: "
            "leave it out with --inventory"
        )
    if fast or on_hosts:
        return plans
    kept = tuple(keep_dynamics(plan, scenario, selection.scale) for plan in plans)
    if fast is None and not all(map(is_quick, kept)):
        return plans
    left = {plan.variant: plan.scale for plan in kept if not plan.network.tcp.acts}
    for variant, scale in left.items() if fast is False else ():
        click.echo(
            f"{variant}: its tensors do not fit a guest at a scale that keeps TCP's dynamics; "
            f"emulated as with --fast, at scale {scale:g}"
        )
    return kept


def as_often_as_needed(plan: Plan) -> Plan:
    """Return a plan with long iterations with one iteration: further ones would take as long.

    A warm-up fills TCP's windows, so there is none where TCP does not act. Sessions of plans in
    parts begin with the shorter part instead.
    """
    if plan.compute != VIRTUAL or plan.churn or not (plan.parts or emulation_s(plan) >= LONG_S):
        return plan
    warmups = int(plan.network.tcp.acts and not plan.parts)
    return dataclasses.replace(plan, iterations=warmups + 1, warmup_iterations=warmups)


def _placed(
    scenario: Scenario,
    plans: tuple[Plan, ...],
    placements: Sequence[str],
    limits: Limits,
    selection: Selection,
    simulated: bool,
) -> tuple[Plan, ...]:
    """Place `plans` as --placement says. Raises UsageError for options that exclude it."""
    if selection.compute != VIRTUAL or selection.script is not None or scenario.workload.model:
        raise UsageError(
            "--placement places pipelines of virtual layers; leave it out with --compute, "
            "--command and models by name"
        )
    if selection.systems and all(map(is_file, placements)):
        raise UsageError(
            "--systems selects what schedulers place, but a file names its system; leave out "
            f"--systems, or write --placement default,{','.join(placements)}"
        )
    return place_plans(
        wide_console(),
        scenario,
        plans,
        placements,
        seeds=selection.seeds or scenario.sweep.default_seeds[:1],
        limits=limits,
        every_setting=any(selection.sizes) or selection.whole_sweep,
        scale=1.0 if simulated else selection.scale,
    )


def _recorded_plans(resumed: Path, simulated: bool) -> tuple[Plan, ...]:
    """Read the plans of a run to continue. Raises UsageError if sources or trainers would mix."""
    run = read_run(resumed)
    if simulated != (run.sessions[0].environment.mode == "sim"):
        was = "emulated" if simulated else "simulated"
        now = "local" if simulated else SIMULATOR
        raise UsageError(
            f"{resumed} was {was}; continue it with --testbed {now}, or give another to --resume"
        )
    plans = tuple(plan_from_json(json.dumps(plan)) for plan in run.plans.values())
    has_other_rules = not simulated and run.sessions[-1].environment.rules != TRAINER_RULES
    changed = [
        plan.variant
        for plan in plans
        if (has_other_rules and not plan.script)
        # Zero3 may have been asked for unmerged.
        or plan not in (at_scale(plan, plan.scale), system_of(plan).unmerged(plan))
    ]
    if changed:
        systems = ", ".join(dict.fromkeys(changed))
        raise UsageError(
            f"{resumed} was recorded by another version of netbench, whose trainers run {systems} "
            "differently; leave out --resume to start a new run"
        )
    return plans


def _check_owner(resumed: Path, plans: Sequence[Plan]) -> None:
    """Raises UsageError if the run belongs to another user and would start a command."""
    commands = dict.fromkeys(shlex.join(plan.script) for plan in plans if plan.script)
    owner = read_run(resumed).path.stat().st_uid
    if commands and owner != os.geteuid():
        raise UsageError(
            f"{resumed} belongs to user {owner}, and you would run its command: "
            f"{'; '.join(commands)}; if you trust it, add --foreign-command"
        )


def _with_trainers(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Return the plans that can be emulated, and print the systems that are left out."""
    left_out = dict.fromkeys(plan.variant for plan in plans if not has_trainer(plan))
    if left_out:
        click.echo(
            f"left out, since no trainer runs them (--testbed sim does): {', '.join(left_out)}"
        )
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
