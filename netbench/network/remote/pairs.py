"""Try every ordered pair of hosts before a run: the ports that it will use, and full frames."""

import json
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from netbench.errors import NetworkError
from netbench.network.nodes import ALONE, Channel, at_once, split
from netbench.network.probing import reach
from netbench.network.probing.measure import Endpoints
from netbench.network.remote.preflight import Deviation
from netbench.units import shortened

DEADLINE_S = 60.0
"""Deadline for all nodes to start, and to reach each other, seconds."""

PARTS = {
    "port": (
        "cannot reach {peers} at port {port} ({reason}); let the firewalls of both pass all TCP "
        "ports between the hosts"
    ),
    "any port": (
        "reaches {peers} at port {port} but not at one that the kernel chose ({reason}), as every "
        "connection of a trainer has; let the firewalls pass all TCP ports between the hosts"
    ),
    "frames": (
        "reaches {peers}, but full frames are lost ({reason}); a link on the way has a smaller MTU "
        "than the interfaces: lower theirs (`ip link set dev INTERFACE mtu 1400`)"
    ),
}
"""Message of each part of `reach` that fails."""


def unreachable(endpoints: Endpoints, names: Sequence[str], port: int) -> tuple[Deviation, ...]:
    """Return what fails between any two nodes, by the node that tried. names: of the nodes."""
    secret = secrets.token_hex(reach.TOKEN_BYTES)
    nodes, channels = range(len(names)), dict[int, Channel]()
    try:
        start = partial(_listen, endpoints, channels, secret, port)
        found, failures = split(at_once({n: partial(start, n) for n in nodes}, DEADLINE_S))
        ports = [found[node]["port"] if node in found else None for node in nodes]
        tries = {node: partial(_ask, channels[node], {"ports": ports}) for node in found}
        tried, more = split(at_once(tries, DEADLINE_S))
    finally:
        for channel in channels.values():
            channel.close()
    deviations = [
        Deviation(node=node, text=str(error), is_error=True)
        for node, error in (failures | more).items()
    ]
    for node, answer in found.items():
        if answer["busy"]:
            text = f"port {port} is {answer['busy']}; `ss -tlnp sport = :{port}` names by what"
            deviations.append(Deviation(node=node, text=text, is_error=True))
    for node, answer in tried.items():
        peers: dict[tuple[str, str], list[str]] = {}
        for peer, part, reason in answer["failed"]:
            if part != "port" or not found[peer]["busy"]:
                peers.setdefault((part, reason), []).append(names[peer])
        for (part, reason), hosts in peers.items():
            text = PARTS[part].format(peers=shortened(hosts), port=port, reason=reason)
            deviations.append(Deviation(node=node, text=text, is_error=True))
    return tuple(deviations)


def _listen(
    endpoints: Endpoints, channels: dict[int, Channel], secret: str, port: int, node: int
) -> dict[str, Any]:
    source = Path(reach.__file__).read_text(encoding="utf-8")
    channel = endpoints.nodes[node].open((endpoints.python_of(node), *ALONE, "-c", source))
    channels[node] = channel
    addresses = [first for first, *_ in endpoints.addresses]
    return _ask(channel, {"token": secret, "node": node, "addresses": addresses, "port": port})


def _ask(channel: Channel, message: dict[str, Any]) -> dict[str, Any]:
    channel.send(json.dumps(message))
    line = channel.receive()
    if line is None:
        raise NetworkError("the program that tries the network there has ended")
    return dict(json.loads(line))
