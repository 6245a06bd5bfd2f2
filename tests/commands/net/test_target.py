"""From two files on the command line to nodes, hosts and ports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from netbench.commands.net.target import open_target
from netbench.errors import NetworkError, UsageError
from tests.testbed.sshd_here import Sshd, free_port

SCENARIO = """\
regions: [A, B]
nodes: [{region: A, device: V100}, {region: B, device: V100}]
network:
  sharing: SHARING
  inside: {one_way_delay: 1ms, bandwidth: 5Gbit}
  links: [{between: [A, B], one_way_delay: 11ms, bandwidth: 1Gbit}]
workload: {layers: 8, hidden: 512, heads: 8, sequence: 512, batch: 16}
"""

Files = Callable[..., tuple[str, Path]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Write a scenario of two nodes and an inventory."""

    def write(inventory: str, sharing: str = "pair") -> tuple[str, Path]:
        scenario, hosts = tmp_path / "two.yaml", tmp_path / "hosts.yaml"
        scenario.write_text(SCENARIO.replace("SHARING", sharing))
        hosts.write_text(inventory)
        return str(scenario), hosts

    return write


def test_a_node_is_the_host_at_its_place(files: Files) -> None:
    """What the inventory says needs no connection: addresses, names, ports of SSH on the way."""
    inventory = """\
ssh: {jump: {address: gate, port: 2200}}
hosts:
  - {address: a, name: one, port: 2222, data_address: [10.0.0.1, "fd00::1"]}
  - {address: b, name: two, data_address: 10.0.0.2}
"""
    with open_target(*files(inventory)) as target:
        assert target.names == ("one", "two")
        assert target.addresses() == (("10.0.0.1", "fd00::1"), ("10.0.0.2",))
        assert target.exempt_ports == (22, 2200, 2222)
        assert target.scenario.network.num_nodes == len(target.nodes) == 2


def test_more_hosts_than_nodes_are_said_to_be_left_out(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_target(*files("hosts: [{address: a}, {address: b}, {address: c}]")) as target:
        assert target.names == ("a", "b")
    assert "two has 2 nodes: the first 2 of 3 hosts are used" in capsys.readouterr().err


def test_fewer_are_an_error(files: Files) -> None:
    with (
        pytest.raises(UsageError, match="has 1 host, the scenario needs 2; add 1"),
        open_target(*files("hosts: [{address: a}]")),
    ):
        pass


def test_trunks_need_routers(files: Files) -> None:
    with (
        pytest.raises(UsageError, match="joined by trunks need a router each"),
        open_target(*files("hosts: [{address: a}, {address: b}]", sharing="trunk")),
    ):
        pass


@pytest.mark.ssh
def test_an_address_that_is_not_given_is_asked_for(files: Files, tmp_path: Path) -> None:
    """Of a real sshd; a host that does not answer is named, with why."""
    with Sshd(tmp_path / "sshd") as sshd:
        login = f"user: {sshd.host().user}, key: {sshd.folder}/client_key, agent: false"
        inventory = f"""\
ssh: {{known_hosts: {sshd.known_hosts}, {login}}}
hosts:
  - {{address: 127.0.0.1, name: up, port: {sshd.port}}}
  - {{address: b, name: given, data_address: 10.0.0.2}}
"""
        with open_target(*files(inventory)) as target:
            assert target.addresses() == (("127.0.0.1",), ("10.0.0.2",))
        down = inventory.replace(", data_address: 10.0.0.2", f", port: {free_port('127.0.0.1')}")
        with (
            open_target(*files(down.replace("address: b", "address: 127.0.0.1"))) as target,
            pytest.raises(NetworkError) as error,
        ):
            target.addresses()
    assert "asking for addresses failed on 1 of 2 nodes" in str(error.value)
    assert "given (" in str(error.value)
    assert "Connection refused" in str(error.value)
