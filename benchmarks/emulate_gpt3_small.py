"""Emulate the published cells of GPT-3 small and record them.

    python -m benchmarks.emulate_gpt3_small [--machines N] [--missing] [--results FOLDER]

The cells are plans of `netbench/report/page/under_tc/small.py`, not of a scenario file: the compute
of a series comes from its first cell. All plans of equally many machines are one run. Copy its
folder to results/recorded, and `make reproduce-table` puts its times into results/under_tc.md.
--machines: only the cells of 3, 12 or 48 machines. --missing: only those whose plan no recorded run
has.
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

from rich.console import Console

from netbench.api.emulation import Target, run_recorded
from netbench.commands.run.observer import TerminalDisplay
from netbench.plan.serial import plan_hash
from netbench.report.page.pages import recorded_runs
from netbench.report.page.under_tc.small import SmallCell, cells


def by_machines() -> dict[int, dict[str, SmallCell]]:
    """Return the cells by number of machines and hash of the emulated plan.

    Series that differ only in what replicas do have the same cells without replicas.
    """
    found: dict[int, dict[str, SmallCell]] = {}
    for cell in cells():
        plan = cell.emulated()
        found.setdefault(plan.network.num_nodes, {}).setdefault(plan_hash(plan), cell)
    return found


def recorded_plans() -> set[str]:
    """Return the hashes of plans that recorded runs have."""
    runs = chain.from_iterable(recorded_runs(Path("results/recorded")).values())
    return {key for run in runs for key in run.plans}


def main() -> None:
    """Run the chosen cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, choices=by_machines())
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    display = TerminalDisplay(Console())
    known = recorded_plans() if arguments.missing else set()
    for num, found in by_machines().items():
        chosen = [cell for key, cell in found.items() if key not in known]
        if chosen and arguments.machines in (None, num):
            scenario = chosen[0].scenario()
            plans = [cell.emulated() for cell in chosen]
            print(run_recorded(display, scenario, plans, Target(), arguments.results))


if __name__ == "__main__":
    main()
