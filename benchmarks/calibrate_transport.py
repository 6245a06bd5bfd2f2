"""Derive the transport profiles from published transfers and collectives.

    python -m benchmarks.calibrate_transport            print constants and residuals
    python -m benchmarks.calibrate_transport --write    and write the profiles

The inputs are results/published/p2p_under_tc.csv and, for NCCL's chains, the rows of four machines
in collectives_under_tc.csv. Every fit is a least-squares fit of the relative error of the simulator
over the network of each row. Of the transfers, two constants are fitted for gloo, the
limit of a connection and the largest window of a socket, and one for NCCL, the limit of a
connection (its sockets have gloo's window). The profiles give the sources of all other constants.

NCCL's broadcast and reduce take longer than their bytes need on the wire: a third longer at 16 to
128 MiB, a sixth at 256 MiB, on most networks, on 4 machines as on 16. The cause is not known;
two constants describe it. Training does not show it: with them, DT-FM's central server would be
simulated 10% off for GPT-3 small and 8% in three regions of FluidStack (7% and 7% without). So only
collectives that are timed alone have it. Each operation of a data-parallel mode is one of these.

The transfers are the receiver's times of a transfer that follows a barrier and a second of sleep
(`udp_hole_punching_test/pytorch_send_recv_test.py` of the public DT-FM code), so connections were
idle and start slowly. The sender finishes first, waits for the receiver at the barrier, and leaves
it one one-way delay earlier: the receiver's clock starts that much after the sender.

One row differs by more than 5%: NCCL, 64 MiB, 10 ms, not limited (+5.8%). Half of its time is slow
start, which probably began with more than the first window: within a second Linux halves a window
four times (`tcp_cwnd_restart`, RTO 0.22 s), while the model returns to the first at once.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.fit_v100 import TRANSFERS, gauss_newton
from netbench.plan.benchmark import CollectivePlan
from netbench.report.page.published import load
from netbench.report.page.under_tc.machines import IN_PARTS, collective
from netbench.report.page.under_tc.page import is_impossible
from netbench.scenario.model import Link, Network
from netbench.simulator.collectives import COLLECTIVES, simulate_collective, simulate_parts
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind
from netbench.transport.profile import PROFILES, TransportProfile, load_transport

CHAIN_MACHINES, CHAIN_OPS = 4, ("broadcast", "reduce", "dp-central-ps", "dp-sharded-ps")
"""The published operations on which the overhead of chains is fitted."""

BASE_DELAY_S = 50e-6
"""One-way delay between the machines without `tc`, seconds. Source: results/published/README.md."""

NIC_BPS = 10e9
"""NIC rate of each machine, bit/s. Source: results/published/README.md."""

MTU_BYTES = 9001
"""MTU of an AWS interface inside a VPC. Source: AWS EC2 User Guide, network MTU. The rows agree:
the goodput is 0.993 of a limited rate, (9001 - 52) / (9001 + 14)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One published row. delay_s: one-way delay that `tc` adds on both machines."""

    backend: str
    delay_s: float
    bandwidth_bps: float
    size_bytes: int
    published_s: float


def read_transfers(path: Path = TRANSFERS) -> list[Transfer]:
    """Read all rows."""
    with path.open(newline="", encoding="utf-8") as lines:
        return [
            Transfer(
                backend=row["backend"],
                delay_s=float(row["delay_one_way_ms"] or 0) / 1e3,
                bandwidth_bps=float(row["bandwidth_gbps"] or math.inf) * 1e9,
                size_bytes=int(row["message_mb"]) << 20,
                published_s=float(row["time_ms"]) / 1e3,
            )
            for row in csv.DictReader(lines)
        ]


def simulate_transfer(transfer: Transfer, transport: TransportProfile) -> float:
    """Simulate a transfer; return seconds on the receiver's clock."""
    delay_s = BASE_DELAY_S + transfer.delay_s
    network = Network(
        regions=("AWS",),
        links=((Link(one_way_delay_s=delay_s, bandwidth_bps=transfer.bandwidth_bps),),),
        node_regions=(0, 0),
        sharing="nic",
        nic_bps=(NIC_BPS, NIC_BPS),
        mtu_bytes=MTU_BYTES,
    )
    graph = Graph(Fabric(network, [0, 1], transport))
    members = np.array([[0, 1]])
    gate = graph.work(TaskKind.MARK, members)
    graph.edge(gate[0, 0], gate[0, 1], delay_s)
    done = COLLECTIVES[transfer.backend]["p2p"](graph, members, transfer.size_bytes, gate)
    timeline = graph.run()
    return float(timeline.end_s[done[0, 1]] - timeline.start_s[gate[0, 1]])


def errors(transfers: Sequence[Transfer], transport: TransportProfile) -> NDArray[np.float64]:
    """Return simulated over published - 1, per transfer."""
    return np.array([simulate_transfer(t, transport) / t.published_s - 1 for t in transfers])


def fit(
    transfers: Sequence[Transfer], transport: TransportProfile, names: Sequence[str]
) -> TransportProfile:
    """Return `transport` with the fields `names` fitted to `transfers`."""
    start = np.array([getattr(transport, name) for name in names])

    def fitted(factors: NDArray[np.float64]) -> TransportProfile:
        values = dict(zip(names, (start * factors).tolist(), strict=True))
        return transport.model_copy(update=values)

    best = gauss_newton(lambda x: errors(transfers, fitted(x)), np.ones(len(start)), steps=4)
    return fitted(best)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChainRow:
    """A published operation of NCCL's chains on four machines."""

    plan: CollectivePlan
    in_parts: bool
    published_s: float

    def error(self, transport: TransportProfile) -> float:
        """Return simulated over published - 1."""
        simulated = simulate_parts if self.in_parts else simulate_collective
        return simulated(self.plan, transport) / self.published_s - 1


def read_chains() -> list[ChainRow]:
    """Read the rows of four machines, without those that are shorter than the wire allows."""
    table = load("collectives_under_tc")
    table = table[(table["nodes"] == CHAIN_MACHINES) & (table["backend"] == "nccl")]
    table = table[table["op"].isin(CHAIN_OPS) & ~is_impossible(table)]
    return [
        ChainRow(
            plan=collective(
                str(row.op),
                CHAIN_MACHINES,
                (float(row.delay_one_way_ms), float(row.bandwidth_gbps)),
                "nccl",
                int(row.message_mb),
            ),
            in_parts=str(row.op).startswith(IN_PARTS),
            published_s=float(row.time_ms) / 1e3,
        )
        for row in table.itertuples()
    ]


def fit_chains(rows: Sequence[ChainRow], transport: TransportProfile) -> TransportProfile:
    """Return `transport` with the overhead of chains fitted to `rows`."""

    def fitted(x: Sequence[float]) -> TransportProfile:
        values = {"chain_overhead": x[0], "chain_overhead_bytes": x[1] * 1e6}
        return transport.model_copy(update=values)

    def squares(x: Sequence[float]) -> float:
        return sum(row.error(fitted(x)) ** 2 for row in rows)

    found = minimize(squares, (0.3, 30.0), method="Nelder-Mead", options={"xatol": 1e-3})
    return fitted((round(float(found.x[0]), 2), round(float(found.x[1]))))


def fit_all(transfers: Sequence[Transfer]) -> dict[str, TransportProfile]:
    """Fit the profile of every backend."""
    rows = {name: [t for t in transfers if t.backend == name] for name in ("gloo", "nccl")}
    gloo = fit(rows["gloo"], load_transport("gloo"), ("host_bps", "max_window_bytes"))
    nccl = load_transport("nccl").model_copy(update={"max_window_bytes": gloo.max_window_bytes})
    nccl = fit(rows["nccl"], nccl, ("host_bps",))
    return {"gloo": gloo, "nccl": fit_chains(read_chains(), nccl)}


def residual_table(transfers: Sequence[Transfer], profiles: dict[str, TransportProfile]) -> str:
    """Return a markdown table with a row per transfer."""
    lines = [
        "| delay, ms | rate, Gbit/s | backend | MiB | published, ms | simulated, ms | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for transfer in transfers:
        simulated_s = simulate_transfer(transfer, profiles[transfer.backend])
        lines.append(
            f"| {transfer.delay_s * 1e3:g} | {transfer.bandwidth_bps / 1e9:g} "
            f"| {transfer.backend} | {transfer.size_bytes >> 20} "
            f"| {transfer.published_s * 1e3:.0f} | {simulated_s * 1e3:.1f} "
            f"| {simulated_s / transfer.published_s - 1:+.1%} |"
        )
    return "\n".join(lines)


def render_profile(name: str, profile: TransportProfile, worst: float) -> str:
    """Return the YAML file of a profile. worst: largest relative error of its rows."""
    return PROFILE.format(
        **{"gloo": GLOO_NOTES, "nccl": NCCL_NOTES}[name],
        worst=f"{worst:.1%}",
        host=f"{profile.host_bps / 1e9:.2f}Gbit",
        max_window=f"{profile.max_window_bytes / 1e6:.2f}MB",
        channels=profile.channels,
        sockets=profile.sockets,
        fifo=f"{profile.fifo_bytes}B",
        window=f"{profile.window_bytes}B",
        window_factor=f"{profile.window_factor:g}",
        messages=MESSAGES[name].format(
            chain_overhead=f"{profile.chain_overhead:g}",
            max_chain_overhead=f"{profile.chain_overhead_bytes / 1e6:g}MB",
        ),
    )


GLOO_NOTES = {
    "title": "gloo over TCP, as PyTorch uses it on the CPU.",
    "host_note": "fitted; AWS documents 5 Gbit/s for a single flow",
    "channels_note": "gloo has none",
    "sockets_note": "gloo/transport/tcp: one per pair",
    "fifo_note": "none: the receiver's tensor is the buffer",
    "window_note": "half of tcp_rmem's default, 128 KiB",
}
NCCL_NOTES = {
    "title": "NCCL over TCP sockets, on AWS.",
    "host_note": "fitted; a NIC of 10 Gbit/s",
    "channels_note": "of a collective: a ring that is found once is doubled (connectRings)",
    "sockets_note": "net_socket.cc on AWS (PCI vendor 0x1d0f): 2 threads with 8 each",
    "fifo_note": "point to point: NCCL_STEPS (8) x NCCL_P2P_NET_CHUNKSIZE (128 KiB)",
    "window_note": "half of tcp_rmem's default, 128 KiB, of each socket",
}
MESSAGES = {
    "gloo": """\
segment: 1MiB # longest message of its ring all-reduce and reduce: kMaxSegmentSize
overhead: 96B # per message: two preambles of 48 bytes (Pair::sendNotifySendReady)
""",
    "nccl": """\
slice: 1MiB # of a chain or tree: 1 of 8 parts of 4 MiB (NCCL_STEPS, NCCL_BUFFSIZE), 2 channels
max_slices: 64 # simulated per chain or tree; of a longer message, some stand for several
chain_overhead: {chain_overhead} # fitted on 4 machines in collectives_under_tc.csv; cause not known
max_chain_overhead: {max_chain_overhead} # fitted with it
ring_chunk: 4MiB # per step of a ring: 4 of these parts (ALLREDUCE_CHUNKSTEPS), 2 channels
ring_slices: 2 # of a ring chunk: ALLREDUCE_CHUNKSTEPS / ALLREDUCE_SLICESTEPS
emulation: # where the trainers' values are not the simulator's
  slice: 4MiB # of chains where TCP does not act; those of trees are as simulated, of `slice` each
  max_slices: 128 # docs/simulator.md
""",
}
"""Sizes into which each library splits messages; only the overhead of chains is fitted."""
PROFILE = """\
# {title}
# Written by `python -m benchmarks.calibrate_transport --write`. Connections are fitted on
# results/published/p2p_under_tc.csv; no row is more than {worst} off.
header: 52B # IPv4 20, TCP 20, timestamps 12 (RFC 791, 9293, 7323)
ethernet: 14B # beside the MTU, as `tc` counts it
inside_node: 153Gbit # between GPUs; fitted on cases 1-2 (fit_v100.py); the notes say 100
host: {host} # of payload, one connection; {host_note}
channels: {channels} # {channels_note}
sockets: {sockets} # {sockets_note}
first_window_segments: 10 # per socket; RFC 6928
max_window: {max_window} # per socket; fitted on gloo; near half of tcp_rmem's 6 MiB (Linux)
retransmission: 200ms # Linux, TCP_RTO_MIN
fifo: {fifo} # {fifo_note}
window: {window} # {window_note}
window_factor: {window_factor} # Linux grows buffers to twice what a round trip carries (DRS)
{messages}\
source: >-
  least squares on results/published/p2p_under_tc.csv; benchmarks/calibrate_transport.py
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PROFILES}/*.yaml")
    arguments = parser.parse_args()
    transfers = read_transfers()
    profiles = fit_all(transfers)
    print(residual_table(transfers, profiles), "", sep="\n")
    for name, profile in profiles.items():
        rows = [transfer for transfer in transfers if transfer.backend == name]
        text = render_profile(name, profile, float(abs(errors(rows, profile)).max()))
        print(text)
        if arguments.write:
            (PROFILES / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
