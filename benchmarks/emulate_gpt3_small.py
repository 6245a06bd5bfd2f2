"""Emulate the published cells of GPT-3 small and record them.

    python -m benchmarks.emulate_gpt3_small [--machines N] [--results FOLDER]

The cells are plans of `netbench/report/page/under_tc/small.py`, not of a scenario file: the compute
of a series comes from its first cell. All plans of equally many machines are one run. Copy its
folder to results/recorded, and `make reproduce-table` puts its times into results/under_tc.md.
--machines: only the cells of 3, 12 or 48 machines.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from netbench.api.emulation import Target, run_recorded
from netbench.commands.run.observer import TerminalDisplay
from netbench.plan.serial import plan_hash
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


def main() -> None:
    """Run the chosen cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, choices=by_machines())
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    display = TerminalDisplay(Console())
    for num, found in by_machines().items():
        if arguments.machines in (None, num):
            scenario = next(iter(found.values())).scenario()
            plans = [cell.emulated() for cell in found.values()]
            print(run_recorded(display, scenario, plans, Target(), arguments.results))


if __name__ == "__main__":
    main()
