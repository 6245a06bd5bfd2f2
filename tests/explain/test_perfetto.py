"""Traces in the Trace Event Format, with the durations of the timeline."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netbench.errors import UsageError
from netbench.explain.perfetto import trace_events, write_trace
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import Simulation, simulate
from netbench.simulator.graph import TaskKind
from netbench.timelines import COMPUTE

PLANS = [
    ("gpt3-small", "dtfm-scheduled", 12, 64),
    ("case3", "megatron-p8", 24, 1024),
    ("case3", "zero3", 24, 1024),
    ("case3", "ddp", 24, 1024),
]
every_plan = pytest.mark.parametrize(("case", "variant", "layers", "batch"), PLANS)

Event = dict[str, Any]


def simulated(case: str, variant: str, layers: int, batch: int) -> Simulation:
    micro_batch = 4 if case == "gpt3-small" else None
    scenario = load_scenario(case)
    network = "10ms-1Gbit" if case == "gpt3-small" else ""
    return simulate(
        build_plan(
            scenario,
            variant,
            Setting(
                layers=layers, batch=batch, micro_batch=micro_batch, network=network, seed=2022
            ),
            Execution(iterations=2, warmup_iterations=1),
        )
    )


def slices(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Return complete events by process and thread, in order of time."""
    found: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["tid"]), []).append(event)
    return {key: sorted(some, key=lambda event: event["ts"]) for key, some in found.items()}


@every_plan
def test_every_event_has_what_its_phase_asks_for(
    case: str, variant: str, layers: int, batch: int
) -> None:
    """Complete events have a duration, metadata a value; every thread with slices has a name."""
    events = list(trace_events(simulated(case, variant, layers, batch)))
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            assert event["args"]["repeat"] > 0
        elif event["ph"] == "M":
            assert {"name", "sort_index"} & set(event["args"])
        else:
            assert event["ph"] in "sf"
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    used = set(slices(events))
    assert {key for key in used if key[0] != max(processes)} == named
    assert {process for process, _ in used} <= processes


@every_plan
def test_slices_of_a_thread_do_not_overlap(
    case: str, variant: str, layers: int, batch: int
) -> None:
    """Neither compute nor network slices, to a nanosecond."""
    for some in slices(list(trace_events(simulated(case, variant, layers, batch)))).values():
        for before, after in itertools.pairwise(some):
            assert before["ts"] + before["dur"] <= after["ts"] + 2e-3


@every_plan
def test_durations_are_the_timelines(case: str, variant: str, layers: int, batch: int) -> None:
    """Rank 0's work, task by task, and all bytes of the network."""
    simulation = simulated(case, variant, layers, batch)
    events = list(trace_events(simulation))
    timelines = list({id(part.timeline): part.timeline for part in simulation.parts}.values())
    work, sent_bytes = [], 0.0
    for timeline in timelines:
        kinds = (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.OPTIMIZER)
        mine = np.isin(timeline.kind, kinds) & (timeline.rank == 0) & (timeline.amount > 0)
        work += list(timeline.amount[mine] * 1e6)
        sent_bytes += float(timeline.amount[timeline.path >= 0].sum())
    found = [event["dur"] for event in slices(events)[0, COMPUTE]]
    assert sorted(found) == pytest.approx(sorted(work), abs=2e-3)
    carried = sum(event["args"].get("bytes", 0) for event in events if event["ph"] == "X")
    assert carried == pytest.approx(sent_bytes, rel=1e-6, abs=1)


def test_every_part_is_there_once_and_says_how_often_it_occurs() -> None:
    """1F1B of 128 micro-batches: all parts in sequence, in a separate process."""
    simulation = simulated("case3", "megatron-p8", 24, 1024)
    parts = slices(list(trace_events(simulation)))[64, COMPUTE]
    assert [part["name"] for part in parts] == [part.name for part in simulation.parts]
    assert [part["args"]["repeat"] for part in parts] == [p.repeat for p in simulation.parts]
    total_us = sum(part["dur"] * part["args"]["repeat"] for part in parts)
    assert total_us == pytest.approx(simulation.iteration_s * 1e6, rel=1e-6)


def test_arrows_go_from_a_transfer_to_the_operation_that_receives_it() -> None:
    """One for each of the 16 messages each way between 3 stages, at least a delay later."""
    simulation = simulated("gpt3-small", "dtfm-scheduled", 12, 64)
    events = list(trace_events(simulation))
    threads = slices(events)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(starts) == 2 * 2 * 16
    assert set(starts) == set(ends)
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert end["ts"] >= start["ts"] + 10e3  # 10 ms one way
        assert abs(start["pid"] - end["pid"]) == 1
        for event, category in ((start, "transfer"), (end, "receive")):
            inside = [
                some
                for some in threads[event["pid"], event["tid"]]
                if some["ts"] <= event["ts"] <= some["ts"] + some["dur"] + 2e-3
            ]
            assert category in {some["cat"] for some in inside}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_written_as_json(tmp_path: Path, name: str) -> None:
    """Compressed by suffix, with the plan's hash and the iteration time."""
    simulation = simulated("gpt3-small", "dtfm-scheduled", 12, 64)
    path = tmp_path / name
    write_trace(simulation, path)
    data = path.read_bytes()
    written = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    assert written["traceEvents"] == list(trace_events(simulation))
    assert written["otherData"]["iteration_s"] == simulation.iteration_s


def test_a_trace_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    """The folder is missing."""
    simulation = simulated("gpt3-small", "dtfm-scheduled", 12, 64)
    with pytest.raises(UsageError, match=r"missing/x\.json: the trace cannot be written: No such"):
        write_trace(simulation, tmp_path / "missing" / "x.json")
