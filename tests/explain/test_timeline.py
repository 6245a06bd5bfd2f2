"""Unrolled iterations, against the sums that their parts represent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from netbench.explain.timeline import unfold
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.plan.serial import plan_hash
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import Simulation, simulate
from netbench.timelines import Timeline

PLANS = [
    ("gpt3-small", "dtfm-scheduled", 12, 64),
    ("case3", "dtfm-scheduled", 24, 1024),  # rounds
    ("case3", "megatron-p8", 24, 1024),  # a steady state that repeats
    ("case3", "zero3", 24, 1024),
    ("case3", "ddp", 24, 1024),
]
every_plan = pytest.mark.parametrize(("case", "variant", "layers", "batch"), PLANS)


def simulated(case: str, variant: str, layers: int, batch: int) -> tuple[Simulation, Timeline]:
    small = case == "gpt3-small"
    plan = build_plan(
        load_scenario(case),
        variant,
        Setting(
            layers=layers,
            batch=batch,
            micro_batch=4 if small else None,
            network="10ms-1Gbit" if small else "",
            seed=2022,
        ),
        Execution(iterations=2, warmup_iterations=1),
    )
    simulation = simulate(plan, whole=True)
    return simulation, unfold(simulation)


def spent_s(timeline: Timeline, rank: int, *kinds: str) -> float:
    mine = [piece for piece in timeline.slices if piece.rank == rank and piece.kind in kinds]
    return sum(piece.end_s - piece.start_s for piece in mine)


@every_plan
def test_every_rank_computes_what_its_stage_costs(
    case: str, variant: str, layers: int, batch: int
) -> None:
    """Micro-batches and rounds x forward and backward of the plan's stage."""
    simulation, timeline = simulated(case, variant, layers, batch)
    plan = simulation.plan
    passes = plan.num_rounds * plan.num_micro_batches
    for rank in sorted({piece.rank for piece in timeline.slices}):
        stage = rank % plan.layout.pp if plan.system == "dtfm" else rank // plan.layout.dp
        cost = plan.stages[0 if plan.schedule == "none" else stage]
        expected_s = passes * (cost.forward_s + cost.backward_s)
        found_s = spent_s(timeline, rank, "forward", "backward")
        assert found_s == pytest.approx(expected_s, rel=1e-6)


@every_plan
def test_it_is_as_long_as_the_iteration(case: str, variant: str, layers: int, batch: int) -> None:
    """No slice ends after it, and the last one ends with it, except for a barrier."""
    simulation, timeline = simulated(case, variant, layers, batch)
    assert timeline.iteration_s == simulation.iteration_s
    assert (timeline.plan, timeline.source) == (plan_hash(simulation.plan), "simulated")
    last_s = max(piece.end_s for piece in timeline.slices)
    barrier_s = 0.2 * simulation.iteration_s if simulation.plan.system == "dtfm" else 0.0
    assert simulation.iteration_s - barrier_s - 1e-6 <= last_s <= simulation.iteration_s + 1e-6
    assert all(0 <= piece.start_s < piece.end_s for piece in timeline.slices)


@every_plan
def test_the_whole_takes_as_long_as_its_steady_state_says(
    case: str, variant: str, layers: int, batch: int
) -> None:
    """With and without repeating the steady state, times agree within 2%."""
    simulation, _ = simulated(case, variant, layers, batch)
    folded = simulate(simulation.plan)
    assert simulation.iteration_s == pytest.approx(folded.iteration_s, rel=0.02)


@every_plan
def test_work_of_a_rank_does_not_overlap(case: str, variant: str, layers: int, batch: int) -> None:
    """Copies of a part follow one another."""
    _, timeline = simulated(case, variant, layers, batch)
    kinds = ("forward", "backward", "optimizer")
    work = sorted(
        (piece.rank, piece.start_s, piece.end_s) for piece in timeline.slices if piece.kind in kinds
    )
    assert work
    for before, after in itertools.pairwise(work):
        assert before[0] != after[0] or before[2] <= after[1] + 1e-9


def test_collectives_begin_when_the_passes_are_done_and_make_room_for_the_update() -> None:
    """dtfm with 8 pipelines: every rank reduces and broadcasts; the first pipeline's ranks update
    in between."""
    simulation, timeline = simulated("case3", "dtfm-scheduled", 24, 1024)
    plan = simulation.plan
    for rank in range(plan.layout.num_ranks):
        mine = [piece for piece in timeline.slices if piece.rank == rank]
        last_s = max(piece.end_s for piece in mine if piece.kind == "backward")
        calls = [piece for piece in mine if piece.kind == "collective"]
        updates = [piece for piece in mine if piece.kind == "optimizer"]
        assert min(piece.start_s for piece in calls) == pytest.approx(last_s, abs=1e-9)
        assert len(updates) == (rank < plan.layout.pp)
        assert len(calls) > len(updates)
        for update in updates:
            assert all(
                call.end_s <= update.start_s + 1e-9 or call.start_s >= update.end_s - 1e-9
                for call in calls
            )


def test_a_round_has_no_collective_of_the_last() -> None:
    """With several rounds of GPipe, gradients are synchronised once, after all of them."""
    simulation, timeline = simulated("case3", "dtfm-scheduled", 24, 1024)
    rounds = simulation.plan.num_rounds
    assert rounds > 1
    pipelines_s = sum(part.total_s for part in simulation.parts[:-1])
    first = min(piece.start_s for piece in timeline.slices if piece.kind == "collective")
    assert first > pipelines_s * (rounds - 1) / rounds
    forwards = np.array(
        [piece.start_s for piece in timeline.slices if piece.kind == "forward" and piece.rank == 0]
    )
    assert len(forwards) >= rounds * simulation.plan.num_micro_batches
