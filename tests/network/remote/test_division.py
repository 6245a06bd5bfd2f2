"""Several nodes per host: the commands that make them, and what is refused. No kernel is touched;
`test_division_in_namespace` does that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from netbench.network.remote.agent import division, enter, host, operations, restore, state
from tests.fake_machines import FakeMachines

OWNER = {"name": "alice@laptop", "pid": 7, "session": "one"}


def made(overlay: str, **fields: Any) -> division.Division:
    """Return the division of the first of two hosts, with two nodes."""
    return {
        "name": "netbench-0a1b2c3d",
        "network": "198.18.0.0/15",
        "own": "198.18.0.0/24",
        "gateway": "198.18.0.254",
        "nodes": {"0": "198.18.0.1", "1": "198.18.0.2"},
        "overlay": overlay,
        "peers": [
            {"data_address": "10.0.0.6", "network": "198.18.1.0/24", "addresses": ["198.18.1.1"]}
        ],
        "vni": 77,
        "local": "10.0.0.5",
        "mtu_bytes": 1450,
        **fields,
    }


def text_of(commands: list[division.Command]) -> str:
    return "".join(f"$ {' '.join(argv)}\n{text}" for argv, text in commands)


VXLAN = """\
$ ip -batch -
netns add netbench-0a1b2c3d-hub
netns add netbench-0a1b2c3d-0
netns add netbench-0a1b2c3d-1
link add nb0a1b2c3d mtu 1450 type vxlan id 77 dstport 4789 local 10.0.0.5 dev ens6 nolearning
link set nb0a1b2c3d netns netbench-0a1b2c3d-hub
$ ip -n netbench-0a1b2c3d-hub -batch -
link set lo up
link add bridge type bridge stp_state 0 mcast_snooping 0
link add v0 mtu 1450 type veth peer name eth0 mtu 1450 address 02:00:c6:12:00:01 netns \
netbench-0a1b2c3d-0
link add v1 mtu 1450 type veth peer name eth0 mtu 1450 address 02:00:c6:12:00:02 netns \
netbench-0a1b2c3d-1
link set v0 master bridge up
link set v1 master bridge up
link set nb0a1b2c3d master bridge up
link set bridge mtu 1450 up
$ bridge -n netbench-0a1b2c3d-hub -batch -
link set dev v0 learning off
link set dev v1 learning off
link set dev nb0a1b2c3d learning off
fdb replace 02:00:c6:12:00:01 dev v0 master static
fdb replace 02:00:c6:12:00:02 dev v1 master static
fdb replace 02:00:c6:12:01:01 dev nb0a1b2c3d master static
fdb add 02:00:c6:12:01:01 dev nb0a1b2c3d dst 10.0.0.6 self permanent
$ ip -n netbench-0a1b2c3d-0 -batch -
link set lo up
addr add 198.18.0.1/15 dev eth0
link set eth0 up
neigh add 198.18.0.2 lladdr 02:00:c6:12:00:02 dev eth0 nud permanent
neigh add 198.18.1.1 lladdr 02:00:c6:12:01:01 dev eth0 nud permanent
$ ip -n netbench-0a1b2c3d-1 -batch -
link set lo up
addr add 198.18.0.2/15 dev eth0
link set eth0 up
neigh add 198.18.0.1 lladdr 02:00:c6:12:00:01 dev eth0 nud permanent
neigh add 198.18.1.1 lladdr 02:00:c6:12:01:01 dev eth0 nud permanent
"""

ROUTES_OUTSIDE = """\
$ ip -batch -
netns add netbench-0a1b2c3d-hub
netns add netbench-0a1b2c3d-0
netns add netbench-0a1b2c3d-1
link add nb0a1b2c3d mtu 1450 address 02:00:c6:12:00:fe type veth peer name uplink mtu 1450 netns \
netbench-0a1b2c3d-hub
addr add 198.18.0.254/24 dev nb0a1b2c3d
link set nb0a1b2c3d up
neigh add 198.18.0.1 lladdr 02:00:c6:12:00:01 dev nb0a1b2c3d nud permanent
neigh add 198.18.0.2 lladdr 02:00:c6:12:00:02 dev nb0a1b2c3d nud permanent
route add 198.18.1.0/24 via 10.0.0.6 dev ens6 proto 110
"""

ROUTES_INSIDE = """\
$ ip -n netbench-0a1b2c3d-1 -batch -
link set lo up
addr add 198.18.0.2/24 dev eth0
link set eth0 up
neigh add 198.18.0.1 lladdr 02:00:c6:12:00:01 dev eth0 nud permanent
neigh add 198.18.0.254 lladdr 02:00:c6:12:00:fe dev eth0 nud permanent
route add 198.18.0.0/15 via 198.18.0.254
"""


def test_vxlan_joins_the_hubs_and_leaves_the_host_without_routes() -> None:
    assert text_of(division.commands(made("vxlan"), "ens6")) == VXLAN
    assert division.forwarding(made("vxlan"), "ens6") == {}


def test_routes_go_over_the_data_interface() -> None:
    first, *_, last = division.commands(made("routes"), "ens6")
    assert text_of([first]) == ROUTES_OUTSIDE
    assert text_of([last]) == ROUTES_INSIDE
    assert division.forwarding(made("routes"), "ens6.7") == {
        "net/ipv4/conf/ens6.7/forwarding": "1",
        "net/ipv4/conf/nb0a1b2c3d/forwarding": "1",
    }


def test_a_host_alone_needs_neither() -> None:
    first, *_ = division.commands(made("", peers=[]), "lo")
    assert text_of([first]).splitlines()[1:] == VXLAN.splitlines()[1:4]
    text = text_of(division.commands(made("", peers=[]), "lo"))
    assert "uplink" not in text
    assert "nb0a1b2c3d" not in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "netbench-0a1b2c3d; reboot"),
        ("network", "8.8.0.0/16"),
        ("own", "10.0.0.0/24"),
        ("gateway", "10.0.0.1"),
        ("nodes", {"0": "198.18.9.1"}),
        ("overlay", "gre"),
        ("peers", [{"data_address": "10.0.0.6", "network": "0.0.0.0/0", "addresses": []}]),
        ("mtu_bytes", -1),
    ],
)
def test_only_divisions_that_netbench_makes_are_accepted(
    field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may call the agent as root gets no other routes by it."""
    monkeypatch.setattr(host, "json_of", lambda argv: [])
    division.check(made("routes"))
    with pytest.raises(host.AgentError, match="not one that netbench makes"):
        division.check({**made("routes"), field: value})


@pytest.mark.parametrize(
    "peer",
    [
        {"data_address": "10.0.0.6 dev eth1", "network": "198.18.1.0/24", "addresses": []},
        {"data_address": "10.0.0.6", "network": "198.18.1.0/24", "addresses": ["x"]},
    ],
)
def test_addresses_are_addresses(peer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "json_of", lambda argv: [])
    with pytest.raises(ValueError, match="does not appear to be"):
        division.check(made("routes", peers=[peer]))


def test_addresses_in_use_on_the_host_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = [{"dst": "default", "dev": "eth0"}, {"dst": "198.19.0.0/16", "dev": "lab0"}]
    monkeypatch.setattr(host, "json_of", lambda argv: routes)
    with pytest.raises(host.AgentError, match=r"a route to 198\.19\.0\.0/16 \(lab0\), .*node_netw"):
        division.check(made("vxlan"))


@pytest.mark.parametrize("name", ["", "..", "../../proc/1/ns/net", "other", "netbench-0a1b2c3d-x"])
def test_only_namespaces_of_nodes_are_entered(name: str) -> None:
    with pytest.raises(host.AgentError, match="not the name of a node's namespace"):
        division.join(name)


def test_a_namespace_that_has_gone_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(division, "NAMESPACES", tmp_path)
    with pytest.raises(host.AgentError, match="netbench-0a1b2c3d-1 has gone: its lease has ended"):
        division.join("netbench-0a1b2c3d-1")


@pytest.mark.parametrize("name", ["net/ipv4/conf/../forwarding", "net/ipv4/conf/a/b/forwarding",
                                  "net/ipv4/ip_forward", "kernel/x"])  # fmt: skip
def test_only_settings_of_the_network_become_files(name: str) -> None:
    with pytest.raises(host.AgentError, match="not a setting of the network"):
        host.read_sysctl(name)


class TestOperation:
    """`divide` on a host whose commands are recorded."""

    @pytest.fixture
    def done(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
        """The first words of every command, and the names of namespaces as files."""
        machines = FakeMachines(monkeypatch, tmp_path, 1)
        monkeypatch.setattr(host, "SYSCTL", machines.kernels[0].sysctl)
        fake, said = host.run_tool, list[str]()
        namespaces = tmp_path / "netns"
        namespaces.mkdir()

        def run_tool(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
            said.append(" ".join(argv))
            if argv[1:3] == ["netns", "del"]:
                (namespaces / argv[3]).unlink()
            elif "-batch" in argv and argv[0] != "tc":
                for line in stdin.splitlines():
                    if line.startswith("netns add"):
                        (namespaces / line.split()[2]).touch()
            elif "route" in argv:
                return 0, "[]", ""
            elif argv[:2] != ["ip", "link"]:
                return fake(argv, stdin)
            return 0, "", ""

        monkeypatch.setattr(host, "run_tool", run_tool)
        monkeypatch.setattr(division, "_processes", lambda namespace: [])
        self.namespaces, self.machines = namespaces, machines
        return said

    def divide(self) -> Any:
        fields = {"owner": OWNER, "interface": "eth0", "lease_s": 30.0}
        return operations.divide({**fields, "division": made("vxlan")})

    def test_needs_a_lease_and_ends_with_it(self, done: list[str]) -> None:
        with pytest.raises(host.AgentError, match="eth0 is not armed"):
            self.divide()
        operations.arm({"owner": OWNER, "interface": "eth0", "lease_s": 30.0})
        self.divide()
        assert sorted(path.name for path in self.namespaces.iterdir()) == [
            "netbench-0a1b2c3d-0", "netbench-0a1b2c3d-1", "netbench-0a1b2c3d-hub",
        ]  # fmt: skip
        with pytest.raises(host.AgentError, match="eth0 has its nodes already"):
            self.divide()
        record = state.load("eth0")
        assert record is not None
        assert record["division"] == made("vxlan")
        assert restore.restore(record) == []
        assert list(self.namespaces.iterdir()) == []
        assert "ip netns del netbench-0a1b2c3d-hub" in done

    def test_a_half_made_division_is_removed(
        self, done: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record is written before the first command."""
        recorded, real = host.run_tool, division.commands
        operations.arm({"owner": OWNER, "interface": "eth0", "lease_s": 30.0})
        monkeypatch.setattr(division, "commands", lambda *x: [*real(*x)[:1], (["false"], "")])
        monkeypatch.setattr(
            host,
            "run_tool",
            lambda argv, text="": (1, "", "no") if argv == ["false"] else recorded(argv, text),
        )
        with pytest.raises(host.AgentError, match="cannot make the nodes of this host: `false`"):
            self.divide()
        operations.clear({"owner": OWNER, "interface": "eth0", "scope": "session"})
        assert list(self.namespaces.iterdir()) == []
        assert not state.STATE.exists()


def test_a_command_is_entered_as_the_user_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root is given up before the command starts: groups first, then group, then user."""
    done: list[object] = []
    monkeypatch.setenv("SUDO_UID", "0")
    monkeypatch.setenv("SUDO_GID", "0")
    for name in ("initgroups", "setresgid", "setresuid", "umask", "execvpe"):
        monkeypatch.setattr(f"os.{name}", lambda *x, name=name: done.append((name, *x)))
    enter.enter({"namespace": "n", "argv": ["id"], "environment": {"PATH": "/bin"}, "umask": 0o22})
    assert done == [
        ("initgroups", "root", 0),
        ("setresgid", 0, 0, 0),
        ("setresuid", 0, 0, 0),
        ("umask", 0o22),
        ("execvpe", "id", ["id"], {"PATH": "/bin"}),
    ]


def test_a_command_is_not_entered_without_a_namespace() -> None:
    with pytest.raises(host.AgentError, match="needs the namespace of a node"):
        enter.enter({"argv": ["id"], "environment": {}})
