"""Parsing the output of measurement tools."""

from __future__ import annotations

import csv
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.errors import ScenarioError
from netbench.scenario.measured.export import matrix_csv
from netbench.scenario.measured.matrices import Matrix, Reading, completed, merge
from netbench.scenario.measured.readings import Reader, read_matrix
from tests.readings import AWS, LINUX_PING, iperf3

MAC_PING = """\
PING tokyo.example.org (192.0.2.9): 56 data bytes
64 bytes from 192.0.2.9: icmp_seq=0 ttl=52 time=96.341 ms

--- tokyo.example.org ping statistics ---
10 packets transmitted, 10 packets received, 0.0% packet loss
round-trip min/avg/max/stddev = 96.250/97.004/99.817/1.020 ms
"""
BUSYBOX_PING = """\
PING 10.1.0.7 (10.1.0.7): 56 data bytes

--- 10.1.0.7 ping statistics ---
5 packets transmitted, 5 packets received, 0% packet loss
round-trip min/avg/max = 0.312/0.401/0.611 ms
"""
DEAD_PING = """\
PING 10.1.0.8 (10.1.0.8) 56(84) bytes of data.

--- 10.1.0.8 ping statistics ---
5 packets transmitted, 0 received, 100% packet loss, time 4101ms
"""


def test_iperf3_gives_the_rate_of_the_link_and_half_of_the_smallest_round_trip() -> None:
    """941.4 Mbit/s of payload need 984.3 Mbit/s in segments of 1448 bytes."""
    matrix = read_matrix("a.json", json.dumps(iperf3()))
    reading = matrix.readings["10.1.0.2", "10.1.0.7"]
    assert reading.bandwidth_bps == pytest.approx(941.4e6 * 1514 / 1448, rel=1e-4)
    assert (reading.one_way_delay_s, reading.loaded) == (0.0111, True)
    assert matrix.places == ("10.1.0.2", "10.1.0.7")


def test_a_reversed_run_is_of_the_way_back() -> None:
    """With -R the server sends."""
    matrix = read_matrix("a.json", json.dumps(iperf3(reverse=1)))
    assert set(matrix.readings) == {("10.1.0.7", "10.1.0.2")}


def test_iperf3_over_udp_gives_jitter_and_loss() -> None:
    """Its rate is only what the sender was told to send."""
    run = iperf3()
    run["start"]["test_start"]["protocol"] = "UDP"
    run["end"] = {"sum": {"bits_per_second": 1e6, "jitter_ms": 0.25, "lost_percent": 1.5}}
    (reading,) = read_matrix("a.json", json.dumps(run)).readings.values()
    assert (reading.jitter_s, reading.loss) == (0.00025, 0.015)
    assert reading.bandwidth_bps is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"start": {}, "error": "unable to connect to server"}', "unable to connect to server"),
        ('{"start": {}, "end": {}}', "not a finished run of `iperf3 -J`: 'test_start' is missing"),
        ('{"start": ', "not JSON"),
        (DEAD_PING, "no packet was answered"),
        ("", "not a table"),
        ("hello", "not a table"),
        ("source,destination,colour\na,b,red\n", "no column of values among source, destination"),
        ("source,destination,rtt_ms\na,b,fast\n", 'bad:2: rtt "fast" is not a time'),
        ("source,destination,delay\na,b,11\n", "name the unit in the header: rtt_ms"),
        ("source,destination,rtt_ms\na,b,1\na,b,2\n", "bad:3: gives a -> b again"),
        ("source,destination,rtt_ms\na,b\n", "bad:2: 2 cells; expected 3"),
        ("source,destination,rtt_ms\na,,4\n", "bad:2: a place has no name"),
        (
            "rtt_ms,a,b\na,,1\nc,1,\n",
            "nor a square table: its header has a, b, its first column a, c",
        ),
        (",a,b\na,,1\nb,1,\n", "are these delays or bandwidths?"),
        (",a,b\na,,1ms\nb,-1ms,\n", "is negative"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_why(text: str, said: str) -> None:
    """The error has the position, what was found and what was expected."""
    with pytest.raises(ScenarioError) as error:
        read_matrix("bad", text, Reader(pair=("a", "b")))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "delay_s", "jitter_s", "loss"),
    [
        (LINUX_PING, 0.011052, 0.174e-3 / math.sqrt(2), 1 - math.sqrt(0.95)),
        (MAC_PING, 0.048125, 1.020e-3 / math.sqrt(2), 0.0),
        (BUSYBOX_PING, 0.000156, None, 0.0),
    ],
)
def test_ping_of_three_systems(
    text: str, delay_s: float, jitter_s: float | None, loss: float
) -> None:
    """Half of the smallest round trip; losses assume equal loss both ways."""
    (reading,) = read_matrix("p", text, Reader(pair=("ohio", "tokyo"))).readings.values()
    assert reading.one_way_delay_s == delay_s
    assert reading.jitter_s == (jitter_s and pytest.approx(jitter_s, rel=1e-3))
    assert reading.loss == pytest.approx(loss, rel=1e-3)


def test_ping_alone_does_not_say_whose_it_is() -> None:
    """The error says what to write."""
    with pytest.raises(ScenarioError, match=r"write SOURCE,DESTINATION=p, e\.g\. here,10"):
        read_matrix("p", LINUX_PING)


def test_all_90_directed_aws_measurements() -> None:
    """The receiver's row: its received rate, and half of its ping."""
    matrix = read_matrix("aws", AWS.read_text())
    assert len(matrix.readings) == 90
    assert matrix.places[:3] == ("Oregon", "Virginia", "Ohio")
    with AWS.open() as file:
        for row in csv.DictReader(file):
            reading = matrix.readings[row["sender"], row["receiver"]]
            assert reading.one_way_delay_s == float(f"{float(row['ping_rtt_ms']) / 2}e-3")
            assert reading.bandwidth_bps == float(row["nccl_gbps"] + "e9")
    assert completed(matrix).readings == matrix.readings


@pytest.mark.parametrize(
    ("head", "cell", "field", "value"),
    [
        ("rtt_ms", "22", "one_way_delay_s", 0.011),
        ("RTT (ms)", "22", "one_way_delay_s", 0.011),
        ("Latency [us]", "450", "one_way_delay_s", 0.00045),
        ("one_way_delay", "11 ms", "one_way_delay_s", 0.011),
        ("Bandwidth (Gbit/s)", "1.12", "bandwidth_bps", 1.12e9),
        ("throughput_mbps", "941", "bandwidth_bps", 941e6),
        ("bandwidth", "1.12 Gbps", "bandwidth_bps", 1.12e9),
        ("nccl_gbps", "0.79", "bandwidth_bps", 0.79e9),
        ("jitter_ms", "0.5", "jitter_s", 0.0005),
        ("loss_percent", "0.1", "loss", 0.001),
        ("loss %", "0.1", "loss", 0.001),
        ("packet loss", "0.1%", "loss", 0.001),
    ],
)
def test_common_forms_of_headers(head: str, cell: str, field: str, value: float) -> None:
    """Kind and unit are in the header, or the unit is in the cell; unknown columns are ignored."""
    text = f"from;to;comment;{head}\na;b;slow, they say;{cell}\n"
    (reading,) = read_matrix("t", text).readings.values()
    assert getattr(reading, field) == value


def test_columns_of_the_same_kind_are_refused_unless_one_is_named() -> None:
    """`netbench net measure` writes goodputs beside the bandwidth."""
    head = "source,destination,rtt_ms,single_stream_gbps,multi_stream_gbps,bandwidth_gbps"
    (reading,) = read_matrix("t", f"{head}\na,b,2,0.8,0.9,0.95\n").readings.values()
    assert (reading.one_way_delay_s, reading.bandwidth_bps) == (0.001, 0.95e9)
    with pytest.raises(ScenarioError, match="t:1: rtt_ms and delay_ms have the same meaning"):
        read_matrix("t", "source,destination,rtt_ms,delay_ms\na,b,2,1\n")


def test_a_square_table_needs_no_more_than_units() -> None:
    """Rows are sources; an empty diagonal is ignored, a value there is inside the place."""
    delays = "rtt_ms,a,b\na,,22\nb,24,2\n"
    rates = "\ufeff,a,b\na,-,1Gbit\nb,900Mbit,10Gbit\n"
    matrix = merge([read_matrix("d.csv", delays), read_matrix("r.csv", rates)])
    figures = {
        pair: (reading.one_way_delay_s, reading.bandwidth_bps)
        for pair, reading in matrix.readings.items()
    }
    assert figures == {
        ("a", "b"): (0.011, 1e9), ("b", "a"): (0.012, 900e6), ("b", "b"): (0.001, 10e9),
    }  # fmt: skip


ROUND_TRIP = Reader(delay_unit="ms", round_trip=True)


@pytest.mark.parametrize(
    ("name", "corner", "reader", "expected"),
    [
        ("delays.csv", "", Reader(delay_unit="ms"), Reading(one_way_delay_s=0.011)),
        ("x.csv", "delay", ROUND_TRIP, Reading(one_way_delay_s=0.0055)),
        ("x.csv", "bandwidth", Reader(bandwidth_unit="Gbps"), Reading(bandwidth_bps=11e9)),
    ],
)  # fmt: skip
def test_units_may_be_given_apart(
    name: str, corner: str, reader: Reader, expected: Reading
) -> None:
    """The kind of a table is in its first cell or its file name."""
    matrix = read_matrix(name, f"{corner},a,b\na,0,11\nb,11,0\n", reader)
    reading = matrix.readings["a", "b"]
    assert reading.one_way_delay_s == expected.one_way_delay_s
    assert reading.bandwidth_bps == expected.bandwidth_bps


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Without a traceback."""
    try:
        matrix = read_matrix("any", text, Reader(pair=("a", "b")))
    except ScenarioError:
        return
    assert isinstance(matrix, Matrix)


HEADS = st.sampled_from(["source", "destination", "rtt_ms", "a", "b", "bandwidth", "", "loss"])
CELLS = st.sampled_from(
    ["a", "b", "1", "1ms", "1e999ms", "-", "", "nan", "5Gbit", "5 bananas", "1e-9"]
)


@given(st.lists(HEADS, max_size=4), st.lists(st.lists(CELLS, max_size=4), max_size=4))
def test_any_table_is_read_or_refused(head: list[str], rows: list[list[str]]) -> None:
    """Without a traceback, and without invalid values."""
    text = "\n".join(",".join(row) for row in [head, *rows])
    try:
        matrix = read_matrix("any", text)
    except ScenarioError:
        return
    for reading in matrix.readings.values():
        for value in (reading.one_way_delay_s, reading.bandwidth_bps, reading.loss):
            assert value is None or value >= 0


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.sampled_from("abc")),
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)),
        min_size=1,
    )
)
def test_a_written_table_reads_back_equal(figures: dict[tuple[str, str], tuple[int, int]]) -> None:
    """Delays in whole microseconds, rates in whole Mbit/s."""
    readings = {
        pair: Reading(one_way_delay_s=delay_us / 1e6, bandwidth_bps=rate * 1e6, source="t")
        for pair, (delay_us, rate) in figures.items()
    }
    text = matrix_csv(Matrix(places=("a", "b", "c"), readings=readings))
    assert read_matrix("t", text).readings == readings


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start": []}, "list indices must be integers"),
        ({"start": {"connected": [{}], "test_start": "x"}}, "'local_host' is missing"),
        ({"end": {"sum_received": {"bits_per_second": "fast"}}}, "is not a bandwidth"),
        ({"end": {"sum_received": {"bits_per_second": -1}}}, "is negative"),
        ({"end": {"sum_received": {"bits_per_second": 1e9}, "streams": [7]}}, "not subscriptable"),
        (
            {"end": {"sum_received": {"bits_per_second": 1e9},
                     "streams": [{"sender": {"min_rtt": 1e300}}]}},
            "is too large; at most 60s",
        ),
    ],
)  # fmt: skip
def test_odd_json_is_not_a_run_of_iperf3(change: dict[str, object], says: str) -> None:
    """Whatever has another type or is out of range is named."""
    with pytest.raises(ScenarioError, match=r"i\.json: not a finished run of") as caught:
        read_matrix("i.json", json.dumps(iperf3() | change))
    assert says in str(caught.value)


def test_a_summary_of_ping_must_be_possible() -> None:
    """More than all packets cannot be lost, and 1.2.3 is not a number."""
    for old, new in (("5%", "500%"), ("22.104", "2.2.1"), ("0.174", "9999999")):
        with pytest.raises(ScenarioError, match=r"ping.txt: ping's summary: .* (too|unknown)"):
            read_matrix("ping.txt", LINUX_PING.replace(old, new), Reader(pair=("a", "b")))
