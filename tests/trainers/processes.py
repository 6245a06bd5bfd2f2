"""Forked processes that meet in a gloo world on loopback, without the rank's main loop."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from netbench.trainers.world import World

DEADLINE_S = 60.0


def on_processes(
    count: int, work: Callable[..., Any], *arguments: Any, world_type: type[World] = World
) -> list[Any]:
    """What `work(world, *arguments)` returns on each of `count` connected processes."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        store = f"127.0.0.1:{probe.getsockname()[1]}"
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
