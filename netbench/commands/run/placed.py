"""`netbench run --placement`: place plans by a scheduler, by a file, or as their variants say."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from netbench.api.placement import Limits, search, simulated_s, warm_up
from netbench.commands.options import split_names
from netbench.commands.output import print_line
from netbench.commands.schedule.search import watching
from netbench.errors import UsageError, nearest
from netbench.plan.model import Plan
from netbench.plan.scale import at_common_scale
from netbench.report.numbers import seconds_text
from netbench.scenario import Scenario
from netbench.scenario.model import Setting
from netbench.systems import placed_name, unplaced_name

if TYPE_CHECKING:
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import Request

DEFAULT = "default"
"""Instead of a scheduler: the placement that the variant's name implies."""

OLD_DEFAULT = "own"
"""Former name of `DEFAULT`, still accepted."""


def check_placements(text: str) -> tuple[str, ...]:
    """Split into schedulers, paths of files and `default`. Raises UsageError for others."""
    from netbench.placement.schedulers import SCHEDULERS  # scipy, numba: only when asked for

    names = split_names(",".join(DEFAULT if n == OLD_DEFAULT else n for n in text.split(",")))
    for name in names:
        if name not in (DEFAULT, *SCHEDULERS) and not is_file(name):
            raise UsageError(
                f'--placement "{name}" is neither a file nor a scheduler; '
                f"{nearest(name, (DEFAULT, *SCHEDULERS))}, or give a file of netbench schedule -o"
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
    """Place `plans` in each of these ways; return each resulting plan once.

    A scheduler places pipelines and leaves systems without stages unchanged. A file applies to the
    system and setting it names, or with `every_setting` to the settings of `plans`.
    seeds: seeds of the searches. scale: see `at_common_scale`.
    """
    by_name: dict[str, list[Plan]] = {}
    for name in sorted(placements, key=is_file, reverse=True):  # searches last: they are slow
        if name == DEFAULT:
            by_name[name] = list(plans)
        elif is_file(name):
            by_name[name] = _from_file(Path(name), scenario, plans, every_setting)
        else:
            _check_files(by_name, plans, name)
            by_name[name] = _searched(console, scenario, plans, name, seeds, limits)
        _check_rows(by_name)
    found = [plan for name in placements for plan in by_name[name]]
    first = plans[0]
    return tuple(
        dict.fromkeys(
            dataclasses.replace(
                plan, iterations=first.iterations, warmup_iterations=first.warmup_iterations
            )
            for plan in at_common_scale(found, scale)
        )
    )


def _check_files(by_name: Mapping[str, Sequence[Plan]], plans: Sequence[Plan], name: str) -> None:
    """Do what `_check_rows` does for files before scheduler `name` searches."""
    searched = {_row(dataclasses.replace(plan, scheduler=name)) for plan in plans}
    for other in filter(is_file, by_name):
        for plan in by_name[other]:
            if _row(plan) in searched:
                raise _one_row(other, name, plan)


def _check_rows(by_name: Mapping[str, Sequence[Plan]]) -> None:
    """Raises UsageError if the last name would share a row of the table with another.

    That row would show the mean of both.
    """
    *others, last = by_name
    for name in others:
        same = {(_row(plan), plan.placement) for plan in by_name[name]}
        rows = {row for row, _ in same}
        for plan in by_name[last]:
            if _row(plan) in rows and (_row(plan), plan.placement) not in same:
                raise _one_row(name, last, plan)


def _one_row(name: str, other: str, plan: Plan) -> UsageError:
    return UsageError(
        f'--placement: {name} and {other} would share the table row "{_row(plan)[0]}"; '
        'run them one after the other, or change "scheduler" in a file'
    )


def _row(plan: Plan) -> tuple[object, ...]:
    return placed_name(plan.variant, plan.scheduler), *_setting(plan)


def is_file(name: str) -> bool:
    """Tell the path of a file from the name of a scheduler."""
    return Path(name).suffix != "" or Path(name).is_file()


def _from_file(
    path: Path, scenario: Scenario, plans: Sequence[Plan], every_setting: bool
) -> list[Plan]:
    from netbench.placement.file import read_placed

    placed = read_placed(path, scenario)
    if not every_setting:
        return [placed.plan()]
    requests = {_setting(plan): _request(scenario, plan) for plan in plans if plan.layout.pp > 1}
    return [
        placed.on(
            dataclasses.replace(
                request, variant=placed.request.variant, num_ranks=placed.request.num_ranks
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
    """Search once per setting, system and seed.

    Variants that differ only in their default placement become the same plan.
    """
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
            print_line(console, _placed_text(placed, system))
    return list(found.values())


def _placed_text(placed: "Placed", system: str) -> str:
    request, setting = placed.request, placed.request.setting
    network = f" on {setting.network}" if setting.network else ""
    return (
        f"placed {system} L{setting.layers} B{setting.batch}{network} by {placed.scheduler}, seed "
        f"{placed.seed}, {placed.budget}: {seconds_text(placed.simulated_s)} s simulated; in the "
        f"order listed: {seconds_text(simulated_s(request))} s"
    )


def _setting(plan: Plan) -> tuple[object, ...]:
    workload = plan.workload
    return plan.network_name, workload.layers, workload.batch, workload.micro_batch


def _request(scenario: Scenario, plan: Plan) -> "Request":
    from netbench.placement.plan_problem import Request

    setting = Setting(
        layers=plan.workload.layers,
        batch=plan.workload.batch,
        micro_batch=plan.workload.micro_batch,
        network=plan.network_name,
    )
    return Request(scenario=scenario, variant=plan.variant, setting=setting)
