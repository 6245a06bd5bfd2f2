"""`netbench net inventory`: hosts as they would be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netbench.cli import run

TEXT = """\
ssh: {user: ubuntu, jump: {address: in, jump: {address: out, user: root}}}
hosts:
  - {address: 10.0.0.5, name: gpu-1, data_address: 192.168.1.5, interface: ens6}
  - {address: "fd00::6", port: 2222, jump: none}
"""


def test_the_hosts_are_listed_in_the_order_of_the_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(TEXT)
    assert run(["net", "inventory", str(path)]) == 0
    head, first, second, keys = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["node", "host"]
    assert first.split() == [
        "0", "gpu-1", "ubuntu@10.0.0.5:22", "root@out:22,", "ubuntu@in:22",
        "192.168.1.5", "ens6",
    ]  # fmt: skip
    assert second.split()[:3] == ["1", "fd00::6", "ubuntu@[fd00::6]:2222"]
    assert second.split()[3:] == ["asked", "for", "by", "address"]
    assert keys.startswith("host keys: ")


def test_nodes_that_share_a_host_have_consecutive_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("overlay: vxlan\nhosts: [{address: a, nodes: 4}, {address: b}]\n")
    assert run(["net", "inventory", str(path)]) == 0
    _, first, second, nodes, _ = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["0-3", "a"]
    assert second.split()[:2] == ["4", "b"]
    assert nodes == (
        "nodes: network namespaces of the hosts, joined by vxlan, with addresses of 198.18.0.0/15"
    )
    path.write_text("hosts: [localhost]\n")
    assert run(["net", "inventory", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == [
        "all", "localhost", "this", "machine",
    ]  # fmt: skip


def test_only_runs_make_nodes_that_share_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [{address: a, nodes: 64}]\n")
    assert run(["net", "apply", "case3", "--inventory", str(path)]) == 2
    assert "exist only while `netbench run` or `netbench doctor`" in capsys.readouterr().err


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["net", "inventory", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["required"] == ["hosts"]
    assert schema["additionalProperties"] is False


def test_one_of_the_two_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["net", "inventory"]) == 2
    assert "give the FILE of an inventory" in capsys.readouterr().err


def test_an_error_has_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts:\n  - {adress: 10.0.0.5}\n")
    assert run(["net", "inventory", str(path)]) == 2
    assert f"{path}:2: hosts[0].adress is an unknown key" in capsys.readouterr().err
