"""Forked processes that meet in a gloo world on loopback, without the rank's main loop."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import torch

from netbench.trainers.communication.world import World
from tests.ports import free_port

DEADLINE_S = 300.0


def computed(tensor: torch.Tensor) -> Future[torch.Tensor]:
    """Return a message that is there."""
    future = Future[torch.Tensor]()
    future.set_result(tensor)
    return future


def on_processes(
    count: int, work: Callable[..., Any], *arguments: Any, world_type: type[World] = World
) -> list[Any]:
    """Run `work(world, *arguments)` on `count` connected processes. Return the results."""
    context = multiprocessing.get_context("fork")
    store = f"127.0.0.1:{free_port()}"
    processes, results = [], []
    for rank in range(count):
        result, child = context.Pipe()
        process = context.Process(
            target=_child,
            args=(child, rank, count, store, world_type, work, arguments),
            daemon=True,
        )
        process.start()
        child.close()
        processes.append(process)
        results.append(result)
    try:
        return [_result(result) for result in results]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _result(result: Connection) -> Any:
    assert result.poll(DEADLINE_S), f"a process said nothing for {DEADLINE_S} s"
    return result.recv()


def _child(
    result: Connection,
    rank: int,
    size: int,
    store: str,
    world_type: type[World],
    work: Callable[..., Any],
    arguments: Any,
) -> None:
    torch.set_num_threads(1)
    world = world_type.connect(
        rank=rank, size=size, interface="lo", store=store, serve_store=rank == 0
    )
    result.send(work(world, *arguments))
    result.recv_bytes()  # stay until killed: others may still be talking to this process
