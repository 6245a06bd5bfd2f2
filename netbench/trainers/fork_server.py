"""One process that has imported torch, and forks ranks from it.

Importing torch 64 times on two cores takes minutes; a fork takes a fraction of a second.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from netbench.errors import NetbenchError, TestbedError
from netbench.trainers.protocol import Channel, ChannelClosed
from netbench.trainers.rank import import_everything, run_rank

PR_SET_PDEATHSIG = 1  # linux/prctl.h
CLONE_NEWNET = 0x40000000  # linux/sched.h

BACKLOG = 1024
"""Connections that may wait for their fork: more than the ranks of any scenario."""


def serve(path: Path) -> NoReturn:
    """Listen on the Unix socket `path`; fork one rank per connection until killed."""
    import_everything()
    # What exists now never becomes garbage: its pages stay shared between the ranks.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended ranks are reaped by the kernel
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(BACKLOG)
    while True:
        connection, _ = listener.accept()
        _fork(connection, listener)


def _fork(connection: socket.socket, listener: socket.socket) -> None:
    parent = os.getpid()
    if os.fork():
        connection.close()
        return
    status = 1
    try:
        _die_with(parent)
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        status = _serve(Channel.over_socket(connection))
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: the parent's clean-up is not the child's to do.
        sys.stderr.flush()
        os._exit(status)


def _serve(channel: Channel) -> int:
    """Become the rank that the first message asks for: the exit status."""
    try:
        request = channel.receive()
    except ChannelClosed:
        return 0  # went away before it asked for anything
    rank = request.get("rank")
    try:
        if request.get("op") != "fork":
            found = json.dumps(request)[:80]
            raise TestbedError(f"the first message must be op fork; found {found}")
        if request.get("netns") is not None:
            _enter(request["netns"])
    except (NetbenchError, OSError) as error:
        channel.send(event="error", rank=rank, message=str(error))
        return 1
    return run_rank(channel, rank)


def _enter(namespace: str) -> None:
    """Move this process into a network namespace, given the file that names it."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    _check(_libc().setns(descriptor, CLONE_NEWNET), f"setns {namespace}")
    os.close(descriptor)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends."""
    _check(_libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
