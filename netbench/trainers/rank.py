"""The main loop of one rank: read an order, carry it out, answer."""

import contextlib
import ctypes
import gc
import math
import os
import sys
import time
import traceback
from typing import Any

import torch
import torch.distributed as dist

from netbench.errors import NetbenchError, TestbedError
from netbench.plan.experiment import experiment_from_json, experiment_hash
from netbench.plan.model import Plan
from netbench.trainers.communication.peers import RoundOutcome
from netbench.trainers.communication.sockets import limit_rates
from netbench.trainers.communication.world import World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.virtual import sleep_until
from netbench.trainers.protocol import ChannelClosed, Message, MessageChannel
from netbench.trainers.systems.registry import (
    AheadTrainer,
    CountingTrainer,
    ElasticTrainer,
    LaneTrainer,
    PacedTrainer,
    Trainer,
    build_trainer,
)

PR_SET_TIMERSLACK = 29  # linux/prctl.h
TIMER_SLACK_NS = 1
"""Slack of a sleep, nanoseconds. The kernel's default of 50 µs would be part of every result."""


def run_rank(channel: MessageChannel, rank: int | None = None) -> int:
    """Serve the controller on `channel` until it stops or closes. Return the exit status."""
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS)
    loop = Rank(channel, rank)
    try:
        channel.send(event="started", rank=rank, pid=os.getpid())
        while loop.serve(channel.receive()):
            pass
    except ChannelClosed:
        return _leave(0)
    except Exception as error:
        described = describe_error(error)
        if not (isinstance(error, NetbenchError) or described["follows"]):
            traceback.print_exc()
        with contextlib.suppress(ChannelClosed):  # the controller has gone; stderr has it
            channel.send(event="error", rank=loop.rank, **described)
        return _leave(1)
    return _leave(0)


def describe_error(error: Exception) -> Message:
    """Return `message` and `follows` of an error event (`protocol`)."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, NetbenchError):
        return {"message": str(error), "follows": False}
    if is_out_of_memory(error):
        return {"message": f"out of memory: {lines[0] or 'no more to be had'}", "follows": False}
    # When a peer has gone, gloo's errors name its own source file first.
    follows = "/transport/tcp/" in lines[0] or isinstance(error, dist.DistNetworkError)
    return {"message": f"{type(error).__name__}: {lines[0]}", "follows": follows}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: Python's, a GPU's, or a CPU's (torch raises RuntimeError)."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _leave(status: int) -> int:
    # gloo's destructors wait for peers and for their event loop; the kernel closes faster.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Rank:
    """The state of one rank between orders."""

    def __init__(self, channel: MessageChannel, rank: int | None) -> None:
        self.rank = rank
        self._channel = channel
        self._world: World | None = None
        self._trainers: dict[str, Trainer] = {}

    def serve(self, order: Message) -> bool:
        """Carry out one order. Return False if it was to stop."""
        if order["op"] == "stop":
            return False
        orders = {
            "connect": self._connect, "join": self._join, "prepare": self._prepare,
            "forget": self._forget, "meet": self._meet, "run": self._run,
        }  # fmt: skip
        if order["op"] not in orders:
            raise TestbedError(f"unknown op {order['op']!r}; expected {', '.join(orders)} or stop")
        orders[order["op"]](order)
        return True

    def _connect(self, order: Message) -> None:
        self.rank = order["rank"]
        self._world = _connect(order)
        self._channel.send(event="ready", rank=self.rank)

    def _join(self, order: Message) -> None:
        """Join without gloo, whose world is fixed: only elastic systems can run on this rank."""
        self.rank = order["rank"]
        self._world = World(None, order["rank"], order["world_size"], order["address"])
        self._channel.send(event="ready", rank=self.rank)

    def _meet(self, order: Message) -> None:
        trainer = self._trainer(order)
        if not isinstance(trainer, ElasticTrainer):
            raise TestbedError(f"plan {order['plan_hash']} is of a system whose peers stay")
        trainer.meet(_addresses(order["members"]), order["epoch"], order["new"])
        self._channel.send(event="met", rank=self.rank)

    def _decide(self, complete: bool) -> RoundOutcome:
        """Ask the controller whether a round counts."""
        self._channel.send(event="round", rank=self.rank, complete=complete)
        answer = self._channel.receive()
        return RoundOutcome(
            members=_addresses(answer["members"]), again=answer["again"], epoch=answer["epoch"]
        )

    def _trainer(self, order: Message) -> Trainer:
        trainer = self._trainers.get(order["plan_hash"])
        if trainer is None:
            raise TestbedError(f"plan {order['plan_hash']} was not prepared")
        return trainer

    def _prepare(self, order: Message) -> None:
        plan = experiment_from_json(order["plan"])
        if self._world is None:
            raise TestbedError("prepare came before connect")
        num_ranks = len(plan.device_nodes)
        if num_ranks != self._world.size:
            raise TestbedError(
                f"plan has {num_ranks} ranks, the world {self._world.size} processes"
            )
        if isinstance(plan, Plan) and plan.compute == "cuda":
            from netbench.trainers.layers.rehearsal import rehearse  # only where there are GPUs

            rehearse(plan)
        trainer = build_trainer(self._world, plan)
        lanes = trainer.lanes if isinstance(trainer, LaneTrainer) else None
        self._world.warm(trainer.peers(), lanes)
        if isinstance(trainer, PacedTrainer):
            limit_rates(self._world, trainer.rates)
        self._trainers[experiment_hash(plan)] = trainer
        # Prepared trainers stay: the collector need not visit them between iterations.
        gc.collect()
        gc.freeze()
        self._channel.send(
            event="prepared",
            rank=self.rank,
            plan_hash=experiment_hash(plan),
            address=trainer.address if isinstance(trainer, ElasticTrainer) else None,
        )

    def _forget(self, order: Message) -> None:
        self._trainers.clear()

    def _run(self, order: Message) -> None:
        trainer = self._trainer(order)
        if isinstance(trainer, ElasticTrainer):
            trainer.decide = self._decide if order.get("elastic") else None
        if isinstance(trainer, AheadTrainer):
            trainer.arm()
        if order.get("trace"):
            RECORDER.begin(on_gpu=torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
        sleep_until(order["start_at"])
        start_s = time.monotonic()
        phases = trainer.iterate()
        end_s = time.monotonic()
        loss = trainer.take_loss()
        if loss is not None and not math.isfinite(loss):
            raise TestbedError(
                f"the loss of iteration {order['iteration']} is {loss}; it diverged: "
                "use a dtype of larger range (bf16, fp32)"
            )
        self._channel.send(
            event="iteration",
            rank=self.rank,
            plan_hash=order["plan_hash"],
            iteration=order["iteration"],
            start_s=start_s,
            end_s=end_s,
            phases=phases,
            loss=loss,
            samples=trainer.samples if isinstance(trainer, CountingTrainer) else None,
            events=[event.to_json(order["start_at"]) for event in RECORDER.take()],
        )


def _connect(order: Message) -> World:
    """Join the world, with lanes of NCCL if the order has its environment."""
    ends: dict[str, Any] = {
        "rank": order["rank"],
        "size": order["world_size"],
        "interface": order["interface"],
        "store": order["store"],
        "serve_store": order["serve_store"],
        "address": order["address"],
    }
    device = order.get("device")
    if device is None:
        return World.connect(**ends)
    from netbench.trainers.communication import nccl  # only where there are GPUs

    nccl.prepare_process(device["index"], device["environment"])
    if not device["nccl"]:
        return World.connect(**ends)
    return nccl.NcclWorld.join(**ends, device=nccl.CudaDevice())


def _addresses(members: dict[str, str]) -> dict[int, str]:
    """Return rank -> address; keys in JSON are text."""
    return {int(rank): address for rank, address in members.items()}
