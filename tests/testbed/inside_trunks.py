"""Regions joined by trunks, measured: run in a guest in virtual time, as root, with /run private.

Prints one JSON object: name of a figure -> [measured, expected].
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from netbench.network import probe
from netbench.network.apply import read_back
from netbench.network.command import all_or_error, at_once, output_of
from netbench.network.verify import goodput_bps
from netbench.scenario.model import Link, Network
from netbench.testbed.namespaces import (
    build,
    gateways,
    namespace_path,
    node_addresses,
    router_addresses,
)
from netbench.testbed.shaping import dropped_packets, programs, shape, tune
from netbench.testbed.transport import Transport

INSIDE = Link(one_way_delay_s=0.001, bandwidth_bps=1e9)
EAST, WEST = (
    Link(one_way_delay_s=0.01, bandwidth_bps=200e6),
    Link(one_way_delay_s=0.02, bandwidth_bps=100e6),
)
TO_C = Link(one_way_delay_s=0.005, bandwidth_bps=50e6)
NETWORK = Network(
    regions=("a", "b", "c"),
    links=((INSIDE, EAST, TO_C), (WEST, INSIDE, TO_C), (TO_C, TO_C, INSIDE)),
    node_regions=(0, 0, 0, 0, 1, 1, 1, 1, 2),
    sharing="trunk",
    nic_bps=(float("inf"),) * 9,
)
PAYLOAD, FRAME = 1448, 1514
ECHO_BITS = 98 * 8
WARMUP_BYTES, MEASURED_BYTES = 8_000_000, 8_000_000

Figures = dict[str, tuple[float, float]]


class Nodes:
    """As much of a transport as shaping needs."""

    def run(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = 0.0
    ) -> tuple[int, str, str]:
        inside = ["nsenter", f"--net={namespace_path(node)}", "--", *argv]
        done = subprocess.run(inside, input=stdin, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def flows(pairs: Mapping[int, int], total_bytes: int) -> tuple[dict[int, Any], dict[int, Any]]:
    """One transfer per (source, destination), all at once: what sources and destinations saw."""
    source, nodes, transport = Path(probe.__file__).read_text(), addresses(), Nodes()

    def on(node: int, *words: object) -> Any:
        argv = (sys.executable, "-", *(str(word) for word in words))
        return partial(output_of, transport.run, node, argv, source)

    tasks = {dst: on(dst, "serve", nodes[dst].address, total_bytes) for dst in pairs.values()}
    tasks |= {
        src: on(src, "measure", total_bytes, nodes[dst].address) for src, dst in pairs.items()
    }
    seen = {k: json.loads(v) for k, v in all_or_error(at_once(tasks, 600.0), "flows").items()}
    return {src: seen[src] for src in pairs}, {dst: seen[dst] for dst in pairs.values()}


def addresses() -> Any:
    return (*node_addresses([f"n{i}" for i in range(9)]), *router_addresses(NETWORK))


def together_bps(seen: Mapping[int, Any], dsts: Sequence[int]) -> float:
    found = goodput_bps([seen[dst]["arrivals"] for dst in dsts], WARMUP_BYTES)
    assert found is not None
    return found


def figures() -> Figures:
    total = WARMUP_BYTES + MEASURED_BYTES
    found: Figures = {}
    for name, src, dst, link in (("east", 0, 4, EAST), ("west", 4, 0, WEST), ("in", 0, 1, INSIDE)):
        sources, destinations = flows({src: dst}, total)
        expected_s = link.one_way_delay_s + ECHO_BITS / link.bandwidth_bps
        found[f"{name} one way, s"] = sources[src]["one_way_s"][0], expected_s
        rate_bps = link.bandwidth_bps * PAYLOAD / FRAME
        found[f"{name} alone, bit/s"] = together_bps(destinations, [dst]), rate_bps
    _, destinations = flows({0: 4, 1: 5, 2: 6, 3: 7}, total)
    rate_bps = EAST.bandwidth_bps * PAYLOAD / FRAME
    found["four east, bit/s"] = together_bps(destinations, [4, 5, 6, 7]), rate_bps
    # Flows inside both regions and to the third, beside two on the trunk.
    _, destinations = flows({0: 5, 1: 6, 2: 3, 4: 7}, total)
    found["two east, bit/s"] = together_bps(destinations, [5, 6]), rate_bps
    for name, dst in (("a", 3), ("b", 7)):
        rate_bps = INSIDE.bandwidth_bps * PAYLOAD / FRAME
        found[f"in {name} beside, bit/s"] = together_bps(destinations, [dst]), rate_bps
    _, destinations = flows({0: 4, 1: 8}, total)
    rate_bps = TO_C.bandwidth_bps * PAYLOAD / FRAME
    found["to c beside, bit/s"] = together_bps(destinations, [8]), rate_bps
    return found


def main() -> None:
    """Build, shape, measure."""
    nodes, transport = addresses(), cast(Transport, Nodes())
    build(nodes, NETWORK.mtu_bytes, gateways(NETWORK))
    tune(transport, nodes, NETWORK, 1.0)
    shape(transport, nodes, NETWORK, 1.0)
    found = figures()
    found["drops"] = float(dropped_packets(transport, nodes, NETWORK, 1.0)), 0.0
    back = read_back(programs(nodes, NETWORK, 1.0), transport.run)
    found["programs"] = float(len(back)), 12.0
    print(json.dumps(found))


if __name__ == "__main__":
    main()
