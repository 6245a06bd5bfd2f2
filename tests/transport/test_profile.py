"""Transport profiles are read with their units, and say what the published transfers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.calibrate_transport import errors, fit_all, read_transfers, simulate_transfer
from netbench.errors import ScenarioError
from netbench.transport.profile import PROFILES, list_transports, load_transport, read_transport


def test_the_built_in_profiles_are_the_libraries_of_plans() -> None:
    assert list_transports() == ("gloo", "nccl")


def test_figures_with_sources_of_their_own_are_as_documented() -> None:
    nccl, gloo = load_transport("nccl"), load_transport("gloo")
    assert nccl.sockets == 2 * 8  # net_socket.cc: threads x sockets on AWS
    assert nccl.fifo_bytes == 8 * (128 << 10)  # NCCL_STEPS x NCCL_P2P_NET_CHUNKSIZE
    assert nccl.window_bytes == 16 * (131072 // 2)  # half of tcp_rmem's default, per socket
    assert (gloo.sockets, gloo.window_bytes, gloo.fifo_bytes) == (1, 131072 // 2, 0)
    for profile in (nccl, gloo):
        assert profile.first_window_segments == 10  # RFC 6928
        assert profile.retransmission_s == 0.2  # TCP_RTO_MIN of Linux
        assert profile.header_bytes + profile.ethernet_bytes == 20 + 20 + 12 + 14
        assert profile.max_window_bytes == pytest.approx(6 * (1 << 20) / 2, rel=0.05)
    assert nccl.host_bps < 10e9  # the NIC of the machines that were measured
    assert gloo.host_bps == pytest.approx(5e9, rel=0.02)  # AWS's limit of a single flow


def test_every_published_transfer_but_one_is_within_5_percent() -> None:
    transfers = read_transfers()
    assert len(transfers) == 40
    out = [t for t in transfers if abs(errors([t], load_transport(t.backend))[0]) > 0.05]
    assert [(t.backend, t.delay_s, t.bandwidth_bps, t.size_bytes >> 20) for t in out] == [
        ("nccl", 0.01, float("inf"), 64)
    ]
    assert simulate_transfer(out[0], load_transport("nccl")) == pytest.approx(0.113, rel=0.07)


def test_the_stored_profiles_are_what_the_calibration_finds() -> None:
    for name, fitted in fit_all(read_transfers()).items():
        stored = load_transport(name)
        assert stored.host_bps == pytest.approx(fitted.host_bps, rel=2e-3)
        assert stored.max_window_bytes == pytest.approx(fitted.max_window_bytes, rel=5e-3)


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r'no built-in transport profile "ncl"; .*nccl'):
        load_transport("ncl")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sockets: 1 ", "sockets: 0 ", r"sockets is 0; "),
        ("host: ", "hots: ", r"hots is an unknown key; did you mean host"),
        ("header: 52B", "header: 52", r'header "52" has no unit'),
        ("retransmission: 200ms", "#", r'retransmission is missing; write e.g. "retransmission: '),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    text = (PROFILES / "gloo.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"mine\.yaml:\d+: {message}"):
        read_transport(path)
