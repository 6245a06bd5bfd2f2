"""The record store keeps what it wrote, whatever happens to the writer or the disk."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import RecordError
from netbench.records import (
    FILE_NAME,
    SCHEMA_VERSION,
    Environment,
    HostSample,
    Record,
    Run,
    RunStore,
    find_run,
    find_runs,
    read_run,
)
from tests import runs

CREATED = datetime(2026, 3, 14, 15, 9, 26)
ENVIRONMENT = Environment(
    kernel="6.12.1",
    mode="guest-virtual",
    scale=1000.0,
    versions={"python": "3.11.2", "torch": "2.13.0", "iproute2": "6.1.0"},
    machine="2 cores",
)


def create(results: Path, scenario: str = "case3", created: datetime = CREATED) -> RunStore:
    return RunStore.create(
        results,
        scenario=scenario,
        created=created,
        command=["netbench", "run", scenario],
        environment=ENVIRONMENT,
    )


def record(
    store: RunStore, iteration: int, plan_hash: str = "abc", seconds: float = 18.5
) -> Record:
    return Record(
        run_id=store.run_id,
        plan_hash=plan_hash,
        scenario="case3",
        variant="dtfm-random",
        system="dtfm",
        layers=24,
        batch=1024,
        seed=2022,
        iteration=iteration,
        warmup=iteration == 0,
        iteration_s=seconds,
        phases={"forward": 6.25, "backward": 12.25},
        source="emulated",
    )


def test_a_run_is_open_to_its_owner_only(tmp_path: Path) -> None:
    """A command line may contain a secret; the folder of all runs stays as it is."""
    former = os.umask(0)
    try:
        with create(tmp_path / "results") as store:
            path = store.path
    finally:
        os.umask(former)
    modes = [one.stat().st_mode & 0o777 for one in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o777]


def write_run(results: Path, iterations: int = 3) -> Path:
    """Write a run with one line of every kind but `prediction`; return its record file."""
    with create(results) as store:
        store.append_plan("abc", {"iterations": iterations, "variant": "dtfm-random"})
        store.append_probe({"links": [{"rtt_s": 0.022}]}, plan_hash="abc")
        store.append_doubt("abc", "rtt 9% off")
        for iteration in range(iterations):
            store.append_iteration(record(store, iteration))
        store.append_verdict()
    return store.path


def test_everything_appended_is_read_back(tmp_path: Path) -> None:
    """Every kind of line is read back unchanged."""
    run = read_run(write_run(tmp_path))
    assert run.run_id == run.path.parent.name
    assert run.run_id.startswith("case3-20260314-150926-")
    assert [session.environment for session in run.sessions] == [ENVIRONMENT]
    assert run.sessions[0].command == ("netbench", "run", "case3")
    assert run.plans == {"abc": {"iterations": 3, "variant": "dtfm-random"}}
    assert run.probes[0].result == {"links": [{"rtt_s": 0.022}]}
    assert [(r.iteration, r.warmup) for r in run.records] == [(0, True), (1, False), (2, False)]
    assert run.records[1].phases == {"forward": 6.25, "backward": 12.25}
    assert run.verdicts[0].reasons == ("rtt 9% off",)


def test_a_run_in_progress_can_be_read_after_every_iteration(tmp_path: Path) -> None:
    """An iteration is in the file as soon as `append_iteration` returns."""
    with create(tmp_path) as store:
        store.append_plan("abc", {"iterations": 3})
        for iteration in range(3):
            store.append_iteration(record(store, iteration))
            assert len(read_run(store.path).records) == iteration + 1


def test_a_resumed_run_refuses_iterations_it_already_has(tmp_path: Path) -> None:
    """A resumed run takes only the iterations that are not on disk, and records a plan once."""
    with create(tmp_path) as store:
        store.append_plan("abc", {"iterations": 3})
        store.append_iteration(record(store, 0))
        store.append_iteration(record(store, 2))
    with RunStore.open(store.path.parent) as resumed:
        with pytest.raises(RecordError, match="iteration 2 of plan abc is already recorded"):
            resumed.append_iteration(record(resumed, 2))
        resumed.append_session(created=CREATED, command=["--resume"], environment=ENVIRONMENT)
        resumed.append_plan("abc", {"iterations": 3})
        resumed.append_iteration(record(resumed, 1))
    run = read_run(store.path)
    assert len(run.sessions) == 2
    assert store.path.read_text().count('"kind":"plan"') == 1
    assert sorted(r.iteration for r in run.records) == [0, 1, 2]


def test_iterations_of_an_unknown_plan_are_refused(tmp_path: Path) -> None:
    """A plan is recorded before its iterations."""
    refused = pytest.raises(RecordError, match="plan nope is not in the run; record it first")
    with create(tmp_path) as store, refused:
        store.append_iteration(record(store, 0, plan_hash="nope"))


def test_two_controllers_cannot_write_one_run(tmp_path: Path) -> None:
    """A second store is refused until the first one is closed."""
    with create(tmp_path) as store, pytest.raises(RecordError, match="another netbench is writing"):
        RunStore.open(store.path)
    RunStore.open(store.path).close()


def test_two_runs_started_in_one_second_get_two_folders(tmp_path: Path) -> None:
    """The random part of the run id distinguishes them."""
    with create(tmp_path) as first, create(tmp_path) as second:
        assert first.path != second.path


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=0))
def test_any_prefix_of_a_run_can_be_resumed(cut: int) -> None:
    """Complete lines are kept wherever the writer was killed, and the run can be finished."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_run(Path(folder))
        data = path.read_bytes()
        kept = data[: cut % (len(data) + 1)]
        path.write_bytes(kept)
        complete = kept[: kept.rfind(b"\n") + 1]
        if not complete:
            with pytest.raises(RecordError, match="has no complete line"):
                RunStore.open(path)
            return
        assert len(read_run(path).records) == complete.count(b'"kind":"iteration"')
        with RunStore.open(path) as store:
            assert path.read_bytes() == complete
            store.append_plan("abc", {"iterations": 3})
            for iteration in range(complete.count(b'"kind":"iteration"'), 3):
                store.append_iteration(record(store, iteration))
        assert sorted(r.iteration for r in read_run(path).records) == [0, 1, 2]


def test_dropping_a_partial_line_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the file."""
    path = write_run(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        RunStore.open(path).close()
    assert f"{path}: dropped an incomplete last line" in caplog.text


def edit_line(path: Path, number: int, **values: object) -> None:
    """Change keys of line `number` (from 1); a value of None removes the key."""
    lines = path.read_text().splitlines()
    line = json.loads(lines[number - 1]) | values
    lines[number - 1] = json.dumps({k: v for k, v in line.items() if v is not None})
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "rumour"}, "has kind 'rumour', expected run, plan"),
        ({"kind": [[]]}, "has kind [[]], expected run, plan"),
        ({"seed": None}, "missing: seed; unknown: none"),
        ({"colour": 3}, "missing: none; unknown: colour"),
        ({"seed": "2022"}, "has seed '2022', expected int"),
        ({"seed": True}, "has seed True, expected int"),
        ({"iteration_s": -1.0}, "iteration_s is -1.0, expected seconds above 0"),
        ({"source": "guessed"}, "source 'guessed' is not one of published"),
        ({"iteration": 1}, "repeats an iteration recorded above"),
        ({"plan_hash": "zzz"}, "belongs to plan zzz, which no line above records"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """Reading and resuming report file, line, problem and remedy."""
    path = write_run(tmp_path)
    edit_line(path, 7, **change)
    for reader in (read_run, RunStore.open):
        with pytest.raises(RecordError) as caught:
            reader(path)
        assert f"{path}:7: this line" in str(caught.value)
        assert message in str(caught.value)
        assert "Restore the file" in str(caught.value)


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (2, {"plan": {"batch": float("inf")}}, "has a plan with a number that is not finite"),
        (3, {"result": {"reasons": None}}, "has reasons None, expected a list of texts"),
        (3, {"result": {"reasons": [[1]]}}, "has reasons [[1]], expected a list of texts"),
        (8, {"reasons": [{}], "plan_hash": "abc"}, "has reasons [{}], expected a list of texts"),
    ],
)
def test_damage_inside_a_value_is_named(
    tmp_path: Path, number: int, change: dict[str, object], message: str
) -> None:
    """Plans and reasons are read, too."""
    path = write_run(tmp_path)
    edit_line(path, number, **change)
    with pytest.raises(RecordError, match=re.escape(f"{path}:{number}: this line {message}")):
        read_run(path)


def finished_run(results: Path) -> Path:
    """Write a run of two plans with true hashes, two iterations each; return its record file."""
    times: runs.Times = {("zero3", 24, 1024, 1): [5.0, 4.0], ("ddp", 24, 1024, 1): [3.0, 2.0]}
    return runs.write_run(results, times)


@pytest.mark.parametrize(
    ("number", "key", "value"),
    [(3, "plan", {"iterations": 2}), (4, "iteration_s", 4.5), (5, "loss", 0.1), (7, "seed", 3),
     (1, "created", "2026-01-01T00:00:00")],
)  # fmt: skip
def test_a_changed_line_is_a_reason_not_to_trust(
    tmp_path: Path, number: int, key: str, value: object
) -> None:
    """It may be a valid line, and the run may go on after the change."""
    path = finished_run(tmp_path)
    assert read_run(path).reasons == ()
    edit_line(path, number, **{key: value})
    assert f"{path.name}:{number} was changed" in read_run(path).reasons[-1]
    with RunStore.open(path) as store:
        store.append_verdict()
    assert f"{path.name}:{number} was changed" in read_run(path).verdicts[-1].reasons[-1]


def test_a_line_that_is_gone_is_a_reason_not_to_trust(tmp_path: Path) -> None:
    """The line after it tells."""
    path = finished_run(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    assert f"{path.name}:5 was changed" in read_run(path).reasons[0]


def test_a_plan_is_compared_with_its_hash(tmp_path: Path) -> None:
    """In a file of an earlier version too, whose lines have no check."""
    path = finished_run(tmp_path)
    without = re.sub(r',"check":"[0-9a-f]+"', "", path.read_text())
    path.write_text(without.replace('"schema_version":3', '"schema_version":2'))
    assert read_run(path).reasons == ()
    edit_line(path, 3, plan={"iterations": 2})
    (reason,) = read_run(path).reasons
    assert "is not the plan of that hash" in reason


def test_reasons_of_every_session_count(tmp_path: Path) -> None:
    """A doubt of a session that was interrupted is in the verdict of the one that finished."""
    with create(tmp_path) as store:
        store.append_plan("abc", {"iterations": 1})
        store.append_probe({"reasons": ["rtt 9% off"]})
        store.append_doubt("abc", "3 packets dropped")
    with RunStore.open(store.path) as resumed:
        resumed.append_session(created=CREATED, command=["--resume"], environment=ENVIRONMENT)
        resumed.append_doubt("abc", "3 packets dropped")
        resumed.append_verdict()
    (verdict,) = read_run(store.path).verdicts
    assert not verdict.trustworthy
    assert [reason for reason in verdict.reasons if "hash" not in reason] == [
        "rtt 9% off", "3 packets dropped",
    ]  # fmt: skip
    assert store.path.read_text().count('"kind":"doubt"') == 1


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 10**400])
def test_an_impossible_prediction_is_named(tmp_path: Path, seconds: float) -> None:
    with create(tmp_path) as store:
        store.append_plan("abc", {"iterations": 1})
        store.append_prediction("abc", seconds)
    with pytest.raises(RecordError, match=r":3: this line has iteration_s .*, expected seconds"):
        read_run(store.path)


def test_an_empty_run_is_not_the_newest(tmp_path: Path) -> None:
    """A controller that was killed at once left a file without a line."""
    path = finished_run(tmp_path)
    scenario = path.parent.name.rsplit("-", 3)[0]
    empty = tmp_path / f"{scenario}-29991231-235959-abcd" / path.name
    empty.parent.mkdir()
    empty.touch()
    assert find_run(tmp_path, scenario) == path


@pytest.mark.parametrize("garbage", [b"\x00\xff\xfe", b"[1]", b"", b'{"kind": "run"'])
def test_garbage_in_the_middle_is_named(tmp_path: Path, garbage: bytes) -> None:
    """An invalid line is reported with its number."""
    path = write_run(tmp_path)
    lines = path.read_bytes().split(b"\n")
    lines[3] = garbage
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordError, match=rf"{path}:4: this line"):
        read_run(path)


def test_a_file_that_does_not_start_with_its_run_is_refused(tmp_path: Path) -> None:
    """The first line says where the records come from."""
    path = write_run(tmp_path)
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(RecordError, match="has kind 'plan', expected run"):
        read_run(path)


def test_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    """A newer file is not read in part."""
    path = write_run(tmp_path)
    edit_line(path, 1, schema_version=SCHEMA_VERSION + 1, netbench_version="9.0.0", extra=1)
    with pytest.raises(RecordError, match=r"written by netbench 9\.0\.0.*upgrade netbench"):
        read_run(path)


def test_a_wrong_environment_is_refused(tmp_path: Path) -> None:
    """The testbed must be a known one, on writing and on reading."""
    with pytest.raises(RecordError, match="mode 'dream' is not one of native"):
        Environment(kernel="", mode="dream", scale=1.0, versions={}, machine="")
    path = write_run(tmp_path)
    good = dataclasses.asdict(ENVIRONMENT)
    for wrong in ({"mode": "native"}, good | {"versions": 7}, good | {"versions": {"torch": []}}):
        edit_line(path, 1, environment=wrong)
        with pytest.raises(RecordError, match=rf"{path}:1: this line has an invalid environment"):
            read_run(path)


def test_a_missing_run_is_one_message(tmp_path: Path) -> None:
    """Reading and resuming report a missing file."""
    for reader in (read_run, RunStore.open):
        with pytest.raises(RecordError, match="No such file"):
            reader(tmp_path / "case3-20260101-000000-0000")


def test_results_that_cannot_be_written_are_one_message(tmp_path: Path) -> None:
    """The results folder may be a file, for example."""
    (tmp_path / "results").write_text("")
    with pytest.raises(RecordError, match=r"cannot start a run: Not a directory"):
        create(tmp_path / "results")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_an_impossible_time_is_not_recorded(tmp_path: Path, seconds: float) -> None:
    """NaN, infinite, zero and negative times are refused before they reach the file."""
    with create(tmp_path) as store, pytest.raises(RecordError, match="expected seconds above 0"):
        record(store, 0, seconds=seconds)


def test_a_probe_that_is_not_json_is_refused(tmp_path: Path) -> None:
    """NaN and objects are refused, and the file does not change."""
    with create(tmp_path) as store:
        size = store.path.stat().st_size
        for value in (float("nan"), object()):
            with pytest.raises(RecordError, match="a probe line is not JSON"):
                store.append_probe({"value": value})
        assert store.path.stat().st_size == size


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    """On ENOSPC, here from /dev/full, the message says what is kept and how to continue."""
    with create(tmp_path) as store:
        store.append_plan("abc", {"iterations": 2})
        store.append_iteration(record(store, 0))
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, store._descriptor)
        os.close(full)
        with pytest.raises(RecordError) as caught:
            store.append_iteration(record(store, 1))
    message = str(caught.value)
    assert "cannot record the iteration: No space left on device" in message
    assert "kept (1 iteration)" in message
    assert f"--resume {store.path.parent}" in message
    assert [r.iteration for r in read_run(store.path).records] == [0]


FILL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_records import create, record
from netbench.errors import RecordError

with create(Path({results!r})) as store:
    store.append_plan("abc", {{"iterations": 100}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    try:
        for iteration in range(100):
            store.append_iteration(record(store, iteration))
    except RecordError as error:
        print(error)
"""


def test_a_line_written_in_part_is_removed(tmp_path: Path) -> None:
    """After a write that hits RLIMIT_FSIZE, the file ends with a complete line."""
    program = FILL.format(tests=str(Path(__file__).parent), results=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    path = next(tmp_path.glob(f"*/{FILE_NAME}"))
    assert "disk full after" in done.stdout
    assert 1000 < path.stat().st_size < 2000
    assert path.read_bytes().endswith(b"}\n")
    with RunStore.open(path) as store:
        num_kept = len(read_run(path).records)
        assert 0 < num_kept < 100
        store.append_iteration(record(store, num_kept))


def test_the_newest_run_of_a_scenario_is_found(tmp_path: Path) -> None:
    """The time in the name decides; recorded runs count only if there are no others."""
    recorded = tmp_path / "recorded"
    with create(recorded, created=CREATED.replace(year=2030)) as kept:
        pass
    assert find_run(tmp_path, "case3") == kept.path
    for month in (4, 6, 5):
        create(tmp_path, created=CREATED.replace(month=month)).close()
    create(tmp_path, scenario="case3-fast", created=CREATED.replace(month=12)).close()
    found = find_run(tmp_path, "case3")
    assert found is not None
    assert found.parent.name.startswith("case3-20260614-150926-")
    assert find_run(tmp_path, "case4") is None


SAMPLES = (
    HostSample(
        host="gpu-1",
        seconds=18.75,
        cpu_s=20.5,
        sent_bytes=10**9,
        memory_bytes=2**34,
        gpu_memory_bytes=2**30,
    ),
    HostSample(
        host="gpu-2",
        seconds=18.75,
        cpu_s=0.0,
        sent_bytes=0,
        memory_bytes=2**33,
        gpu_memory_bytes=None,
    ),
)


def test_samples_of_hosts_are_read_back(tmp_path: Path) -> None:
    """An iteration without any is written as before there were samples."""
    path = write_run(tmp_path)
    before = path.read_text()
    assert '"hosts"' not in before
    with RunStore.open(path) as store:
        store.append_iteration(dataclasses.replace(record(store, 3), hosts=SAMPLES))
    assert path.read_text().startswith(before)
    found = read_run(path)
    assert [r.hosts for r in found.records] == [(), (), (), SAMPLES]
    assert found.reasons == read_run(write_run(tmp_path / "again")).reasons


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cpu_s": -1.0}, "a sample of host gpu-1 has a number below 0"),
        ({"gpu_memory_bytes": -1}, "a sample of host gpu-1 has a number below 0"),
        ({"cpu_s": "many"}, "a sample of a host is damaged"),
        ({"unknown": 1}, "a sample of a host is damaged"),
    ],
)
def test_a_damaged_sample_is_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = write_run(tmp_path, iterations=0)
    with RunStore.open(path) as store:
        store.append_iteration(dataclasses.replace(record(store, 0), hosts=SAMPLES))
    lines = path.read_text().splitlines(keepends=True)
    line = json.loads(lines[-1])
    line["hosts"][0] |= change
    path.write_text("".join([*lines[:-1], json.dumps(line) + "\n"]))
    with pytest.raises(RecordError, match=message):
        read_run(path)


def test_runs_of_a_scenario_are_found_newest_first(tmp_path: Path) -> None:
    """Recorded runs come last."""
    for folder, day in ((tmp_path, 2), (tmp_path, 3), (tmp_path / "recorded", 9)):
        create(folder, created=datetime(2026, 1, day)).close()
    found = [path.parent.name.split("-")[1] for path in find_runs(tmp_path, "case3")]
    assert found == ["20260103", "20260102", "20260109"]
    first = find_run(tmp_path, "case3")
    assert first is not None
    assert first.parent.name.split("-")[1] == "20260103"


def test_a_reason_that_plans_share_is_told_once() -> None:
    """After the names of their variants; others stay as they are."""
    run = Run(
        path=Path("records.jsonl"),
        run_id="r",
        sessions=(),
        plans={"a": {"variant": "zero3"}, "b": {"variant": "ddp"}, "c": {"variant": "fsdp"}},
        predictions={},
        probes=(),
        records=(),
        verdicts=(),
        reasons=("zero3 is scaled", "rtt 9% off", "ddp is scaled", "fsdp is late"),
    )
    assert run.shared_reasons == ("zero3, ddp: is scaled", "rtt 9% off", "fsdp is late")
