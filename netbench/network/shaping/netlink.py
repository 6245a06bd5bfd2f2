"""Read the qdiscs of an interface in a local namespace over netlink.

No process is started: 64 nodes with 63 destinations take a fraction of the second that 64 `tc`
take. The result has the form of `tc -j`, which `readback` parses. Layouts: linux/rtnetlink.h,
linux/pkt_sched.h, linux/pkt_cls.h.

`python -m netbench.network.shaping.netlink INTERFACE NAMESPACE...`, as root, prints counters. For
every line of stdin it prints a line of JSON with a `snapshot` of each namespace (a file), in order.
"""

import ctypes
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from netbench.errors import NetworkError
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.readback import KernelState, Rule, found_from, rule

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNET = 0x40000000  # CLONE_NEWNET
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_REQUEST, _DUMP, _INTERRUPTED = 1, 0x300, 0x10
_ERROR, _DONE = 2, 3
_GET_LINK, _GET_QDISC, _GET_CLASS, _GET_FILTER = 18, 38, 42, 46
_HEADER = struct.Struct("=IHHII")
_TC = struct.Struct("=BxHiIII")
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_SEED = _ATTRIBUTE.pack(12, 14)
_STATS = struct.Struct("=QIIIIIII")  # struct tc_stats
_COUNTERS = ("bytes", "packets", "drops", "overlimits", "bps", "pps", "qlen", "backlog")
_NO_STATS = bytes(_STATS.size)
_MAX_ANSWER_BYTES = 1 << 15  # of one recv: netlink_recvmsg() in af_netlink.c; more would be mapped
_TIMEOUT_S = 10.0
_TICK_S = 64e-9
_ROOT = 0xFFFFFFFF  # the parent of the root
_CERTAIN = float(0xFFFFFFFF)  # probability 1
_FAIR_QUANTUM = 6
_PROTOCOLS = {0x0800: "ip", 0x86DD: "ipv6", 0x0003: "all"}


def read(namespace: Path, interface: str) -> KernelState:
    """Read an interface of a network namespace (a file, e.g. /run/netns/n0).

    Needs root. Raises NetworkError.
    """
    with _connect(namespace) as connection:
        index, max_segments = _link(connection, interface)
        qdiscs = [_qdisc(*message) for message in _dump(connection, _GET_QDISC, index)]
        root = next((q for q in qdiscs if q.get("root")), {})
        classes: dict[str, dict[str, float | str]] = {}
        rules: list[Rule] = []
        if root.get("handle") == HANDLE:
            dump = _dump(connection, _GET_CLASS, index)
            classes = {
                _name(handle): _class(parent, a[2])
                for handle, parent, _, a in dump
                if _is_of_root(handle)  # netem and fq_codel have classes, too
            }
            filters = _dump(connection, _GET_FILTER, index)
            rules = [_rule(handle, info, a[1], a.get(2, b"")) for handle, _, info, a in filters]
    return found_from(qdiscs, rules, classes, max_segments)


def read_leaves(namespace: Path, interface: str) -> dict[str, dict[str, int]]:
    """Read the counters of all qdiscs except the root, by class.

    Each has `bytes` and `packets` sent, `drops`, and `backlog` (bytes) and `qlen` (packets) queued.
    Needs root. Raises NetworkError.
    """
    with _connect(namespace) as connection:
        index, _ = _link(connection, interface)
        return {
            _name(parent): _counters(attributes)
            for _, parent, _, attributes in _dump(connection, _GET_QDISC, index)
            if parent != _ROOT and _is_of_root(parent)
        }


def snapshot(namespace: Path, interface: str) -> dict[str, Any]:
    """Return `at_s` by this kernel's clock and `leaves` (see `read_leaves`), or `error`."""
    try:
        return {"at_s": time.monotonic(), "leaves": read_leaves(namespace, interface)}
    except NetworkError as error:
        return {"error": str(error)}


def _connect(namespace: Path) -> socket.socket:
    with inside(namespace):
        connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    connection.settimeout(_TIMEOUT_S)
    return connection


@contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """Enter a network namespace with this thread. Sockets and processes made there stay in it."""
    with ExitStack() as stack:
        try:
            own, there = (os.open(x, os.O_RDONLY) for x in (_OWN_NAMESPACE, namespace))
            stack.callback(os.close, own)
            stack.callback(os.close, there)
            _enter(there)
        except OSError as error:
            raise NetworkError(f"cannot enter the namespace {namespace}: {error}") from error
        stack.callback(_enter, own)
        yield


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _link(connection: socket.socket, interface: str) -> tuple[int, int]:
    """Return index and gso_max_segs."""
    name = interface.encode() + b"\0"
    body = _LINK.pack(0, 0, 0, 0, 0) + _ATTRIBUTE.pack(4 + len(name), 3) + name
    for data in _answers(connection, _GET_LINK, _REQUEST, body):
        attributes = _attributes(data, _LINK.size)
        return _LINK.unpack_from(data)[2], _number(attributes.get(40, b"\0\0\0\0"))
    raise NetworkError(f"there is no interface {interface}")


def _dump(
    connection: socket.socket, what: int, index: int
) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    """Yield (handle, parent, info, attributes) of every object of a kind on one interface."""
    body = _TC.pack(0, 0, index, 0, 0, 0)
    for data in _answers(connection, what, _REQUEST | _DUMP, body):
        _, _, where, handle, parent, info = _TC.unpack_from(data)
        if where == index:
            yield handle, parent, info, _attributes(data, _TC.size)


def _answers(connection: socket.socket, what: int, flags: int, body: bytes) -> Iterator[bytes]:
    connection.send(_HEADER.pack(_HEADER.size + len(body), what, flags, 1, 0) + body)
    while True:
        data, at = connection.recv(_MAX_ANSWER_BYTES), 0
        while at < len(data):
            size, kind, flags_there, _, _ = _HEADER.unpack_from(data, at)
            message = data[at + _HEADER.size : at + size]
            at += (size + 3) & ~3
            if flags_there & _INTERRUPTED:
                raise NetworkError("the shaping changed while it was read; read it again")
            if kind == _ERROR and _number(message[:4]):
                code = -struct.unpack_from("=i", message)[0]
                raise NetworkError(f"the kernel refused to list its qdiscs: {os.strerror(code)}")
            if kind in (_DONE, _ERROR):
                return
            yield message
            if not flags & _DUMP:
                return


def _attributes(data: bytes, at: int = 0) -> dict[int, bytes]:
    found, end = {}, len(data)
    while at + 4 <= end:
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        found[kind & 0x3FFF] = data[at + 4 : at + size]
        at += (size + 3) & ~3
    return found


def _number(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def _is_of_root(handle: int) -> bool:
    """Return whether a handle is that of netbench's root, or of one of its classes."""
    return f"{handle >> 16:x}:" == HANDLE


@lru_cache(maxsize=1 << 12)
def _name(handle: int) -> str:
    return f"{handle >> 16:x}:{handle & 0xFFFF:x}" if handle & 0xFFFF else f"{handle >> 16:x}:"


def _qdisc(handle: int, parent: int, _info: int, attributes: dict[int, bytes]) -> dict[str, Any]:
    kind = attributes[1].rstrip(b"\0").decode()
    found: dict[str, Any] = {"kind": kind, "handle": _name(handle), **_counters(attributes)}
    found |= {"root": True} if parent == _ROOT else {"parent": _name(parent)}
    if kind == "netem":
        options = attributes[2]
        seeded = options[-12:-8] == _SEED  # the last value, different for each
        found["options"] = _netem(options[:-12] if seeded else options)
    if kind == "fq_codel":
        found["options"] = {"quantum": _number(_attributes(attributes[2])[_FAIR_QUANTUM])}
    if kind == "htb":
        default = struct.unpack_from("=III", _attributes(attributes[2])[2])[2]
        found["options"] = {"default": f"{default:x}"}
    return found


def _counters(attributes: dict[int, bytes]) -> dict[str, int]:
    values = _STATS.unpack_from(attributes.get(3, _NO_STATS))
    return dict(zip(_COUNTERS, values, strict=True))


@lru_cache(maxsize=1024)
def _netem(data: bytes) -> dict[str, Any]:
    """Decode options into the form of `tc -j`; equal links are decoded once."""
    latency, limit, loss, gap, duplicate, jitter = struct.unpack_from("=6I", data)
    more = _attributes(data, 24)
    delay_s = _number(more[10]) * 1e-9 if 10 in more else latency * _TICK_S
    jitter_s = _number(more[11]) * 1e-9 if 11 in more else jitter * _TICK_S
    correlations = struct.unpack_from("=III", more.get(1, bytes(12)))
    rate, overhead, cell, cell_overhead = struct.unpack_from("=IiIi", more.get(6, bytes(16)))
    options: dict[str, Any] = {
        "limit": limit,
        "gap": gap,
        "delay": _pair("delay", delay_s, correlations[0]) | {"jitter": jitter_s},
        "loss-random": _pair("loss", loss / _CERTAIN, correlations[1]),
        "duplicate": _pair("duplicate", duplicate / _CERTAIN, correlations[2]),
        "rate": {
            "rate": _number(more[8]) if 8 in more else rate,
            "packetoverhead": overhead,
            "cellsize": cell,
            "celloverhead": cell_overhead,
        },
        "ecn": bool(_number(more.get(7, b""))),
    }
    for name, kind in (("reorder", 3), ("corrupt", 4)):
        probability, correlation = struct.unpack_from("=II", more.get(kind, bytes(8)))
        options[name] = _pair(name, probability / _CERTAIN, correlation)
    model = _attributes(more.get(5, b""))
    if 2 in model:
        p, r, h, k1 = struct.unpack_from("=4I", model[2])
        names = ("p", "r", "1-h", "1-k")
        probabilities = (p, r, 0xFFFFFFFF - h, k1)
        options["loss-gemodel"] = {
            n: x / _CERTAIN for n, x in zip(names, probabilities, strict=True)
        }
    options |= {"loss-state": True} if 1 in model else {}
    options |= {"slot": True} if 12 in more else {}
    return options


def _pair(name: str, value: float, correlation: int) -> dict[str, float]:
    """Return a value with its correlation, which is 0 where the value is."""
    return {name: value, "correlation": correlation / _CERTAIN if value else 0.0}


@lru_cache(maxsize=1024)
def _class(parent: int, data: bytes) -> dict[str, float | str]:
    """Decode a class into the form of `readback`; equal classes are one object."""
    more = _attributes(data)
    _, mpu, rate, ceil, burst, ceil_burst, quantum, level = struct.unpack_from(
        "=6sHI8xIIIII", more[1]
    )
    rate = _number(more[6]) if 6 in more else rate
    ceil = _number(more[7]) if 7 in more else ceil
    found: dict[str, float | str] = {
        "parent": "root" if parent == _ROOT else _name(parent),
        "rate": 8.0 * rate,
        "ceil": 8.0 * ceil,
        "burst": rate * burst * _TICK_S,
        "cburst": ceil * ceil_burst * _TICK_S,
        "mpu": float(mpu),
    }
    # A class with classes does not use its quantum, and tc does not print it.
    return found if level else found | {"quantum": float(quantum)}


@lru_cache(maxsize=1 << 14)
def _rule(handle: int, info: int, kind: bytes, data: bytes) -> Rule:
    """Decode a rule, cached: nodes of one network have nearly the same rules."""
    protocol, words = socket.ntohs(info & 0xFFFF), kind.rstrip(b"\0").decode()
    if words != "u32":
        raise NetworkError(
            f"the root qdisc {HANDLE} has a {words} filter, which netbench never makes; "
            "remove it, or the qdisc"
        )
    entry = {"protocol": _PROTOCOLS.get(protocol, f"[{protocol}]"), "pref": info >> 16}
    return rule(entry | {"options": _u32(handle, _attributes(data))} if handle else entry)


def _u32(handle: int, more: dict[int, bytes]) -> dict[str, Any]:
    table, bucket, node = handle >> 20, handle >> 12 & 0xFF, handle & 0xFFF
    options: dict[str, Any] = {
        "fh": f"{table:x}:{f'{bucket:x}' * bool(bucket)}{f':{node:x}' * bool(node)}"
    }
    if not node:
        return options | {"ht_divisor": _number(more[4])}
    options |= {"key_ht": f"{table:x}", "bkt": f"{bucket:x}", **_selector(more[5])}
    if 1 in more:
        options["flowid"] = _name(_number(more[1]))
    if 3 in more:
        options["link"] = f"{_number(more[3]) >> 20:x}:"
    return options


def _selector(data: bytes) -> dict[str, Any]:
    """Decode what a u32 filter matches, and by which bytes it selects a bucket."""
    num_words = data[2]
    (hash_off,) = struct.unpack_from("=h", data, 10)
    (hash_mask,) = struct.unpack_from(">I", data, 12)
    words = []
    for at in range(16, 16 + 16 * num_words, 16):
        mask, value = struct.unpack_from(">II", data, at)
        (offset,) = struct.unpack_from("=i", data, at + 8)
        words.append({"mask": f"{mask:x}", "value": f"{value:x}", "off": offset})
    hashed = {"hash_mask": f"{hash_mask:x}", "hash_off": hash_off} if hash_mask else {}
    return {"match": words, **hashed}


if __name__ == "__main__":
    for _ in sys.stdin:
        print(json.dumps([snapshot(Path(x), sys.argv[1]) for x in sys.argv[2:]]), flush=True)
