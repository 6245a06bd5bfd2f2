"""Nodes that share hosts: addresses, MTU and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from netbench.errors import ScenarioError, UsageError
from netbench.network.remote.facts import Facts
from netbench.testbed.cluster.players import Players, divisions, node_environment
from netbench.testbed.ssh.inventory import Inventory, load_inventory

TWO = """\
hosts:
- {address: a, nodes: 2, data_address: 10.0.0.5}
- {address: b, nodes: 3, data_address: 10.0.0.6}
"""

Write = Callable[[str], Inventory]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Inventory:
        (tmp_path / "hosts.yaml").write_text(text)
        return load_inventory(tmp_path / "hosts.yaml")

    return write


def facts(*mtus: int, addresses: tuple[str, ...] = ("10.0.0.5", "10.0.0.6")) -> dict[int, Facts]:
    """Return what is known of two hosts."""
    return {
        index: Facts(
            addresses=(addresses[index],), ssh=(), python="3.11.2", kernel="6.12.1", tc="6.1.0",
            machine=f"machine {index}", timer_s=1e-9, hz=250, lacking={}, free_bytes={},
            settings={}, mtu_bytes=mtu,
        )
        for index, mtu in enumerate(mtus)
    }  # fmt: skip


def test_nodes_are_numbered_host_by_host(write: Write) -> None:
    players = Players(write(TWO), 4)
    assert players.names == ("a/0", "a/1", "b/0", "b/1")
    assert players.counts == (2, 2)
    assert [login.data_addresses[0] for login in players.logins] == [
        "198.18.0.1", "198.18.0.2", "198.18.1.1", "198.18.1.2",
    ]  # fmt: skip
    assert [players.host_of(node) for node in range(4)] == [0, 0, 1, 1]
    # Each host has a folder per node, and a file of the first node of any is where all expect it.
    tokens = [players.token(node) for node in range(4)]
    assert tokens[0] == tokens[2] != tokens[1] == tokens[3]


def test_each_host_knows_its_own_nodes_and_the_others(write: Write) -> None:
    inventory = write(TWO)
    names = ["netbench-00000001", "netbench-00000002"]
    first, second = divisions(
        inventory, inventory.first(5), names, facts(1500, 1500), 1500
    ).values()
    assert first["nodes"] == {0: "198.18.0.1", 1: "198.18.0.2"}
    assert second["nodes"] == {2: "198.18.1.1", 3: "198.18.1.2", 4: "198.18.1.3"}
    assert (first["own"], first["gateway"]) == ("198.18.0.0/24", "198.18.0.254")
    assert second["peers"] == [
        {
            "data_address": "10.0.0.5",
            "network": "198.18.0.0/24",
            "addresses": ["198.18.0.1", "198.18.0.2"],
        }
    ]
    assert first["vni"] == second["vni"]


@pytest.mark.parametrize(
    ("overlay", "addresses", "mtus", "wanted"),
    [
        ("routes", ("10.0.0.5", "10.0.0.6"), (1500, 1500), 1500),
        ("routes", ("10.0.0.5", "10.0.0.6"), (1500, 1400), 1400),
        ("vxlan", ("10.0.0.5", "10.0.0.6"), (1500, 1500), 1450),
        ("vxlan", ("fd00::5", "fd00::6"), (1500, 1500), 1430),
        ("vxlan", ("10.0.0.5", "10.0.0.6"), (9000, 9000), 1500),
    ],
)
def test_the_mtu_leaves_room_for_vxlan(
    overlay: str, addresses: tuple[str, str], mtus: tuple[int, int], wanted: int, write: Write
) -> None:
    """14 bytes of Ethernet, 20 or 40 of IP, 8 of UDP and 8 of VXLAN; never more than is asked."""
    inventory = write(f"overlay: {overlay}\n{TWO}")
    found = divisions(
        inventory, inventory.first(5), ["x", "y"], facts(*mtus, addresses=addresses), 1500
    )
    assert {part["mtu_bytes"] for part in found.values()} == {wanted}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_gpus_are_split_evenly_and_each_once(count: int) -> None:
    gpus = [f"GPU-{number}" for number in range(8)]
    parts = [
        node_environment("n", gpus, place, count)["CUDA_VISIBLE_DEVICES"].split(",")
        for place in range(count)
    ]
    assert [gpu for part in parts for gpu in part] == gpus
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_node_without_a_gpu_sees_none() -> None:
    """Unlike one on a host without GPUs, where nothing is to be hidden."""
    assert node_environment("n", ["GPU-0"], 0, 2)["CUDA_VISIBLE_DEVICES"] == ""
    assert node_environment("n", [], 0, 2) == {"NCCL_HOSTID": "n"}


def test_this_machine_has_as_many_nodes_as_the_scenario(write: Write) -> None:
    inventory = write("hosts: [localhost]")
    assert inventory.is_divided
    assert Players(inventory, 8).names[-1] == "localhost/7"
    (host,) = inventory.hosts
    assert (host.is_local, host.data_addresses, host.interface) == (True, ("127.0.0.1",), "lo")
    with pytest.raises(UsageError, match="has 1 host with 4 nodes, the scenario needs 8; add 4"):
        write("hosts: [{alias: localhost, nodes: 4}]").first(8)
    with pytest.raises(UsageError, match="take an inventory without `nodes:`"):
        inventory.one_node_each()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: [{address: a, nodes: 0}]", "hosts[0].nodes is 0"),
        ("hosts: [{address: a, nodes: 999}]", "hosts[0].nodes is 999"),
        ("overlay: gre\nhosts: [{address: a}]", "hosts.yaml:1: overlay"),
        ("node_network: x\nhosts: [{address: a}]", '"x" is not an IPv4 network'),
        ("node_network: 8.8.0.0/16\nhosts: [{address: a}]", "has to be private"),
        (
            "node_network: 10.9.8.0/24\n" + TWO,
            "hosts.yaml:1: node_network has addresses for 1 host, not 2",
        ),
        (
            "hosts:\n- {address: a, nodes: 2, data_address: 198.18.0.9}",
            "hosts.yaml:2: hosts[0].data_address is in 198.18.0.0/15",
        ),
        (
            "hosts:\n- {address: a, nodes: 2, data_address: 'fd00::1'}\n- {address: b}",
            "is fd00::1; nodes are joined by IPv4 routes",
        ),
        (
            "hosts:\n- {alias: localhost, nodes: 2}\n- {address: b}",
            "hosts.yaml:2: hosts[0] localhost needs its address on the network of the others",
        ),
        (
            "hosts: [{alias: localhost, user: me}]",
            "hosts[0].user is for SSH, and localhost is this machine",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write: Write, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        write(text)
    assert message in str(error.value)
