"""The hosts of an inventory that play a scenario's nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from netbench.errors import NetworkError, UsageError
from netbench.scenario import load_scenario
from netbench.testbed.ssh.inventory import load_inventory
from netbench.testbed.ssh.scenario_hosts import ScenarioHosts, open_scenario_hosts
from tests.ports import free_port
from tests.sshd_here import Sshd

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


def open_files(scenario: str, inventory: Path) -> AbstractContextManager[ScenarioHosts]:
    return open_scenario_hosts(load_scenario(scenario), load_inventory(inventory))


def test_a_node_is_the_host_at_its_place(files: Files) -> None:
    """Data addresses, names and SSH ports are in the inventory: no connection is needed."""
    inventory = """\
ssh: {jump: {address: gate, port: 2200}}
hosts:
  - {address: a, name: one, port: 2222, data_address: [10.0.0.1, "fd00::1"]}
  - {address: b, name: two, data_address: 10.0.0.2}
"""
    with open_files(*files(inventory)) as hosts:
        assert hosts.names == ("one", "two")
        assert hosts.addresses() == (("10.0.0.1", "fd00::1"), ("10.0.0.2",))
        assert hosts.exempt_ports == (22, 2200, 2222)
        assert hosts.scenario.network.num_nodes == len(hosts.nodes) == 2


def test_hosts_beyond_the_number_of_nodes_are_not_used(files: Files) -> None:
    with open_files(*files("hosts: [{address: a}, {address: b}, {address: c}]")) as hosts:
        assert hosts.names == ("a", "b")


def test_fewer_are_an_error(files: Files) -> None:
    with (
        pytest.raises(UsageError, match="has 1 host, the scenario needs 2; add 1"),
        open_files(*files("hosts: [{address: a}]")),
    ):
        pass


def test_trunks_need_routers(files: Files) -> None:
    with (
        pytest.raises(UsageError, match="joined by trunks need a router each"),
        open_files(*files("hosts: [{address: a}, {address: b}]", sharing="trunk")),
    ):
        pass


@pytest.mark.ssh
def test_an_address_that_is_not_given_is_asked_for(files: Files, tmp_path: Path) -> None:
    """A real sshd answers. A host that does not answer is named, with the reason."""
    with Sshd(tmp_path / "sshd") as sshd:
        login = f"user: {sshd.host().user}, key: {sshd.folder}/client_key, agent: false"
        inventory = f"""\
ssh: {{known_hosts: {sshd.known_hosts}, {login}}}
hosts:
  - {{address: 127.0.0.1, name: up, port: {sshd.port}}}
  - {{address: b, name: given, data_address: 10.0.0.2}}
"""
        with open_files(*files(inventory)) as hosts:
            assert hosts.addresses() == (("127.0.0.1",), ("10.0.0.2",))
        down = inventory.replace(", data_address: 10.0.0.2", f", port: {free_port('127.0.0.1')}")
        with (
            open_files(*files(down.replace("address: b", "address: 127.0.0.1"))) as hosts,
            pytest.raises(NetworkError) as error,
        ):
            hosts.addresses()
    assert "asking for addresses failed on 1 of 2 nodes" in str(error.value)
    assert "given (" in str(error.value)
    assert "Connection refused" in str(error.value)
