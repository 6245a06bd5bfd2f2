"""Verifications for the tests of the matrix: measured figures with a known error."""

from __future__ import annotations

import random

from netbench.network.probing.packet_trains import PacketTrainResult
from netbench.network.probing.samples import (
    LinkSample,
    all_pairs,
    expected_rate_bps,
    planned_trains,
    sample_links,
)
from netbench.network.probing.verify import Measurement, evaluate
from netbench.network.shaping.segments import goodput_ratio
from netbench.report.tables.matrix import Verification
from netbench.scenario.model import Network


def measured(network: Network, sample: LinkSample, error: float) -> Measurement:
    """Measurements of a network with the relative error `error` in every property."""
    ways = [network.link(src, dst) for src, dst in sample.flows]
    back = [network.link(dst, src) for src, dst in sample.flows]
    one_way_s = tuple(link.one_way_delay_s * (1 + error) for link in ways)
    rate_bps = expected_rate_bps(network, sample)
    goodput_bps = rate_bps and rate_bps * goodput_ratio(network.mtu_bytes) * (1 - error)
    trains = planned_trains(network, sample, 1.0)
    results = tuple(
        PacketTrainResult(
            num_packets=train.num_packets,
            received=round(train.num_packets * (1 - ways[0].mean_loss * (1 + error))),
            duplicates=0,
            ahead=0,
            mean_s=one_way_s[0],
            jitter_s=ways[0].jitter_s * (1 + error),
        )
        for train in trains
    )
    return Measurement(
        sample=sample,
        method="ping",
        one_way_s=one_way_s,
        rtt_s=tuple(
            there + link.one_way_delay_s * (1 + error)
            for there, link in zip(one_way_s, back, strict=True)
        ),
        goodput_bps=goodput_bps,
        streams_goodput_bps=goodput_bps if sample.streams > 1 else None,
        trains=trains,
        train_results=results,
    )


def verification(
    network: Network, *, wrong: tuple[int, ...] = (), everything: bool = False, streams: int = 1
) -> Verification:
    """Seeded errors of up to 1%; samples in `wrong`, by number, are off by 20%."""
    draw = random.Random(7)
    samples = all_pairs(network, streams) if everything else sample_links(network)
    found = [
        measured(network, sample, 0.2 if i in wrong else draw.uniform(-0.01, 0.01))
        for i, sample in enumerate(samples)
    ]
    checks = evaluate(found, network, tolerance=0.05).checks
    return Verification(
        title="two universities",
        checks=checks,
        nodes=tuple(f"node{i}" for i in range(network.num_nodes)),
        regions=network.regions,
        node_regions=network.node_regions,
    )
