"""Inventory files: what they say, what is refused, and what OpenSSH is asked."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from netbench.errors import ScenarioError, UsageError
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import Inventory, inventory_json_schema, load_inventory

needs_ssh = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="the OpenSSH client is not installed (make ssh-packages)"
)

Write = Callable[..., Inventory]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Load an inventory with this text; key, known and config lie beside it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "key").write_text("private")
    (tmp_path / "key.pub").write_text("public")
    (tmp_path / "known").write_text("")

    def write(text: str, config: str = "") -> Inventory:
        (tmp_path / "config").write_text(config)
        path = tmp_path / "hosts.yaml"
        path.write_text(text)
        return load_inventory(path)

    return write


def test_a_host_is_what_its_entry_and_then_the_ssh_section_say(
    write: Write, tmp_path: Path
) -> None:
    found = write("""\
ssh: {user: ubuntu, key: key, port: 2222, known_hosts: known, sudo: false, python: python3.12}
hosts:
  - {address: 10.0.0.5, name: gpu-1, data_address: 192.168.1.5, interface: ens6}
  - {address: "fd00::6", user: root, port: 22, sudo: true, agent: false,
     data_address: [192.168.1.6, "fd01:0::6"], known_as: six}
""")
    first, second = found.hosts
    assert first == Host(
        name="gpu-1", address="10.0.0.5", port=2222, user="ubuntu", keys=(tmp_path / "key",),
        sudo=False, python="python3.12", data_addresses=("192.168.1.5",), interface="ens6",
    )  # fmt: skip
    assert second == Host(
        name="fd00::6", address="fd00::6", port=22, user="root", keys=(tmp_path / "key",),
        use_agent=False, sudo=True, python="python3.12",
        data_addresses=("192.168.1.6", "fd01::6"), known_as="six",
    )  # fmt: skip
    assert found.known_hosts == (tmp_path / "known",)


def test_what_nothing_says_is_as_openssh_has_it(write: Write, tmp_path: Path) -> None:
    """This user, port 22, the usual keys, the agent, the usual known_hosts; sudo where needed."""
    found = write("hosts: [{address: gpu-1}]")
    assert found.hosts == (Host(name="gpu-1", address="gpu-1", user=getpass.getuser()),)
    assert (found.hosts[0].port, found.hosts[0].sudo, found.hosts[0].use_agent) == (22, True, True)
    assert found.known_hosts[0] == tmp_path / "home" / ".ssh" / "known_hosts"


def test_jump_hosts_written_out(write: Write, tmp_path: Path) -> None:
    """The ssh section holds for them as well, but for its jump; `none` takes it back."""
    found = write("""\
ssh:
  user: ubuntu
  key: key
  jump: {address: inner, port: 2200, jump: {address: outer, user: root, known_as: gate}}
hosts: [{address: gpu-1}, {address: gpu-2, jump: none}]
""")
    keys = (tmp_path / "key",)
    outer = Host(name="outer", address="outer", user="root", keys=keys, known_as="gate")
    inner = Host(name="inner", address="inner", user="ubuntu", port=2200, keys=keys, jump=outer)
    assert [host.jump for host in found.hosts] == [inner, None]


CONFIG = """\
Include {folder}/more
Host gpu-*
  HostName 10.0.0.%h
  User alice
  Port 2201
  IdentityFile {folder}/key
  IdentityFile {folder}/absent
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking no
  ProxyJump bob@outer:2200,inner
Host inner
  HostName 172.16.0.1
  ProxyJump never-asked
Host alias
  HostKeyAlias as-known
Host tunnel
  ProxyCommand nc %h %p
Host loop-a
  ProxyJump loop-b
Host loop-b
  ProxyJump loop-a
"""


@needs_ssh
class TestOpenSSH:
    """Hosts of an OpenSSH config."""

    @pytest.fixture
    def ask(self, write: Write, tmp_path: Path) -> Write:
        """Load an inventory whose OpenSSH config is CONFIG."""
        (tmp_path / "more").write_text("Host gpu-2\n  User carol\n")

        def ask(text: str) -> Inventory:
            return write(text, CONFIG.format(folder=tmp_path))

        return ask

    def test_an_alias_is_what_the_config_says(self, ask: Write, tmp_path: Path) -> None:
        """ssh_config(5): the first value found holds (Include); a chain's own jump does not."""
        found = ask("ssh: {config: config}\nhosts: [gpu-1, gpu-2]")
        first, second = found.hosts
        assert (first.name, first.address, first.port) == ("gpu-1", "10.0.0.gpu-1", 2201)
        assert (first.user, second.user) == ("alice", "carol")
        assert first.keys == (tmp_path / "key",)
        assert tmp_path / "known" in found.known_hosts
        inner = first.jump
        assert inner is not None
        assert (inner.name, inner.address, inner.port) == ("inner", "172.16.0.1", 22)
        outer = inner.jump
        assert outer is not None
        assert (outer.address, outer.port, outer.user) == ("outer", 2200, "bob")
        assert outer.jump is None

    def test_what_the_inventory_says_comes_before_the_config(
        self, ask: Write, tmp_path: Path
    ) -> None:
        """It wins over the config, like an option of ssh."""
        (tmp_path / "other").write_text("private")
        (host,) = ask("""\
ssh: {config: config, user: ubuntu, key: other}
hosts: [{alias: gpu-1, name: first, jump: none, port: 22, data_address: 192.168.1.1}]
""").hosts
        assert (host.name, host.user, host.port, host.jump) == ("first", "ubuntu", 22, None)
        assert host.keys[0] == tmp_path / "other"
        assert host.data_addresses == ("192.168.1.1",)

    def test_an_entry_may_be_anything_one_types_after_ssh(self, ask: Write) -> None:
        found = ask("ssh: {config: config}\nhosts: [dave@host.example.org, alias]").hosts
        assert [host.address for host in found] == ["host.example.org", "alias"]
        assert found[0].user == "dave"
        assert found[1].known_as == "as-known"

    def test_a_jump_host_in_openssh_s_form(self, ask: Write) -> None:
        (host,) = ask("""\
ssh: {config: config, user: ubuntu}
hosts: [{address: 10.0.0.5, jump: "erin@[fd00::1]:2200"}]
""").hosts
        assert host.user == "ubuntu"
        assert host.jump is not None
        assert (host.jump.user, host.jump.address, host.jump.port) == ("erin", "fd00::1", 2200)

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ("tunnel", 'hosts[0] "tunnel" has a ProxyCommand (nc %h %p)'),
            ("loop-a", "hosts[0] is behind more than 8 jump hosts"),
            ("{address: a, jump: 'a b'}", 'hosts[0].jump "a b" is not a host'),
            ("{address: a, jump: '@'}", 'hosts[0] jumps to "@"; write [USER@]HOST[:PORT]'),
            ("'a;b'", 'hosts[0] "a;b" is refused by `ssh -G`: hostname contains invalid'),
        ],
    )
    def test_what_cannot_be_done(self, ask: Write, entry: str, message: str) -> None:
        with pytest.raises(ScenarioError) as error:
            ask(f"ssh: {{config: config}}\nhosts: [{entry}]")
        assert f"hosts.yaml:2: {message}" in str(error.value)

    @pytest.mark.parametrize(
        ("option", "socket"),
        [("IdentityAgent /run/a", "/run/a"), ("IdentityAgent $LAB", "/run/b"),
         ("IdentityAgent SSH_AUTH_SOCK", None), ("IdentityAgent none", None)],
    )  # fmt: skip
    def test_the_agent_is_the_one_of_the_config(
        self, write: Write, monkeypatch: pytest.MonkeyPatch, option: str, socket: str | None
    ) -> None:
        monkeypatch.setenv("LAB", "/run/b")
        config = f"Host *\n  {option}\n  IdentitiesOnly yes\n"
        (host,) = write("ssh: {config: config}\nhosts: [gpu-1]", config).hosts
        assert host.agent_socket == (Path(socket) if socket else None)
        assert host.use_agent == (option != "IdentityAgent none")
        assert host.only_named

    def test_a_config_that_openssh_refuses(self, write: Write) -> None:
        with pytest.raises(ScenarioError, match=r"refused by `ssh -G`: .*[Bb]ad configuration"):
            write("ssh: {config: config}\nhosts: [gpu-1]", "NoSuchOption yes\n")


def test_without_the_openssh_client_an_alias_is_told_what_to_do(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netbench.testbed.ssh.openssh.find_command", lambda _: None)
    with pytest.raises(ScenarioError, match="openssh-client, or write the host out"):
        write("hosts: [gpu-1]")
    assert write("hosts: [{address: gpu-1}]").hosts[0].address == "gpu-1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "hosts.yaml:1: hosts is missing"),
        ("hosts: []", "hosts.yaml:1: hosts is []; expected at least 1"),
        ("hosts: [{adress: a}]", "hosts.yaml:1: hosts[0].adress is an unknown key; did you mean"),
        ("host: [a]", "hosts.yaml:1: host is an unknown key; did you mean hosts"),
        ("ssh: {pasword: x}\nhosts: [{address: a}]", "hosts.yaml:1: ssh.pasword is an unknown key"),
        ("hosts:\n- {name: a}", "hosts.yaml:2: hosts[0] has neither address nor alias"),
        ("hosts: [{address: a, alias: a}]", "hosts.yaml:1: hosts[0] has both address and alias"),
        ("hosts: [{address: a, port: 0}]", "hosts[0].port is 0; "),
        ("hosts: [{address: a, port: ssh}]", 'hosts[0].port is "ssh"; expected a whole number'),
        ("hosts: [{address: 'u@a'}]", 'hosts[0].address "u@a" is not an address'),
        ("hosts: [{address: '-oProxyCommand=x'}]", 'address "-oProxyCommand=x" is not an address'),
        ("hosts: ['-oProxyCommand=x']", 'hosts[0] "-oProxyCommand=x" is not a host'),
        ("hosts: [{address: a, user: '-x'}]", 'hosts[0].user "-x" is not a user'),
        ("hosts: [{address: a, interface: eth0;reboot now}]", "is not an interface"),
        ("hosts: [{address: a, interface: a-much-too-long-one}]", "is not an interface"),
        ("hosts: [{address: a, data_address: gpu-1}]", '"gpu-1" is not an IPv4 or IPv6 address'),
        ("hosts: [{address: a, data_address: [10.0.0.1, 10.0.0.300]}]", "data_address[1] "),
        ("hosts: [{address: a, key: nowhere}]", 'hosts[0].key "nowhere" does not exist'),
        ("ssh: {key: key.pub}\nhosts: [{address: a}]", "hosts.yaml:1: ssh.key is the public key"),
        ("ssh: {known_hosts: x}\nhosts: [{address: a}]", 'ssh.known_hosts "x" does not exist'),
        ("ssh: {config: x}\nhosts: [{address: a}]", 'ssh.config "x" does not exist'),
        (
            "hosts:\n- {address: a, name: n}\n- {address: b, name: n}",
            'hosts.yaml:3: hosts[1] has the name "n", as hosts[0] has',
        ),
        (
            "hosts:\n- {address: a, name: n}\n- {address: a, name: m}",
            "hosts.yaml:3: hosts[1] is a port 22, as hosts[0] is",
        ),
        ("hosts: [{address: a, sudo: maybe}]", "hosts[0].sudo is"),
        ("hosts: [3]", "hosts[0] is 3; expected text"),
        ("- a", "expected a mapping with ssh, hosts"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write: Write, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        write(text)
    assert message in str(error.value)


def test_the_same_address_behind_other_jump_hosts_is_another_host(write: Write) -> None:
    found = write("""\
hosts:
  - {address: 10.0.0.5, name: a, jump: {address: gate-a}}
  - {address: 10.0.0.5, name: b, jump: {address: gate-b}}
""")
    assert len(found.hosts) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mine.yaml: no such file; give the path of an inventory"):
        load_inventory(tmp_path / "mine.yaml")


def test_there_must_be_a_host_per_node(write: Write) -> None:
    found = write("hosts: [{address: a}, {address: b}, {address: c}]")
    assert [host.address for host in found.first(2)] == ["a", "b"]
    with pytest.raises(UsageError, match=r"hosts.yaml: has 3 hosts, the scenario needs 64; add 61"):
        found.first(64)


def documented() -> str:
    return (Path(__file__).parents[3] / "docs" / "inventory.md").read_text(encoding="utf-8")


def test_the_documentation_explains_every_key() -> None:
    """Properties of the JSON schema, which is made of the forms that are checked."""
    schema = inventory_json_schema()
    assert set(schema["properties"]) == {"ssh", "hosts", "overlay", "node_network"}
    for key in ("overlay", "node_network"):
        assert f"`{key}`" in documented(), f"docs/inventory.md does not explain {key}"
    for form in ("HostForm", "SshForm", "JumpForm"):
        for key in schema["$defs"][form]["properties"]:
            assert f"`{key}`" in documented(), f"docs/inventory.md does not explain {key}"


@needs_ssh
def test_the_documented_example_is_an_inventory(write: Write, tmp_path: Path) -> None:
    example = documented().split("```yaml\n")[1].split("```")[0]
    found = write(example.replace("~/.ssh/id_ed25519", "key"))
    assert [host.name for host in found.hosts] == ["gpu-1", "gpu-2", "gpu-3"]
    assert [host.user for host in found.hosts] == ["ubuntu"] * 3
    assert {host.jump.login for host in found.hosts if host.jump} == {
        "ubuntu@bastion.example.org:22"
    }
    assert found.hosts[2].data_addresses == ("192.168.1.7", "fd00::7")
