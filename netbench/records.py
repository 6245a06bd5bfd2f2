"""Records of a run: `results/<run-id>/records.jsonl`, with one JSON object per line.

Kinds of lines, in the order in which a run writes them:

- `run`: one session of a controller. It is the first line; every resumption adds one.
- `plan`: a plan and its hash, before its first iteration.
- `prediction`: seconds per iteration of a plan, simulated before it ran.
- `probe`: measurements that verify the shaped network.
- `doubt`: a reason not to trust a plan, on disk before the iteration it is about.
- `iteration`: one `Record`, on disk before the next iteration starts.
- `verdict`: the end of the run: whether it can be trusted, and why not.

The file is append-only. A line counts once its newline is on disk. A killed controller may leave
a last line without one, which is dropped when the run is resumed. Every line ends with a `check`
of itself and all lines above, so a file that was changed later is not trusted.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from netbench.errors import RecordError
from netbench.files import MAX_RECORD_BYTES, read_input
from netbench.units import counted
from netbench.version import __version__

SCHEMA_VERSION = 3
FIRST_CHECKED_VERSION = 3
"""Lines of earlier versions have no `check`."""

HASH_DIGITS = 12
"""Hexadecimal digits of a plan's hash: 48 bits, plenty for the plans of one project."""

FILE_NAME = "records.jsonl"
SOURCES = ("published", "simulated", "emulated", "measured")
TESTBEDS = ("native", "guest-virtual", "guest-real", "cluster", "sim")

_RUN_ID = re.compile(r"(?P<scenario>.+)-(?P<created>\d{8}-\d{6})-[0-9a-f]{4}")
_CHECK = re.compile(rb',"check":"([0-9a-f]{16})"}$')
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
    "doubt": {"plan_hash": str, "reason": str},
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
    "iteration": {
        "loss": _NUMBER,
        "sent_bytes": list,
        "peers": int,
        "samples": int,
        "hosts": list,
        "parts_s": list,
    }
}
"""Fields that older records lack; written only if they have a value."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Environment of a session.

    kernel: release of the kernel that shaped the network, `none` in a simulation. mode: testbed,
    one of `TESTBEDS` (the field has its old name on disk). scale: divisor of bytes and bandwidths.
    versions: those of `python`, `torch` and `iproute2`. machine: description of the host. rules:
    `TRAINER_RULES` of the trainers; 0 in simulations and in records without the field.
    """

    kernel: str
    mode: str
    scale: float
    versions: dict[str, str]
    machine: str
    rules: int = 0

    def __post_init__(self) -> None:
        if self.mode not in TESTBEDS:
            raise RecordError(f"mode {self.mode!r} is not one of {', '.join(TESTBEDS)}")
        texts = (self.kernel, self.machine, *dict(self.versions).values())
        if not all(isinstance(text, str) for text in texts):
            raise RecordError(f"kernel, machine and versions are {texts!r}, expected texts")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSample:
    """Use of one host by a run, from before the start of an iteration to after its end.

    seconds: from one to the other, on the host's clock. cpu_s: CPU seconds of the run's processes.
    sent_bytes: as in `Record`, of all nodes on the host. memory_bytes: most memory in use on the
    host, by whomever. gpu_memory_bytes: the same for the fullest of its GPUs; None without GPUs.
    """

    host: str
    seconds: float
    cpu_s: float
    sent_bytes: int
    memory_bytes: int
    gpu_memory_bytes: int | None

    def __post_init__(self) -> None:
        numbers = (self.cpu_s, self.sent_bytes, self.memory_bytes, self.gpu_memory_bytes or 0)
        if not 0 <= self.seconds <= sys.float_info.max or not 0 <= min(numbers) < math.inf:
            raise RecordError(f"a sample of host {self.host} has a number below 0")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the sample with these values, from JSON. Raises RecordError for others."""
        try:
            return cls(**values)
        except TypeError as error:
            raise RecordError(f"a sample of a host is damaged ({error})") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One iteration of one plan.

    iteration: index from 0, warm-ups included. iteration_s: seconds from the common start to the
    last rank's end. phases: seconds by name, e.g. `forward`. source: one of `SOURCES`. loss: mean
    over the batch, if layers compute. sent_bytes: bytes by node that its interface counted, with
    headers and divided by the scale; empty if nothing was sent. peers: number of ranks that took
    part, if peers can join and leave. samples: that reached the model, if that differs between
    iterations. hosts: what was used on each, in the order of nodes; empty if
    all nodes were on this machine. parts_s: seconds of the two short iterations that ran, from
    which iteration_s, phases and sent_bytes are extended (`Plan.parts`); empty if it ran whole.
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
    samples: int | None = None
    hosts: tuple[HostSample, ...] = ()
    parts_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.iteration_s <= sys.float_info.max:
            raise RecordError(f"iteration_s is {self.iteration_s}, expected seconds above 0")
        if not all(type(part) is float and 0 < part < math.inf for part in self.parts_s):
            raise RecordError(f"parts_s is {self.parts_s}, expected seconds above 0")
        if self.iteration < 0:
            raise RecordError(f"iteration is {self.iteration}, expected an index from 0")
        if self.source not in SOURCES:
            raise RecordError(f"source {self.source!r} is not one of {', '.join(SOURCES)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Session of a controller. created: ISO 8601, local time. command: its arguments."""

    netbench_version: str
    created: str
    command: tuple[str, ...]
    environment: Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Result of a verification of the network. plan_hash: None = for the whole run."""

    plan_hash: str | None
    result: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Verdict at the end of a run. plan_hash: None = on the whole run. reasons: why not."""

    plan_hash: str | None
    trustworthy: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Content of a record file. plans: hash -> the plan's JSON, in the order recorded.

    predictions: hash -> simulated seconds per iteration, if the plan can be simulated. reasons: why
    the run is not trustworthy, of all its sessions; empty if it is.
    """

    path: Path
    run_id: str
    sessions: tuple[Session, ...]
    plans: dict[str, dict[str, Any]]
    predictions: dict[str, float]
    probes: tuple[Probe, ...]
    records: tuple[Record, ...]
    verdicts: tuple[Verdict, ...]
    reasons: tuple[str, ...]

    @property
    def scales(self) -> tuple[float, ...]:
        """Return the scales of its plans, from small to large; without plans, of its sessions."""
        known = {float(plan["scale"]) for plan in self.plans.values() if "scale" in plan}
        return tuple(sorted(known or {each.environment.scale for each in self.sessions}))

    @property
    def shared_reasons(self) -> tuple[str, ...]:
        """Return `reasons`, with one that several plans have told once: `a, b, c: reason`."""
        variants = {str(plan.get("variant", "")) for plan in self.plans.values()}
        found: dict[str, list[str]] = {}
        for reason in self.reasons:
            name, _, text = reason.partition(" ")
            key, names = (text, [name]) if name in variants else (reason, [])
            found.setdefault(key, []).extend(names)
        return tuple(
            f"{', '.join(names)}: {text}" if len(names) > 1 else " ".join([*names, text])
            for text, names in found.items()
        )


def read_run(path: Path) -> Run:
    """Read a run from its folder or its record file, without an incomplete last line.

    No lock is taken, so a run that is still being written can be read.
    Raises RecordError for a file that is missing, damaged or from a newer netbench.
    """
    path = _record_file(path)
    data = _read_bytes(path)
    return _parse(path, data[: data.rfind(b"\n") + 1])


def list_runs(results: Path) -> tuple[Path, ...]:
    """Return the folders of all runs in `results` and `results/recorded`, oldest first."""
    found = [
        (match["created"], path.parent)
        for folder in (results, results / "recorded")
        for path in folder.glob(f"*/{FILE_NAME}")
        if (match := _RUN_ID.fullmatch(path.parent.name))
    ]
    return tuple(path for _, path in sorted(found))


def find_run(results: Path, scenario: str) -> Path | None:
    """Find the newest run of a scenario in `results`, else in `results/recorded`."""
    return next(find_runs(results, scenario), None)


def newest_run(results: Path) -> Path | None:
    """Find the newest run of all in `results`, else in `results/recorded`."""
    return next(find_runs(results), None)


def find_runs(results: Path, scenario: str | None = None) -> Iterator[Path]:
    """Yield the runs of a scenario, newest first: those in `results`, then in its `recorded`.

    scenario: None = of all.
    """
    for folder in (results, results / "recorded"):
        runs = [
            (match["created"], path)
            for path in folder.glob(f"*/{FILE_NAME}")
            if (match := _RUN_ID.fullmatch(path.parent.name))
            and scenario in (None, match["scenario"])
            and path.stat().st_size  # empty if the controller was killed at once
        ]
        yield from (path for _, path in sorted(runs, reverse=True))


class RunStore(AbstractContextManager["RunStore"]):
    """Only writer of a run. When an `append_*` returns, its line is on disk.

    It holds an exclusive lock on the record file: use it as a context manager, or `close` it.
    """

    def __init__(self, path: Path, descriptor: int, run: Run | None, run_id: str) -> None:
        """Internal; use `create` or `open`."""
        self.path = path
        self.run_id = run_id
        self._descriptor = descriptor
        self._check = _last_check(path)
        self._reasons = dict.fromkeys(run.reasons if run else ())
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

        created: the caller's current time. Raises RecordError if the folder cannot be written.
        """
        run_id = f"{scenario}-{created:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        path = results / run_id / FILE_NAME
        try:
            path.parent.mkdir(mode=0o700, parents=True)  # a command line may contain a secret
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
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
        """Lock an existing run, given by its folder or record file, and drop a partial last line.

        Call `append_session` next. Raises RecordError if another controller is writing the run,
        and for the same files as `read_run`.
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
        """Record the session that continues the run."""
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
        """Record a plan, unless the run already has it."""
        if plan_hash not in self._plans:
            self._append("plan", plan_hash=plan_hash, plan=dict(plan))
            self._plans[plan_hash] = dict(plan)

    def append_prediction(self, plan_hash: str, iteration_s: float) -> None:
        """Record the simulated time of a recorded plan, unless the run already has one."""
        if plan_hash not in self._predicted:
            self._append("prediction", plan_hash=plan_hash, iteration_s=iteration_s)
            self._predicted.add(plan_hash)

    def append_probe(self, result: Mapping[str, Any], *, plan_hash: str | None = None) -> None:
        """Record the result of a verification of the network. Its `reasons` are doubts."""
        self._append("probe", plan_hash=plan_hash, result=dict(result))
        self._reasons.update(dict.fromkeys(result.get("reasons", ())))

    def append_doubt(self, plan_hash: str, reason: str) -> None:
        """Record a reason not to trust a plan, unless the run already has it."""
        if reason not in self._reasons:
            self._append("doubt", plan_hash=plan_hash, reason=reason)
            self._reasons[reason] = None

    def append_iteration(self, record: Record) -> None:
        """Record an iteration of a recorded plan. Raises RecordError for a repeated index."""
        done = self._iterations.get(record.plan_hash, set())
        if record.plan_hash not in self._plans:
            raise RecordError(
                f"{self.path}: plan {record.plan_hash} is not in the run; record it first"
            )
        if record.iteration in done:
            raise RecordError(
                f"{self.path}: iteration {record.iteration} of plan {record.plan_hash} is already "
                "recorded; run only the missing ones"
            )
        later = _LATER_FIELDS["iteration"]
        values = {k: v for k, v in asdict(record).items() if k not in later or v not in (None, ())}
        self._append("iteration", **values)
        self._iterations.setdefault(record.plan_hash, set()).add(record.iteration)

    def append_verdict(self) -> None:
        """Record the end of the run, with the reasons of all its sessions not to trust it."""
        reasons = list(self._reasons)
        self._append("verdict", plan_hash=None, trustworthy=not reasons, reasons=reasons)

    def close(self) -> None:
        """Release the lock. Closing twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, kind: str, **values: object) -> None:
        """Append a line with one write and one fsync, so that readers never see mixed lines."""
        try:
            text = json.dumps({"kind": kind, **values}, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.path}: a {kind} line is not JSON: {error}") from error
        check = _check(self._check, text.encode())
        data = f'{text[:-1]},"check":"{check}"}}\n'.encode()
        size_bytes = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                found = f"disk full after {written} of {len(data)} bytes"
                raise OSError(errno.ENOSPC, found)
            os.fsync(self._descriptor)
        except OSError as error:
            # Remove the partial line; if that fails too, `open` drops it later.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size_bytes)
            num_kept = sum(map(len, self._iterations.values()))
            raise RecordError(
                f"{self.path}: cannot record the {kind}: {error.strerror}. Earlier records are "
                f"kept ({counted(num_kept, 'iteration')}). Free some space, then continue with "
                f"--resume {self.path.parent}"
            ) from error
        self._check = check


def canonical_text(data: object) -> str:
    """Return JSON data as one line: equal data give equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(text: str) -> str:
    """Return the first `HASH_DIGITS` hexadecimal digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def _check(above: str, line: bytes) -> str:
    """Return the check of a line without its own. above: that of the line above, or ""."""
    return hashlib.sha256(above.encode() + line).hexdigest()[:16]


def _split_check(line: bytes) -> tuple[bytes, str]:
    """Split the text of a line into the line without its check, and its check or ""."""
    found = _CHECK.search(line)
    return (line[: found.start()] + b"}", found[1].decode()) if found else (line, "")


def _last_check(path: Path) -> str:
    """Return the check of the last line of a file, "" for an empty file."""
    return _split_check(_read_bytes(path).rstrip(b"\n").rpartition(b"\n")[2])[1]


def _record_file(path: Path) -> Path:
    """Return the record file of a run given by its folder or by the file."""
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
        return read_input(path, MAX_RECORD_BYTES)
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be read: {error.strerror}; expected a run's folder or its {FILE_NAME}"
        ) from error


def _recover(path: Path, descriptor: int) -> Run:
    """Read the run and truncate its file after the last complete line."""
    data = _read_bytes(path)
    complete = data.rfind(b"\n") + 1
    run = _parse(path, data[:complete])
    if complete < len(data):
        log.warning("%s: dropped an incomplete last line of %d bytes", path, len(data) - complete)
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
    doubts: list[str] = []
    changed: list[str] = []
    run_id, above, version = "", "", 0
    for where, kind, line, text in _lines(path, data):
        version = line.get("schema_version", version)
        line_name = where.removeprefix(f"{path.parent}{os.sep}")  # the same wherever it is read
        body, check = _split_check(text)
        if version >= FIRST_CHECKED_VERSION and check != _check(above, body):
            changed.append(f"{line_name} was changed after it was written, or a line above it was")
        above = check
        if kind == "run":
            run_id = line["run_id"]
            sessions.append(_session(where, line))
        elif kind == "plan":
            plans[line["plan_hash"]] = line["plan"]
            if _hash_of(where, line["plan"]) != line["plan_hash"]:
                doubts.append(
                    f"plan {line['plan_hash']} ({line_name}) is not the plan of that hash"
                )
        elif kind == "prediction":
            predictions[line["plan_hash"]] = _prediction_s(where, line["iteration_s"])
        elif kind == "probe":
            probes.append(Probe(**line))
            doubts += _reasons(where, line["result"].get("reasons", []))
        elif kind == "doubt":
            doubts.append(line["reason"])
        elif kind == "iteration":
            record = _record(where, line, plans)
            if records.setdefault((record.plan_hash, record.iteration), record) is not record:
                raise _damaged(where, "repeats an iteration recorded above")
        else:
            verdicts.append(Verdict(**line | {"reasons": tuple(line["reasons"])}))
            doubts += _reasons(where, line["reasons"])
            if not (line["trustworthy"] or doubts):
                doubts.append("no reason was recorded")
    return Run(
        path=path,
        run_id=run_id,
        sessions=tuple(sessions),
        plans=plans,
        predictions=predictions,
        probes=tuple(probes),
        records=tuple(records.values()),
        verdicts=tuple(verdicts),
        reasons=tuple(dict.fromkeys([*doubts, *changed[:1]])),
    )


def _lines(path: Path, data: bytes) -> Iterator[tuple[str, str, dict[str, Any], bytes]]:
    """Yield (file:line, kind, values, text) of every line; the first one must be a `run`."""
    if not data:
        raise RecordError(
            f"{path}: has no complete line, so it contains no run; "
            f"delete {path.parent} and start a new run"
        )
    for number, text in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"{path}:{number}"
        try:
            line = json.loads(text)
        except ValueError as error:
            raise _damaged(where, f"is not JSON ({error})") from error
        kind = line.pop("kind", None) if isinstance(line, dict) else None
        if kind is not None:
            line.pop("check", None)  # compared in `_parse`
        if not isinstance(kind, str) or kind not in _LINE_FIELDS or (number == 1 and kind != "run"):
            expected = "run" if number == 1 else ", ".join(_LINE_FIELDS)
            raise _damaged(where, f"has kind {kind!r}, expected {expected}")
        if kind == "run":
            _check_version(where, line)
        _check_fields(where, kind, line)
        yield where, kind, line, text


def _check_version(where: str, line: dict[str, Any]) -> None:
    version = line.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RecordError(
            f"{where}: schema version {version}, written by netbench "
            f"{line.get('netbench_version', 'unknown')}; this is netbench {__version__}, which "
            f"reads versions up to {SCHEMA_VERSION}; upgrade netbench"
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
            types = expected if isinstance(expected, tuple) else (expected,)
            names = " or ".join(kind.__name__ for kind in types)
            raise _damaged(where, f"has {key} {value!r}, expected {names}")


def _session(where: str, line: dict[str, Any]) -> Session:
    try:
        environment = Environment(**line["environment"])
    except (TypeError, ValueError, RecordError) as error:
        raise _damaged(where, f"has an invalid environment ({error})") from error
    return Session(
        netbench_version=line["netbench_version"],
        created=line["created"],
        command=tuple(line["command"]),
        environment=environment,
    )


def _hash_of(where: str, plan: Mapping[str, Any]) -> str:
    try:
        return content_hash(canonical_text(plan))
    except ValueError:
        raise _damaged(where, "has a plan with a number that is not finite") from None


def _reasons(where: str, reasons: object) -> list[str]:
    if isinstance(reasons, list) and all(isinstance(reason, str) for reason in reasons):
        return reasons
    raise _damaged(where, f"has reasons {reasons!r}, expected a list of texts")


def _prediction_s(where: str, iteration_s: float) -> float:
    if not 0 < iteration_s <= sys.float_info.max:
        raise _damaged(where, f"has iteration_s {iteration_s}, expected seconds above 0")
    return iteration_s


def _record(where: str, line: dict[str, Any], plans: Mapping[str, object]) -> Record:
    if line["plan_hash"] not in plans:
        raise _damaged(where, f"belongs to plan {line['plan_hash']}, which no line above records")
    try:
        later = {
            "sent_bytes": tuple(line.get("sent_bytes", ())),
            "hosts": tuple(map(HostSample.of, line.get("hosts", ()))),
            "parts_s": tuple(line.get("parts_s", ())),
        }
        return Record(**line | later)
    except RecordError as error:
        raise _damaged(where, str(error)) from error


def _damaged(where: str, found: str) -> RecordError:
    return RecordError(
        f"{where}: this line {found}. Restore the file, or delete the line: the rest can then be "
        "read, but is not trusted"
    )
