"""Divide this host into nodes: network namespaces with an interface each, joined to other hosts.

    node NAME-4 (eth0) --+                                  NAME-hub: a bridge, nothing else
    node NAME-5 (eth0) --+-- NAME-hub --+-- veth, routes over the data interface: overlay `routes`
                                        +-- VXLAN over the data interface:        overlay `vxlan`

The record of the data interface has the division under its key `division`, before anything of it
is made. Who restores the interface (`restore.restore`), be it a command, the timer or the second
guard, removes the nodes with it: processes in them, interfaces, routes and namespaces.

A division has these keys, and the controller makes all of its choices:

    name        beginning of the names of namespaces: netbench- and 8 hexadecimal digits, which no
                other division has
    network     addresses of all nodes of all hosts, IPv4
    own         the part of this host, a /24
    gateway     address of this host in it
    nodes       {number of the node: its address}
    overlay     "routes" or "vxlan"; "" where there are no other hosts
    peers       other hosts: [{data_address, network, addresses: of their nodes}, ..]
    vni         network identifier of VXLAN
    local       data address of this host
    mtu_bytes   of the nodes' interfaces
"""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from netbench.network.remote.agent import host, state
from netbench.network.remote.agent.host import AgentError

INTERFACE = "eth0"
"""Name of a node's interface, in its namespace."""

NAMESPACES = Path("/run/netns")
"""Folder of named namespaces: ip-netns(8)."""

NAME = re.compile(r"netbench-([0-9a-f]{8})(-hub|-\d{1,5})?")

PROTOCOL = "110"
"""Origin of netbench's routes: a number that /etc/iproute2/rt_protos does not have."""

VXLAN_PORT = 4789
"""UDP port of VXLAN, assigned by IANA (RFC 7348)."""

KILL_S = 10.0
"""Deadline for killed processes of a node to end, seconds."""

Division = dict[str, Any]
Command = tuple[list[str], str]
"""A command and its input."""


def check(division: Division) -> None:
    """Raises AgentError for what a controller would not ask, and for addresses in use here."""
    network = ipaddress.ip_network(division["network"])
    own = ipaddress.ip_network(division["own"])
    peers = [ipaddress.ip_network(peer["network"]) for peer in division["peers"]]
    addresses = [division["gateway"], *division["nodes"].values()]
    numbers = [*division["nodes"], division["vni"], division["mtu_bytes"]]
    if not (
        re.fullmatch(r"netbench-[0-9a-f]{8}", division["name"])
        and network.is_private
        and network.version == 4
        and all(one.version == 4 and one.subnet_of(network) for one in (own, *peers))
        and all(ipaddress.ip_address(address) in own for address in addresses)
        and all(int(number) >= 0 for number in numbers)
        and division["overlay"] in ("", "routes", "vxlan")
    ):
        raise AgentError("the division of this host into nodes is not one that netbench makes")
    for peer in division["peers"]:
        for address in (peer["data_address"], *peer["addresses"]):
            ipaddress.ip_address(address)
    if division["local"]:
        ipaddress.ip_address(division["local"])
    for route in host.json_of(["ip", "-4", "-j", "route", "show", "table", "all"]):
        target = route["dst"]
        if target == "default" or route.get("type") == "broadcast":
            continue
        if ipaddress.ip_network(target, strict=False).overlaps(network):
            raise AgentError(
                f"this host has a route to {target} ({route.get('dev', 'no device')}), which are "
                f"addresses of {network}, the network of the nodes; name another one in the "
                "inventory (`node_network:`)"
            )


def make(division: Division, interface: str) -> None:
    """Make nodes. interface: to the other hosts. Raises AgentError; `remove` is needed then too."""
    for argv, text in commands(division, interface):
        status, _, stderr = host.run_tool(argv, text)
        if status:
            why = " ".join(stderr.split()) or f"exit status {status}"
            hint = ""
            if division["overlay"] == "vxlan" and "not supported" in why:
                hint = "; this kernel has no VXLAN: try `modprobe vxlan`"
            if division["overlay"] == "routes" and "gateway" in why:
                hint = (
                    "; another host is behind a router, which does not know the addresses of the "
                    'nodes: write "overlay: vxlan" in the inventory'
                )
            raise AgentError(f"cannot make the nodes of this host: `{' '.join(argv)}`: {why}{hint}")


def forwarding(division: Division, interface: str) -> dict[str, str]:
    """Return settings that let packets pass between the data interface and the nodes."""
    if division["overlay"] != "routes":
        return {}
    devices = (interface, _device(division))
    return {f"net/ipv4/conf/{name}/forwarding": "1" for name in devices}


def commands(division: Division, interface: str) -> list[Command]:
    """Return the commands that make a division, in order."""
    name, hub, overlay = division["name"], f"{division['name']}-hub", division["overlay"]
    addresses = {int(node): address for node, address in division["nodes"].items()}
    names = [hub, *(f"{name}-{node}" for node in addresses)]
    found = [_batch("", [f"netns add {one}" for one in names] + _outside(division, interface))]
    found.append(_batch(hub, _bridge(division, addresses)))
    remote = [address for peer in division["peers"] for address in peer["addresses"]]
    if overlay == "vxlan":
        uplinks = remote
    elif overlay == "routes":
        uplinks = [division["gateway"]]
    else:
        uplinks = []
    ports = [*(f"v{node}" for node in addresses), *([_port(division)] if overlay else [])]
    # A bridge that learns believes frames whose source address a link has corrupted.
    entries = [f"link set dev {port} learning off" for port in ports]
    entries += [f"fdb replace {_mac(a)} dev v{node} master static" for node, a in addresses.items()]
    entries += [f"fdb replace {_mac(a)} dev {_port(division)} master static" for a in uplinks]
    if overlay == "vxlan":
        entries += [
            f"fdb add {_mac(address)} dev {_port(division)} dst {peer['data_address']} self "
            "permanent"
            for peer in division["peers"]
            for address in peer["addresses"]
        ]
    found.append((["bridge", "-n", hub, "-batch", "-"], _text(entries)))
    for node, address in addresses.items():
        near = [other for other in (*addresses.values(), *uplinks) if other != address]
        found.append(_batch(f"{name}-{node}", _inside(division, address, near)))
    return found


def _outside(division: Division, interface: str) -> list[str]:
    """Return lines of `ip` for the host's own namespace."""
    device, hub = _device(division), f"{division['name']}-hub"
    mtu = division["mtu_bytes"]
    if division["overlay"] == "vxlan":
        return [
            f"link add {device} mtu {mtu} type vxlan id {division['vni']} dstport {VXLAN_PORT} "
            f"local {division['local']} dev {interface} nolearning",
            f"link set {device} netns {hub}",
        ]
    if division["overlay"] != "routes":
        return []
    own = ipaddress.ip_network(division["own"])
    peer = f"peer name {_port(division)} mtu {mtu} netns {hub}"
    return [
        f"link add {device} mtu {mtu} address {_mac(division['gateway'])} type veth {peer}",
        f"addr add {division['gateway']}/{own.prefixlen} dev {device}",
        f"link set {device} up",
        *(
            f"neigh add {address} lladdr {_mac(address)} dev {device} nud permanent"
            for address in division["nodes"].values()
        ),
        *(
            f"route add {peer['network']} via {peer['data_address']} dev {interface} "
            f"proto {PROTOCOL}"
            for peer in division["peers"]
        ),
    ]


def _bridge(division: Division, addresses: dict[int, str]) -> list[str]:
    """Return lines of `ip` for the hub."""
    mtu, name = division["mtu_bytes"], division["name"]
    lines = ["link set lo up", "link add bridge type bridge stp_state 0 mcast_snooping 0"]
    for node, address in addresses.items():
        peer = f"peer name {INTERFACE} mtu {mtu} address {_mac(address)} netns {name}-{node}"
        lines.append(f"link add v{node} mtu {mtu} type veth {peer}")
    ports = [f"v{node}" for node in addresses]
    ports += [_port(division)] if division["overlay"] else []
    lines += [f"link set {port} master bridge up" for port in ports]
    return [*lines, f"link set bridge mtu {mtu} up"]


def _inside(division: Division, address: str, near: list[str]) -> list[str]:
    """Return lines of `ip` for a node. near: addresses on the same bridge."""
    is_flat = division["overlay"] != "routes"
    own = ipaddress.ip_network(division["network" if is_flat else "own"])
    lines = [
        "link set lo up",
        f"addr add {address}/{own.prefixlen} dev {INTERFACE}",
        f"link set {INTERFACE} up",
        *(f"neigh add {a} lladdr {_mac(a)} dev {INTERFACE} nud permanent" for a in near),
    ]
    if not is_flat:
        lines.append(f"route add {division['network']} via {division['gateway']}")
    return lines


def remove(division: Division) -> list[str]:
    """Remove what there is of a division, and read it back; return what cannot be removed."""
    for path in _paths(division):
        with suppress(FileNotFoundError):
            _kill_inside(path.stat().st_ino)
    hub, device = f"{division['name']}-hub", _device(division)
    for peer in division["peers"]:
        host.run_tool(["ip", "route", "del", peer["network"], "proto", PROTOCOL])
    host.run_tool(["ip", "link", "del", device])
    if (NAMESPACES / hub).exists():
        ports = [f"v{node}" for node in division["nodes"]] + [device]
        lines = [f"link del {port}" for port in ports]
        host.run_tool(["ip", "-n", hub, "-force", "-batch", "-"], _text(lines))
    for path in _paths(division):
        with suppress(FileNotFoundError):
            for file in state.paths(f"*@{path.stat().st_ino}.*"):
                file.unlink(missing_ok=True)
            host.run_tool(["ip", "netns", "del", path.name])
    return left(division)


def left(division: Division) -> list[str]:
    """Return what is there of a division: namespaces, interfaces, routes."""
    found = [f"namespace {path.name}" for path in _paths(division) if path.exists()]
    if host.ifindex(_device(division)) is not None:
        found.append(f"interface {_device(division)}")
    networks = {peer["network"] for peer in division["peers"]}
    routes = host.json_of(["ip", "-j", "route", "show", "proto", PROTOCOL])
    return found + [f"route to {route['dst']}" for route in routes if route["dst"] in networks]


def unrecorded(known: list[Division]) -> list[Division]:
    """Return divisions of this host that no record has: what is needed to remove them."""
    names = {division["name"] for division in known}
    found: dict[str, Division] = {}
    for path in sorted(NAMESPACES.glob("netbench-*")):
        name = path.name.rpartition("-")[0]
        is_here = NAME.fullmatch(path.name) and path.is_mount()  # else of another mount namespace
        if is_here and name not in names:
            nodes = found.setdefault(name, {"name": name, "nodes": {}, "peers": []})["nodes"]
            if not path.name.endswith("-hub"):
                nodes[path.name.rpartition("-")[2]] = ""
    if found and not known:
        routes = host.json_of(["ip", "-j", "route", "show", "proto", PROTOCOL])
        next(iter(found.values()))["peers"] = [{"network": route["dst"]} for route in routes]
    return list(found.values())


def join(name: str) -> None:
    """Enter the namespace of a node. Raises AgentError where it has gone."""
    if not NAME.fullmatch(name):
        raise AgentError(f"{name!r} is not the name of a node's namespace")
    import ctypes  # slow to import, and few operations need it

    try:
        opened = os.open(str(NAMESPACES / name), os.O_RDONLY)
    except FileNotFoundError:
        raise AgentError(
            f"the namespace {name} has gone: its lease has ended, or somebody has cleared this host"
        ) from None
    libc, new_net = ctypes.CDLL(None, use_errno=True), 0x40000000  # CLONE_NEWNET of linux/sched.h
    failed = libc.setns(opened, new_net)
    os.close(opened)
    if failed:
        raise AgentError(f"cannot enter {name}: {os.strerror(ctypes.get_errno())}")


def _kill_inside(namespace: int) -> None:
    """Kill all processes in a network namespace. Raises AgentError if some do not end."""
    end_s = time.monotonic() + KILL_S
    while pids := [pid for pid in _processes(namespace) if pid != os.getpid()]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end_s:
            names = ", ".join(map(str, pids))
            raise AgentError(f"killed, but not ended: process {names} of a node of this host")
        time.sleep(0.01)


def _processes(namespace: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # has ended; a zombie has no namespace
            if (path / "ns/net").stat().st_ino == namespace:
                found.append(int(path.name))
    return found


def _paths(division: Division) -> list[Path]:
    name = division["name"]
    names = [*(f"{name}-{node}" for node in division["nodes"]), f"{name}-hub"]
    return [NAMESPACES / one for one in names]


def _device(division: Division) -> str:
    """Return the name of the interface that joins the host to its hub: veth or VXLAN."""
    name: str = division["name"]
    return "nb" + name.rpartition("-")[2]


def _port(division: Division) -> str:
    """Return the name of the hub's interface to other hosts."""
    return _device(division) if division["overlay"] == "vxlan" else "uplink"


def _mac(address: str) -> str:
    """Return a locally administered hardware address that contains an IPv4 address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _batch(namespace: str, lines: list[str]) -> Command:
    where = ["-n", namespace] if namespace else []
    return ["ip", *where, "-batch", "-"], _text(lines)


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
