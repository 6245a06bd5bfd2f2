"""The record store: what it writes is there, whatever happens to the writer or the disk."""

from __future__ import annotations

import json
import logging
import os
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
    Record,
    RunStore,
    find_run,
    read_run,
)

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


def write_run(results: Path, iterations: int = 3) -> Path:
    """A run with one line of every kind; returns its record file."""
    with create(results) as store:
        store.append_plan("abc", {"iterations": iterations, "variant": "dtfm-random"})
        store.append_probe({"links": [{"rtt_s": 0.022}]}, plan_hash="abc")
        for iteration in range(iterations):
            store.append_iteration(record(store, iteration))
        store.append_verdict(trustworthy=False, reasons=["rtt 9% off"], plan_hash="abc")
    return store.path


def test_everything_appended_is_read_back(tmp_path: Path) -> None:
    """A run read back equals what was appended, line kind by line kind."""
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
    """Each iteration is in the file as soon as `append_iteration` returns, without closing."""
    with create(tmp_path) as store:
        store.append_plan("abc", {"iterations": 3})
        for iteration in range(3):
            store.append_iteration(record(store, iteration))
            assert len(read_run(store.path).records) == iteration + 1


def test_resuming_finds_what_is_missing_and_repeats_nothing(tmp_path: Path) -> None:
    """After a resume only the iterations not on disk are missing; a second copy is refused."""
    with create(tmp_path) as store:
        store.append_plan("abc", {"iterations": 3})
        store.append_iteration(record(store, 0))
        store.append_iteration(record(store, 2))
    with RunStore.open(store.path.parent) as resumed:
        assert resumed.missing_iterations("abc", 3) == (1,)
        assert not resumed.finished("abc")
        with pytest.raises(RecordError, match="iteration 2 of plan abc is already recorded"):
            resumed.append_iteration(record(resumed, 2))
        resumed.append_session(created=CREATED, command=["--resume"], environment=ENVIRONMENT)
        resumed.append_plan("abc", {"iterations": 3})
        resumed.append_iteration(record(resumed, 1))
        assert resumed.finished("abc")
    run = read_run(store.path)
    assert len(run.sessions) == 2
    assert store.path.read_text().count('"kind":"plan"') == 1
    assert sorted(r.iteration for r in run.records) == [0, 1, 2]


def test_a_plan_never_recorded_is_not_finished(tmp_path: Path) -> None:
    """An unknown hash is unfinished and misses everything; its iterations are refused."""
    with create(tmp_path) as store:
        assert not store.finished("nope")
        assert store.missing_iterations("nope", 2) == (0, 1)
        with pytest.raises(RecordError, match="plan nope is not in the run"):
            store.append_iteration(record(store, 0, plan_hash="nope"))


def test_two_controllers_cannot_write_one_run(tmp_path: Path) -> None:
    """While one store is open a second is refused; once it is closed the run can be continued."""
    with create(tmp_path) as store, pytest.raises(RecordError, match="another netbench is writing"):
        RunStore.open(store.path)
    RunStore.open(store.path).close()


def test_two_runs_started_in_one_second_get_two_folders(tmp_path: Path) -> None:
    """The random part of the run id keeps runs that start together apart."""
    with create(tmp_path) as first, create(tmp_path) as second:
        assert first.path != second.path


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=0))
def test_any_prefix_of_a_run_can_be_resumed(cut: int) -> None:
    """Wherever the writer was killed, complete lines are kept and the run can be finished."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_run(Path(folder))
        data = path.read_bytes()
        kept = data[: cut % (len(data) + 1)]
        path.write_bytes(kept)
        complete = kept[: kept.rfind(b"\n") + 1]
        if not complete:
            with pytest.raises(RecordError, match="holds no complete line"):
                RunStore.open(path)
            return
        assert len(read_run(path).records) == complete.count(b'"kind":"iteration"')
        with RunStore.open(path) as store:
            assert path.read_bytes() == complete
            store.append_plan("abc", {"iterations": 3})
            for iteration in store.missing_iterations("abc", 3):
                store.append_iteration(record(store, iteration))
        assert sorted(r.iteration for r in read_run(path).records) == [0, 1, 2]


def test_dropping_a_partial_line_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Resuming after a kill warns with the file and how much was dropped."""
    path = write_run(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        RunStore.open(path).close()
    assert f"{path}: dropped the last line" in caplog.text


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
        ({"seed": None}, "missing: seed; unknown: none"),
        ({"colour": 3}, "missing: none; unknown: colour"),
        ({"seed": "2022"}, "has seed '2022', expected int"),
        ({"seed": True}, "has seed True, expected int"),
        ({"iteration_s": -1.0}, "iteration_s is -1.0, expected seconds above 0"),
        ({"source": "guessed"}, "source 'guessed' is none of published"),
        ({"iteration": 1}, "repeats an iteration recorded above"),
        ({"plan_hash": "zzz"}, "belongs to plan zzz, which no line above holds"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """A line that is wrong gives file:line, what was found and what to do, on read and resume."""
    path = write_run(tmp_path)
    edit_line(path, 6, **change)
    for reader in (read_run, RunStore.open):
        with pytest.raises(RecordError) as caught:
            reader(path)
        assert f"{path}:6: this line" in str(caught.value)
        assert message in str(caught.value)
        assert "restore the file" in str(caught.value)


@pytest.mark.parametrize("garbage", [b"\x00\xff\xfe", b"[1]", b"", b'{"kind": "run"'])
def test_garbage_in_the_middle_is_named(tmp_path: Path, garbage: bytes) -> None:
    """Bytes that are not a line of ours are reported by number, not skipped."""
    path = write_run(tmp_path)
    lines = path.read_bytes().split(b"\n")
    lines[3] = garbage
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordError, match=rf"{path}:4: this line"):
        read_run(path)


def test_a_file_that_does_not_start_with_its_run_is_refused(tmp_path: Path) -> None:
    """Without the first line nothing says where the records come from."""
    path = write_run(tmp_path)
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(RecordError, match="has kind 'plan', expected run"):
        read_run(path)


def test_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    """A file from the future is not half understood."""
    path = write_run(tmp_path)
    edit_line(path, 1, schema_version=SCHEMA_VERSION + 1, netbench_version="9.0.0", extra=1)
    with pytest.raises(RecordError, match=r"written by netbench 9\.0\.0.*upgrade netbench"):
        read_run(path)


def test_a_wrong_environment_is_refused(tmp_path: Path) -> None:
    """The mode is one of three words, on writing and on reading."""
    with pytest.raises(RecordError, match="mode 'dream' is none of native"):
        Environment(kernel="", mode="dream", scale=1.0, versions={}, machine="")
    path = write_run(tmp_path)
    edit_line(path, 1, environment={"mode": "native"})
    with pytest.raises(RecordError, match=rf"{path}:1: this line has an environment"):
        read_run(path)


def test_a_missing_run_is_one_message(tmp_path: Path) -> None:
    """Reading or resuming what is not there names the path."""
    for reader in (read_run, RunStore.open):
        with pytest.raises(RecordError, match="No such file"):
            reader(tmp_path / "case3-20260101-000000-0000")


def test_results_that_cannot_be_written_are_one_message(tmp_path: Path) -> None:
    """A results folder that is a file gives its path and the reason."""
    (tmp_path / "results").write_text("")
    with pytest.raises(RecordError, match=r"cannot start a run: Not a directory"):
        create(tmp_path / "results")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_time_that_is_none_is_never_recorded(tmp_path: Path, seconds: float) -> None:
    """NaN, infinite, zero and negative times are refused before they reach the file."""
    with create(tmp_path) as store, pytest.raises(RecordError, match="expected seconds above 0"):
        record(store, 0, seconds=seconds)


def test_a_probe_that_is_not_json_is_refused(tmp_path: Path) -> None:
    """NaN and objects are not JSON; the file stays as it was."""
    with create(tmp_path) as store:
        size = store.path.stat().st_size
        for value in (float("nan"), object()):
            with pytest.raises(RecordError, match="a probe line is not JSON"):
                store.append_probe({"value": value})
        assert store.path.stat().st_size == size


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    """ENOSPC, from the kernel (/dev/full), names the file, what is kept and how to go on."""
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
    with RunStore.open(store.path) as resumed:
        assert resumed.missing_iterations("abc", 2) == (1,)


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


def test_a_line_that_fits_only_in_part_is_taken_back(tmp_path: Path) -> None:
    """At a real limit (RLIMIT_FSIZE) the half line is removed and the rest can be resumed."""
    program = FILL.format(tests=str(Path(__file__).parent), results=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    path = next(tmp_path.glob(f"*/{FILE_NAME}"))
    assert "bytes fitted" in done.stdout
    assert 1000 < path.stat().st_size < 2000
    assert path.read_bytes().endswith(b"}\n")
    with RunStore.open(path) as store:
        missing = store.missing_iterations("abc", 100)
        assert 0 < len(missing) < 100
        store.append_iteration(record(store, missing[0]))


def test_the_newest_run_of_a_scenario_is_found(tmp_path: Path) -> None:
    """Newest by the time in its name, of that very scenario; recorded runs only without others."""
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
