"""Traces: the file, the networks over time, and the steps of nodes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.errors import ScenarioError
from netbench.network.shaping.program import MAX_SEGMENTS, compile_programs
from netbench.network.traces.trace import (
    Change,
    compile_replays,
    fastest,
    networks,
    parse_trace,
    read_trace,
    replay_sysctls,
    write_trace,
)
from netbench.scenario.model import BurstLoss, Network
from tests.networks import ADDRESSES, FAR, NEAR, two_regions

REGIONS = ("A", "B c")
HEAD = "time,link,delay,rate,loss\n"


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("A -> B c", [(0, 1)]),
        ("B c->A", [(1, 0)]),
        ("A <-> B c", [(0, 1), (1, 0)]),
        ("A", [(0, 0)]),
    ],
)
def test_a_link_is_one_way_both_ways_or_inside(text: str, ends: list[tuple[int, int]]) -> None:
    changes = parse_trace(f"{HEAD}0s,{text},5ms,,\n", REGIONS)
    assert [(change.src, change.dst) for change in changes] == ends


def test_columns_may_be_left_out_and_values_empty() -> None:
    assert parse_trace("time,link,loss\n2min,A,1%\n", REGIONS) == (
        Change(time_s=120.0, src=0, dst=0, loss=0.01),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv:1: columns are missing; expected time,link,delay,rate,loss"),
        ("when,link\n", "t.csv:1: columns are when, link; expected"),
        (HEAD, "t.csv: has no changes"),
        (HEAD + "1s,A,,,\n", "t.csv:2: changes nothing; give delay, rate or loss"),
        (HEAD + ",A,1ms,,\n", 't.csv:2: time is empty; write e.g. "90s"'),
        (HEAD + "1s,A,1,,\n", 't.csv:2: delay "1" has no unit; write e.g. "1ms"'),
        (HEAD + "1s,A,,0bit,\n", 't.csv:2: rate "0bit" is zero'),
        (HEAD + "1s,A,,,101%\n", 't.csv:2: loss "101%" is too large; at most 100%'),
        (HEAD + "1s,A,1ms,,\n1s,C,1ms,,\n", 't.csv:3: link "C": expected one of A, B c'),
        (HEAD + "1s,A,1ms\n", "t.csv:2: does not have one value per column"),
        (HEAD + "1s,A,1ms,,,9\n", "t.csv:2: does not have one value per column"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_trace(text, REGIONS, "t.csv")
    assert str(caught.value).startswith(message)


values = st.one_of(st.none(), st.integers(0, 10**6))


@given(
    st.lists(
        st.builds(
            lambda ms, src, dst, delay_us, kbit, loss: Change(
                time_s=ms / 1000,
                src=src,
                dst=dst,
                one_way_delay_s=None if delay_us is None else delay_us / 1e6,
                bandwidth_bps=None if kbit is None else (kbit + 1) * 1e3,
                loss=loss / 100,
            ),
            st.integers(0, 10**7), st.integers(0, 1), st.integers(0, 1), values, values,
            st.integers(0, 100),
        ),
        min_size=1,
    )
)  # fmt: skip
def test_written_changes_are_read_back(changes: list[Change]) -> None:
    changes.sort(key=lambda change: change.time_s)
    assert parse_trace(write_trace(changes, REGIONS), REGIONS) == tuple(changes)


def test_networks_accumulate() -> None:
    """An empty value stays as the previous step left it. Rows of one time are one step."""
    start = two_regions()
    changes = parse_trace(
        f"{HEAD}5s,ohio -> virginia,,1Mbit,\n5s,virginia -> ohio,7ms,,\n"
        "9s,ohio -> virginia,1ms,,\n",
        start.regions,
    )
    (at_5, first), (at_9, second) = networks(start, changes)
    assert (at_5, at_9) == (5.0, 9.0)
    assert first.links[0][1] == replace(FAR, bandwidth_bps=1e6)
    assert first.links[1][0] == replace(FAR, one_way_delay_s=0.007)
    assert second.links[0][1] == replace(FAR, bandwidth_bps=1e6, one_way_delay_s=0.001)
    assert second.links[1][0] == first.links[1][0]
    assert second.links[0][0] == NEAR


def test_a_loss_replaces_bursts() -> None:
    link = replace(FAR, bursts=BurstLoss(to_bad=0.1))
    assert Change(time_s=0, src=0, dst=1, loss=1.0).of(link) == replace(FAR, loss=1.0)


def test_only_senders_over_a_changed_link_have_steps() -> None:
    """A step has one line per destination, which changes every field in place."""
    network = two_regions(num_nodes=4)
    changes = parse_trace(f"{HEAD}1.5s,ohio -> virginia,,500Mbit,2%\n", network.regions)
    replays = compile_replays(network, changes, ADDRESSES, "eth0")
    here = [node for node, region in enumerate(network.node_regions) if region == 0]
    there = [node for node, region in enumerate(network.node_regions) if region == 1]
    assert [bool(replay.steps) for replay in replays] == [n in here for n in range(4)]
    for node in here:
        (step,) = replays[node].steps
        assert step.time_s == 1.5
        lines = step.text.splitlines()
        assert [line.split()[5] for line in lines] == [f"6e62:{dst + 1:x}" for dst in there]
        for line in lines:
            assert line.startswith("qdisc change dev eth0 parent 6e62:")
            assert line.endswith("delay 11000us 0us loss 2% rate 500000000bit")


def test_without_a_difference_nothing_is_loaded() -> None:
    network = two_regions()
    changes = (Change(time_s=1.0, src=0, dst=1, bandwidth_bps=FAR.bandwidth_bps),)
    replays = compile_replays(network, changes, ADDRESSES, "eth0")
    assert [replay.steps for replay in replays] == [()] * network.num_nodes
    assert [replay.program for replay in replays] == list(
        compile_programs(network, ADDRESSES, "eth0")
    )


def test_queues_are_as_long_as_the_longest_path_needs() -> None:
    """TCP's buffers are set once, for the largest BDP. A shorter queue would drop packets."""
    network = two_regions(num_nodes=2)
    changes = (Change(time_s=1.0, src=0, dst=1, one_way_delay_s=0.2),)
    (first, _) = compile_replays(network, changes, ADDRESSES, "eth0")
    (longest, _) = compile_programs(networks(network, changes)[0][1], ADDRESSES, "eth0")
    assert first.program.leaves[0].limit_packets == longest.leaves[0].limit_packets
    assert f"limit {longest.leaves[0].limit_packets} " in first.steps[0].text
    settings = replay_sysctls(network, changes)
    product = 1.12e9 / 8 * (0.2 + 0.011)
    assert int(settings["net.ipv4.tcp_rmem"].split()[-1]) >= 4 * product


def test_classes_share_a_queue_only_where_links_are_equal_all_the_time() -> None:
    """Nodes 1 and 2 are in regions of equal links until one of them changes."""
    links = ((NEAR, FAR, FAR), (FAR, NEAR, FAR), (FAR, FAR, NEAR))
    network = Network(
        regions=("a", "b", "c"), links=links, node_regions=(0, 1, 2, 2), sharing="class",
        nic_bps=(math.inf,) * 4,
    )  # fmt: skip
    together = compile_replays(network, (Change(time_s=1, src=1, dst=0, loss=0.1),), ADDRESSES, "e")
    assert len(together[0].program.leaves) == 1
    apart = compile_replays(network, (Change(time_s=1, src=0, dst=1, loss=0.1),), ADDRESSES, "e")
    assert len(apart[0].program.leaves) == 2
    assert sorted(minor for _, minor in apart[0].program.matches[:3]) == [2, 3, 3]


def test_a_node_must_carry_the_highest_rate_of_each_link() -> None:
    network = two_regions()
    changes = tuple(
        Change(time_s=time_s, src=0, dst=1, bandwidth_bps=rate_bps, one_way_delay_s=0.5)
        for time_s, rate_bps in ((1.0, 2e9), (2.0, 1e6))
    )
    found = fastest(network, changes)
    assert found.links[0][1] == replace(FAR, bandwidth_bps=2e9)
    assert found.links[1][0] == FAR
    assert found.links[0][0] == NEAR


def test_tcp_hands_over_single_frames_if_they_can_ever_be_lost() -> None:
    """A link that is down loses all frames, so it does not count."""
    network = two_regions(num_nodes=2)
    for loss, expected in ((0.01, 1), (1.0, MAX_SEGMENTS)):
        changes = tuple(Change(time_s=t, src=0, dst=1, loss=x) for t, x in ((1.0, loss), (2.0, 0)))
        (first, other) = compile_replays(network, changes, ADDRESSES, "eth0")
        assert first.program.max_segments == expected
        assert other.program.max_segments == MAX_SEGMENTS


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Excel writes one at the start of a file."""
    (tmp_path / "trace.csv").write_bytes(b"\xef\xbb\xbftime,link,rate\n1s,A,1Gbit\n")
    assert read_trace(tmp_path / "trace.csv", ["A"])[0].bandwidth_bps == 1e9
