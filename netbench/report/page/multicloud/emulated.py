"""Emulated rounds of the multi-cloud experiments beside simulated and published ones."""

import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netbench.cost.bill import SPOT, Bill, bill
from netbench.cost.churn import interrupted_usd
from netbench.plan.serial import plan_from_json
from netbench.records import Run
from netbench.report.numbers import or_dash, percent_text
from netbench.report.page.multicloud.data import Experiment, measured
from netbench.report.tables.churn import Interrupted, interrupted_plans
from netbench.report.tables.comparison import EXECUTED
from netbench.report.tables.cost import money
from netbench.report.tables.grid import WIDTH, Column, Grid, table_of


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulatedRounds:
    """Rounds of an experiment in a recorded run. seconds: of each, without warm-ups. scale: of the
    emulation. reasons: why the run is not trustworthy."""

    experiment: Experiment
    seconds: tuple[float, ...]
    scale: float
    reasons: tuple[str, ...]

    @property
    def throughput(self) -> float:
        """Samples per second; a round has as many as the simulated one."""
        return self.experiment.round.samples / statistics.fmean(self.seconds)

    @property
    def communication_s(self) -> float:
        """Seconds of a round in which the mean peer does not compute."""
        return statistics.fmean(self.seconds) - self.experiment.round.compute_s

    @property
    def difference(self) -> float:
        """Relative, of the throughput from the simulated one."""
        return self.throughput / self.experiment.round.throughput - 1

    @property
    def communication_difference(self) -> float:
        """The same of the communication time."""
        return self.communication_s / self.experiment.round.communication_s - 1


def emulated_rounds(
    experiments: Sequence[Experiment], runs: Mapping[str, Sequence[Run]]
) -> tuple[EmulatedRounds, ...]:
    """Return the recorded emulations of experiments, in their order; the newest of each.

    runs: recorded ones by scenario, oldest first.
    """
    found: dict[object, EmulatedRounds] = {}
    for experiment in experiments:
        for run in runs.get(experiment.scenario.name, ()):
            for plan_hash, text in run.plans.items():
                if text.get("peers") != experiment.plan.peers or text.get("churn"):
                    continue
                plan = plan_from_json(json.dumps(text))
                seconds = _rounds_s(run, plan_hash)
                if seconds and plan.workload == experiment.plan.workload:
                    found[experiment.key] = EmulatedRounds(
                        experiment=experiment,
                        seconds=seconds,
                        scale=plan.scale,
                        reasons=tuple(run.reasons),
                    )
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class InterruptedRounds:
    """An emulated plan whose machines go and come. experiment: the same plan without."""

    experiment: Experiment
    interrupted: Interrupted

    @property
    def uninterrupted_usd(self) -> float:
        """Return $ per million samples on the spot market if no machine goes, as simulated."""
        return self._bill.million_usd(SPOT)

    @property
    def usd(self) -> float:
        """Return $ per million samples of the emulated run."""
        found = self.interrupted.found
        return interrupted_usd(self.experiment.scenario, None, self._bill, found)

    @property
    def _bill(self) -> Bill:
        return bill(self.experiment.scenario, self.experiment.plan)


def interrupted_rounds(
    experiments: Sequence[Experiment], runs: Mapping[str, Sequence[Run]]
) -> tuple[InterruptedRounds, ...]:
    """Return the recorded emulations of experiments with churn, in their order.

    runs: recorded ones by scenario.
    """
    return tuple(
        InterruptedRounds(experiment=experiment, interrupted=interrupted)
        for experiment in experiments
        for run in runs.get(experiment.scenario.name, ())
        for interrupted in interrupted_plans(run).values()
        if (interrupted.plan.peers, interrupted.plan.workload)
        == (experiment.plan.peers, experiment.plan.workload)
    )


def interrupted_grid(rows: Sequence[InterruptedRounds]) -> Grid:
    """A row per run: samples per second that reached the model, and what they cost."""
    columns: list[Column[InterruptedRounds]] = [
        ("Run", lambda row: row.experiment.name),
        ("Model", lambda row: row.experiment.key[1]),
        ("rounds", lambda row: str(row.interrupted.found.num_rounds)),
        ("interruptions", lambda row: str(row.interrupted.num_interruptions)),
        ("machines there", lambda row: f"{_there(row.interrupted):.2f}"),
        ("if none goes /s", lambda row: _short(row.experiment.round.throughput)),
        ("simulated", lambda row: _short(row.interrupted.simulated.goodput)),
        ("emulated", lambda row: _short(row.interrupted.found.goodput)),
        ("difference", lambda row: or_dash(percent_text, row.interrupted.difference)),
        ("if none goes $/M", lambda row: money(row.uninterrupted_usd)),
        ("emulated $/M", lambda row: money(row.usd)),
    ]
    return table_of(rows, columns, num_labels=2)


def _there(interrupted: Interrupted) -> float:
    return sum(interrupted.found.machine_s) / interrupted.found.seconds


def _rounds_s(run: Run, plan_hash: str) -> tuple[float, ...]:
    """Return the seconds of the emulated rounds of a plan without warm-ups."""
    return tuple(
        record.iteration_s
        for record in run.records
        if record.plan_hash == plan_hash and not record.warmup and record.source in EXECUTED
    )


def emulated_grid(rows: Sequence[EmulatedRounds]) -> Grid:
    """A row per experiment: samples per second and seconds of communication of a round."""
    known = measured()

    def published(row: EmulatedRounds, quantity: str) -> str:
        return or_dash(_short, known.get(row.experiment.key, {}).get(quantity))

    columns = [
        ("Run", lambda row: row.experiment.name),
        ("Model", lambda row: row.experiment.key[1]),
        ("scale", lambda row: f"{row.scale:g}"),
        ("rounds", lambda row: str(len(row.seconds))),
        ("published /s", lambda row: published(row, "throughput")),
        ("simulated", lambda row: _short(row.experiment.round.throughput)),
        ("emulated", lambda row: _short(row.throughput)),
        ("difference", lambda row: percent_text(row.difference)),
        ("communication s", lambda row: published(row, "comm_time_per_round")),
        ("simulated", lambda row: _short(row.experiment.round.communication_s)),
        ("emulated", lambda row: _short(row.communication_s)),
        ("difference", lambda row: percent_text(row.communication_difference)),
    ]
    return table_of(rows, columns, num_labels=2)


def emulated_note(rows: Sequence[EmulatedRounds]) -> str:
    """Return the largest difference of throughput, and why runs are not trustworthy."""
    largest = max(rows, key=lambda row: abs(row.difference))
    text = (
        f"Largest difference of throughput: {percent_text(largest.difference)} "
        f"({largest.experiment.name} {largest.experiment.key[1]})."
    )
    for reason in dict.fromkeys(reason for row in rows for reason in row.reasons):
        text += f" Not trustworthy: {reason}."
    return textwrap.fill(text, WIDTH)


def _short(value: float) -> str:
    return f"{value:.4g}"
