"""Iterations against closed forms on uniform networks, and the published ones within reach."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pandas as pd
import pytest

from netbench.errors import PlanError
from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.report.page.published import iteration_times
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import TransportProfile, simulate
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind
from netbench.simulator.iteration import fabric_of, forget, synchronise
from netbench.systems import rank_lanes
from netbench.transport.profile import load_transport
from tests.plans import NO_COSTS, uniform_plan

F, B = 0.01, 0.03
P = 8


def with_micro_batches(plan: Plan, count: int) -> Plan:
    return dataclasses.replace(plan, num_micro_batches=count, num_rounds=1)


def iteration_s(plan: Plan, transport: TransportProfile = NO_COSTS) -> float:
    simulation = simulate(plan, transport)
    assert simulation.iteration_s == pytest.approx(sum(simulation.phases.values()))
    return simulation.iteration_s


def per_micro_batch_s(plan: Plan, transport: TransportProfile = NO_COSTS) -> float:
    """Seconds of a further micro-batch once the pipeline is full."""
    few, many = (iteration_s(with_micro_batches(plan, count), transport) for count in (24, 32))
    return (many - few) / 8


def message_s(plan: Plan, bandwidth_bps: float) -> float:
    return plan.activation_bytes * 8 / bandwidth_bps


def test_gpipe_on_a_free_network_is_fill_and_micro_batches() -> None:
    plan = uniform_plan("dtfm-scheduled")
    assert iteration_s(plan) == pytest.approx((64 + P - 1) * (F + B))


def test_gpipe_with_uneven_stages_goes_at_the_pace_of_the_longest() -> None:
    """Every stage once, and the longest for each further micro-batch; in both directions."""
    layers = (1, 2, 4, 1)
    scenario = load_scenario("example-two-labs")
    sweep = dataclasses.replace(scenario.sweep, pipeline=0, pipeline_layers=layers)
    uneven = build_plan(
        dataclasses.replace(scenario, sweep=sweep),
        "dtfm-scheduled",
        Setting(layers=8, batch=16),
        Execution(iterations=2, warmup_iterations=1),
    )
    plan = dataclasses.replace(
        uniform_plan("dtfm-scheduled", num_nodes=4), num_rounds=1, stages=uneven.stages
    )
    m, per_layer_s = plan.num_micro_batches, uneven.stages[0].forward_s
    factor = 1 + uneven.stages[0].backward_s / per_layer_s
    expected_s = (sum(layers) + (m - 1) * max(layers)) * per_layer_s * factor
    optimizer_s = max(stage.optimizer_s for stage in plan.stages)
    assert iteration_s(plan) == pytest.approx(expected_s + optimizer_s)


def test_a_pipeline_of_one_stage_has_no_messages() -> None:
    plan = uniform_plan("dtfm-scheduled", num_nodes=1, batch=8)
    assert (plan.layout.pp, plan.num_rounds) == (1, 1)
    assert iteration_s(plan) == pytest.approx(8 * (F + B))


def test_gpipe_rounds_repeat() -> None:
    one, two = (uniform_plan("dtfm-scheduled", batch=batch) for batch in (64, 128))
    assert (one.num_rounds, two.num_rounds) == (1, 2)
    assert iteration_s(two) == pytest.approx(2 * iteration_s(one))


def test_gpipe_bound_by_its_network() -> None:
    """Both phases: a message every T over seven hops. The last to come to a barrier of eight is out
    after three steps, each with a round trip: it says that it waits, and hears a word."""
    delay_s, bandwidth_bps = 0.02, 1e9
    plan = uniform_plan("dtfm-scheduled", one_way_delay_s=delay_s, bandwidth_bps=bandwidth_bps)
    t = message_s(plan, bandwidth_bps)
    assert t > B
    phases = [P * c + (64 + 6) * t + 7 * delay_s + 3 * 2 * delay_s for c in (F, B)]
    assert iteration_s(plan) == pytest.approx(sum(phases), rel=1e-3)


def test_one_communicator_copies_in_and_out_between_computations() -> None:
    """A stage inside receives (S / host), computes, sends (S / host): nothing of it overlaps."""
    plan = uniform_plan("dtfm-scheduled")
    copy_s = 0.002
    host_bps = plan.activation_bytes * 8 / copy_s
    transport = NO_COSTS.model_copy(update={"host_bps": host_bps})
    assert per_micro_batch_s(plan, transport) == pytest.approx(F + B + 4 * copy_s)


def test_without_buffers_a_message_takes_its_sender_and_its_receiver() -> None:
    """Rendezvous: the send lasts as long as the transfer, which starts with the receive."""
    bandwidth_bps = 4e9
    plan = uniform_plan("dtfm-scheduled", bandwidth_bps=bandwidth_bps)
    none = NO_COSTS.model_copy(update={"fifo_bytes": 0, "window_bytes": 0, "window_factor": 0.0})
    t = message_s(plan, bandwidth_bps)
    assert per_micro_batch_s(plan, none) == pytest.approx(F + B + 4 * t)


def test_more_buffer_is_never_slower() -> None:
    plan = uniform_plan("dtfm-scheduled", one_way_delay_s=0.005, bandwidth_bps=2e9)
    times = [
        iteration_s(plan, NO_COSTS.model_copy(update={"fifo_bytes": size, "window_factor": 0.0}))
        for size in (0, 1 << 20, 3 << 20, 5 << 20, 9 << 20, 1 << 30)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


@pytest.mark.parametrize("variant", ["dtfm-scheduled-1f1b", "megatron-p8"])
def test_empty_messages_take_their_delays(variant: str) -> None:
    """Filling and draining cross seven links each."""
    plans = [
        dataclasses.replace(
            uniform_plan(variant, one_way_delay_s=delay_s, bandwidth_bps=1e9, batch=1),
            activation_bytes=0,
        )
        for delay_s in (0.0, 0.01)
    ]
    without_s, with_s = (simulate(plan, NO_COSTS).phases["pipeline_s"] for plan in plans)
    assert with_s - without_s == pytest.approx(2 * 7 * 0.01, rel=1e-6)


def test_1f1b_on_a_free_network_is_fill_and_micro_batches() -> None:
    plan = uniform_plan("megatron-p8", batch=40)
    assert iteration_s(plan) == pytest.approx((40 + P - 1) * (F + B))


def test_a_blocking_exchange_takes_its_transfer_and_its_delay() -> None:
    """A stage inside exchanges twice per micro-batch, with either neighbour."""
    delay_s, bandwidth_bps = 0.004, 4e9
    plan = uniform_plan("megatron-p8", one_way_delay_s=delay_s, bandwidth_bps=bandwidth_bps)
    t = message_s(plan, bandwidth_bps)
    assert per_micro_batch_s(plan) == pytest.approx(F + B + 2 * (t + delay_s), rel=1e-3)


def test_a_send_does_not_wait_for_a_slow_start() -> None:
    """It lasts as long as on an idle path with open windows. Its receiver has the message three
    round trips later, because the first window is an eighth of it: 1, 2, 4 and 1 eighths."""
    delay_s, bandwidth_bps = 0.05, 1e12
    plan = uniform_plan(
        "megatron-p2", num_nodes=2, one_way_delay_s=delay_s, bandwidth_bps=bandwidth_bps, batch=1
    )
    mss = plan.network.mtu_bytes - NO_COSTS.header_bytes
    first_window_segments = plan.activation_bytes / (8 * mss * NO_COSTS.sockets)
    slow = NO_COSTS.model_copy(update={"first_window_segments": first_window_segments})
    timeline = simulate(plan, slow).parts[0].timeline
    ends_s = [
        timeline.end_s[(timeline.kind == kind) & (timeline.rank == rank)].min()
        for kind, rank in ((TaskKind.SEND, 0), (TaskKind.RECEIVE, 1))
    ]
    arrives_s = F + delay_s + message_s(plan, bandwidth_bps)
    assert ends_s == pytest.approx([arrives_s, arrives_s + 3 * 2 * delay_s], rel=1e-3)


def test_the_last_stages_sum_the_loss_of_every_micro_batch() -> None:
    """Three replicas of one stage: up NCCL's tree of three members and down again, 2 hops each."""
    delay_s = 0.02
    for delays, plan in (
        (0, uniform_plan("megatron-p1", num_nodes=1, one_way_delay_s=delay_s, layers=1)),
        (4, uniform_plan("megatron-p1", num_nodes=3, one_way_delay_s=delay_s, layers=1, batch=6)),
    ):
        assert per_micro_batch_s(plan) == pytest.approx(F + B + delays * delay_s)


def test_deepspeeds_transfers_follow_one_another() -> None:
    """Without buffers, a stage inside has four per micro-batch of four sequences, where Megatron's
    has two exchanges."""
    bandwidth_bps = 4e9
    plan = uniform_plan("deepspeed-pp", bandwidth_bps=bandwidth_bps)
    t = message_s(plan, bandwidth_bps)
    assert plan.activation_bytes == 4 * 2048 * 2048 * 2
    none = NO_COSTS.model_copy(update={"fifo_bytes": 0, "window_bytes": 0, "window_factor": 0.0})
    assert per_micro_batch_s(plan, none) == pytest.approx(F + B + 4 * t)


def test_replicas_of_zero_stage_1_scatter_and_gather_and_update_a_shard_each() -> None:
    """Two pipelines of eight: half of the gradients leaves every rank, and half of the
    parameters."""
    bandwidth_bps = 1e9
    plan = uniform_plan(
        "deepspeed-pp", num_nodes=16, layers=16, bandwidth_bps=bandwidth_bps, optimizer_s=0.7
    )
    phases = simulate(plan, NO_COSTS).phases
    assert phases["optimizer_s"] == pytest.approx(0.7 / 2)
    gradients_s = max(stage.gradient_bytes for stage in plan.stages) * 8 / bandwidth_bps
    assert phases["sync_s"] == pytest.approx(gradients_s, rel=1e-3)


def test_micro_batches_beyond_a_full_pipeline_are_extrapolated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = [simulate(plan).iteration_s for plan in plans_of_many_micro_batches()]
    for units in ("STEADY", "RANDOM_STEADY"):
        monkeypatch.setattr(sys.modules[simulate.__module__], units, (2, 3, 1000))
    whole = [simulate(plan).iteration_s for plan in plans_of_many_micro_batches()]
    assert short == pytest.approx(whole, rel=0.01)


def plans_of_many_micro_batches() -> list[Plan]:
    """Uniform, random on a wide network, and sharing NICs."""
    return [
        uniform_plan("megatron-p8", one_way_delay_s=0.003, bandwidth_bps=3e9, batch=120),
        uniform_plan("megatron-p4-interleaved2", num_nodes=4, bandwidth_bps=3e9, batch=80),
        build_plan(
            load_scenario("case5"),
            "dtfm-random",
            Setting(layers=24, batch=1024, seed=2022),
            Execution(iterations=2, warmup_iterations=1),
        ),
        build_plan(
            load_scenario("case3"),
            "dtfm-random",
            Setting(layers=24, batch=1024, seed=2022),
            Execution(iterations=2, warmup_iterations=1),
        ),
        build_plan(
            load_scenario("case1"),
            "dtfm-random",
            Setting(layers=24, batch=1024, seed=2022),
            Execution(iterations=2, warmup_iterations=1),
        ),
        build_plan(
            load_scenario("case2"),
            "megatron-p8",
            Setting(layers=24, batch=1024, seed=2022),
            Execution(iterations=2, warmup_iterations=1),
        ),
    ]


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    plan = uniform_plan("megatron-p4-interleaved2", num_nodes=4, layers=8, batch=32)
    assert iteration_s(plan) == pytest.approx((32 + 3 / 2) * (F + B))


def test_zero_bubble_hides_weight_gradients_in_the_bubble() -> None:
    """A bubble of (p - 1) (F + B - W), of 1F1B's (p - 1) (F + B); W = F here."""
    plan = uniform_plan("megatron-p8-zero-bubble", batch=40)
    assert iteration_s(plan) == pytest.approx(40 * (F + B) + 7 * (F + B - F))


def test_gradients_are_reduced_and_broadcast() -> None:
    """Two pipelines of four: after the round, a gradient there, the update, a gradient back."""
    bandwidth_bps = 1e9
    plan = uniform_plan(
        "dtfm-scheduled", num_nodes=16, bandwidth_bps=bandwidth_bps, optimizer_s=0.7
    )
    largest = max(stage.gradient_bytes for stage in plan.stages)
    sync = simulate(plan, NO_COSTS).phases
    assert sync["optimizer_s"] == pytest.approx(0.7)
    assert sync["sync_s"] == pytest.approx(2 * largest * 8 / bandwidth_bps, rel=0.02)


@pytest.mark.parametrize(("num_nodes", "at_once"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_updates_share_the_host_of_their_node(num_nodes: int, at_once: int) -> None:
    """Pipelines of eight: the first updates for all, and its ranks are the first eight devices."""
    plan = uniform_plan("dtfm-scheduled", num_nodes=16, optimizer_s=0.7)
    first = tuple(rank * num_nodes // 8 for rank in range(8))
    others = tuple(range(8, 16))
    shared = dataclasses.replace(plan, device_nodes=first + others)
    seconds = [simulate(p, NO_COSTS).phases for p in (plan, shared)]
    assert seconds[1]["optimizer_s"] == pytest.approx(at_once * 0.7)
    assert iteration_s(shared) - iteration_s(plan) == pytest.approx((at_once - 1) * 0.7)


@pytest.mark.parametrize(("variant", "share"), [("allreduce", 1), ("sharded-ps", 1 / 2)])
def test_without_a_central_server_all_ranks_of_dtfm_update(variant: str, share: float) -> None:
    """Everything, or a shard each of the two that hold a stage; the two of a node at once. Either
    way 2 (n - 1) / n of the gradients leave every rank."""
    bandwidth_bps = 1e9
    plan = uniform_plan(
        f"dtfm-scheduled-{variant}", num_nodes=16, bandwidth_bps=bandwidth_bps, optimizer_s=0.7
    )
    assert (plan.layout.pp, plan.layout.dp) == (8, 2)
    shared = dataclasses.replace(plan, device_nodes=tuple(rank // 2 for rank in range(16)))
    for each, at_once in ((plan, 1), (shared, 2)):
        phases = simulate(each, NO_COSTS).phases
        assert phases["optimizer_s"] == pytest.approx(share * at_once * 0.7)
    gradients_s = max(stage.gradient_bytes for stage in plan.stages) * 8 / bandwidth_bps
    assert simulate(plan, NO_COSTS).phases["sync_s"] == pytest.approx(gradients_s, rel=1e-3)


def test_a_barrier_releases_no_rank_before_it_is_answered() -> None:
    """Three ranks, two steps. A rank that comes late to both its neighbours waits for a round trip
    per step; who was early needs its word, and to hear that its own is awaited."""
    simulator = sys.modules[simulate.__module__]
    plan = uniform_plan("dtfm-scheduled", num_nodes=8, one_way_delay_s=0.01, bandwidth_bps=1e9)
    graph = Graph(Fabric(plan.network, [0, 1, 2], NO_COSTS))
    ranks = np.array([[0, 1, 2]])
    ends = graph.work(TaskKind.FORWARD, ranks, [[0.0, 0.0, 1.0]])
    out = simulator.barrier(graph, ranks, ends)
    end_s = graph.run().end_s[out]
    # Step 1: 2 asks 1, which hears it at 1.01, and has its word at 1.02; 0 has that of 2 at 1.01.
    # Step 2, the other way round: 2 asks 0, which hears it at 1.03, and has its word at 1.04; 0
    # has that of 1, asked at 1.01, at 1.03; 1 has that of 2, asked at 1.01, sent at 1.02, at 1.03.
    assert end_s == pytest.approx(np.array([[1.03, 1.03, 1.04]]))


def test_tensor_parallel_adds_its_all_reduces() -> None:
    """Two per layer forward, two backward and two in recomputation, over a ring of two."""
    bandwidth_bps = 10e9
    plan = uniform_plan("megatron-t2", num_nodes=2, bandwidth_bps=bandwidth_bps, batch=8)
    ring_s = 2 * (1 / 2) * message_s(plan, bandwidth_bps)
    assert per_micro_batch_s(plan) == pytest.approx(F + B + 2 * 8 * 3 * ring_s, rel=0.01)


def test_zero3_within_the_live_limit_scatters_gradients_every_step() -> None:
    """All parameters fit: a micro-step gathers them, computes, and scatters their gradients in one
    bucket, which is full when nothing is left to compute."""
    bandwidth_bps = 1e9
    plan = uniform_plan("zero3", num_nodes=4, bandwidth_bps=bandwidth_bps, layers=4, batch=64)
    parameters = plan.stages[0].parameters
    assert parameters < 500_000_000
    ring_s = 3 / 4 * parameters * 2 * 8 / bandwidth_bps
    expected = plan.num_micro_batches * (ring_s + F + B + ring_s)
    assert iteration_s(plan) == pytest.approx(expected, rel=0.01)


def test_zero3_beyond_the_live_limit_gathers_twice() -> None:
    """No layer may stay: forward and backward gather all, one ahead of compute. Embeddings stay."""
    bandwidth_bps = 1e9
    plan = uniform_plan("zero3", num_nodes=4, bandwidth_bps=bandwidth_bps, layers=4, batch=64)
    plan = dataclasses.replace(plan, live_parameters=0)
    layers = 4 * 12 * 2048**2
    ring_s = 3 / 4 * layers * 2 * 8 / bandwidth_bps
    total = simulate(plan, NO_COSTS).parts[0].total_s / plan.num_micro_batches
    scatter_s = 3 / 4 * plan.stages[0].parameters * 2 * 8 / bandwidth_bps
    embedding_s = 3 / 4 * plan.workload.embedding_parameters * 2 * 8 / bandwidth_bps
    assert total == pytest.approx(embedding_s + 2 * ring_s + scatter_s, rel=0.03)


def test_ddp_hides_all_but_the_last_buckets_on_a_fast_network() -> None:
    """Buckets with gradients of the embeddings are full when the backward pass is over."""
    bandwidth_bps = 400e9
    plan = uniform_plan("ddp", num_nodes=4, bandwidth_bps=bandwidth_bps, layers=4, batch=64)
    of_layers = plan.stages[0].gradient_bytes - 2 * plan.workload.embedding_parameters
    early = of_layers // plan.bucket_bytes * plan.bucket_bytes
    late_s = 2 * 3 / 4 * (plan.stages[0].gradient_bytes - early) * 8 / bandwidth_bps
    assert iteration_s(plan) == pytest.approx(plan.num_micro_batches * (F + B) + late_s, rel=1e-3)


@pytest.mark.parametrize("kind", ["central-ps", "sharded-ps"])
def test_a_parameter_server_gets_gradients_when_the_backward_pass_is_over(kind: str) -> None:
    """Sharded: (n - 1) / n of them out, as much back. Central: all of them down a chain and up
    again, and a slice for each further hop (2%)."""
    bandwidth_bps = 10e9
    plan = uniform_plan(f"ddp-{kind}", num_nodes=4, bandwidth_bps=bandwidth_bps, layers=4, batch=64)
    bytes_out = plan.stages[0].gradient_bytes * {"central-ps": 1, "sharded-ps": 3 / 4}[kind]
    # An all-to-all has a link per pair of nodes, and a third of the bytes on each.
    out_and_back = {"central-ps": 2, "sharded-ps": 1 / 3 + 1}[kind]
    serial_s = plan.num_micro_batches * (F + B) + out_and_back * bytes_out * 8 / bandwidth_bps
    assert iteration_s(plan) == pytest.approx(serial_s, rel=0.02)


def test_ddp_is_bound_by_its_gradients_on_a_slow_one() -> None:
    bandwidth_bps = 1e9
    plan = uniform_plan("ddp", num_nodes=4, bandwidth_bps=bandwidth_bps, layers=4, batch=64)
    gradient_s = 2 * 3 / 4 * plan.stages[0].gradient_bytes * 8 / bandwidth_bps
    before_s = plan.num_micro_batches * (F + B) - B
    assert iteration_s(plan) == pytest.approx(before_s + gradient_s, rel=0.02)


@pytest.mark.parametrize("variant", ["dtfm-random", "megatron-p8", "zero3"])
def test_bit_identical_between_runs(variant: str) -> None:
    plan = build_plan(
        load_scenario("case5"),
        variant,
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert simulate(plan).iteration_s == simulate(plan).iteration_s


@pytest.mark.parametrize("variant", ["dtfm-scheduled", "dtfm-random", "megatron-p8", "zero3"])
def test_case_3_is_within_10_percent_of_the_published_times(variant: str) -> None:
    """A guard against mistakes. Claims of accuracy are in results/README.md."""
    published: pd.DataFrame = iteration_times()
    rows = published[
        (published["case"] == "case3")
        & (published["system"] == variant)
        & (published["layers"] == 24)
        & (published["batch"] == 1024)
    ]
    plan = build_plan(
        load_scenario("case3"),
        variant,
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert simulate(plan).iteration_s == pytest.approx(rows["iteration_s"].mean(), rel=0.1)


@pytest.mark.parametrize("variant", ["dtfm-random", "megatron-p8", "zero3"])
def test_another_batch_is_the_same_with_and_without_the_one_before(variant: str) -> None:
    """Parts are kept for plans that differ in their batch only."""
    small, large = (
        build_plan(
            load_scenario("case4"),
            variant,
            Setting(layers=24, batch=batch, seed=2022),
            Execution(iterations=2, warmup_iterations=1),
        )
        for batch in (1024, 4096)
    )
    forget()
    simulate(small)
    after_another = simulate(large)
    forget()
    assert simulate(large).iteration_s == after_another.iteration_s
    assert simulate(large).phases == after_another.phases


def test_a_plan_without_rules_is_refused() -> None:
    plan = dataclasses.replace(uniform_plan("dtfm-scheduled"), schedule="wave")
    with pytest.raises(PlanError, match="wave"):
        simulate(plan)


@pytest.mark.parametrize(
    "variant",
    ["dtfm-scheduled", "dtfm-scheduled-allreduce", "dtfm-scheduled-sharded-ps", "megatron-p2t4"],
)
def test_every_rank_is_done_with_its_own_synchronisation(variant: str) -> None:
    """The barrier that follows waits for the ranks themselves, not for others of their groups."""
    plan = build_plan(
        load_scenario("case1"),
        variant,
        Setting(layers=24, batch=1024),
        Execution(iterations=2, warmup_iterations=1),
    )
    graph, ranks = Graph(fabric_of(plan, load_transport("nccl"))), rank_lanes(plan)
    done = synchronise(graph, plan, ranks, graph.work(TaskKind.MARK, ranks))
    assert (graph.run().rank[done] == ranks).all()
