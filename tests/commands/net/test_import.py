"""`netbench net import`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.scenario import load_scenario
from netbench.scenario.load import scenarios_dir
from tests.readings import AWS, LINUX_PING, iperf3


def test_iperf3_and_ping_make_a_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates both ways by iperf3, the delay by ping for both, places by their names."""
    there, back, ping = (tmp_path / name for name in ("ab.json", "ba.json", "ab.txt"))
    there.write_text(json.dumps(iperf3()))
    back.write_text(json.dumps(iperf3(reverse=1, received_bps=500e6)))
    ping.write_text(LINUX_PING)
    made = tmp_path / "made.yaml"
    files = [f"ohio,tokyo={there}", f"ohio,tokyo={back}", f"ohio,tokyo={ping}"]
    assert run(["net", "import", *files, "-o", str(made), "--title", "Two places"]) == 0
    assert "wrote" in capsys.readouterr().err
    found = load_scenario(str(made))
    assert (found.name, found.title) == ("made", "Two places")
    network = found.network
    assert network.regions == ("ohio", "tokyo")
    delays_s = [network.link(*ends).one_way_delay_s for ends in ((0, 1), (1, 0))]
    assert delays_s == [0.011052, 0.011052]
    assert network.link(0, 1).bandwidth_bps == pytest.approx(941.4e6 * 1514 / 1448, rel=1e-3)
    assert network.link(1, 0).bandwidth_bps == pytest.approx(500e6 * 1514 / 1448, rel=1e-3)
    text = made.read_text()
    assert "# Delays are half of a measured round trip: one way = RTT / 2." in text
    assert f"# ping, {ping}, iperf3, {there}\n" in text
    assert f"# iperf3, {back}; ping, {ping}, iperf3, {there}, the way back\n" in text


def test_addresses_can_be_called_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """iperf3 names its ends; one direction is taken for the other only when asked."""
    file = tmp_path / "ab.json"
    file.write_text(json.dumps(iperf3()))
    names = ["--rename", "10.1.0.2=ohio", "--rename", "10.1.0.7=tokyo"]
    assert run(["net", "import", str(file), *names]) == 2
    assert "tokyo -> ohio: no bandwidth" in capsys.readouterr().err
    assert run(["net", "import", str(file), *names, "--symmetric"]) == 0
    assert "- {between: [ohio, tokyo], one_way_delay: 11.1ms, bandwidth: 984.3Mbit" in (
        capsys.readouterr().out
    )


def test_worldwide_10_is_made_by_this_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in its head reproduces the file: links exactly, comments aside."""
    kept = (scenarios_dir() / "worldwide-10.yaml").read_text()
    made = tmp_path / "worldwide-10.yaml"
    words = ["--nodes", "6", "--inside-delay", "5ms", "--inside-bandwidth", "2Gbit"]
    monkeypatch.chdir(AWS.parents[2])
    source = "results/published/aws_region_links_directed.csv"
    assert run(["net", "import", source, *words, "-o", str(made)]) == 0
    start = "  links: # results/published"
    assert made.read_text().partition(start)[2] == kept.partition(start)[2]
    assert load_scenario(str(made)).network == load_scenario("worldwide-10").network


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.csv"], "none.csv: cannot be read: No such file"),
        (["a=none.csv"], '"a=none.csv": expected SOURCE,DESTINATION=FILE'),
        ([str(AWS), "--rename", "Ohio"], '--rename "Ohio": expected PLACE=NAME'),
        ([str(AWS), "--inside-bandwidth", "1Gbit"], "--inside-bandwidth needs --inside-delay"),
        ([str(AWS), "--nodes", "2"], "no measurements of the network inside Oregon, Virginia"),
        ([str(AWS), "-o", "no/such/folder.yaml"], "does not exist; create it first"),
    ],
)
def test_bad_requests_say_what_to_do(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Exit code 2 and one line."""
    monkeypatch.chdir(tmp_path)
    assert run(["net", "import", *words]) == 2
    assert said in capsys.readouterr().err


def test_text_in_another_encoding_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a traceback."""
    (tmp_path / "x.csv").write_bytes("from;to;delay\nZürich;b;1ms\n".encode("latin-1"))
    assert run(["net", "import", str(tmp_path / "x.csv")]) == 2
    assert "is not text in UTF-8" in capsys.readouterr().err
