"""Data parallelism on loopback ranks: what is sent, when, and beside what."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
import torch

from netbench.plan.model import Plan
from netbench.systems.ddp import gradient_buckets
from netbench.trainers.communication.group import Post
from netbench.trainers.communication.world import (
    TAG_BARRIER,
    TAG_COLLECTIVE,
    TAG_WARM,
    PendingTransfer,
    World,
)
from netbench.trainers.layers.virtual import sleep_until
from netbench.trainers.systems.ddp import DdpRank, Reducer, bucket_posts, build_replica
from tests.trainers.parity import real_plan
from tests.trainers.processes import on_processes
from tests.trainers.rank_processes import ATTEMPTS

GRADIENT_BYTES = 48_000
BUCKET_BYTES = 8000

DEADLINE_S = 30.0


def ddp_plan(plan_of: Callable[..., Plan], dp: int = 2, **changes: Any) -> Plan:
    """A virtual plan; gradients are six buckets."""
    of_maker = ("forward_s", "num_micro_batches", "scale")
    rest = {name: value for name, value in changes.items() if name not in of_maker}
    plan = plan_of(
        system="ddp",
        pp=1,
        dp=dp,
        gradient_bytes=GRADIENT_BYTES,
        **{"num_micro_batches": 1}
        | {name: value for name, value in changes.items() if name in of_maker},
    )
    defaults: dict[str, Any] = {
        "schedule": "none",
        "data_parallel": "ring",
        "bucket_bytes": BUCKET_BYTES,
    }
    return dataclasses.replace(plan, **defaults | rest)


class SlowWorld(World):
    """Collectives arrive over a link of `RATE` bytes/s, message after message."""

    RATE = 5e4
    free_s = 0.0

    def receive(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        work = super().receive(tensor, process, tag)
        return Arrival(self, work, tensor.nbytes) if tag == TAG_COLLECTIVE else work


class Arrival:
    """A message on its way over the slow link."""

    def __init__(self, world: SlowWorld, work: PendingTransfer, size_bytes: int) -> None:
        self._world, self._work, self._size_bytes = world, work, size_bytes

    def wait(self) -> None:
        self._work.wait()
        begins_s = max(self._world.free_s, time.monotonic())
        self._world.free_s = begins_s + self._size_bytes / self._world.RATE
        sleep_until(self._world.free_s)


def _time(world: World, plan: Plan) -> tuple[float, dict[str, float]]:
    system = DdpRank(world, plan)
    world.warm(system.peers())
    started_s = time.monotonic()
    phases = system.iterate()
    return time.monotonic() - started_s, phases


def reduced_s(plan: Plan) -> float:
    """Seconds until two ranks have reduced the last bucket over the slow link:
    S bytes come in for every bucket of S, when it is full and the one before it is done."""
    (cost,) = plan.stages
    before_s = (plan.num_micro_batches - 1) * (cost.forward_s + cost.backward_s) + cost.forward_s
    done_s = 0.0
    for bucket in gradient_buckets(plan):
        done_s = max(done_s, before_s + bucket.ready_s) + bucket.size_bytes / SlowWorld.RATE
    return done_s


@pytest.mark.parametrize(
    ("forward_s", "micro_batches", "bound"), [(0.4, 1, "compute"), (0.2, 2, "network")]
)
def test_buckets_are_reduced_beside_the_backward_pass(
    plan_of: Callable[..., Plan], forward_s: float, micro_batches: int, bound: str
) -> None:
    """Over a link that takes 160 ms for a bucket, 960 ms in all. Where computing takes longer only
    the last bucket shows; where it does not, the link works from the first bucket to the last."""
    plan = ddp_plan(plan_of, forward_s=forward_s, num_micro_batches=micro_batches)
    (cost,) = plan.stages
    network_s = GRADIENT_BYTES / SlowWorld.RATE
    computed_s = micro_batches * (cost.forward_s + cost.backward_s)
    expected_s = reduced_s(plan) + cost.optimizer_s
    serial_s = computed_s + network_s + cost.optimizer_s
    last_s = BUCKET_BYTES / SlowWorld.RATE
    if bound == "compute":
        assert expected_s == pytest.approx(computed_s + last_s + cost.optimizer_s)
    else:
        before_s = computed_s - 5 / 6 * cost.backward_s
        assert expected_s == pytest.approx(before_s + network_s + cost.optimizer_s)
    hidden_s = serial_s - expected_s
    assert hidden_s > 0.4
    for _ in range(ATTEMPTS):  # a busy machine is late, and never early
        found = on_processes(2, _time, plan, world_type=SlowWorld)
        if all(
            seconds < serial_s - hidden_s / 2 and abs(sum(phases.values()) - seconds) < 0.02
            for seconds, phases in found
        ):
            break
    else:
        pytest.fail(f"nothing is hidden: {found}")
    for seconds, phases in found:
        assert seconds >= expected_s
        assert phases["backward_s"] >= micro_batches * cost.backward_s
        assert phases["optimizer_s"] >= cost.optimizer_s


class CountingWorld(World):
    """Counts the bytes that collectives send."""

    sent_bytes = 0

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        if tag not in (TAG_BARRIER, TAG_WARM):
            self.sent_bytes += tensor.nbytes
        return super().send(tensor, process, tag)


def _sent(world: CountingWorld, plan: Plan) -> int:
    _time(world, plan)
    return world.sent_bytes


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("ring", [3 / 2] * 4),  # 2 (n - 1) / n
        ("sharded-ps", [3 / 2] * 4),  # (n - 1) / n to the servers, as much to the others
        ("central-ps", [1, 2, 2, 1]),  # down the chain 1, 2, 3, 0, and up 0, 1, 2, 3
        # 2 -> 0, 1 -> 2, 3 -> 2 and 1 -> 3, 2 -> 1, 0 -> 1: half up and half down each
        ("tree", [1, 2, 2, 1]),
    ],
)
def test_gradients_are_sent_once_whatever_the_number_of_micro_batches(
    plan_of: Callable[..., Plan], kind: str, sent: list[float], micro_batches: int
) -> None:
    """Bytes that each of four ranks sends, over those of the gradients."""
    plan = ddp_plan(plan_of, 4, data_parallel=kind, num_micro_batches=micro_batches, forward_s=0.0)
    found = on_processes(4, _sent, plan, world_type=CountingWorld)
    assert found == [share * GRADIENT_BYTES for share in sent]


def test_scaled_down_a_message_is_shortened_by_what_gloo_adds(plan_of: Callable[..., Plan]) -> None:
    """Four messages for a bucket and rank, two to reduce and two to gather, 162 bytes less each."""
    plan = ddp_plan(plan_of, scale=4.0, forward_s=0.0)
    sent = 6 * (BUCKET_BYTES // 4 - 4 * 162)
    assert on_processes(2, _sent, plan, world_type=CountingWorld) == [sent, sent]


class WatchedReducer(Reducer):
    """Remembers what was started."""

    def __init__(self, posts: Callable[[torch.Tensor], Sequence[Post]]) -> None:
        super().__init__(posts)
        self.started: list[Future[torch.Tensor]] = []

    def start(self, tensor: torch.Tensor) -> Future[torch.Tensor]:
        self.started.append(super().start(tensor))
        return self.started[-1]


def _train_in_step_with_the_network(world: World, plan: Plan) -> list[int]:
    """Buckets that were started before the embedding's gradient was there, in each of 2 steps.

    Its gradient, the last to come, waits until the first bucket has been reduced. A step before
    these is torch's own: it learns in which order gradients come, and has one bucket."""
    reducer = WatchedReducer(bucket_posts(world, plan))
    stage, passes = build_replica(plan, world.rank, reducer)
    last = plan.num_micro_batches - 1
    counts: list[int] = []

    def wait_for_the_first(gradient: torch.Tensor) -> None:
        reducer.started[0].result(timeout=DEADLINE_S)
        counts.append(len(reducer.started))

    embedding = stage.layers[0].tokens.weight  # type: ignore[attr-defined]
    for step in range(3):
        if step == 1:
            embedding.register_hook(wait_for_the_first)
        reducer.started.clear()
        passes.forward(last, None)
        passes.backward(last, None)
        reducer.finish()
        stage.update()
    return counts


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_layers_that_compute_are_reduced_beside_the_backward_pass(backend: str) -> None:
    """Were buckets reduced when the pass is over, the pass would wait for ever."""
    plan = real_plan(
        "ddp", layers=(3,), bucket_bytes=8192, micro_batch=4, backend=backend, schedule="none"
    )
    for counts in on_processes(2, _train_in_step_with_the_network, plan):
        assert len(counts) == 2
        assert min(counts) >= 3  # a block alone has 13 KB


@pytest.mark.parametrize("ahead", [False, True])
def test_a_reduction_that_fails_is_told_by_finish(ahead: bool) -> None:
    """In order: what was started after it waits for it."""
    done: list[float] = []

    def reduce(tensor: torch.Tensor) -> None:
        done.append(tensor.item())
        if tensor.item() == 1:
            raise ConnectionError("the peer has gone")

    reducer = Reducer(lambda tensor: [lambda: partial(reduce, tensor)], ahead=ahead)
    for value in range(3):
        reducer.start(torch.tensor(float(value)))
    with pytest.raises(ConnectionError, match="the peer has gone"):
        reducer.finish()
    reducer.start(torch.tensor(3.0)).result(timeout=DEADLINE_S)
    assert done == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_reduction_posts_its_receives_while_one_runs(ahead: bool) -> None:
    """In two passes each: a pass posts before the one in front of it runs."""
    done: list[str] = []
    go_on = threading.Event()

    def run(name: str) -> None:
        done.append(f"run {name}")
        go_on.wait(DEADLINE_S)

    def post(name: str) -> Callable[[], None]:
        done.append(f"post {name}")
        return partial(run, name)

    def posts(tensor: torch.Tensor) -> list[Post]:
        return [partial(post, f"{tensor.item()}{half}") for half in "ab"]

    reducer = Reducer(posts, ahead=ahead)
    reducer.start(torch.tensor(1))
    reducer.start(torch.tensor(2))
    go_on.set()
    reducer.finish()
    one, two = ["post 1a", "post 1b", "run 1a"], ["post 2b", "run 2a", "run 2b"]
    between = ["post 2a", "run 1b"] if ahead else ["run 1b", "post 2a"]
    assert done == one + between + two
