"""Facts about this host, read before anything is changed."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import sys
import time
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netbench.network.remote.agent import host, state
from netbench.network.remote.agent.foreign import restore_batch
from netbench.network.remote.agent.messages import Request
from netbench.network.remote.agent.timer import sweep

_TRIALS = {
    "htb": "qdisc replace dev lo root handle 1: htb default 0\n"
    "class add dev lo parent 1: classid 1:1 htb rate 1mbit\n",
    "netem": "qdisc replace dev lo root netem delay 1ms rate 1mbit limit 9\n",
    "u32": "qdisc replace dev lo root handle 1: htb default 0\n"
    "filter add dev lo parent 1: protocol ip prio 4 u32 match ip dst 10.0.0.1/32 flowid 1:1\n",
    "netem distribution": "qdisc replace dev lo root netem delay 9ms 1ms distribution normal\n",
}
"""Parts of a tc configuration, tried in a temporary network namespace, first all at once."""

_SIOCETHTOOL = 0x8946
_GET_SETTINGS, _GET_DRIVER, _GET_TSO, _GET_GSO = 0x01, 0x03, 0x1E, 0x23  # linux/ethtool.h


def facts(request: Request) -> Any:
    """Answer {addresses, interface, peers, settings} with `netbench.network.remote.facts.Facts`.

    Unknown facts are null. `problem` says why the interface was not found.
    """
    _or([], sweep)
    found: dict[str, Any] = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "kernel": os.uname().release,
        "tc": _or(
            "", lambda: host.output_of(["tc", "-V"]).strip().split("iproute2-")[-1].split(",")[0]
        ),
        "machine": f"{host.boot_id()}/{host.namespace()}",
        "timer_s": time.clock_getres(time.CLOCK_MONOTONIC),
        "hz": _or(None, _hz),
        "free_bytes": {place: _or(None, _free, place) for place in ("/tmp", "/run")},
        "settings": {name: host.read_sysctl(name) for name in request["settings"]},
        "lacking": {},
        "interface": "",
        "problem": "",
    }
    if not found["tc"]:
        return found
    found["lacking"] = _lacking()
    try:
        interface = request["interface"] or host.interface_with(request["addresses"])
        found.update(_interface_facts(interface), interface=interface)
        found["routes"] = _routes(request["peers"])
    except host.AgentError as error:
        found["problem"] = str(error)
    return found


def _or(otherwise: Any, find: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return find(*arguments)
    except (host.AgentError, OSError, ValueError):
        return otherwise


def _interface_facts(interface: str) -> dict[str, Any]:
    link = host.link_of(interface)
    qdiscs, record = host.qdiscs_of(interface), state.load(interface)
    unrestorable, root = "", host.root_of(qdiscs)
    if is_foreign := host.is_foreign(qdiscs):
        try:
            restore_batch(interface, qdiscs)
        except host.AgentError as error:
            unrestorable = str(error)
    return {
        "mtu_bytes": link["mtu"],
        "speed_bps": _or(None, _speed_bps, interface),
        "driver": _or("", _driver, interface),
        "tso": _or(None, _flag, interface, _GET_TSO),
        "gso": _or(None, _flag, interface, _GET_GSO),
        "qdisc": host.describe(interface) if is_foreign else "{kind} {handle}".format(**root),
        "foreign": is_foreign,
        "unrestorable": unrestorable,
        "lease": None if record is None or state.expired(record) else state.lease_of(record),
    }


def _routes(peers: list[str]) -> dict[str, str]:
    """Return the interface through which each peer is reached, "" if that is not known.

    One `ip` asks for all: on 64 hosts, one for each pair would be 4032.
    """
    plain = [peer for peer in peers if re.fullmatch(r"[0-9a-fA-F.:]+", peer)]
    lines = "".join(f"route get {peer}\n" for peer in plain)
    _, answers, _ = host.run_tool(["ip", "-j", "-force", "-batch", "-"], lines)
    found = {}
    for line in answers.splitlines():
        for route in _or([], json.loads, line):
            found[route["dst"]] = str(route["dev"])
    # An address may be written in several ways.
    return {peer: found.get(peer) or _or("", _route, peer) for peer in peers}


def _route(peer: str) -> str:
    return str(host.json_of(["ip", "-j", "route", "get", peer])[0]["dev"])


def _lacking() -> dict[str, str]:
    """Return tc's error for each part that does not work; {"": why} if none could be tried."""
    trial = ["unshare", "--net", "--", "tc", "-batch", "-"]
    if host.run_tool(trial, "".join(_TRIALS.values()))[0] == 0:
        return {}
    status, _, stderr = host.run_tool(["unshare", "--net", "--", "true"])
    if status:
        return {"": " ".join(stderr.split())}
    lacking = {}
    for name, text in _TRIALS.items():
        status, _, stderr = host.run_tool(trial, text)
        if status:
            lacking[name] = " ".join(stderr.split())
    return lacking


def _ethtool(interface: str, command: int, size: int) -> bytes:
    """Ask the driver (linux/ethtool.h); return the command and its answer. Raises OSError."""
    import socket  # slow to import, and most operations of the agent do without

    buffer = array("B", struct.pack("I", command) + bytes(size - 4))
    request = struct.pack("16sP16x", interface.encode(), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    return buffer.tobytes()


def _speed_bps(interface: str) -> float | None:
    answer = _ethtool(interface, _GET_SETTINGS, 44)
    low, high = struct.unpack_from("H", answer, 12)[0], struct.unpack_from("H", answer, 28)[0]
    mbits = high << 16 | low
    return None if mbits in (0, 0xFFFF, 0xFFFFFFFF) else mbits * 1e6


def _driver(interface: str) -> str:
    return _ethtool(interface, _GET_DRIVER, 196)[4:36].split(b"\0")[0].decode()


def _flag(interface: str, command: int) -> bool:
    return bool(struct.unpack_from("I", _ethtool(interface, command, 8), 4)[0])


def _hz() -> int | None:
    """Return CONFIG_HZ of the running kernel. Raises OSError if its configuration is missing."""
    plain = Path(f"/boot/config-{os.uname().release}")
    if plain.exists():
        text = plain.read_text()
    else:
        data = Path("/proc/config.gz").read_bytes()
        text = zlib.decompress(data, zlib.MAX_WBITS | 16).decode()  # `gzip` is slow to import
    found = re.search(r"^CONFIG_HZ=(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _free(place: str) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
