"""`netbench run SCENARIO`: plans, a testbed, records, a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console

from netbench.commands.live import live
from netbench.errors import UsageError
from netbench.plan import Plan, build_plans, describe_plan, plan_from_json, plan_hash, plan_to_json
from netbench.records import Environment, RunStore, find_run, read_run
from netbench.report.emulated import render_run
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.choose import REQUESTS, check_request, choose
from netbench.testbed.host import probe_host
from netbench.testbed.kernel import ensure_kernel
from netbench.testbed.local import Outcome, run_plans
from netbench.testbed.shim import ensure_shim

NEWEST = "newest"
EXIT_NOT_TRUSTWORTHY = 3


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
@click.option("--systems", help="Comma-separated, e.g. dtfm-random,zero3.  [default: the slice]")
@click.option("--layers", type=NumberList(), help="Model depths, e.g. 24,32.")
@click.option("--batch", type=NumberList(), help="Global batch sizes, in sequences.")
@click.option("--seeds", type=NumberList(), help="Seeds of random placements.")
@click.option("--all", "whole_sweep", is_flag=True, help="The scenario's full sweep.")
@click.option("--iterations", default=2, show_default=True, help="Measured iterations per plan.")
@click.option("--warmup", default=1, show_default=True, help="Warm-up iterations, recorded apart.")
@click.option("--scale", type=float, help="Divide bytes and bandwidths by this.  [default: auto]")
@click.option("--testbed", default="local", show_default=True, help=" | ".join(REQUESTS))
@click.option("--ssh", is_flag=True, help="Reach nodes through a real sshd each.")
@click.option("--results", default="results", show_default=True, type=click.Path(path_type=Path))
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    help="Continue a run folder, or the scenario's newest run.",
)
@click.option("--dry-run", is_flag=True, help="Print the plans and stop.")
def command(
    scenario: str,
    systems: str | None,
    layers: tuple[int, ...] | None,
    batch: tuple[int, ...] | None,
    seeds: tuple[int, ...] | None,
    whole_sweep: bool,
    iterations: int,
    warmup: int,
    scale: float | None,
    testbed: str,
    ssh: bool,
    results: Path,
    resume: str | None,
    dry_run: bool,
) -> int:
    """Run SCENARIO (a name, or the path of a YAML file) and print its table.

    Exit code 3: finished, but the network or the machine was outside tolerance.
    """
    check_request(testbed)
    loaded = load_scenario(scenario)
    resumed = _run_to_resume(resume, results, loaded.name)
    if resumed is None:
        plans = _plans(
            loaded, systems, layers, batch, seeds, whole_sweep, iterations, warmup, scale
        )
    elif systems or layers or batch or seeds or whole_sweep or scale:
        raise UsageError(
            "--resume continues the plans of the run it is given; leave out "
            "--systems, --layers, --batch, --seeds, --all and --scale, or start a new run"
        )
    else:
        recorded = read_run(resumed).plans.values()
        plans = tuple(plan_from_json(json.dumps(plan)) for plan in recorded)
    if dry_run:
        for plan in plans:
            click.echo(describe_plan(plan))
        return 0
    console = Console(highlight=False)
    outcome = _run(console, loaded, plans, testbed, ssh, results, resumed)
    console.print(render_run(read_run(outcome.path)))
    console.print(f"records: {outcome.path}", soft_wrap=True)
    for reason in outcome.reasons:
        console.print(f"[bold red]not trustworthy[/bold red]: {reason}", soft_wrap=True)
    return 0 if outcome.trustworthy else EXIT_NOT_TRUSTWORTHY


def _plans(
    scenario: Scenario,
    systems: str | None,
    layers: Sequence[int] | None,
    batch: Sequence[int] | None,
    seeds: Sequence[int] | None,
    whole_sweep: bool,
    iterations: int,
    warmup: int,
    scale: float | None,
) -> tuple[Plan, ...]:
    """What was asked for; what was not comes from the scenario's default slice or full sweep."""
    sweep = scenario.sweep
    variants = tuple(systems.split(",")) if systems else ()
    return build_plans(
        scenario,
        variants or (sweep.variants if whole_sweep else sweep.default_variants),
        layers or (sweep.layers if whole_sweep else sweep.default_layers),
        batch or (sweep.batch if whole_sweep else sweep.default_batch),
        seeds or (sweep.seeds if whole_sweep else sweep.default_seeds),
        iterations=iterations + warmup,
        warmup_iterations=warmup,
        scale=scale,
    )


def _run_to_resume(resume: str | None, results: Path, scenario: str) -> Path | None:
    if resume is None:
        return None
    if resume != NEWEST:
        return Path(resume)
    newest = find_run(results, scenario)
    if newest is None:
        raise UsageError(f"{results} has no run of {scenario} to resume; leave out --resume")
    return newest


def _run(
    console: Console,
    scenario: Scenario,
    plans: Sequence[Plan],
    testbed: str,
    ssh: bool,
    results: Path,
    resumed: Path | None,
) -> Outcome:
    """Choose a testbed, run what is not finished, keep it."""
    if testbed in ("local", "local:guest"):
        ensure_kernel()
    host, shim = probe_host(), ensure_shim()
    choice = choose(testbed, host, len(plans[0].device_nodes))
    console.print(f"[bold]{scenario.name}[/bold]: {scenario.title}")
    console.print(f"testbed: {choice.mode} ({choice.reason})")
    console.print(f"nodes: {len(scenario.nodes)}, reached through {'ssh' if ssh else 'namespaces'}")
    for plan in plans:
        console.print(f"plan {describe_plan(plan)}", soft_wrap=True)
    finished = _finished(resumed)
    num_finished = sum(len(finished.get(plan_hash(plan), ())) for plan in plans)
    if resumed is not None:
        console.print(f"resuming {resumed.parent}: {num_finished} iterations are there already")

    def open_store(environment: Environment) -> RunStore:
        store = _open_store(results, scenario, environment, resumed)
        for plan in plans:
            store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
        return store

    with live(console, plans, num_finished) as observer:
        return run_plans(
            plans,
            mode=choice.mode,
            transport="ssh" if ssh else "namespaces",
            host=host,
            shim=shim,
            open_store=open_store,
            finished=finished,
            observer=observer,
        )


def _finished(resumed: Path | None) -> dict[str, list[int]]:
    """Iterations on disk, by plan hash."""
    finished: dict[str, list[int]] = {}
    for record in read_run(resumed).records if resumed else ():
        finished.setdefault(record.plan_hash, []).append(record.iteration)
    return finished


def _open_store(
    results: Path, scenario: Scenario, environment: Environment, resumed: Path | None
) -> RunStore:
    created, words = datetime.now(), ["netbench", *sys.argv[1:]]
    if resumed is None:
        return RunStore.create(
            results,
            scenario=scenario.name,
            created=created,
            command=words,
            environment=environment,
        )
    store = RunStore.open(resumed)
    store.append_session(created=created, command=words, environment=environment)
    return store
