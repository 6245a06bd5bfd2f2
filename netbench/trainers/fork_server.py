"""A process that imports torch once and forks ranks.

Importing torch 64 times on two cores takes minutes; a fork takes a fraction of a second.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from netbench.errors import NetbenchError, TestbedError
from netbench.trainers.protocol import ChannelClosed, MessageChannel
from netbench.trainers.rank import run_rank

PR_SET_PDEATHSIG = 1  # linux/prctl.h
CLONE_NEWNET = 0x40000000  # linux/sched.h

BACKLOG = 1024
"""Most connections that wait for a fork: more than the ranks of any scenario."""


REQUEST_BYTES = 1 << 12
"""Longest request to fork a rank."""


def serve(path: Path, modules: Sequence[str] = ()) -> NoReturn:
    """Listen on the Unix socket `path`; fork one rank per connection until killed.

    When a rank is killed, a message on its connection says so. modules: imported before, so that
    ranks need not import them (`plan.experiment.rank_modules`).
    """
    torch.set_num_threads(1)
    for module in modules:
        importlib.import_module(module)
    # Objects that exist now never become garbage: their pages stay shared between ranks.
    gc.collect()
    gc.freeze()
    gc.enable()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(BACKLOG)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    _fork(listener, selector)
                else:
                    selector.unregister(key.fileobj)
                    _report_end(key.fd, *key.data)


def _fork(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    """Fork a rank for the next connection, and wait for its end with `selector`."""
    connection, _ = listener.accept()
    parent = os.getpid()
    if child := os.fork():
        # A pidfd becomes readable when its process ends.
        selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, connection))
        return
    status = 1
    try:
        _die_with(parent)
        for key in list(selector.get_map().values()):
            if key.fileobj is not listener:
                os.close(key.fd)
                key.data[1].close()
        listener.close()
        selector.close()
        status = _serve(connection)
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit, which would run the parent's clean-up.
        sys.stderr.flush()
        os._exit(status)


def _report_end(descriptor: int, child: int, connection: socket.socket) -> None:
    """Report on its connection which signal killed a rank."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(descriptor)
    if status < 0:
        with contextlib.suppress(ChannelClosed):  # the controller has gone
            MessageChannel.over_socket(connection).send(event="ended", status=status)
    with contextlib.suppress(OSError):  # the controller has gone
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _serve(connection: socket.socket) -> int:
    """Become the rank that the first message asks for. Return the exit status."""
    # The controller sends nothing more before it was answered, so this is one whole message.
    line, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 1)
    for descriptor in descriptors:
        os.dup2(descriptor, sys.stdout.fileno())
        os.dup2(descriptor, sys.stderr.fileno())
        os.close(descriptor)
    if not line:
        return 0  # closed without a request
    channel = MessageChannel.over_socket(connection)
    request = json.loads(line)
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
