"""What runs on the nodes, here between two threads over loopback."""

from __future__ import annotations

import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from netbench.network import probe

HERE = f"127.{os.getpid() // 200 % 200 + 1}.{os.getpid() % 200 + 1}.99"
"""No other run of these tests has this address, nor has any other test."""

TOTAL_BYTES = 3_000_001


def test_every_byte_is_counted_and_time_goes_forward() -> None:
    """The last arrival is exact; between, at most `NUM_ARRIVALS` are kept."""
    with ThreadPoolExecutor() as pool:
        served = pool.submit(probe.serve, HERE, TOTAL_BYTES)
        measured = probe.measure(TOTAL_BYTES, [HERE])
        arrivals = served.result(timeout=30)["arrivals"]
    assert arrivals[-1][1] == TOTAL_BYTES
    assert 1 <= len(arrivals) <= probe.NUM_ARRIVALS + 1
    assert arrivals == sorted(arrivals)
    assert json.loads(json.dumps(measured))["method"] in ("ping", "udp")
    for key in ("rtt_s", "one_way_s"):
        (value,) = measured[key]  # type: ignore[misc]
        assert 0 < value < 1


def test_a_sender_that_leaves_early_is_an_error() -> None:
    """A short transfer must not be timed as if it were whole."""
    with ThreadPoolExecutor() as pool:
        served = pool.submit(probe.serve, HERE, TOTAL_BYTES)
        probe.measure(1000, [HERE])
        with pytest.raises(ConnectionError, match="after 1000 of 3000001 bytes"):
            served.result(timeout=30)


def test_lost_echoes_are_none_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers at this address."""
    monkeypatch.setattr(probe, "ECHO_DEADLINE_S", 0.01)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((HERE, probe.PORT))
        assert probe._udp_echo(HERE) == (None, None)


def test_late_answers_are_not_taken_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer belongs to the echo before: none may be timed."""
    monkeypatch.setattr(probe, "ECHO_DEADLINE_S", 0.2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as late:
        late.bind((HERE, probe.PORT))

        def answer_one_late() -> None:
            before = bytes(16)[:15] + b"\xff"
            for _ in range(probe.NUM_ECHOES):
                data, peer = late.recvfrom(2048)
                late.sendto(before, peer)
                before = data

        thread = threading.Thread(target=answer_one_late)
        thread.start()
        assert probe._udp_echo(HERE) == (None, None)
        thread.join()


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["serve", "10.0.0.1", "5"], ("serve", "10.0.0.1", 5)),
        (["measure", "5", "10.0.0.1", "::1"], ("measure", 5, ["10.0.0.1", "::1"])),
    ],
)
def test_both_commands_print_json(
    words: list[str],
    called: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the controller reads is one JSON object and nothing else."""
    monkeypatch.setattr(probe, "serve", lambda *given: {"called": ["serve", *given]})
    monkeypatch.setattr(probe, "measure", lambda *given: {"called": ["measure", *given]})
    probe.main(words)
    assert json.loads(capsys.readouterr().out)["called"] == list(called)
