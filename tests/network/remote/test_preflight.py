"""Deviations that preflight reports before anything is changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from netbench.network.remote.facts import Facts
from netbench.network.remote.preflight import Deviation, preflight
from netbench.network.shaping.program import Program, compile_program
from netbench.scenario.model import Link, Network
from tests.networks import ADDRESSES, FAR, UNLIMITED, two_regions

NETWORK = two_regions()


def host(node: int = 0, **fields: Any) -> Facts:
    """Return the facts of a machine without deviations."""
    good: dict[str, Any] = {
        "addresses": ADDRESSES[node][:1],
        "ssh": ("192.0.2.9", "50000", "192.0.2.1", "22"),
        "python": "3.11.2",
        "kernel": "6.12.1",
        "tc": "6.1.0",
        "machine": f"machine {node}",
        "timer_s": 1e-9,
        "hz": 250,
        "lacking": {},
        "free_bytes": {"/tmp": 1 << 30, "/run": 1 << 30},
        "settings": {"net.ipv4.tcp_tso_rtt_log": "9"},
        "interface": "eth0",
        "mtu_bytes": 1500,
        "speed_bps": 100e9,
        "driver": "mlx5_core",
        "gso": True,
        "qdisc": "mq 0:",
        "routes": {address[0]: "eth0" for address in ADDRESSES},
    }
    return Facts(**good | fields)


def program(network: Network = NETWORK, **fields: Any) -> Program:
    made = compile_program(network, 0, ADDRESSES, "eth0")
    return dataclasses.replace(made, **{"exempt_ports": (22,), **fields})


def problems(
    found: Facts, network: Network = NETWORK, replace: bool = False, **fields: Any
) -> list[tuple[bool, str]]:
    said = preflight(network, {0: program(network, **fields)}, {0: found}, replace=replace)
    assert {problem.node for problem in said} <= {0}
    return [(problem.is_error, problem.text) for problem in said]


def only(said: list[tuple[bool, str]]) -> tuple[bool, str]:
    assert len(said) == 1, said
    return said[0]


def test_a_good_machine_has_no_deviations() -> None:
    """Every test below changes one fact."""
    assert problems(host()) == []


def test_a_nic_slower_than_a_link_is_an_error_with_both_numbers() -> None:
    """A link inside the region has 5 Gbit/s."""
    is_error, text = only(problems(host(speed_bps=1e9)))
    assert is_error
    assert text == "eth0 is a 1Gbit/s NIC (mlx5_core), a link wants 5Gbit/s"


def test_a_nic_slower_than_all_links_together_is_a_warning() -> None:
    """A node sends 5 + 1.12 + 1.12 Gbit/s, unless the scenario caps its NIC."""
    is_error, text = only(problems(host(speed_bps=6e9)))
    assert not is_error
    assert "3 links used at once want 7.24Gbit/s" in text
    assert problems(host(speed_bps=7.3e9)) == []
    capped = two_regions(sharing="nic", nic_bps=5.5e9)
    assert problems(host(speed_bps=5.5e9), capped) == []


def test_nominal_and_unknown_speeds_are_ignored() -> None:
    """A veth reports 10 Gbit/s whatever it carries."""
    assert problems(host(speed_bps=1e9, driver="veth")) == []
    assert problems(host(speed_bps=None)) == []
    assert problems(host(speed_bps=1e6), two_regions(UNLIMITED, UNLIMITED)) == []


@pytest.mark.parametrize(("tick_s", "is_error"), [(0.004, True), (0.0009, False)])
def test_coarse_timers_are_reported_in_milliseconds(tick_s: float, is_error: bool) -> None:
    """HZ=250 without high-resolution timers cannot deliver the smallest delay, 1 ms."""
    wrong, text = only(problems(host(timer_s=tick_s)))
    assert wrong is is_error
    assert "tick every 4ms (HZ=250, no high-resolution" in text or tick_s < 0.001
    assert "the smallest wanted is 1ms" in text


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"netem": "Specified qdisc kind is unknown"}, "has no netem (Specified qdisc kind"),
        ({"htb": "unknown"}, "`modprobe sch_htb`"),
        ({"u32": "unknown"}, "`modprobe cls_u32`"),
    ],
)
def test_a_missing_kernel_feature_is_reported_with_a_remedy(
    lacking: dict[str, str], words: str
) -> None:
    """Containers, CI and reduced cloud kernels often lack one."""
    is_error, text = only(problems(host(lacking=lacking)))
    assert is_error
    assert words in text
    assert "linux-modules-extra-6.12.1" in text


def test_no_tc_is_one_error() -> None:
    """Nothing else can be checked without tc."""
    is_error, text = only(problems(host(tc="", interface="", lacking={})))
    assert is_error
    assert "install iproute2" in text


def test_features_that_could_not_be_tried_are_not_an_error() -> None:
    """A host may forbid new network namespaces even to root."""
    is_error, text = only(problems(host(lacking={"": "unshare failed: EPERM"})))
    assert not is_error
    assert "EPERM" in text


def test_an_mtu_other_than_the_scenarios() -> None:
    """The warning has both numbers, and a remedy on either side."""
    is_error, text = only(problems(host(mtu_bytes=9001)))
    assert not is_error
    assert "an MTU of 9001, the scenario one of 1500" in text
    assert "`mtu: 9001`" in text


def test_foreign_root_qdiscs() -> None:
    """It is refused, or set aside if that was asked and is possible."""
    foreign = host(foreign=True, qdisc="tbf 8001: root rate 1Gbit")
    assert only(problems(foreign))[0]
    is_error, text = only(problems(foreign, replace=True))
    assert not is_error
    assert "tbf 8001: root rate 1Gbit; it is set aside until `clear`" in text
    lost = dataclasses.replace(foreign, unrestorable="it has filters")
    for replace in (False, True):
        is_error, text = only(problems(lost, replace=replace))
        assert is_error
        assert "could not be restored exactly: tbf 8001" in text


def test_an_interface_that_was_not_found_is_an_error() -> None:
    """The text is the agent's."""
    said = problems(host(interface="", problem="no interface has the address 10.9.9.9"))
    assert only(said) == (True, "no interface has the address 10.9.9.9")


def test_a_peer_behind_another_interface_would_not_be_shaped() -> None:
    """The inventory mixes addresses of two networks."""
    hosts = {0: host(0, routes={ADDRESSES[1][0]: "eth1"}), 1: host(1)}
    said = preflight(NETWORK, {}, hosts)
    assert [(p.node, p.is_error) for p in said] == [(0, True)]
    assert "10.77.0.2 (node 1) is reached through eth1, not through eth0" in said[0].text
    hosts[0] = host(0, routes={ADDRESSES[1][0]: ""})
    assert "no route to 10.77.0.2 (node 1)" in preflight(NETWORK, {}, hosts)[0].text


def test_an_address_that_is_not_the_hosts_alone_is_an_error() -> None:
    """A name that resolves to loopback, and docker0, which has one address everywhere."""
    hosts = {0: host(0), 1: host(1, addresses=("127.0.1.1",)), 2: host(2), 3: host(3)}
    (said,) = preflight(NETWORK, {}, hosts)
    assert (said.node, said.is_error) == (1, True)
    assert "its address 127.0.1.1 is a loopback address" in said.text
    docker = {"addresses": ("172.17.0.1",), "interface": "docker0", "routes": {}}
    hosts |= {1: host(1, **docker), 3: host(3, **docker)}
    (said,) = preflight(NETWORK, {}, hosts)
    assert (said.node, said.is_error) == (3, True)
    assert "its address 172.17.0.1 is also that of node 1" in said.text


def test_nodes_on_one_machine_are_not_shaped() -> None:
    """Traffic between them never leaves the machine."""
    hosts = {0: host(0), 1: host(1, machine="machine 0"), 2: host(2)}
    hosts[0] = host(0, routes={ADDRESSES[1][0]: "lo"})
    (said,) = preflight(NETWORK, {}, hosts)
    assert said == Deviation(node=1, is_error=True, text=said.text)
    assert "same machine as node 0" in said.text


def test_a_full_disk_is_reported() -> None:
    """A full /tmp is a warning, a full /run an error."""
    assert only(problems(host(free_bytes={"/tmp": 0, "/run": 1 << 30})))[0] is False
    is_error, text = only(problems(host(free_bytes={"/tmp": 1 << 30, "/run": 4096})))
    assert is_error
    assert text == "/run has only 4KiB left"


def test_large_packets_at_low_rates() -> None:
    """64 KiB at 100 Mbit/s take 5.2 ms, unless a setting of newer kernels or a NIC cap helps."""
    slow = two_regions(
        Link(one_way_delay_s=0.001, bandwidth_bps=100e6),
        Link(one_way_delay_s=0.001, bandwidth_bps=100e6),
    )
    old = host(settings={"net.ipv4.tcp_tso_rtt_log": None})
    is_error, text = only(problems(old, slow))
    assert not is_error
    assert "5.24288ms at 100Mbit/s" in text
    assert "`ethtool -K eth0 tso off gso off`" in text
    assert problems(host(), slow) == []
    assert problems(dataclasses.replace(old, gso=False, tso=False), slow) == []
    capped = two_regions(FAR, FAR, sharing="nic", nic_bps=100e6)
    assert problems(old, capped) == []


def test_the_controllers_ssh_must_not_be_shaped() -> None:
    """The controller is a peer, and its port is not exempt."""
    peer = host(ssh=(ADDRESSES[1][0], "50000", ADDRESSES[0][0], "2222"))
    is_error, text = only(problems(peer))
    assert is_error
    assert "at port 2222, would be shaped: only those at ports 22 are not" in text
    assert problems(peer, exempt_ports=(22, 2222)) == []


def test_somebody_elses_lease_is_an_error() -> None:
    """The caller's own lease is not."""
    taken = host(shaped_by="bob@tower (pid 8) since ...", is_taken=True)
    is_error, text = only(problems(taken))
    assert is_error
    assert "eth0 is shaped by bob@tower (pid 8) since ...; wait, or" in text
    assert problems(dataclasses.replace(taken, is_taken=False)) == []


@pytest.mark.parametrize(
    ("held", "session", "is_taken"),
    [(False, "1", False), (True, "1", True), (True, "2", False), (False, "3", True)],
)
def test_the_owner_of_a_lease(held: bool, session: str, is_taken: bool) -> None:
    """A running process keeps its lease, whoever asks. A released lease can be taken by who knows
    its session; the same name is not enough."""
    lease = {"owner": {"name": "alice", "session": session}, "held": held, "who": "somebody"}
    me = {"name": "alice", "session": "2", "runs": ("1",)}
    facts = Facts.read({**ANSWER, "lease": lease}, ("10.0.0.1",), (), me)
    assert (facts.shaped_by, facts.is_taken) == ("somebody", is_taken)


def test_facts_are_read_from_an_answer() -> None:
    """The agent leaves out what it does not know."""
    facts = Facts.read(ANSWER, ("10.0.0.1",), (), {"session": "2", "runs": ()})
    assert (facts.addresses, facts.shaped_by, facts.timer_s) == (("10.0.0.1",), "", 0.01)


ANSWER = {
    "python": "3.9.18",
    "kernel": "5.10",
    "tc": "",
    "machine": "m",
    "timer_s": 0.01,
    "hz": None,
    "lacking": {},
    "free_bytes": {},
    "settings": {},
    "lease": None,
    "interface": "",
    "problem": "",
    "unheard_of": 1,
}
