"""`netbench net measure` and `verify`, over a real sshd."""

from __future__ import annotations

import socket
from pathlib import Path

import pandas as pd
import pytest

from netbench.cli import run
from netbench.network.probing.probe import PORT
from netbench.scenario import load_scenario
from tests.machines import OWN, machines

TWO = """\
regions: [a, b]
nodes: [{region: a, device: V100}, {region: b, device: V100}]
network:
  links: [{between: [a, b], one_way_delay: %s, bandwidth: unlimited}]
workload: {layers: 24, hidden: 2048, heads: 16, sequence: 2048, batch: 1024}
"""


@pytest.mark.ssh
def test_machines_are_measured_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table, a matrix that `net import` reads, and a scenario with its figures; then nothing
    listens any more."""
    scenario, matrix = tmp_path / "mine.yaml", tmp_path / "matrix.csv"
    with machines(tmp_path, "one", "two") as inventory:
        words = ["--inventory", str(inventory), "--streams", "2", "--each", "200ms"]
        files = ["-o", str(scenario), "--csv", str(matrix)]
        assert run(["net", "measure", *words, *files]) == 0
    shown = capsys.readouterr()
    assert "measured rounds: 2 of 2" in shown.err
    assert "one" in shown.out
    rows = pd.read_csv(matrix)
    assert list(zip(rows["source"], rows["destination"], strict=True)) == [
        ("one", "two"), ("two", "one"),
    ]  # fmt: skip
    assert (rows["rtt_ms"] > 0).all()
    assert (rows[["single_stream_gbps", "multi_stream_gbps"]] > 0.01).all(axis=None)
    assert (rows["loss_percent"] == 0).all()
    network = load_scenario(str(scenario)).network
    assert network.regions == ("one", "two")
    for i, j, row in ((0, 1, rows.iloc[0]), (1, 0, rows.iloc[1])):
        link = network.links[i][j]
        assert link.one_way_delay_s == pytest.approx(row["rtt_ms"] / 2e3, rel=1e-3)
        assert link.bandwidth_bps == pytest.approx(row["bandwidth_gbps"] * 1e9, rel=1e-3)
        larger = row[["single_stream_gbps", "multi_stream_gbps"]].max()
        assert row["bandwidth_gbps"] == pytest.approx(larger * 1514 / 1448, rel=1e-3)
    assert run(["net", "import", str(matrix), "-o", str(tmp_path / "again.yaml")]) == 0
    again = load_scenario(str(tmp_path / "again.yaml")).network
    assert again.link(0, 1).bandwidth_bps == pytest.approx(network.link(0, 1).bandwidth_bps)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((f"{OWN}.1", PORT), timeout=5)


@pytest.mark.ssh
def test_a_network_that_is_not_there_is_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loopback has no 20 ms: exit code 3, with the pair, the figures and the files."""
    (tmp_path / "two.yaml").write_text(TWO % "20ms")
    figures, picture = tmp_path / "figures.csv", tmp_path / "matrix.png"
    with machines(tmp_path, "one", "two") as inventory:
        words = [str(tmp_path / "two.yaml"), "--inventory", str(inventory), "--all"]
        files = ["--csv", str(figures), "--plot", str(picture)]
        assert run(["net", "verify", *words, *files]) == 3
    shown = capsys.readouterr().out
    assert "link sample, node 0 to 1: round-trip time is" in shown
    assert "not as asked for" in shown
    rows = pd.read_csv(figures)
    bad = rows[~rows["passed"]]
    assert set(zip(bad["source"], bad["destination"], bad["quantity"], strict=True)) >= {
        ("one", "two", "rtt_s"), ("two", "one", "rtt_s"),
    }  # fmt: skip
    assert set(rows["quantity"]) == {"rtt_s", "jitter_s", "loss", "duplication", "reordering"}
    assert picture.stat().st_size > 1000


@pytest.mark.ssh
def test_a_network_that_is_there_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A delay of nothing, unlimited: within an ample tolerance of a delay that is as small."""
    (tmp_path / "two.yaml").write_text(TWO % "500us")
    with machines(tmp_path, "one", "two") as inventory:
        words = [str(tmp_path / "two.yaml"), "--inventory", str(inventory)]
        assert run(["net", "verify", *words, "--tolerance", "100%"]) == 0
    assert "as asked for: 2 of 2 figures" in capsys.readouterr().out


def test_one_machine_has_nothing_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before anything is connected to."""
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("hosts: [{name: one, address: 192.0.2.1, user: me}]\n")
    assert run(["net", "measure", "--inventory", str(inventory)]) == 2
    assert "measuring needs at least two" in capsys.readouterr().err
