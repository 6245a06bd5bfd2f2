"""What a run leaves behind: `results/<run-id>/records.jsonl`, one JSON object per line.

Kinds of line, in the order a run writes them:

- `run`: one session of a controller. The first line; a resumed run has one more per resumption.
- `plan`: a plan and its hash, before its first iteration.
- `prediction`: seconds per iteration of a plan, simulated before it ran.
- `probe`: what verification of the shaped network measured.
- `iteration`: one `Record`, on disk before the next iteration starts.
- `verdict`: whether a plan (or the whole run) can be trusted, and why not.

The file is only ever appended to. A line counts once its newline is on disk: a last line without
one is what a killed controller left, and is dropped when the run is resumed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from netbench import __version__
from netbench.errors import RecordError
from netbench.units import counted

SCHEMA_VERSION = 2
FILE_NAME = "records.jsonl"
SOURCES = ("published", "simulated", "emulated", "measured")
MODES = ("native", "guest-virtual", "guest-real", "sim")

_RUN_ID = re.compile(r"(?P<scenario>.+)-(?P<created>\d{8}-\d{6})-[0-9a-f]{4}")
_NUMBER = (int, float)
_OPTIONAL_TEXT = (str, type(None))
_LINE_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run": {
        "schema_version": int,
        "run_id": str,
        "netbench_version": str,
        "created": str,
        "command": list,
        "environment": dict,
    },
    "plan": {"plan_hash": str, "plan": dict},
    "prediction": {"plan_hash": str, "iteration_s": _NUMBER},
    "probe": {"plan_hash": _OPTIONAL_TEXT, "result": dict},
    "iteration": {
        "run_id": str,
        "plan_hash": str,
        "scenario": str,
        "variant": str,
        "system": str,
        "layers": int,
        "batch": int,
        "seed": int,
        "iteration": int,
        "warmup": bool,
        "iteration_s": _NUMBER,
        "phases": dict,
        "source": str,
    },
    "verdict": {"plan_hash": _OPTIONAL_TEXT, "trustworthy": bool, "reasons": list},
}
_LATER_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "iteration": {"loss": _NUMBER, "sent_bytes": list, "peers": int}
}
"""Fields that came after runs were recorded: written only where they have a value."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Where a session ran.

    kernel: release of the kernel that shaped the network, `none` in a simulation. mode: one of
    `MODES`. scale: bytes and bandwidths were divided by it. versions: of `python`, `torch`,
    `iproute2`. machine: the host.
    """

    kernel: str
    mode: str
    scale: float
    versions: dict[str, str]
    machine: str

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise RecordError(f"mode {self.mode!r} is none of {', '.join(MODES)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One iteration of one plan.

    iteration: index from 0, warm-ups included. iteration_s: seconds from the common start to the
    last rank's end. phases: seconds by name, e.g. `forward`. source: one of `SOURCES`. loss: mean
    over the batch, where layers compute. sent_bytes: by node, as the kernel counts them at its
    interface, so with headers and divided by the scale; empty where nothing was sent. peers: ranks
    that took part, where they may go and come; else None.
    """

    run_id: str
    plan_hash: str
    scenario: str
    variant: str
    system: str
    layers: int
    batch: int
    seed: int
    iteration: int
    warmup: bool
    iteration_s: float
    phases: dict[str, float] = field(default_factory=dict)
    source: str
    loss: float | None = None
    sent_bytes: tuple[int, ...] = ()
    peers: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.iteration_s) and self.iteration_s > 0):
            raise RecordError(f"iteration_s is {self.iteration_s}, expected seconds above 0")
        if self.iteration < 0:
            raise RecordError(f"iteration is {self.iteration}, expected an index from 0")
        if self.source not in SOURCES:
            raise RecordError(f"source {self.source!r} is none of {', '.join(SOURCES)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One controller's share of a run. created: ISO 8601, local time. command: its arguments."""

    netbench_version: str
    created: str
    command: tuple[str, ...]
    environment: Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What verification of the network measured for a plan (`None`: for the whole run)."""

    plan_hash: str | None
    result: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a plan's records (`None`: the whole run's) can be trusted. reasons: why not."""

    plan_hash: str | None
    trustworthy: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything a record file says. plans: hash -> the plan's JSON, in the order recorded.

    predictions: hash -> simulated seconds per iteration, where the simulator knows the plan.
    """

    path: Path
    run_id: str
    sessions: tuple[Session, ...]
    plans: dict[str, dict[str, Any]]
    predictions: dict[str, float]
    probes: tuple[Probe, ...]
    records: tuple[Record, ...]
    verdicts: tuple[Verdict, ...]


def read_run(path: Path) -> Run:
    """Read a run (its folder, or its record file). A last line cut short is left out.

    Takes no lock, so a run that is still being written can be read.
    Raises RecordError for a file that is missing, damaged or from a newer netbench.
    """
    path = _record_file(path)
    data = _read_bytes(path)
    return _parse(path, data[: data.rfind(b"\n") + 1])


def find_run(results: Path, scenario: str) -> Path | None:
    """The newest run of a scenario: from `results` itself, else from `results/recorded`."""
    for folder in (results, results / "recorded"):
        runs = [
            (match["created"], path)
            for path in folder.glob(f"*/{FILE_NAME}")
            if (match := _RUN_ID.fullmatch(path.parent.name)) and match["scenario"] == scenario
        ]
        if runs:
            return max(runs)[1]
    return None


class RunStore(AbstractContextManager["RunStore"]):
    """The one writer of a run. Every `append_*` is on disk, or has raised, when it returns.

    Use as a context manager, or `close` it: it holds an exclusive lock on the record file.
    """

    def __init__(self, path: Path, descriptor: int, run: Run | None, run_id: str) -> None:
        """Internal; use `create` or `open`."""
        self.path = path
        self.run_id = run_id
        self._descriptor = descriptor
        self._plans: dict[str, dict[str, Any]] = dict(run.plans) if run else {}
        self._predicted = set(run.predictions) if run else set()
        self._iterations: dict[str, set[int]] = {}
        for record in run.records if run else ():
            self._iterations.setdefault(record.plan_hash, set()).add(record.iteration)

    @classmethod
    def create(
        cls,
        results: Path,
        *,
        scenario: str,
        created: datetime,
        command: Sequence[str],
        environment: Environment,
    ) -> Self:
        """Start a run in a new folder of `results`, named `<scenario>-<YYYYmmdd-HHMMSS>-<4 hex>`.

        created: now, as the caller's clock has it. Raises RecordError if it cannot be written.
        """
        run_id = f"{scenario}-{created:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        path = results / run_id / FILE_NAME
        try:
            path.parent.mkdir(parents=True)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise RecordError(f"{path}: cannot start a run: {error.strerror}") from error
        try:
            _lock(descriptor, path)
            store = cls(path, descriptor, None, run_id)
            store.append_session(created=created, command=command, environment=environment)
        except BaseException:
            os.close(descriptor)
            raise
        return store

    @classmethod
    def open(cls, path: Path) -> Self:
        """Continue a run (its folder, or its record file): lock it and drop a last partial line.

        Then call `append_session`. Raises RecordError if another controller is writing the run,
        and as `read_run` does.
        """
        path = _record_file(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise RecordError(f"{path}: cannot be written to: {error.strerror}") from error
        try:
            _lock(descriptor, path)
            run = _recover(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, run, run.run_id)

    def append_session(
        self, *, created: datetime, command: Sequence[str], environment: Environment
    ) -> None:
        """Record who continues the run, and where."""
        self._append(
            "run",
            schema_version=SCHEMA_VERSION,
            run_id=self.run_id,
            netbench_version=__version__,
            created=created.isoformat(timespec="seconds"),
            command=list(command),
            environment=asdict(environment),
        )

    def append_plan(self, plan_hash: str, plan: Mapping[str, Any]) -> None:
        """Record a plan. One that the run already has is not written again."""
        if plan_hash not in self._plans:
            self._append("plan", plan_hash=plan_hash, plan=dict(plan))
            self._plans[plan_hash] = dict(plan)

    def append_prediction(self, plan_hash: str, iteration_s: float) -> None:
        """Record what was simulated for a plan recorded before. The first one stays."""
        if plan_hash not in self._predicted:
            self._append("prediction", plan_hash=plan_hash, iteration_s=iteration_s)
            self._predicted.add(plan_hash)

    def append_probe(self, result: Mapping[str, Any], *, plan_hash: str | None = None) -> None:
        """Record what verification of the network measured."""
        self._append("probe", plan_hash=plan_hash, result=dict(result))

    def append_iteration(self, record: Record) -> None:
        """Record an iteration of a plan recorded before; each index once."""
        done = self._iterations.get(record.plan_hash, set())
        if record.plan_hash not in self._plans:
            raise RecordError(f"{self.path}: plan {record.plan_hash} is not in the run; record it")
        if record.iteration in done:
            raise RecordError(
                f"{self.path}: iteration {record.iteration} of plan {record.plan_hash} is already "
                "recorded; run only the missing ones"
            )
        later = _LATER_FIELDS["iteration"]
        values = {k: v for k, v in asdict(record).items() if k not in later or v not in (None, ())}
        self._append("iteration", **values)
        self._iterations.setdefault(record.plan_hash, set()).add(record.iteration)

    def append_verdict(
        self, *, trustworthy: bool, reasons: Sequence[str] = (), plan_hash: str | None = None
    ) -> None:
        """Record whether a plan, or the whole run, can be trusted."""
        self._append("verdict", plan_hash=plan_hash, trustworthy=trustworthy, reasons=list(reasons))

    def missing_iterations(self, plan_hash: str, wanted: int) -> tuple[int, ...]:
        """Of iterations 0 .. wanted - 1 of a plan, those not recorded yet."""
        done = self._iterations.get(plan_hash, set())
        return tuple(index for index in range(wanted) if index not in done)

    def finished(self, plan_hash: str) -> bool:
        """Whether the run has the plan and all of the iterations it asks for."""
        plan = self._plans.get(plan_hash)
        return plan is not None and not self.missing_iterations(plan_hash, plan["iterations"])

    def close(self) -> None:
        """Give the lock back. Closing twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, kind: str, **values: object) -> None:
        """One line, one write, one fsync: a reader never sees half of two lines."""
        try:
            text = json.dumps({"kind": kind, **values}, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.path}: a {kind} line is not JSON: {error}") from error
        data = text.encode() + b"\n"
        size_bytes = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                found = f"disk full: only {written} of {len(data)} bytes fitted"
                raise OSError(errno.ENOSPC, found)
            os.fsync(self._descriptor)
        except OSError as error:
            # What was written of the line goes; if even that fails, `open` drops it later.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size_bytes)
            num_kept = sum(map(len, self._iterations.values()))
            raise RecordError(
                f"{self.path}: cannot record the {kind}: {error.strerror}. All that was recorded "
                f"before is kept ({counted(num_kept, 'iteration')}). Make room, then continue with "
                f"--resume {self.path.parent}"
            ) from error


def _record_file(path: Path) -> Path:
    """The record file of a run given by its folder or by the file itself."""
    return path / FILE_NAME if path.is_dir() else path


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RecordError(
            f"{path}: another netbench is writing this run; wait for it to end, or start a new run"
        ) from error
    except OSError as error:
        raise RecordError(f"{path}: cannot be locked: {error.strerror}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be read: {error.strerror}; expected a run's folder or its {FILE_NAME}"
        ) from error


def _recover(path: Path, descriptor: int) -> Run:
    """Read the run and cut its file back to the last complete line."""
    data = _read_bytes(path)
    complete = data.rfind(b"\n") + 1
    run = _parse(path, data[:complete])
    if complete < len(data):
        log.warning(
            "%s: dropped the last line: its writer was stopped %d bytes into it",
            path,
            len(data) - complete,
        )
        os.ftruncate(descriptor, complete)
        os.fsync(descriptor)
    return run


def _parse(path: Path, data: bytes) -> Run:
    sessions: list[Session] = []
    plans: dict[str, dict[str, Any]] = {}
    predictions: dict[str, float] = {}
    probes: list[Probe] = []
    records: dict[tuple[str, int], Record] = {}
    verdicts: list[Verdict] = []
    run_id = ""
    for where, kind, line in _lines(path, data):
        if kind == "run":
            run_id = line["run_id"]
            sessions.append(_session(where, line))
        elif kind == "plan":
            plans[line["plan_hash"]] = line["plan"]
        elif kind == "prediction":
            predictions[line["plan_hash"]] = line["iteration_s"]
        elif kind == "probe":
            probes.append(Probe(**line))
        elif kind == "iteration":
            record = _record(where, line, plans)
            if records.setdefault((record.plan_hash, record.iteration), record) is not record:
                raise _damaged(where, "repeats an iteration recorded above")
        else:
            verdicts.append(Verdict(**line | {"reasons": tuple(line["reasons"])}))
    return Run(
        path=path,
        run_id=run_id,
        sessions=tuple(sessions),
        plans=plans,
        predictions=predictions,
        probes=tuple(probes),
        records=tuple(records.values()),
        verdicts=tuple(verdicts),
    )


def _lines(path: Path, data: bytes) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(file:line, kind, values) of every line; the first one opens the run."""
    if not data:
        raise RecordError(
            f"{path}: holds no complete line, so there is no run to read; "
            f"delete {path.parent} and start a new run"
        )
    for number, text in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"{path}:{number}"
        try:
            line = json.loads(text)
        except ValueError as error:
            raise _damaged(where, f"is not JSON ({error})") from error
        kind = line.pop("kind", None) if isinstance(line, dict) else None
        if kind not in _LINE_FIELDS or (number == 1 and kind != "run"):
            expected = "run" if number == 1 else ", ".join(_LINE_FIELDS)
            raise _damaged(where, f"has kind {kind!r}, expected {expected}")
        if kind == "run":
            _check_version(where, line)
        _check_fields(where, kind, line)
        yield where, kind, line


def _check_version(where: str, line: dict[str, Any]) -> None:
    version = line.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RecordError(
            f"{where}: schema version {version}, written by netbench "
            f"{line.get('netbench_version', 'unknown')}; this is netbench {__version__}, which "
            f"reads up to {SCHEMA_VERSION}: upgrade netbench"
        )


def _check_fields(where: str, kind: str, line: dict[str, Any]) -> None:
    fields, later = _LINE_FIELDS[kind], _LATER_FIELDS.get(kind, {})
    missing, unknown = fields.keys() - line.keys(), line.keys() - fields.keys() - later.keys()
    if missing or unknown:
        raise _damaged(
            where,
            f"has the wrong keys (missing: {', '.join(sorted(missing)) or 'none'}; "
            f"unknown: {', '.join(sorted(unknown)) or 'none'})",
        )
    for key, value in line.items():
        expected = fields.get(key) or later[key]
        # bool is an int in Python, and never one here.
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise _damaged(where, f"has {key} {value!r}, expected {_type_name(expected)}")


def _type_name(expected: type | tuple[type, ...]) -> str:
    types = expected if isinstance(expected, tuple) else (expected,)
    return " or ".join(kind.__name__ for kind in types)


def _session(where: str, line: dict[str, Any]) -> Session:
    try:
        environment = Environment(**line["environment"])
    except (TypeError, RecordError) as error:
        raise _damaged(where, f"has an environment that is wrong ({error})") from error
    return Session(
        netbench_version=line["netbench_version"],
        created=line["created"],
        command=tuple(line["command"]),
        environment=environment,
    )


def _record(where: str, line: dict[str, Any], plans: Mapping[str, object]) -> Record:
    if line["plan_hash"] not in plans:
        raise _damaged(where, f"belongs to plan {line['plan_hash']}, which no line above holds")
    try:
        return Record(**line | {"sent_bytes": tuple(line.get("sent_bytes", ()))})
    except RecordError as error:
        raise _damaged(where, str(error)) from error


def _damaged(where: str, found: str) -> RecordError:
    return RecordError(
        f"{where}: this line {found}. Delete the line to keep the rest, or restore the file"
    )
