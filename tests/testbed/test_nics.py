"""NICs in virtual time: they limit both directions, and serve connections in turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.readback import KernelState, differences
from netbench.network.shaping.update import is_replaced
from netbench.testbed.ingress import ingress_bytes_per_s
from netbench.testbed.shaping import programs
from tests.testbed.inside_nics import MESSAGE, NETWORK, NODES, NUM_MESSAGES, OTHERS


def test_ports_have_the_rates_of_nics() -> None:
    """Whole bytes/s; a node without a limit has none, nor a router."""
    rates = ingress_bytes_per_s(NODES, NETWORK, 10.0)
    assert rates == {"v0": 312500, "v1": 312500, "v2": 125000, "v3": 312500}
    some = replace(NETWORK, nic_bps=(float("inf"), 25e6, 10e6, 25e6))
    assert sorted(ingress_bytes_per_s(NODES, some, 1.0)) == ["v1", "v2", "v3"]
    assert ingress_bytes_per_s(NODES, replace(NETWORK, sharing="pair"), 1.0) == {}


def test_only_queues_of_a_nic_are_fair() -> None:
    """HTB limits them, a frame at a time. Links with rates of their own stay in order."""
    fair, plain = (programs(NODES, NETWORK, 1.0, fair=fair)[0] for fair in (True, False))
    assert {(leaf.rate_bps, leaf.fair_quantum_bytes) for leaf in fair.leaves} == {(0, 654)}
    assert {htb.ceil_burst_bytes for htb in fair.classes} == {657}  # 210 us
    assert {htb.quantum_bytes for htb in fair.classes} == {654}
    assert fair.max_segments == 1
    assert fair.text.count(" fq_codel ") == 3
    assert {leaf.rate_bps for leaf in plain.leaves} == {25_000_000}
    assert " fq_codel " not in plain.text
    slow = OTHERS["slow links"]
    texts = [programs(NODES, slow, 1.0, fair=fair)[0].text for fair in (True, False)]
    assert " fq_codel " not in texts[0] + texts[1]


@pytest.mark.parametrize("nic_bps", [10e6, 500e6, 1e9, 25e9])
def test_bursts_are_whole_microseconds_of_at_least_a_frame(nic_bps: float) -> None:
    """tc keeps whole microseconds; of another burst the kernel would have less than was planned."""
    network = replace(NETWORK, nic_bps=(nic_bps,) * 4, mtu_bytes=1500)
    for htb in programs(NODES, network, 1.0, fair=True)[0].classes:
        for rate_bps, burst in (
            (htb.rate_bps, htb.burst_bytes),
            (htb.ceil_bps, htb.ceil_burst_bytes),
        ):
            kept_bytes = int(8e6 * burst / rate_bps) * rate_bps / 8e6
            assert 1514 <= kept_bytes <= burst <= kept_bytes + 16


def test_a_queue_that_is_not_fair_is_a_difference() -> None:
    """It is loaded again as a whole."""
    program = programs(NODES, NETWORK, 1.0, fair=True)[0]
    found = KernelState(
        root=("htb", HANDLE), default_class="0", classes={}, leaves={}, filters=(),
        fair_quanta=(("2:", 654), ("3:", 100), ("9:", 654)),
    )  # fmt: skip
    said = [text for text in differences(program, found) if "in turn" in text]
    assert said == [
        "connections below netem 3: send 100 bytes in turn, planned 654",
        "connections below netem 4: send 0 bytes in turn, planned 654",
        "connections below netem 9: send 654 bytes in turn, planned 0",
    ]
    assert is_replaced(program, found)


@pytest.mark.guest
def test_nics_limit_both_directions_and_serve_in_turn(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Networks are trustworthy one on top of the other. A missing limit is noticed. Messages that
    start together end together, and one after the other in a queue of arrival."""
    status, output = run_in_guest([sys.executable, "-m", "tests.testbed.inside_nics"])
    assert status == 0, output
    found = json.loads(output.splitlines()[-1])
    assert {name: found[name] for name in OTHERS} == {name: [] for name in OTHERS}
    assert any("nic sample" in reason for reason in found["no limit on receiving"])
    assert (found["drops"], found["drops at ports"], found["limits left"]) == (0, 0, 0)
    frames_s = 8 * 654 / 25e6 * len(MESSAGE) / (640 - 52)
    for ends_s in (found["in turn"], found["in order of arrival"]):
        assert ends_s[-1] == pytest.approx(NUM_MESSAGES * frames_s, rel=0.08)
    assert found["in turn"][0] > 0.9 * found["in turn"][-1]
    assert found["in order of arrival"][0] < 0.5 * found["in order of arrival"][-1]
