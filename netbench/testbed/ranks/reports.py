"""Read the iteration reports that scripts of a `command` system print. Pure.

A rank reports an iteration in one line of its output, one of

    {"netbench": "iteration", "iteration_s": 1.23, "loss": 4.5, "phases": {"forward_s": 0.4, ..}}
    what Megatron-LM prints every `--log-interval` iterations
    what DeepSpeed prints every `steps_per_print` steps

The kind of the first report of a run is used throughout: Megatron-DeepSpeed prints two kinds. A
regular expression of the user's replaces them all.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from netbench.errors import TestbedError

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|(?i:nan|inf))"

MEGATRON = re.compile(
    rf"\biteration\s+(?P<iteration>\d+)/.*\belapsed time per iteration \(ms\): (?P<ms>{NUMBER})"
    rf"(?:.*\blm loss:? (?P<loss>{NUMBER}))?"
)
"""Megatron-LM, `training_log` of megatron/training/training.py: mean over the interval."""

DEEPSPEED_PIPELINE = re.compile(
    rf"\bsteps: (?P<iteration>\d+) loss: (?P<loss>{NUMBER})"
    rf".* iter time \(s\): (?P<s>{NUMBER})"
)
"""DeepSpeed, `PipelineEngine.train_batch` of deepspeed/runtime/pipe/engine.py: likewise."""

DEEPSPEED = re.compile(
    rf"\bglobal_step=(?P<iteration>\d+), .*\bCurrSamplesPerSec=(?P<samples_per_s>{NUMBER})"
)
"""DeepSpeed, `ThroughputTimer.stop` of deepspeed/utils/timer.py: samples of the global batch."""

PRINTED = {
    "Megatron-LM": MEGATRON,
    "DeepSpeed's pipeline": DEEPSPEED_PIPELINE,
    "DeepSpeed": DEEPSPEED,
}
"""Kind of report -> the line that the library prints."""

GROUPS = frozenset(("iteration", "s", "ms", "samples_per_s", "loss"))
"""Groups of an expression that are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One rank's report on one of its iterations.

    kind: of line. iteration: the script's own number, for messages, if it prints one.
    """

    kind: str
    iteration_s: float
    iteration: int | None = None
    loss: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


def read_line(line: str, batch: int, regex: str = "", elapsed_s: float = math.nan) -> Report | None:
    """Return the report in a line of output, if any. batch: planned samples per iteration.

    regex: of lines that are reports, "" = the kinds above. elapsed_s: since the rank's last report,
    or since it was started; the time of an iteration whose line has none.

    Raises TestbedError for a malformed report.
    """
    if regex:
        report = _read_printed(line, batch, {"matching": re.compile(regex)}, elapsed_s)
    else:
        report = _read_json(line) or _read_printed(line, batch, PRINTED, elapsed_s)
    if report and not (math.isfinite(report.iteration_s) and report.iteration_s > 0):
        raise _bad(line, f"an iteration of {report.iteration_s} s")
    return report


def _read_json(line: str) -> Report | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or "netbench" not in found:
        return None
    if found["netbench"] != "iteration":
        raise _bad(line, f'"netbench": {found["netbench"]!r}')
    unknown = found.keys() - {"netbench", "iteration", "iteration_s", "loss", "phases"}
    if unknown:
        raise _bad(line, f"the key {sorted(unknown)[0]!r}")
    phases, iteration = found.get("phases", {}), found.get("iteration")
    if not isinstance(phases, dict) or not all(map(_is_number, phases.values())):
        raise _bad(line, f"phases {phases!r}")
    if not (iteration is None or type(iteration) is int):
        raise _bad(line, f"iteration {iteration!r}")
    loss, iteration_s = found.get("loss"), found.get("iteration_s")
    if not (loss is None or _is_number(loss)):
        raise _bad(line, f"loss {loss!r}")
    if not _is_number(iteration_s):
        raise _bad(line, f"iteration_s {iteration_s!r}")
    return Report(
        kind="netbench",
        iteration=iteration,
        iteration_s=float(iteration_s),
        loss=loss,
        phases={name: float(value) for name, value in phases.items()},
    )


def _read_printed(
    line: str, batch: int, patterns: Mapping[str, re.Pattern[str]], elapsed_s: float
) -> Report | None:
    for kind, pattern in patterns.items():
        if found := pattern.search(line):
            try:
                values = {name: float(text) for name, text in found.groupdict().items() if text}
                iteration = int(values["iteration"]) if "iteration" in values else None
            except (ValueError, OverflowError) as error:
                raise _bad(line, str(error)) from error
            return Report(
                kind=kind,
                iteration=iteration,
                iteration_s=_seconds(values, batch, elapsed_s),
                loss=values.get("loss"),
            )
    return None


def _seconds(values: Mapping[str, float], batch: int, elapsed_s: float) -> float:
    if "samples_per_s" in values:
        return batch / (values["samples_per_s"] or math.nan)
    return values["ms"] / 1e3 if "ms" in values else values.get("s", elapsed_s)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bad(line: str, found: str) -> TestbedError:
    return TestbedError(
        f"found {found} in the line {line.strip()[:200]!r}; expected e.g. "
        '{"netbench": "iteration", "iteration_s": 1.23, "loss": 4.5, "phases": {"forward_s": 0.4}}'
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """A finished iteration.

    iteration_s: the longest reported time; phases: of that rank. loss: mean of the reported ones.
    """

    iteration_s: float
    phases: Mapping[str, float]
    loss: float | None


class Iterations:
    """Combines the reports of ranks: the n-th report of a rank is on iteration n.

    The reporting ranks are known once one reports the second iteration, or all have ended. From
    then on an iteration is finished when all ranks that have ever reported have reported it.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._kind = ""
        self._counts = [0] * num_ranks
        self._pending: list[dict[int, Report]] = []
        self._reporters: set[int] = set()
        self._num_finished = 0

    def add(self, rank: int, report: Report) -> list[Iteration]:
        """Add a report; return the iterations it finishes.

        Raises TestbedError for a loss of NaN or inf.
        """
        self._kind = self._kind or report.kind
        if report.kind != self._kind:
            return []
        if report.loss is not None and not math.isfinite(report.loss):
            number = self._counts[rank] if report.iteration is None else report.iteration
            raise TestbedError(f"the loss of iteration {number} is {report.loss}; it diverged")
        index = self._counts[rank] - self._num_finished
        self._counts[rank] += 1
        if index < 0:  # too late for this iteration, but waited for from now on
            self._reporters.add(rank)
            return []
        while len(self._pending) <= index:
            self._pending.append({})
        self._pending[index][rank] = report
        return self._finish()

    def has_all(self, rank: int, num_iterations: int) -> bool:
        """Return whether `rank`, or every reporting rank, has reported `num_iterations`."""
        return max(self._counts[rank], self._num_finished) >= num_iterations

    def end(self) -> list[Iteration]:
        """Return the iterations that are finished once no rank reports any more."""
        self._reporters = self._reporters or set(self._pending[0] if self._pending else ())
        return self._finish()

    def _finish(self) -> list[Iteration]:
        finished = []
        while self._pending and self._is_whole(self._pending[0]):
            reports = self._pending.pop(0)
            self._reporters |= set(reports)
            self._num_finished += 1
            finished.append(_together(reports))
        return finished

    def _is_whole(self, reports: Mapping[int, Report]) -> bool:
        if len(reports) == self._num_ranks:
            return True
        if self._reporters:
            return self._reporters <= reports.keys()
        return len(self._pending) > 1


def _together(reports: Mapping[int, Report]) -> Iteration:
    slowest = max(reports.values(), key=lambda report: report.iteration_s)
    losses = [report.loss for report in reports.values() if report.loss is not None]
    return Iteration(
        iteration_s=slowest.iteration_s,
        phases=slowest.phases,
        loss=sum(losses) / len(losses) if losses else None,
    )
