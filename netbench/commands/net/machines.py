"""The machines of an inventory as a fleet, and what commands print of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from netbench.commands.live import wide_console
from netbench.commands.net.target import Target, open_target
from netbench.errors import NetworkError
from netbench.network.courier import Machine
from netbench.network.fleet import ARM_LEASE_S, Cleared, Fleet, compile_for
from netbench.network.preflight import Facts, Problem, preflight
from netbench.network.program import Program
from netbench.scenario.model import Network
from netbench.units import counted

TABLE_COLUMNS = 140
"""Width of tables that go to a file or a pipe."""

VERBS = {"add": "add", "change": "change", "replace": "change", "del": "delete"}
"""What a line of `tc -batch` does, in words."""

OBJECTS = {
    "qdisc": ("leaf", "leaves"),
    "class": ("class", "classes"),
    "filter": ("filter", "filters"),
    "root": ("root", "roots"),
}
"""What it does it to: one, and several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """The hosts of a target, as a fleet."""

    target: Target
    fleet: Fleet

    @property
    def names(self) -> tuple[str, ...]:
        return self.target.names


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What was found before anything is changed. programs: of the hosts that can have one."""

    facts: Mapping[int, Facts | Exception]
    programs: Mapping[int, Program]
    problems: tuple[Problem, ...]

    @property
    def has_errors(self) -> bool:
        return any(problem.is_error for problem in self.problems)


@contextmanager
def open_machines(scenario: str, inventory: Path, console: Console) -> Iterator[Machines]:
    """The hosts of `scenario`; each step is shown while it is under way."""
    with open_target(scenario, inventory) as target, console.status("connecting") as status:
        machines = [
            Machine(
                name=host.name,
                python=host.python,
                addresses=host.data_addresses,
                interface=host.interface,
            )
            for host in target.nodes
        ]
        hosts = target.hosts
        with Fleet(
            machines,
            hosts.run,
            hosts.run_as_root,
            hosts.put,
            open_as_root=partial(hosts.open, as_root=True),
            step=status.update,
        ) as fleet:
            yield Machines(target=target, fleet=fleet)


def look(machines: Machines, *, replace: bool = False, network: Network | None = None) -> Looked:
    """Ask every host what it is, and compare that with what the scenario wants of it.

    network: another one that is wanted instead of the scenario's.
    """
    network = network or machines.target.scenario.network
    facts = machines.fleet.facts()
    programs = compile_for(network, facts, machines.target.exempt_ports)
    known = {node: host for node, host in facts.items() if isinstance(host, Facts)}
    unknown = [
        Problem(node=node, text=str(error), is_error=True)
        for node, error in facts.items()
        if isinstance(error, Exception)
    ]
    found = preflight(network, programs, known, replace=replace)
    return Looked(facts=facts, programs=programs, problems=(*unknown, *found))


def print_problems(console: Console, names: Sequence[str], problems: Sequence[Problem]) -> None:
    """One line each, the same of several hosts once; errors first."""
    hosts: dict[tuple[bool, str], list[str]] = {}
    for problem in sorted(problems, key=lambda problem: (not problem.is_error, problem.node)):
        name = names[problem.node]
        text = problem.text.removeprefix(f"{name}: ").removeprefix(f"{name} ")
        hosts.setdefault((problem.is_error, text), []).append(name)
    for (is_error, text), where in hosts.items():
        kind = "[red]error[/red]  " if is_error else "[yellow]warning[/yellow]"
        console.print(kind, end=" ")
        console.print(f"{some(where)}: {text}", markup=False, highlight=False, soft_wrap=True)


def check_problems(
    console: Console, machines: Machines, found: Looked, *, anyway: bool = False
) -> None:
    """Print what was found. Raises NetworkError where hosts cannot deliver (`anyway`: try it)."""
    print_problems(console, machines.names, found.problems)
    is_complete = len(found.programs) == len(machines.names)
    if not is_complete or (found.has_errors and not anyway):
        hint = " (--anyway tries it)" if is_complete else ""
        raise NetworkError(f"nothing was changed: see the errors above{hint}")


def wait(seconds: float) -> bool:
    """For `Fleet.hold`: until Ctrl-C."""
    time.sleep(seconds)
    return False


def clear_hosts(console: Console, machines: Machines) -> int:
    """Clear what this command did: number of hosts that could not be; each is printed."""
    results = machines.fleet.clear("session")
    failed = {node: r for node, r in results.items() if not isinstance(r, Cleared)}
    for node, error in failed.items():
        name = machines.names[node]
        text = f"{name} was not cleared, and does it itself within {ARM_LEASE_S:g} s: {error}"
        console.print(text, markup=False, soft_wrap=True)
    console.print(f"{len(results) - len(failed)} of {len(results)} hosts are as they were")
    return len(failed)


def some(names: Sequence[str], shown: int = 4) -> str:
    """`a, b, c, d and 60 more`."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def changes(text: str) -> str:
    """What a batch of `tc` does, counted: `add 7 classes, 7 leaves, 16 filters; delete 1 class`."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        what, verb = line.split()[:2]
        counts[VERBS[verb], "root" if " root handle " in line else what] += 1
    parts = []
    for verb in dict.fromkeys(VERBS.values()):
        things = [
            counted(count, *OBJECTS[what]) for (done, what), count in counts.items() if done == verb
        ]
        parts += [f"{verb} {', '.join(things)}"] if things else []
    return "; ".join(parts) or "nothing"


def host_table(*columns: str) -> Table:
    """A table with a row per host."""
    table = Table(box=None, pad_edge=False)
    for column in ("host", *columns):
        table.add_column(column, overflow="fold")
    return table


def open_console() -> Console:
    """For tables of hosts."""
    return wide_console(TABLE_COLUMNS)
