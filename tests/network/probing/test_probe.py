"""The probe of the nodes, here between two threads over loopback."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.network.probing import probe
from netbench.network.probing.probe import Transfers

HERE = f"127.{os.getpid() // 200 % 200 + 1}.{os.getpid() % 200 + 1}.99"
"""No other run of these tests has this address, nor has any other test."""

TOKEN = "00112233445566778899aabbccddeeff"
SECRET = bytes.fromhex(TOKEN)
TOTAL_BYTES = 3_000_001

PATIENCE_S = 120.0
ATTEMPTS = 20


@contextmanager
def serving(**arguments: Any) -> Iterator[Any]:
    """Run `probe.serve` in a thread; yield the future of its answer."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit(probe.serve, HERE, TOKEN, **arguments)


def test_every_byte_is_counted_and_time_goes_forward() -> None:
    """The last arrival is exact; between, at most `NUM_ARRIVALS` are kept."""
    start_s = time.monotonic()
    with serving(transfers=Transfers(total_bytes=[TOTAL_BYTES])) as served:
        measured = probe.measure([HERE], TOKEN, transfers=Transfers(total_bytes=[TOTAL_BYTES]))
        (arrivals,) = served.result(timeout=PATIENCE_S)["arrivals"][0]
    lasted_s = time.monotonic() - start_s
    assert arrivals[-1][1] == TOTAL_BYTES
    assert 1 <= len(arrivals) <= probe.NUM_ARRIVALS + 1
    assert arrivals == sorted(arrivals)
    assert json.loads(json.dumps(measured))["method"] in ("ping", "udp")
    for key in ("rtt_s", "one_way_s"):
        (value,) = cast("list[float]", measured[key])
        assert 0 < value < lasted_s
    (offset_s,) = cast("list[float]", measured["offset_s"])
    assert abs(offset_s) < lasted_s  # of one clock to itself, to half a round trip


def test_a_second_transfer_uses_all_its_connections_after_the_first() -> None:
    """Every connection carries its bytes, and none of the second before the last of the first."""
    with serving(transfers=Transfers([1, 4], [500_000, 200_000])) as served:
        probe.measure([HERE], TOKEN, transfers=Transfers([1, 4], [500_000, 200_000]))
        single, several = served.result(timeout=PATIENCE_S)["arrivals"]
    assert [flow[-1][1] for flow in single] == [500_000]
    assert [flow[-1][1] for flow in several] == [200_000] * 4
    assert single[0][-1][0] < min(flow[0][0] for flow in several)


def test_a_transfer_of_unknown_rate_lasts_as_long_as_asked() -> None:
    """Bytes are what the link carried; the time is what was given."""
    for _ in range(ATTEMPTS):  # a busy machine begins late, or ends late
        with serving(transfers=Transfers(transfer_s=0.3)) as served:
            probe.measure([HERE], TOKEN, transfers=Transfers(transfer_s=0.3))
            (arrivals,) = served.result(timeout=PATIENCE_S)["arrivals"][0]
        lasted_s = (arrivals[-1][0] - arrivals[0][0]) / 1e9
        if 0.2 < lasted_s < 3:
            break
    assert 0.2 < lasted_s < 3
    assert len(arrivals) <= probe.NUM_ARRIVALS + 2


def test_two_sources_wait_for_each_other() -> None:
    """Both start when the last is ready, however late it came."""
    start_s = time.monotonic()
    with serving(num_sources=2, num_waiting=2, transfers=Transfers(total_bytes=[1000])) as served:
        with ThreadPoolExecutor() as pool:
            early = pool.submit(
                probe.measure,
                [HERE],
                TOKEN,
                source=0,
                transfers=Transfers(total_bytes=[1000]),
                wait_at=HERE,
            )
            late = pool.submit(
                probe.measure,
                [HERE],
                TOKEN,
                source=1,
                transfers=Transfers(total_bytes=[1000]),
                wait_at=HERE,
                num_echoes=20,
            )
            offset_s = early.result(timeout=PATIENCE_S)["wait_offset_s"]
            assert abs(offset_s) < time.monotonic() - start_s  # type: ignore[arg-type]
            late.result(timeout=PATIENCE_S)
        flows = served.result(timeout=PATIENCE_S)["arrivals"][0]
    assert [flow[-1][1] for flow in flows] == [1000, 1000]


def test_a_sender_that_leaves_early_is_an_error() -> None:
    """A short transfer must not be timed as if it were whole."""
    with serving(transfers=Transfers(total_bytes=[TOTAL_BYTES])) as served:
        probe.measure([HERE], TOKEN, transfers=Transfers(total_bytes=[1000]))
        with pytest.raises(ConnectionError, match="after 1000 of 3000001 bytes"):
            served.result(timeout=PATIENCE_S)


def test_who_does_not_know_the_token_is_not_served() -> None:
    """Neither a connection nor a packet of a stranger is answered or counted."""
    with serving(transfers=Transfers(total_bytes=[1000])) as served:
        hello = probe.HELLO.pack(b"x" * probe.TOKEN_BYTES, 0, 0, 0)
        stranger = probe._connect(HERE, hello)
        assert stranger.recv(1) == b""
        stranger.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0.2)
            sender.sendto(probe._packet(b"x" * 16, 0, probe.ECHO, 1, 1), (HERE, probe.PORT))
            sender.sendto(probe._packet(b"x" * 16, 0, 0, 1, 1), (HERE, probe.PORT))
            sender.sendto(SECRET, (HERE, probe.PORT))
            with pytest.raises(TimeoutError):
                sender.recv(100)
        probe.measure([HERE], TOKEN, transfers=Transfers(total_bytes=[1000]))
        answer = served.result(timeout=PATIENCE_S)
    assert answer["trains"] == []
    assert answer["arrivals"][0][0][-1][1] == 1000


def test_nothing_listens_before_or_after() -> None:
    """On another address of the same machine, and when the measurement is over."""
    elsewhere = HERE.rsplit(".", 1)[0] + ".98"
    with serving(transfers=Transfers(total_bytes=[10])) as served:
        probe.measure([HERE], TOKEN, transfers=Transfers(total_bytes=[10]))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((elsewhere, probe.PORT), timeout=PATIENCE_S)
        served.result(timeout=PATIENCE_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, probe.PORT), timeout=PATIENCE_S)


def test_a_server_ends_when_nobody_reads_its_output() -> None:
    """The controller is gone: no port stays open for the deadline of two minutes."""
    job = json.dumps({"op": "serve", "address": HERE, "token": TOKEN})
    source = Path(probe.__file__).read_text(encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{source}\nmain({job!r})\n")
    server.stdin.close()
    probe._connect(HERE, b"").close()  # it listens
    server.stdout.close()
    assert server.wait(timeout=probe.DEADLINE_S / 2) == 1


def test_a_train_is_counted_at_the_other_side() -> None:
    """Over loopback nothing is lost, doubled or overtaken."""
    with serving(transfers=Transfers(total_bytes=[0])) as served:
        probe.measure(
            [HERE], TOKEN, transfers=Transfers(total_bytes=[0]), trains=[(200, 0.0005, 0.05)]
        )
        ((source, train, found),) = served.result(timeout=PATIENCE_S)["trains"]
    assert (source, train) == (0, 0)
    assert (found["received"], found["duplicates"], found["ahead"]) == (200, 0, 0)
    assert 0 < found["mean_s"] < 1


def train(delays_ms: dict[int, float], num: int, *, offset_ns: int = 0) -> list[probe.Arrival]:
    """Arrivals of `num` packets sent every ms, 10 ms late where nothing else is said."""
    packets = [
        (i * 10**6, i * 10**6 + round(delays_ms.get(i, 10) * 1e6) + offset_ns, i)
        for i in range(num)
    ]
    return sorted(packets, key=lambda packet: packet[1])


def test_a_packet_that_overtakes_is_ahead_and_the_overtaken_are_not() -> None:
    """One of 100 packets skips the delay of 10 ms: it passes ten others, and is counted once."""
    found = probe.describe(train({50: 0.0}, 100))
    assert (found["received"], found["ahead"]) == (100, 1)


def test_copies_are_not_new_packets() -> None:
    """Three packets, of which the second comes twice and the third not at all."""
    found = probe.describe([(0, 5, 0), (1, 6, 1), (1, 7, 1)])
    assert (found["received"], found["duplicates"], found["ahead"]) == (2, 1, 0)


@given(offset_ns=st.integers(-(10**15), 10**15), drift_ppm=st.floats(-200, 200))
def test_jitter_does_not_depend_on_the_clocks(offset_ns: int, drift_ppm: float) -> None:
    """Delays of 9 and 11 ms in turn: the standard deviation is 1 ms, whatever the clock there
    shows and however fast it runs."""
    packets = train({i: 9 + 2 * (i % 2) for i in range(1000)}, 1000)
    there = [(sent, round(at * (1 + drift_ppm / 1e6)) + offset_ns, i) for sent, at, i in packets]
    assert probe.describe(there)["jitter_s"] == pytest.approx(0.001, rel=0.002)


def test_nothing_that_came_has_no_jitter() -> None:
    """A train that was lost as a whole is all loss."""
    assert probe.describe([])["received"] == 0


def test_lost_echoes_are_none_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers at this address."""
    monkeypatch.setattr(probe, "ECHO_DEADLINE_S", 0.01)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((HERE, probe.PORT))
        assert probe._udp_echo(HERE, SECRET, 0, 5, False) == (None, None, None)


def test_late_answers_are_not_taken_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer belongs to the echo before: none may be timed."""
    monkeypatch.setattr(probe, "ECHO_DEADLINE_S", 0.2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as late:
        late.bind((HERE, probe.PORT))

        def answer_one_late() -> None:
            before = probe._packet(SECRET, 0, probe.ECHO, 0, 255)
            for _ in range(probe.NUM_ECHOES):
                data, peer = late.recvfrom(2048)
                late.sendto(before, peer)
                before = data

        thread = threading.Thread(target=answer_one_late)
        thread.start()
        assert probe._udp_echo(HERE, SECRET, 0, probe.NUM_ECHOES, False) == (None, None, None)
        thread.join()


def test_the_middle_echo_is_not_fooled_by_an_early_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of five echoes is early: the smallest is wrong, the median is right."""
    times_ns = iter([0, 10, 100, 110, 200, 203, 300, 310, 400, 410])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((HERE, probe.PORT))

        def answer() -> None:
            for number in range(5):
                _, peer = server.recvfrom(2048)
                server.sendto(probe._packet(SECRET, 0, probe.ECHO, 0, number), peer)

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setattr(time, "monotonic_ns", lambda: next(times_ns))
        rtt_s, _, _ = probe._udp_echo(HERE, SECRET, 0, 5, True)
        thread.join()
    assert rtt_s == pytest.approx(10e-9)


@pytest.mark.parametrize("name", ["serve", "measure"])
def test_both_operations_print_json(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The controller reads one JSON object and nothing else."""
    monkeypatch.setattr(probe, name, lambda **given: {"called": given})
    monkeypatch.setattr(probe, "_leave_with_reader", lambda: None)
    probe.main(json.dumps({"op": name, "address": "10.0.0.1"}))
    assert json.loads(capsys.readouterr().out)["called"] == {
        "address": "10.0.0.1",
        "transfers": [[1], None, 0.0, ""],
    }


def test_the_probe_is_written_for_the_oldest_python_of_a_node() -> None:
    """Its syntax is that of 3.9, and it imports nothing that does not come with Python."""
    tree = ast.parse(Path(probe.__file__).read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = {
        (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported <= {*sys.stdlib_module_names, "collections"}
