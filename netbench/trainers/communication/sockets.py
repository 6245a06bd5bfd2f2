"""Limit the rates of gloo's connections.

gloo shows its sockets to nobody. Two processes find the one between them by the addresses of its
ends: each tells the other the addresses of all of its own.
"""

import fcntl
import math
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from netbench.errors import TestbedError
from netbench.trainers.communication.world import TAG_SOCKETS, World

SIOCOUTQ = 0x5411  # linux/sockios.h
SO_MAX_PACING_RATE = 47  # linux/socket.h; bytes/s of payload
NAMES_BYTES = 1 << 13
"""Size of the message with which a process tells its addresses: some 300 connections."""


def limit_rates(world: World, bytes_per_s: Mapping[int, float]) -> None:
    """Limit what this process sends to others, and keep the sockets in `World.sockets`.

    Each of the others must call this, and name this process. bytes_per_s: of payload, by process;
    inf = not limited. Raises TestbedError.
    """
    if not bytes_per_s:
        return
    own = _message(open_connections())
    theirs = {process: torch.empty(NAMES_BYTES, dtype=torch.uint8) for process in bytes_per_s}
    works = [world.receive(names, process, TAG_SOCKETS) for process, names in theirs.items()]
    works += [world.send(own, process, TAG_SOCKETS) for process in bytes_per_s]
    for work in works:
        work.wait()
    # Those of receiving and sending did not change: all connections are open.
    far_ends = {far: fd for fd, (_, far) in open_connections().items()}
    for process, names in theirs.items():
        found = [far_ends[name] for name in _names(names) if name in far_ends]
        if not found:
            raise TestbedError(f"no connection to process {process} is open, so none has a rate")
        if math.isfinite(bytes_per_s[process]):
            for fd in found:
                _limit(fd, bytes_per_s[process])
        world.sockets[process] = found  # with that of the store, which is idle


RESOLUTION = 64
"""Part of the bytes that need not arrive, after which to look again at the soonest. Where it takes
a round trip until more is acknowledged, looking for every segment would take long."""


def wait_for_arrival(fds: Sequence[int], bytes_per_s: float, but_for: float = 0.0) -> None:
    """Block until all that was sent is acknowledged, `but_for` bytes or one segment, whose
    acknowledgement may be delayed. fds: connections to one process. bytes_per_s: of each, at most.
    """
    for fd in fds:
        segment = _segment_bytes(fd)
        allowed, step = max(but_for, segment), max(but_for / RESOLUTION, segment)
        while (left := unacknowledged_bytes(fd)) > allowed:
            time.sleep(max(left - allowed, step) / bytes_per_s)


def open_connections() -> dict[int, tuple[str, str]]:
    """Return the connected sockets of this process: fd -> addresses of this and the other end."""
    return dict(_connections())


def _connections() -> Iterator[tuple[int, tuple[str, str]]]:
    for entry in Path("/proc/self/fd").iterdir():
        fd = int(entry.name)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    yield fd, (_name(one.getsockname()), _name(one.getpeername()))
        except OSError:  # it listens, or has been closed
            continue


def _name(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"{host}/{port}"


def _message(connections: Mapping[int, tuple[str, str]]) -> torch.Tensor:
    text = " ".join(sorted({own for own, _ in connections.values()})).encode()
    if len(text) > NAMES_BYTES:
        raise TestbedError(
            f"a process has {len(connections)} connections, too many to tell their addresses"
        )
    return torch.tensor(list(text.ljust(NAMES_BYTES)), dtype=torch.uint8)


def _names(message: torch.Tensor) -> list[str]:
    return bytes(message.tolist()).decode().split()


def unacknowledged_bytes(fd: int) -> int:
    """Return the bytes that were sent on a connection and are not acknowledged."""
    return int(struct.unpack("=i", fcntl.ioctl(fd, SIOCOUTQ, bytes(4)))[0])


def _segment_bytes(fd: int) -> int:
    with socket.socket(fileno=os.dup(fd)) as one:
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


def _limit(fd: int, bytes_per_s: float) -> None:
    with socket.socket(fileno=os.dup(fd)) as one:
        rate = struct.pack("=Q", max(1, round(bytes_per_s)))
        one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
