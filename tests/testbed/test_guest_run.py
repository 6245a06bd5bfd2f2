"""Whole runs in the guest kernel: four nodes, real shaping, real ranks, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netbench.plan.serial import plan_from_json
from netbench.records import Record, Run, find_run, read_run
from netbench.testbed.guest.boot import HANG_S
from netbench.testbed.runs.grouping import dealt
from netbench.units import counted
from tests.testbed.processes import guests_of, left_after_a_while

pytestmark = pytest.mark.guest

SCENARIO = "example-two-labs"
SYSTEMS = ("dtfm-scheduled", "dtfm-random", "megatron", "zero3")

SHARED_NICS = """\
name: shared-nics
title: Four nodes with four GPUs each
regions: [Room]
nodes:
  - {region: Room, count: 4, device: V100, devices: 4, nic: 10Gbit}
network:
  sharing: nic
  inside: {one_way_delay: 0.05ms}
devices:
  V100: builtin
workload:
  {layers: 8, hidden: 1024, heads: 16, sequence: 1024, dtype: fp16, recomputation: true,
   micro_batch: 1, batch: 64, embedding_parameters: 16M}
sweep:
  pipeline: 4
  variants: [megatron, deepspeed-pp]
"""
"""Four pipelines that meet at every NIC."""


def start(results: Path, *options: str, scenario: str = SCENARIO) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "netbench", "run", scenario, "--results", str(results)]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(results: Path, *options: str, expect: int = 0, scenario: str = SCENARIO) -> str:
    with start(results, *options, scenario=scenario) as process:
        try:
            output, _ = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == expect, output
    return output


def recorded(results: Path, name: str = SCENARIO) -> Run:
    path = find_run(results, name)
    assert path is not None
    return read_run(path)


def measured_s(run: Run) -> dict[tuple[str, int], float]:
    """Give the time of each iteration by variant and number, without warm-ups.

    In a warm-up connections are in slow start. Where they leave it depends on microseconds: that of
    `megatron` took 2.639 or 2.495 s in one of ten runs.
    """
    return {(r.variant, r.iteration): r.iteration_s for r in run.records if not r.warmup}


UNSTEADY = {"megatron": 0.02}
"""Relative tolerance of systems whose iterations, too, depend on where cubic leaves slow start, if
other processes read the clock: an sshd, or the controller of a resumed run."""


def assert_same_times(found: Run, expected: Run) -> None:
    """Check that plans take the same time to 0.05%, whatever else ran. `found` may have fewer."""
    times_s, found_s = measured_s(expected), measured_s(found)
    assert found_s
    for key, iteration_s in found_s.items():
        tolerance = UNSTEADY.get(key[0], 5e-4)
        assert iteration_s == pytest.approx(times_s[key], rel=tolerance), key


@pytest.fixture(scope="module")
def quiet_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run]:
    """One run of all four systems: what it printed and what it recorded."""
    results = tmp_path_factory.mktemp("quiet")
    output = run(results, "--systems", ",".join(SYSTEMS), "--iterations", "2")
    return output, recorded(results)


def test_all_four_systems_run_and_the_network_is_verified(quiet_run: tuple[str, Run]) -> None:
    """Exit code 0, a warm-up and two iterations of each, a probe that passed, a table."""
    output, found = quiet_run
    counts = {name: [r.warmup for r in found.records if r.variant == name] for name in SYSTEMS}
    assert counts == {name: [True, False, False] for name in SYSTEMS}
    assert [probe.result["trustworthy"] for probe in found.probes]
    assert all(probe.result["trustworthy"] and probe.result["checks"] for probe in found.probes)
    assert all(verdict.trustworthy for verdict in found.verdicts)
    for name in SYSTEMS:
        assert name in output


def test_no_iteration_is_faster_than_its_computation(quiet_run: tuple[str, Run]) -> None:
    """The slowest stage's compute for all its micro-batches is a bound from the plan alone."""
    _, found = quiet_run
    for record in found.records:
        plan = found.plans[record.plan_hash]
        busiest = max(stage["forward_s"] + stage["backward_s"] for stage in plan["stages"])
        bound_s = busiest * plan["num_micro_batches"] * plan["num_rounds"]
        assert record.iteration_s > bound_s, record.variant


@pytest.mark.ssh
def test_over_ssh_the_times_are_the_same(quiet_run: tuple[str, Run], tmp_path: Path) -> None:
    """Another transport, another boot: control traffic is not shaped. Of pipelines of two kinds."""
    output = run(tmp_path, "--systems", "dtfm-random,megatron", "--iterations", "1", "--ssh")
    assert "ssh" in output
    assert_same_times(recorded(tmp_path), quiet_run[1])


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """A process per core that computes all the time."""
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@pytest.mark.usefixtures("busy_machine")
def test_a_busy_machine_changes_nothing(quiet_run: tuple[str, Run], tmp_path: Path) -> None:
    """Virtual time: equal to the bit, with warm-ups. Nor does it matter that fewer plans ran, and
    in another order."""
    # In both runs dtfm-scheduled verifies the network for megatron: their messages are alike.
    run(tmp_path, "--systems", "zero3,dtfm-scheduled,megatron", "--iterations", "1")
    times = [
        {(r.variant, r.iteration): r.iteration_s for r in one.records}
        for one in (quiet_run[1], recorded(tmp_path))
    ]
    assert times[1]
    assert times[1].items() <= times[0].items()


def test_runs_behind_shared_nics_are_equal_to_the_bit(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Which message comes first depends on a microsecond, and later ones depend on that."""
    file = tmp_path / "shared-nics.yaml"
    file.write_text(SHARED_NICS)
    times = []
    for name in ("quiet", "busy"):
        if name == "busy":
            request.getfixturevalue("busy_machine")
        run(tmp_path / name, "--fast", "--iterations", "2", scenario=str(file))
        found = recorded(tmp_path / name, "shared-nics")
        times.append([(r.variant, r.iteration, r.iteration_s) for r in sorted_by_name(found)])
    assert {name for name, *_ in times[0]} == {"megatron", "deepspeed-pp"}
    assert times[0] == times[1]


def sorted_by_name(found: Run) -> list[Record]:
    """Sessions side by side end in any order."""
    return sorted(found.records, key=lambda record: (record.variant, record.iteration))


def test_a_plan_takes_as_long_after_another_as_alone(tmp_path: Path) -> None:
    """Sessions are shared where TCP does not act: their nodes, ranks and connections."""
    options = ("--fast", "--scale", "10", "--iterations", "1")
    run(tmp_path / "shared", *options, "--systems", ",".join(SYSTEMS), expect=3)
    together = recorded(tmp_path / "shared")
    plans = [plan_from_json(json.dumps(plan)) for plan in together.plans.values()]
    session = max(dealt(plans, num_sessions=2), key=len)
    assert len(session) > 1
    names = [plan.variant for plan in session[:2]]
    run(tmp_path / "alone", *options, "--systems", ",".join(names), expect=3)
    times_s = measured_s(together)
    alone_s = measured_s(recorded(tmp_path / "alone"))
    assert {name for name, _ in alone_s} == set(names)
    assert alone_s == pytest.approx({key: times_s[key] for key in alone_s}, rel=1e-3)


def host_network() -> str:
    """Interfaces, qdiscs and named namespaces of the host."""
    commands = (["ip", "-o", "link"], ["tc", "qdisc", "show"], ["ip", "netns", "list"])
    return "".join(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in commands
    )


def sysctls() -> dict[str, str]:
    names = ("tcp_rmem", "tcp_wmem", "tcp_congestion_control")
    return {name: (Path("/proc/sys/net/ipv4") / name).read_text() for name in names}


@pytest.mark.parametrize("moment", ["shaping links", "warm-up 0", "iteration 1"])
def test_after_sigkill_nothing_is_left_and_resume_completes(
    moment: str, quiet_run: tuple[str, Run], tmp_path: Path
) -> None:
    """Kill the controller when it prints `moment`: host as before, records kept, none repeated,
    and what is resumed takes the time of a run that was not stopped."""
    before = host_network(), sysctls()
    with start(tmp_path, "--systems", "dtfm-random,megatron", "--iterations", "2") as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if moment in line:
                break
        else:
            pytest.fail(f"never printed {moment!r}:\n{printed}")
        guests = guests_of(process.pid)
        assert guests
        process.send_signal(signal.SIGKILL)
    assert left_after_a_while(process.pid, guests) == []
    assert (host_network(), sysctls()) == before
    kept = [(r.plan_hash, r.iteration) for r in recorded(tmp_path).records]
    output = run(tmp_path, "--resume")
    assert f"{counted(len(kept), 'iteration')} already recorded" in output
    found = [(r.plan_hash, r.iteration) for r in recorded(tmp_path).records]
    assert found[: len(kept)] == kept
    assert len(found) == len(set(found)) == 6
    assert_same_times(recorded(tmp_path), quiet_run[1])


def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    """SIGINT while iterating: exit code 130, no traceback, nothing left."""
    with start(tmp_path, "--systems", "megatron", "--iterations", "500") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "warm-up 0" in line:
                break
        guests = guests_of(process.pid)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert guests
    assert left_after_a_while(process.pid, guests) == []


def test_a_guest_that_dies_is_reported_with_its_console(tmp_path: Path) -> None:
    """Kill the guest, not the controller: exit code 1, the console's last lines, how to go on."""
    with start(tmp_path, "--systems", "megatron", "--iterations", "500") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "warm-up 0" in line:
                break
        (guest,) = guests_of(process.pid)
        os.kill(guest, signal.SIGKILL)
        rest, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "ended unexpectedly" in rest
    assert "  | " in rest
    assert "--resume" in rest
