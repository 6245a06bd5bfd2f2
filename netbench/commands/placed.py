"""`netbench run --placement`: plans placed by a scheduler, by a file, or as their variants say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from netbench.commands.schedule.request import Limits
from netbench.commands.schedule.search import search, simulated_s, warm_up, watching
from netbench.errors import UsageError, nearest
from netbench.plan import Plan, placed_name, unplaced_name
from netbench.report.tables import seconds_text
from netbench.scenario import Scenario

if TYPE_CHECKING:
    from netbench.simulator.placement_file import Placed
    from netbench.simulator.scheduling import Request

OWN = "own"
"""In place of a scheduler: the placement that a variant has anyway."""


def check_placements(text: str) -> tuple[str, ...]:
    """Names of schedulers, paths of files, `own`. Raises UsageError for what is none of them."""
    from netbench.placement.schedulers import SCHEDULERS  # scipy, numba: only when asked for

    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in (OWN, *SCHEDULERS) and not is_file(name):
            raise UsageError(
                f'--placement "{name}": there is neither a file nor a scheduler called so; '
                f"{nearest(name, (OWN, *SCHEDULERS))}, or give a file of netbench schedule -o"
            )
    return names


def place_plans(
    console: Console,
    scenario: Scenario,
    plans: Sequence[Plan],
    placements: Sequence[str],
    *,
    seeds: Sequence[int],
    limits: Limits,
    every_setting: bool,
    scale: float | None,
) -> tuple[Plan, ...]:
    """What becomes of `plans` with these placements, all at one scale, each plan once.

    A scheduler places pipelines; systems without stages stay as they are. A file is for its own
    system and setting, or with `every_setting` for the settings of `plans`.
    seeds: of searches. scale: None = as `build_plans`.
    """
    by_name: dict[str, list[Plan]] = {}
    for name in sorted(placements, key=is_file, reverse=True):  # searches last: they take long
        if name == OWN:
            by_name[name] = list(plans)
        elif is_file(name):
            by_name[name] = _from_file(Path(name), scenario, plans, every_setting)
        else:
            _check_files(by_name, plans, name)
            by_name[name] = _searched(console, scenario, plans, name, seeds, limits)
        _check_rows(by_name)
    found = [plan for name in placements for plan in by_name[name]]
    first = plans[0]
    common = max(plan.scale for plan in found) if scale is None else scale
    return tuple(
        dict.fromkeys(
            dataclasses.replace(
                plan,
                iterations=first.iterations,
                warmup_iterations=first.warmup_iterations,
                scale=common,
            )
            for plan in found
        )
    )


def _check_files(by_name: Mapping[str, Sequence[Plan]], plans: Sequence[Plan], name: str) -> None:
    """As `_check_rows`, before scheduler `name` has searched: a file's row is a file's."""
    searched = {_row(dataclasses.replace(plan, scheduler=name)) for plan in plans}
    for other in filter(is_file, by_name):
        for plan in by_name[other]:
            if _row(plan) in searched:
                raise _one_row(other, name, plan)


def _check_rows(by_name: Mapping[str, Sequence[Plan]]) -> None:
    """Raises UsageError where the last of these names would share a row of a table with another,
    which would have the mean of both."""
    *others, last = by_name
    for name in others:
        same = {(_row(plan), plan.placement) for plan in by_name[name]}
        rows = {row for row, _ in same}
        for plan in by_name[last]:
            if _row(plan) in rows and (_row(plan), plan.placement) not in same:
                raise _one_row(name, last, plan)


def _one_row(name: str, other: str, plan: Plan) -> UsageError:
    return UsageError(
        f'--placement: {name} and {other} are both "{_row(plan)[0]}", of which a table has one '
        'row; run them one after the other, or write another name as "scheduler" in a file'
    )


def _row(plan: Plan) -> tuple[object, ...]:
    return placed_name(plan.variant, plan.scheduler), *_setting(plan)


def is_file(name: str) -> bool:
    """Whether a placement is read from a file."""
    return Path(name).suffix != "" or Path(name).is_file()


def _from_file(
    path: Path, scenario: Scenario, plans: Sequence[Plan], every_setting: bool
) -> list[Plan]:
    from netbench.simulator.placement_file import read_placed

    placed = read_placed(path, scenario)
    if not every_setting:
        return [placed.plan()]
    requests = {_setting(plan): _request(scenario, plan) for plan in plans if plan.layout.pp > 1}
    return [
        placed.on(
            dataclasses.replace(
                request,
                variant=placed.request.variant,
                num_ranks=placed.request.num_ranks,
            )
        ).plan()
        for request in requests.values()
    ]


def _searched(
    console: Console,
    scenario: Scenario,
    plans: Sequence[Plan],
    name: str,
    seeds: Sequence[int],
    limits: Limits,
) -> list[Plan]:
    """Searches once for each setting, system and seed: variants that differ only in their own
    placement become the same."""
    found: dict[object, Plan] = {}
    for plan in plans:
        if plan.layout.pp == 1:
            found[plan] = plan
            continue
        request = _request(scenario, plan)
        for seed in seeds:
            system = unplaced_name(plan.variant)
            key = (*_setting(plan), system, seed)
            if key in found:
                continue
            warm_up(name)
            with watching(console, name, limits, system) as on_step:
                placed, _ = search(request, name, seed, limits, on_step)
            found[key] = placed.plan()
            console.print(_said(placed, system), soft_wrap=True)
    return list(found.values())


def _said(placed: Placed, system: str) -> str:
    request = placed.request
    network = f" on {request.network}" if request.network else ""
    return (
        f"placed {system} L{request.layers} B{request.batch}{network} by {placed.scheduler}, seed "
        f"{placed.seed}, {placed.budget}: {seconds_text(placed.simulated_s)} s simulated; as "
        f"listed: {seconds_text(simulated_s(request))} s"
    )


def _setting(plan: Plan) -> tuple[object, ...]:
    workload = plan.workload
    return plan.network_name, workload.layers, workload.batch, workload.micro_batch


def _request(scenario: Scenario, plan: Plan) -> Request:
    from netbench.simulator.scheduling import Request

    return Request(
        scenario=scenario,
        variant=plan.variant,
        layers=plan.workload.layers,
        batch=plan.workload.batch,
        micro_batch=plan.workload.micro_batch,
        network=plan.network_name,
    )
