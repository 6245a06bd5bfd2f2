"""Where an iteration goes: sums are exact, and closed forms come out."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from netbench.plan import Plan, build_plan, iteration_bytes
from netbench.plan.model import Layout
from netbench.scenario import load_scenario
from netbench.scenario.model import Link, Network
from netbench.simulator import Simulation, TransportProfile, load_transport, simulate
from netbench.simulator.explain import (
    GROUPS,
    activity,
    bound_s,
    breakdown,
    critical_path,
    links,
    losses,
    seconds_by_kind,
    seconds_by_link,
)
from netbench.simulator.trail import Cause
from netbench.workload.costs import Stage

FREE = TransportProfile(
    host_bps=math.inf,
    first_window_segments=10**9,
    max_window_bytes=math.inf,
    sockets=1,
    fifo_bytes=1 << 50,
)
"""No transport limits: what is left is the links."""

F, B = 0.01, 0.03  # seconds of a forward and a backward pass
SIZE = 8_000_000  # bytes of a message between stages
GOODPUT = (1500 - 52) / (1500 + 14)

PUBLISHED = [
    ("case3", "dtfm-scheduled"),
    ("case3", "dtfm-random"),
    ("case3", "dtfm-scheduled-1f1b"),
    ("case3", "megatron-p8"),
    ("case3", "megatron-p8-zero-bubble"),
    ("case3", "megatron-p4-interleaved2"),
    ("case1", "megatron-p2t4"),
    ("case5", "dtfm-scheduled-sharded-ps"),
    ("case3", "zero3"),
    ("case3", "ddp"),
    ("case3", "ddp-central-ps"),
]
every_system = pytest.mark.parametrize(("case", "variant"), PUBLISHED)


def pipeline(
    variant: str,
    *,
    stages: int,
    pipelines: int = 1,
    rounds: int = 1,
    micro_batches: int,
    delay_s: float = 0.0,
    bandwidth_bps: float = math.inf,
    speeds: tuple[float, ...] = (),
    optimizer_s: float = 0.0,
    gradient_bytes: int = 0,
    message_bytes: int = SIZE,
) -> Plan:
    """A plan with passes of F and B seconds over a stage's speed, a node per rank in two regions:
    even nodes in North, odd ones in South, all links alike."""
    num_ranks = stages * pipelines
    link = Link(one_way_delay_s=delay_s, bandwidth_bps=bandwidth_bps)
    plan = build_plan(load_scenario("gpt3-small"), variant, 12, 64, 1, 1, 0)
    return dataclasses.replace(
        plan,
        layout=Layout(pp=stages, dp=pipelines),
        placement=tuple(range(num_ranks)),
        device_nodes=tuple(range(num_ranks)),
        node_names=tuple(f"node{rank}" for rank in range(num_ranks)),
        network=Network(
            regions=("North", "South"),
            links=((link, link), (link, link)),
            node_regions=tuple(rank % 2 for rank in range(num_ranks)),
            sharing="pair",
            nic_bps=(math.inf,) * num_ranks,
        ),
        num_rounds=rounds,
        num_micro_batches=micro_batches,
        activation_bytes=message_bytes,
        stages=tuple(
            Stage(
                num_layers=1,
                forward_s=F / speed,
                backward_s=B / speed,
                optimizer_s=optimizer_s,
                parameters=1,
                gradient_bytes=gradient_bytes,
            )
            for speed in speeds or (1.0,) * stages
        ),
    )


def published(case: str, variant: str, batch: int = 1024) -> Simulation:
    return simulate(build_plan(load_scenario(case), variant, 24, batch, 2022, 2, 1))


@every_system
def test_kinds_sum_to_the_iteration_for_every_rank(case: str, variant: str) -> None:
    """To the last bits of a float, steady parts, repeated rounds and all."""
    simulation = published(case, variant, 2048)
    found = breakdown(simulation)
    assert found.seconds.shape == (64, len(Cause))
    assert (found.seconds >= 0).all()
    sums = sum(found.of(group) for group in GROUPS)
    assert sums == pytest.approx(np.full(64, simulation.iteration_s), rel=1e-12)
    assert sum(found.total_s().values()) == pytest.approx(64 * simulation.iteration_s, rel=1e-12)


@every_system
def test_every_rank_computes_what_its_plan_says(case: str, variant: str) -> None:
    """All-reduces of tensor parallelism apart; also where a steady state stands for most of it."""
    simulation = published(case, variant, 2048)
    plan, found = simulation.plan, breakdown(simulation)
    count = plan.num_rounds * plan.num_micro_batches
    stage = plan.stages[-1]
    # zero3 and ddp compute in pieces: each ends at the nearest tick of the simulator's clock.
    pieces = 2 * plan.workload.layers if plan.schedule == "none" else 1
    ticks = count * pieces * 2**-30
    assert found.of("forward") == pytest.approx(count * stage.forward_s, rel=1e-9, abs=ticks)
    assert found.of("backward") == pytest.approx(count * stage.backward_s, rel=1e-9, abs=ticks)


@every_system
def test_the_critical_path_fills_the_iteration(case: str, variant: str) -> None:
    """Without a gap; by kind it is the same time."""
    simulation = published(case, variant)
    steps = critical_path(simulation)
    assert all(step.seconds > 0 for step in steps)
    total_s = sum(step.seconds for step in steps)
    assert total_s == pytest.approx(simulation.iteration_s, rel=1e-12)
    assert sum(seconds_by_kind(steps).values()) == pytest.approx(total_s)


@pytest.mark.parametrize("variant", ["dtfm-scheduled", "dtfm-scheduled-1f1b", "megatron"])
@pytest.mark.parametrize(
    ("stages", "rounds", "micro_batches"), [(2, 1, 8), (2, 3, 8), (4, 2, 16), (4, 1, 100)]
)
def test_the_bubble_of_equal_stages(
    variant: str, stages: int, rounds: int, micro_batches: int
) -> None:
    """(p - 1) / (m + p - 1) of the time on a network that takes none, whatever the rank."""
    rounds = rounds if variant == "dtfm-scheduled" else 1
    plan = pipeline(variant, stages=stages, rounds=rounds, micro_batches=micro_batches)
    simulation = simulate(plan, FREE)
    found = breakdown(simulation)
    idle = (stages - 1) / (micro_batches + stages - 1)
    assert simulation.iteration_s == pytest.approx(
        rounds * (micro_batches + stages - 1) * (F + B), rel=1e-9
    )
    assert found.of("bubble") / simulation.iteration_s == pytest.approx(np.full(stages, idle))
    for group in ("point_to_point", "collective", "optimizer"):
        assert found.of(group) == pytest.approx(0, abs=1e-12)
    assert set(seconds_by_kind(critical_path(simulation))) == {"forward", "backward"}


def test_only_the_network_takes_time() -> None:
    """No compute: m messages one after the other and a delay, each way. South waits for North, then
    North for South. The last to come to a barrier says that it waits, and waits for an answer."""
    m, d, rate = 8, 0.02, 1e9
    plan = pipeline(
        "dtfm-scheduled",
        stages=2,
        rounds=2,
        micro_batches=m,
        delay_s=d,
        bandwidth_bps=rate,
        speeds=(math.inf, math.inf),
    )
    simulation = simulate(plan, FREE)
    tau = 8 * SIZE / (rate * GOODPUT)
    barriers_s = 3 * 2 * d  # one in every round, and the last
    assert simulation.iteration_s == pytest.approx(2 * 2 * (m * tau + d) + barriers_s)
    found = breakdown(simulation)
    assert found.of("collective") == pytest.approx(np.full(2, barriers_s))
    assert found.of("point_to_point") == pytest.approx(np.full(2, 2 * 2 * (m * tau + d)))
    assert found.seconds[:, Cause.TRANSFER] == pytest.approx(np.full(2, 4 * m * tau))
    assert found.seconds[:, Cause.DELAY] == pytest.approx(np.full(2, 4 * d))
    steps = critical_path(simulation)
    assert seconds_by_kind(steps) == pytest.approx(
        {"transfer": 4 * m * tau, "delay": 4 * d, "collective delay": barriers_s}
    )
    each_way_s = 2 * (m * tau + d) + barriers_s / 2
    assert seconds_by_link(steps, plan) == pytest.approx(
        {"North -> South": each_way_s, "South -> North": each_way_s}
    )
    assert bound_s(plan) == 0
    loss, barriers = losses(simulation)
    assert (loss.group, barriers.group) == ("point_to_point", "collective")
    assert loss.share + barriers.share == pytest.approx(1)


def test_use_of_a_link_is_its_bytes_over_what_it_could_carry() -> None:
    """Activations go one way, gradients the other."""
    m, rate = 8, 1e9
    plan = pipeline(
        "dtfm-scheduled", stages=2, rounds=2, micro_batches=m, delay_s=0.02, bandwidth_bps=rate
    )
    simulation = simulate(plan, FREE)
    uses = links(simulation)
    assert [(use.kind, use.name) for use in uses] == [
        ("pair", "node0 -> node1"),
        ("pair", "node1 -> node0"),
    ]
    for use in uses:
        assert use.payload_bytes == pytest.approx(2 * m * SIZE)
        assert use.capacity_bps == pytest.approx(rate * GOODPUT)
        share = 8 * 2 * m * SIZE / (rate * GOODPUT) / simulation.iteration_s
        assert use.utilisation == pytest.approx(share)


@pytest.mark.parametrize(
    ("case", "variant"),
    [
        ("case3", "dtfm-scheduled"),
        ("case5", "dtfm-random"),
        ("case3", "megatron-p8"),
        ("case1", "megatron-p2t4"),
        ("case3", "ddp"),
        ("case3", "ddp-sharded-ps"),
    ],
)
def test_links_carry_what_the_plan_sends(case: str, variant: str) -> None:
    """All connections together, against the closed form of `netbench.plan.traffic`."""
    simulation = published(case, variant)
    sent = sum(
        u.payload_bytes for u in links(simulation) if u.kind in ("host", "channels", "inside")
    )
    assert sent == pytest.approx(iteration_bytes(simulation.plan), rel=1e-9)


def test_zero3_sends_live_parameters_once_and_others_twice_per_micro_step() -> None:
    """Case 3: 18 of 24 layers fit 1e9 live parameters with 64e6 of embeddings. Each of 4
    micro-steps gathers them once and the matrices of 6 layers twice, and scatters all gradients."""
    simulation = published("case3", "zero3")
    layer, matrices, embedding = 12 * 2048**2 + 13 * 2048, 12 * 2048**2, 64_000_000
    live = (10**9 - embedding) // layer
    gathered = 4 * (live * layer + embedding + 2 * (24 - live) * matrices)
    scattered = 4 * (24 * layer + embedding)
    sent = sum(u.payload_bytes for u in links(simulation) if u.kind in ("host", "channels"))
    assert sent == pytest.approx(63 * 2 * (gathered + scattered), rel=1e-9)


def test_losses_of_the_busiest_stage_are_what_is_above_the_bound() -> None:
    """The second stage takes twice as long: it waits for one pass of the first each way."""
    plan = pipeline("dtfm-scheduled", stages=2, micro_batches=6, speeds=(2.0, 1.0))
    simulation = simulate(plan, FREE)
    assert bound_s(plan) == pytest.approx(6 * (F + B))
    (loss,) = losses(simulation)
    assert (loss.group, loss.seconds) == ("bubble", pytest.approx((F + B) / 2))
    assert loss.share == pytest.approx(loss.seconds / simulation.iteration_s)
    assert "2 stages, 6 micro-batches" in loss.text


@pytest.mark.parametrize(
    ("case", "variant"),
    [("case3", "megatron-p8"), ("case3", "zero3"), ("case3", "ddp"), ("case1", "megatron-p2t4")],
)
def test_losses_and_bound_are_the_iteration(case: str, variant: str) -> None:
    """Where no more than three kinds cost anything. The last stages are as busy as the first."""
    simulation = published(case, variant)
    found = losses(simulation)
    assert [loss.seconds for loss in found] == sorted((x.seconds for x in found), reverse=True)
    total_s = bound_s(simulation.plan) + sum(loss.seconds for loss in found)
    assert total_s == pytest.approx(simulation.iteration_s, rel=1e-9)


def test_a_loss_names_the_link() -> None:
    """Case 5: gradients cross the slowest link, at 342 Mbit/s."""
    first = losses(published("case5", "dtfm-scheduled"))[0]
    assert first.group == "collective"
    assert "from Seoul to London at 342Mbit" in first.text


def test_an_update_is_waited_for_as_optimizer_not_as_bubble() -> None:
    """Data parallelism of two: one member updates between reduce and broadcast, which take the
    bytes and a delay each; the other waits for all three. Stage 1 is done a backward pass and a
    delay sooner, and waits for stage 0's update at the barrier."""
    update_s, d, rate, size = 0.5, 0.01, 1e9, 50_000_000
    plan = pipeline(
        "dtfm-scheduled",
        stages=2,
        pipelines=2,
        micro_batches=4,
        delay_s=d,
        bandwidth_bps=rate,
        optimizer_s=update_s,
        gradient_bytes=size,
        message_bytes=1,
    )
    simulation = simulate(plan, FREE)
    found = breakdown(simulation)
    sooner_s = plan.stages[0].backward_s + d
    assert found.of("optimizer") == pytest.approx(update_s + np.array([0, sooner_s, 0, 0]))
    assert found.seconds[:, Cause.TRANSFER] == pytest.approx(np.zeros(4), abs=1e-6)
    reduce_and_broadcast_s = 2 * (8 * size / (rate * GOODPUT) + d)
    steps = seconds_by_kind(critical_path(simulation))
    assert steps["collective"] == pytest.approx(reduce_and_broadcast_s - 2 * d)
    assert (found.of("collective") >= reduce_and_broadcast_s - 1e-9).all()


def test_all_reduces_inside_layers_count_as_collective() -> None:
    """4 tensor-parallel ranks: two ring all-reduces of the boundary tensor per layer and pass, and
    recomputation is a pass more."""
    simulation = published("case1", "megatron-p2t4")
    plan = simulation.plan
    all_reduces = 2 * 3 * 12 * 128  # passes, layers of a stage, micro-batches
    ring_s = 2 * 3 / 4 * 8 * plan.activation_bytes / load_transport("nccl").inside_node_bps
    found = breakdown(simulation).seconds[:, Cause.TENSOR_PARALLEL]
    assert found == pytest.approx(np.full(64, all_reduces * ring_s), rel=0.01)


def test_ranks_of_ddp_are_alike() -> None:
    """What a bucket's all-reduce does not hide behind the last backward pass is what they wait."""
    simulation = published("case3", "ddp")
    found = breakdown(simulation)
    assert (found.seconds == found.seconds[0]).all()
    assert found.of("collective")[0] == pytest.approx(
        simulation.iteration_s - bound_s(simulation.plan)
    )


@pytest.mark.parametrize("variant", ["ddp", "ddp-tree", "ddp-central-ps", "zero3"])
def test_one_rank_pays_its_host_for_collectives_and_no_link(variant: str) -> None:
    """No hop to blame: a ring or tree of one rank has none."""
    scenario = load_scenario("case3")
    alone = dataclasses.replace(scenario.network, node_regions=(0,), nic_bps=(math.inf,))
    scenario = dataclasses.replace(scenario, nodes=scenario.nodes[:1], network=alone)
    plan = build_plan(scenario, variant, 24, 64, 1, 2, 1)
    simulation = simulate(dataclasses.replace(plan, collective_s=0.01))
    assert links(simulation) == ()
    (loss,) = (loss for loss in losses(simulation) if loss.group == "collective")
    assert loss.seconds > 0
    assert "nobody to send to" in loss.text


def test_one_pipeline_has_a_barrier_and_no_gradients_to_exchange() -> None:
    simulation = simulate(pipeline("dtfm-scheduled", stages=4, micro_batches=4, delay_s=0.01), FREE)
    (loss,) = (loss for loss in losses(simulation) if loss.group == "collective")
    assert "barrier" in loss.text
    assert "gradients" not in loss.text


def test_activity_shows_whole_pipelines_of_every_region() -> None:
    """24 rows are three pipelines of 8: the first of Ohio, of Virginia, and one more. Nothing a
    rank does overlaps, and with its waits it fills all parts, each once."""
    simulation = published("case3", "dtfm-scheduled")
    rows = activity(simulation)
    assert len(rows) == 24
    assert "Ohio node0 (rank 0, stage 0)" in rows
    assert "Virginia node32 (rank 32, stage 0)" in rows
    once_s = sum(part.to_s - part.from_s for part in simulation.parts)
    for kinds in rows.values():
        spans = np.concatenate([when for kind, when in kinds.items() if kind != "collective"])
        spans = spans[np.argsort(spans[:, 0])]
        assert spans[0, 0] == 0
        assert spans[1:, 0] == pytest.approx(spans[:-1, 1])
        assert spans[-1, 1] == pytest.approx(once_s)


def test_activity_of_a_deep_pipeline_samples_its_stages() -> None:
    """First and last among them."""
    plan = pipeline("dtfm-scheduled", stages=40, micro_batches=4)
    rows = list(activity(simulate(plan, FREE), max_rows=10))
    assert len(rows) == 10
    assert "stage 0)" in rows[0]
    assert "stage 39)" in rows[-1]
