"""Limit what nodes on the bridge receive to the rate of their NICs.

`tc` shapes what leaves an interface, and a node's own interface is where it sends. What a node
receives leaves the bridge by the node's port, which belongs to the session: a netem there is the
other direction of the NIC. Controller and store pass it too, with a few bytes between iterations.
Real nodes have no such port, so a cluster's NICs limit only what they send.
"""

import json
import math
import subprocess
from collections.abc import Sequence
from typing import Any

from netbench.errors import NetworkError
from netbench.network.shaping.batch import HANDLE, refusal_text
from netbench.scenario.model import Network
from netbench.scenario.sharing import nic_caps_bps
from netbench.testbed.interface import NodeAddress
from netbench.testbed.namespaces import port_of

QUEUE_PACKETS = 1 << 30
"""Packets that wait at most: more than connections have under way."""

_RATE_CUT = 1e-3
"""Relative error of a rate that `tc -j` prints."""


def limit_ingress(nodes: Sequence[NodeAddress], network: Network, scale: float) -> None:
    """Limit what every node receives, change the limits, or remove them, and read them back.

    Raises NetworkError.
    """
    rates = ingress_bytes_per_s(nodes, network, scale)
    lines = [f"qdisc del dev {one['dev']} root" for one in _limits() if one["dev"] not in rates] + [
        f"qdisc replace dev {port} root handle {HANDLE} netem limit {QUEUE_PACKETS} rate {rate}bps"
        for port, rate in rates.items()
    ]
    if not lines:
        return
    batch = "".join(f"{line}\n" for line in lines)
    done = _tc(["-batch", "-"], batch)
    if done.returncode:
        raise NetworkError(refusal_text(batch, done.stderr))
    found = {one["dev"]: one for one in _limits()}
    wrong = [
        f"  {port} has {found.get(port)}, planned netem with a rate of {rate} bytes/s"
        for port, rate in rates.items()
        if not math.isclose(_rate(found.get(port, {})), rate, rel_tol=_RATE_CUT)
    ]
    if wrong:
        raise NetworkError("\n".join(["the bridge does not limit what nodes receive:", *wrong]))


def ingress_bytes_per_s(
    nodes: Sequence[NodeAddress], network: Network, scale: float
) -> dict[str, int]:
    """Return the rate of every port whose node has a NIC that limits it, whole bytes/s."""
    caps = zip(nodes, nic_caps_bps(network), strict=False)  # routers, the last, have none
    return {
        port_of(node): max(1, round(bps / scale / 8)) for node, bps in caps if math.isfinite(bps)
    }


def dropped_at_ports() -> int:
    """Count packets that the ports have dropped."""
    return sum(int(one["drops"]) for one in _limits())


def _rate(found: dict[str, Any]) -> float:
    return float(found.get("options", {}).get("rate", {}).get("rate", 0))


def _limits() -> list[dict[str, Any]]:
    """Return netbench's qdiscs in the session's own namespace, as `tc -j` prints them."""
    shown = _tc(["-s", "-j", "qdisc", "show"])
    if shown.returncode:
        raise NetworkError(f"`tc -s -j qdisc show` failed: {shown.stderr.strip()}")
    return [one for one in json.loads(shown.stdout or "[]") if one.get("handle") == HANDLE]


def _tc(arguments: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = ["tc", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
