"""Expected figures of measured links, and the verdict."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from netbench.network.probing.packet_trains import PacketTrainResult
from netbench.network.probing.samples import (
    LinkSample,
    expected_rate_bps,
    planned_trains,
    sample_links,
)
from netbench.network.probing.verify import WORDS, Measurement, evaluate, goodput_bps
from netbench.network.shaping.segments import goodput_ratio
from netbench.scenario.model import Link, Network
from tests.networks import two_regions

CASE3 = two_regions(num_nodes=64)
GOODPUT_FAR_BPS = 1.12e9 * 1448 / 1514
RTT_FAR_S = 2 * (0.011 + 98 * 8 / 1.12e9)


def perfect(network: Network, scale: float = 1.0) -> list[Measurement]:
    """Return exact measurements, written out link by link."""
    found = []
    for sample in sample_links(network):
        there = [network.link(sample.src, dst) for dst in sample.dsts]
        back = [network.link(dst, sample.src) for dst in sample.dsts]
        way = [link.one_way_delay_s + 784 * scale / link.bandwidth_bps for link in there]
        home = [link.one_way_delay_s + 784 * scale / link.bandwidth_bps for link in back]
        rate_bps = expected_rate_bps(network, sample)
        found.append(
            Measurement(
                sample=sample,
                method="ping",
                one_way_s=tuple(way),
                rtt_s=tuple(a + b for a, b in zip(way, home, strict=True)),
                goodput_bps=rate_bps and rate_bps / scale * 1448 / 1514,
            )
        )
    return found


def test_the_ceiling_of_goodput_is_that_of_full_segments() -> None:
    """1448 payload bytes in a frame of 1514, as was measured at four rates."""
    assert goodput_ratio(1500) == pytest.approx(1448 / 1514, rel=1e-12)
    assert goodput_ratio(9001) == pytest.approx(8949 / 9015, rel=1e-12)


def test_goodput_starts_after_the_warmup_and_ends_with_the_first_flow() -> None:
    """Two flows of 1 byte/ns, one of which starts late: only the common stretch counts."""
    early = [(ns, ns) for ns in range(1, 1001)]
    late = [(ns + 300, ns) for ns in range(1, 1001)]
    assert goodput_bps([early], 100) == pytest.approx(8e9)
    assert goodput_bps([early, late], 100) == pytest.approx(16e9)


def test_unequal_flows_of_one_queue_add_up_to_its_rate() -> None:
    """1 byte/ns shared 3 to 1, then left to the slower flow: the sum stays 1 byte/ns."""
    fast = [(4 * i, 3 * i) for i in range(1, 401)]
    slow = [(4 * i, i) for i in range(1, 401)] + [(1600 + i, 400 + i) for i in range(1, 801)]
    assert fast[-1][1] == slow[-1][1] == 1200
    assert goodput_bps([fast, slow], 100) == pytest.approx(8e9, rel=0.01)


def test_goodput_of_an_unknown_rate_starts_after_a_time() -> None:
    """Nothing in the first half of the second counts: there the flow was ten times slower."""
    slow = [(ns * 10**6, ns * 10**5) for ns in range(1, 501)]
    fast = [(ns * 10**6, 5 * 10**7 + (ns - 500) * 10**6) for ns in range(501, 1001)]
    assert goodput_bps([slow + fast], warmup_s=0.5) == pytest.approx(8e9, rel=0.01)


def test_goodput_is_unknown_without_a_timed_interval() -> None:
    """A flow ended before the warm-up was over, or never started."""
    assert goodput_bps([[(5, 100)], [(1, 10), (9, 100)]], 90) is None
    assert goodput_bps([[(1, 10), (9, 100)], []], 10) is None


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("sharing", ["pair", "class"])
def test_a_perfect_network_is_trustworthy(sharing: str, scale: float) -> None:
    """Nothing may fail on exact figures, and every link class must have been judged."""
    network = two_regions(num_nodes=64, sharing=sharing)
    probe = evaluate(perfect(network, scale), network, scale, 0.02)
    assert probe.trustworthy
    assert probe.reasons == ()
    assert {check.quantity for check in probe.checks} == {"rtt_s", "one_way_s", "goodput_bps"}
    assert probe.methods == ("ping",)


@pytest.mark.parametrize(
    ("field", "factor", "trustworthy"),
    [
        ("goodput_bps", 0.985, True),
        ("goodput_bps", 0.975, False),
        ("goodput_bps", 1.03, False),
        ("rtt_s", 1.01, True),
        ("rtt_s", 1.04, False),
        ("one_way_s", 0.5, False),
    ],
)
def test_the_tolerance_is_two_sided(field: str, factor: float, trustworthy: bool) -> None:
    """Too fast is as wrong as too slow: a link without shaping would be both."""
    found = perfect(CASE3)
    value = getattr(found[1], field)
    changes: dict[str, Any] = {
        field: tuple(v * factor for v in value) if isinstance(value, tuple) else value * factor
    }
    found[1] = replace(found[1], **changes)
    probe = evaluate(found, CASE3, 1.0, 0.02)
    assert probe.trustworthy is trustworthy
    assert all(WORDS[field][0] in reason for reason in probe.reasons)


def test_swapped_delays_are_detected_though_the_round_trip_is_right() -> None:
    """1 ms there and 21 ms back instead of the other way round."""
    fast = Link(one_way_delay_s=0.001, bandwidth_bps=1e9)
    slow = Link(one_way_delay_s=0.021, bandwidth_bps=1e9)
    network = replace(two_regions(), links=((fast, slow), (fast, fast)))
    swapped = replace(network, links=((fast, fast), (slow, fast)))
    found = perfect(swapped)
    assert not evaluate(found, network).trustworthy
    assert evaluate(found, network, shared_clock=False).trustworthy


def test_nothing_measured_is_not_trustworthy() -> None:
    """No test passes when nothing ran."""
    assert evaluate([], CASE3).reasons == ("no link was measured",)


def test_failed_measurements_and_missing_figures_are_reasons() -> None:
    """A probe that could not run says why; a lost echo is not a delay of zero."""
    found = perfect(CASE3)
    found[0] = Measurement(sample=found[0].sample, error="node 1: no answer within 300 s")
    found[1] = replace(found[1], rtt_s=(None,))
    probe = evaluate(found, CASE3)
    assert not probe.trustworthy
    assert "link sample, node 0 to 1: node 1: no answer within 300 s" in probe.reasons
    assert any("no round-trip time was measured" in reason for reason in probe.reasons)


def test_a_reason_has_measured_expected_and_allowed() -> None:
    """An operator sees what to look for without the code."""
    sample = LinkSample(kind="link", src=0, dsts=(40,))
    bad = Measurement(
        sample=sample, method="ping", rtt_s=(RTT_FAR_S,), one_way_s=(RTT_FAR_S / 2,),
        goodput_bps=0.9 * GOODPUT_FAR_BPS,
    )  # fmt: skip
    assert evaluate([bad], CASE3).reasons == (
        "link sample, node 0 to 40: goodput is 964.1Mbit, expected 1.071Gbit "
        "(-10.0%, allowed 2.0%)",
    )


LOSSY = Link(one_way_delay_s=0.01, bandwidth_bps=1e9, loss=0.001)


def lossy(received: int) -> list[Measurement]:
    """Measure one link with a loss of 0.1%; `received` of 20000 packets arrived."""
    sample = LinkSample(kind="link", src=0, dsts=(2,))
    network = two_regions(across=LOSSY)
    result = PacketTrainResult(
        num_packets=20_000, received=received, duplicates=0, ahead=0, mean_s=0.01, jitter_s=1e-6
    )
    return [
        Measurement(
            sample=sample,
            method="udp",
            rtt_s=(0.02,),
            one_way_s=(0.01,),
            trains=planned_trains(network, sample, 1.0),
            train_results=(result,),
        )
    ]


def test_a_loss_within_random_error_passes_and_beyond_it_fails() -> None:
    """20 of 20000 are expected, with a standard deviation of 4.5."""
    network = two_regions(across=LOSSY)
    assert evaluate(lossy(20_000 - 18), network).trustworthy
    bad = evaluate(lossy(20_000 - 60), network)
    assert bad.reasons == (
        "link sample, node 0 to 2: loss is 0.003 of 20000 packets, expected 0.001 ± 0.00074",
    )
    checked = {check.quantity: check for check in bad.checks}
    assert set(checked) == {"one_way_s", "rtt_s", "loss", "duplication", "reordering"}
    assert checked["loss"].num_packets == 20_000


def test_several_connections_are_judged_as_one_is() -> None:
    """The rate is the link's, however many share it."""
    sample = LinkSample(kind="link", src=0, dsts=(40,), streams=8)
    good = Measurement(
        sample=sample, method="ping", rtt_s=(RTT_FAR_S,), one_way_s=(RTT_FAR_S / 2,),
        goodput_bps=GOODPUT_FAR_BPS, streams_goodput_bps=GOODPUT_FAR_BPS,
    )  # fmt: skip
    assert evaluate([good], CASE3).trustworthy
    slow = replace(good, streams_goodput_bps=0.8 * GOODPUT_FAR_BPS)
    (reason,) = evaluate([slow], CASE3).reasons
    assert "node 0 to 40 by 8 connections: goodput is" in reason


def test_the_probe_is_plain_json() -> None:
    """It is stored with every run."""
    probe = evaluate(perfect(CASE3), CASE3)
    stored = json.loads(json.dumps(asdict(probe)))
    assert stored["trustworthy"] is True
    assert stored["checks"][0]["quantity"] == "one_way_s"
    assert len(stored["checks"]) == 12
