"""The main loop of one rank: read an order, carry it out, answer."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist

from netbench.errors import NetbenchError, TestbedError
from netbench.plan.experiment import experiment_from_json, experiment_hash
from netbench.trainers.events import RECORDER
from netbench.trainers.hivemind import Verdict
from netbench.trainers.memory import is_out_of_memory
from netbench.trainers.protocol import Channel, ChannelClosed, Message
from netbench.trainers.systems import Elastic, System, build_system
from netbench.trainers.virtual import sleep_until
from netbench.trainers.world import World

OPS = "connect, join, prepare, meet, run or stop"

PR_SET_TIMERSLACK = 29  # linux/prctl.h
TIMER_SLACK_NS = 1
"""The kernel may end a sleep this much late; its default of 50 µs would be in every result."""


def import_everything() -> None:
    """Import what any plan may need, so that a forked rank imports nothing itself."""
    torch.set_num_threads(1)
    for module in ("torch.distributed.fsdp", "torch.distributed.device_mesh"):
        importlib.import_module(module)


def run_rank(channel: Channel, rank: int | None = None) -> int:
    """Serve the controller on `channel` until it says stop or goes away: the exit status."""
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
        with contextlib.suppress(ChannelClosed):  # nobody is left to tell; stderr has it
            channel.send(event="error", rank=loop.rank, **described)
        return _leave(1)
    return _leave(0)


def describe_error(error: Exception) -> Message:
    """`message` and `follows` of an error event: see `protocol`."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, NetbenchError):
        return {"message": str(error), "follows": False}
    if is_out_of_memory(error):
        return {"message": f"out of memory: {lines[0] or 'no more to be had'}", "follows": False}
    # What gloo raises when a peer has gone names its own source file first.
    follows = "/transport/tcp/" in lines[0] or isinstance(error, dist.DistNetworkError)
    return {"message": f"{type(error).__name__}: {lines[0]}", "follows": follows}


def _leave(status: int) -> int:
    # gloo's destructors wait for peers and for their event loop; the kernel closes faster.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Rank:
    """The state of one rank between orders."""

    def __init__(self, channel: Channel, rank: int | None) -> None:
        self.rank = rank
        self._channel = channel
        self._world: World | None = None
        self._systems: dict[str, System] = {}

    def serve(self, order: Message) -> bool:
        """Carry out one order; False when it was to stop."""
        match order["op"]:
            case "connect":
                self._connect(order)
            case "prepare":
                self._prepare(order)
            case "join":
                self._join(order)
            case "meet":
                self._meet(order)
            case "run":
                self._run(order)
            case "stop":
                return False
            case other:
                raise TestbedError(f"unknown op {other!r}; expected {OPS}")
        return True

    def _connect(self, order: Message) -> None:
        self.rank = order["rank"]
        self._world = World.connect(
            rank=order["rank"],
            size=order["world_size"],
            interface=order["interface"],
            store=order["store"],
            serve_store=order["serve_store"],
            address=order["address"],
        )
        self._channel.send(event="ready", rank=self.rank)

    def _join(self, order: Message) -> None:
        """Take part in elastic systems only: gloo's world is as it was connected."""
        self.rank = order["rank"]
        self._world = World(None, order["rank"], order["world_size"], order["address"])
        self._channel.send(event="ready", rank=self.rank)

    def _meet(self, order: Message) -> None:
        system = self._system(order)
        if not isinstance(system, Elastic):
            raise TestbedError(f"plan {order['plan_hash']} is of a system whose peers stay")
        system.meet(_addresses(order["members"]), order["epoch"], order["new"])
        self._channel.send(event="met", rank=self.rank)

    def _decide(self, complete: bool) -> Verdict:
        """Ask the controller what becomes of a round."""
        self._channel.send(event="round", rank=self.rank, complete=complete)
        answer = self._channel.receive()
        return Verdict(
            members=_addresses(answer["members"]), again=answer["again"], epoch=answer["epoch"]
        )

    def _system(self, order: Message) -> System:
        system = self._systems.get(order["plan_hash"])
        if system is None:
            raise TestbedError(f"plan {order['plan_hash']} was not prepared")
        return system

    def _prepare(self, order: Message) -> None:
        plan = experiment_from_json(order["plan"])
        if self._world is None:
            raise TestbedError("prepare came before connect")
        num_ranks = len(plan.device_nodes)
        if num_ranks != self._world.size:
            raise TestbedError(
                f"plan has {num_ranks} ranks, the world {self._world.size} processes"
            )
        system = build_system(self._world, plan)
        self._world.warm(system.peers())
        self._systems[experiment_hash(plan)] = system
        # What was prepared stays: the collector need not look at it between iterations.
        gc.collect()
        gc.freeze()
        self._channel.send(
            event="prepared",
            rank=self.rank,
            plan_hash=experiment_hash(plan),
            address=system.address if isinstance(system, Elastic) else None,
        )

    def _run(self, order: Message) -> None:
        system = self._system(order)
        if isinstance(system, Elastic):
            system.decide = self._decide if order.get("elastic") else None
        system.arm()
        if order.get("trace"):
            RECORDER.begin(on_gpu=torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
        sleep_until(order["start_at"])
        start_s = time.monotonic()
        phases = system.iterate()
        end_s = time.monotonic()
        loss = system.take_loss()
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
            events=[event.to_json(order["start_at"]) for event in RECORDER.take()],
        )


def _addresses(members: dict[str, str]) -> dict[int, str]:
    """Rank -> address; JSON's keys are text."""
    return {int(rank): address for rank, address in members.items()}
