"""Progress of a run: its sessions' steps, its iterations and the time left."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from netbench.api import simulation
from netbench.commands.output import print_line, print_warning
from netbench.plan.describe import count_periods
from netbench.plan.experiment import Experiment
from netbench.plan.model import Plan
from netbench.pool import Pool
from netbench.progress import Progress, open_progress, track
from netbench.records import Record
from netbench.systems import placed_name
from netbench.testbed.cluster.certificate import NOTHING
from netbench.units import counted, format_bytes

STEPS = {
    "nodes": "building nodes",
    "hosts": "preparing hosts",
    "tune": "setting up TCP",
    "ranks": "starting ranks",
    "connect": "connecting ranks",
    "prepare": "preparing plans",
    "shape": "shaping links",
    "verify": "verifying the network",
    "warm": "running a short iteration first",
    "repeat": "repeating finished iterations",
}
"""Steps of a session before its first new iteration, in order, as shown."""


class RunObserver:
    """Shows a run as `netbench.testbed.runs.controller.Observer` reports it."""

    def __init__(self, progress: Progress, total: int, on_terminal: bool) -> None:
        self._progress = progress
        self._total = total
        self._on_terminal = on_terminal
        self._done = 0
        self._started_s = time.monotonic()
        self._sessions: set[str] = set()
        self._hosts: dict[int, str] = {}

    def place(self, session: int, host: str) -> None:
        self._hosts[session] = host

    def phase(self, session: int, name: str, done: int, total: int) -> None:
        where = f" on {self._hosts[session]}" if session in self._hosts else ""
        task = f"session {session + 1}{where}"
        self._sessions.add(task)
        self._progress.advance(task, done, total, STEPS.get(name, name))

    def certificate(self, hosts: Mapping[str, str]) -> None:
        clean = [host for host, left in hosts.items() if left == NOTHING]
        total = counted(len(hosts), "host")
        self._progress.say(Text(f"hosts: nothing is left on {len(clean)} of {total}"))
        for host, left in hosts.items():
            if left != NOTHING:
                self._progress.say(Text.assemble((f"  {host}: ", "red"), left))

    def part(self, plan: Plan, iteration: int, periods: int, iteration_s: float) -> None:
        kind = _kind(iteration < plan.warmup_iterations)
        part = count_periods(plan, periods)
        self._say(plan, f"{kind} {iteration}, {part}: ", (f"{iteration_s:.3f} s", "dim"))

    def iteration(self, plan: Experiment, record: Record) -> None:
        loss = "" if record.loss is None else f", loss {record.loss:.4f}"
        time_s = f"{record.iteration_s:.3f} s"
        self._say(plan, f"{_kind(record.warmup)} {record.iteration}: ", (time_s, "bold"), loss)
        self._done += 1
        if self._on_terminal:  # elsewhere the line above is enough
            for task in self._sessions:  # sessions that run iterations have no steps left
                self._progress.finish(task)
            self._progress.advance("iterations", self._done, self._total)

    def _say(self, plan: Experiment, *what: str | tuple[str, str]) -> None:
        """Print a line about a plan, with the time since the start."""
        name = plan.variant
        if isinstance(plan, Plan):
            name = placed_name(name, plan.scheduler)
        since = f"{time.monotonic() - self._started_s:6.1f} s"
        head = f"  {name:<18} {_setting(plan)} "
        self._progress.say(Text.assemble((since, "dim"), head, *what))


def _kind(warmup: bool) -> str:
    return "warm-up" if warmup else "iteration"


def _setting(plan: Experiment) -> str:
    """Return what distinguishes a plan from others of its variant in a run."""
    if isinstance(plan, Plan):
        workload = plan.workload
        network = f" {plan.network_name}" if plan.network_name else ""
        micro_batch = f" m{workload.micro_batch}" if workload.micro_batch > 1 else ""
        return f"{workload.name} B{workload.batch}{micro_batch}{network} seed {plan.seed}"
    return format_bytes(plan.payload_bytes)


class TerminalDisplay:
    """Shows a run on a console, as `netbench.api.emulation.Display` says."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        print_line(self._console, text)

    def warn(self, subject: str, text: str) -> None:
        print_warning(self._console, subject, text)

    def track(self, total: int, pool: Pool | None) -> simulation.Progress:
        describe = pool.describe if pool is not None else None
        return lambda found: track(self._console, found, total, "simulated plans", describe)

    @contextmanager
    def observe(self, plans: Sequence[Experiment], num_finished: int) -> Iterator[RunObserver]:
        total = sum(plan.iterations for plan in plans) - num_finished
        with open_progress(self._console, interval_s=0) as progress:
            yield RunObserver(progress, total, self._console.is_terminal)
