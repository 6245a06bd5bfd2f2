"""Warnings, traces and timelines of simulated plans."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from netbench.api.emulation import ignored_impairments
from netbench.api.explanation import explain_plan
from netbench.commands.output import print_line, print_warning
from netbench.plan.experiment import Experiment
from netbench.plan.model import Plan
from netbench.systems import placed_name

PLACEHOLDER = "{plan}"
"""Replaced by the plan's name in the name of a trace or timeline."""


def warn_of_impairments(console: Console, plans: Iterable[Experiment]) -> None:
    """Print which impairments of the plans' networks the simulator ignores."""
    if text := ignored_impairments(plans):
        print_warning(console, "network", text)


def write_timelines(
    console: Console, plans: Sequence[Plan], trace: Path | None, timeline: Path | None
) -> None:
    """Write trace and timeline of the first plan, or of every plan if the name has `{plan}`."""
    for plan in plans:
        wanted = [
            (kind, Path(str(path).replace(PLACEHOLDER, plan_name(plan))))
            for kind, path in (("trace", trace), ("timeline", timeline))
            if path is not None and (PLACEHOLDER in str(path) or plan is plans[0])
        ]
        if not wanted:
            continue
        found = explain_plan(plan)
        for kind, path in wanted:
            if kind == "trace":
                found.write_trace(path)
            else:
                found.plot().save(path)
            print_line(console, f"{kind} of {plan_name(plan)}: {path}")


def plan_name(plan: Plan) -> str:
    """Name that distinguishes a plan from others of its run, for use in a file name."""
    model = plan.workload
    placed = placed_name(plan.variant, plan.scheduler).replace(", ", "-").replace(" ", "-")
    words = [placed, model.name, f"B{model.batch}", f"m{model.micro_batch}"]
    words += [plan.network_name] if plan.network_name else []
    return "-".join([*words, str(plan.seed)])
