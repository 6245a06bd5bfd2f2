"""Messages that show whether TCP acts: their probe over loopback, and their comparison."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.network.nodes import ALONE
from netbench.network.probing import dynamics, message_probe
from netbench.network.probing.dynamics import (
    COLD,
    IDLE,
    Messages,
    check_messages,
    message_samples,
    send_messages,
)
from netbench.network.probing.measure import Endpoints
from netbench.network.probing.samples import LinkSample
from netbench.network.probing.slow_start import message_s, tcp_path
from netbench.network.probing.verify import LinkCheck, evaluate, with_checks
from netbench.scenario.model import Tcp
from netbench.testing.nodes import fake_nodes
from tests.networks import two_regions

MIB = 1 << 20
NETWORK = dataclasses.replace(two_regions(mtu_bytes=9001), tcp=Tcp())
HERE = Endpoints(addresses=[("127.0.0.1",)] * 4, nodes=())
ONE = LinkSample(kind="link", src=0, dsts=(1,))


def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *ALONE, "-"], input=stdin, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_messages_cross_loopback_and_wait_as_long_as_they_are_told() -> None:
    """Real sockets: two messages, the second after 0.2 s that are not part of its time."""
    endpoints = dataclasses.replace(HERE, nodes=fake_nodes(run))
    (times_s,) = send_messages([ONE], [MIB, 3 * MIB], [0.0, 0.2], endpoints).values()
    assert len(times_s) == 2
    assert all(0 < time_s < 30 for time_s in times_s)


def test_a_stranger_cannot_send_messages() -> None:
    """The server ends with an error if the first bytes are not its token."""
    source = Path(message_probe.__file__).read_text(encoding="utf-8")
    job = {"op": "serve", "address": "127.0.0.1", "token": "00" * 16, "sizes": [1]}
    server = subprocess.Popen(
        [sys.executable, *ALONE, "-c", f"{source}\nmain({json.dumps(job)!r})\n"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    stranger = message_probe._connect("127.0.0.1")
    with stranger:
        stranger.sendall(b"\x01" * 16)
        assert server.wait(timeout=60) == 1
    assert server.stderr is not None
    assert "without the token" in server.stderr.read()


def test_every_class_of_link_is_sampled_once() -> None:
    """Two regions: inside, and between. Equal links in both directions are one class."""
    assert len(message_samples(NETWORK)) == 2
    lossy = dataclasses.replace(NETWORK.links[0][1], loss=0.01)
    links = ((NETWORK.links[0][0], lossy), (lossy, NETWORK.links[0][0]))
    assert len(message_samples(dataclasses.replace(NETWORK, links=links))) == 1


def checked(monkeypatch: pytest.MonkeyPatch, factor: float) -> list[LinkCheck]:
    """Compare times that are `factor` of those in the closed form, for a cold connection."""

    def sent(
        samples: Sequence[LinkSample], sizes: Sequence[int], idle_s: object, endpoints: object
    ) -> dict[LinkSample, list[float]]:
        assert list(sizes) == [8 * MIB // 32] * 2
        found = {}
        for sample in samples:
            path = tcp_path(NETWORK, sample.src, sample.dsts[0])
            cold_s = factor * message_s(path, 8 * MIB, path.first_window)
            found[sample] = [cold_s, cold_s]
        return found

    monkeypatch.setattr(dynamics, "send_messages", sent)
    messages = Messages(network=NETWORK, scale=32.0, sizes=(8 * MIB,))
    return list(check_messages(messages, HERE))


def test_times_of_slow_start_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 2 s, nine or more timeouts of 0.2 s, a connection starts as a new one does."""
    checks = checked(monkeypatch, 1.05)
    assert [check.quantity for check in checks] == [COLD, IDLE] * 2
    assert all(check.passed and check.num_bytes == 8 * MIB for check in checks)


def test_a_network_on_which_tcp_does_not_act_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages that are too fast for slow start make the whole verdict untrustworthy."""
    checks = checked(monkeypatch, 0.5)
    verdict = with_checks(evaluate([], NETWORK), checks)
    assert not verdict.trustworthy
    assert "message of 8MiB: time of a first message is" in "; ".join(verdict.reasons)
    assert verdict.checks == tuple(checks)
