"""`netbench run --inventory` with hosts that cannot be used: one message, and nothing is started.

`tests.testbed.ssh.test_inventory` has what a file may have wrong; here is that it ends a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from tests.sshd_here import Sshd, write_script

SCENARIO = "example-two-labs"
"""Four nodes."""

ONE = """\
name: one
regions: [Campus]
nodes: [{region: Campus, device: Box}]
network: {inside: {one_way_delay: 1ms, bandwidth: 25Mbit}}
devices: {Box: {flops: 10TFLOPS, memory: 16GB, source: made up}}
workload: {layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}
"""

REFUSES = """\
#!/bin/sh
echo "sudo: a password is required" >&2
exit 1
"""

FOUR = "hosts: [{address: a}, {address: b}, {address: c}, {address: d}]\n"


CONFIG = """\
Host proxied
  ProxyCommand nc %h 22
Host here
  ProxyJump there
Host there
  ProxyJump here
Host alias
  HostName a
"""
"""An OpenSSH config beside the inventory."""

ALIASES = "ssh: {config: ssh_config}\nhosts: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hosts.yaml:1: is empty; expected a mapping with ssh, hosts"),
        ("- a\n- b\n", "hosts.yaml:1: is ['a', 'b']; expected a mapping with ssh, hosts"),
        ("{}", "hosts.yaml:1: hosts is missing"),
        ("hosts: []", "hosts.yaml:1: hosts is []; expected at least 1"),
        ("hosts: {a: b}", "hosts.yaml:1: hosts is {'a': 'b'}; input should be a valid list"),
        ("hosts:\n- a\n- null\n", "hosts.yaml:3: hosts[1] is None; expected text"),
        ("hosts: [", "hosts.yaml:1: not YAML"),
        ("hosts:\n\t- a", "hosts.yaml:2: not YAML"),
        ("hosts: [*a]", "hosts.yaml:1: not YAML: found undefined alias 'a'"),
        ("hosts: !!python/object/apply:os.system [reboot]", "hosts.yaml:1: not YAML"),
        (FOUR + "---\n" + FOUR, "hosts.yaml:2: not YAML: but found another document"),
        ("hosts: [{address: a}]\nhosts: [{address: b}]", 'hosts.yaml:2: "hosts" is given twice'),
        ("hosts: &a [*a]", "hosts.yaml: more than 1000000 values"),
        ("hosts: [{address: a}]", "hosts.yaml: has 1 host, the scenario needs 4; add 3"),
        (FOUR + "machines: 8\n", "hosts.yaml:2: machines is an unknown key"),
        (FOUR.replace("b}", "a, name: b}"), "hosts.yaml:1: hosts[1] is a port 22, as hosts[0] is"),
        (FOUR.replace("b}", "b, name: a}"), 'hosts[1] has the name "a", as hosts[0] has'),
        (FOUR.replace("a}", "a, alias: a}"), "hosts[0] has both address and alias"),
        (FOUR.replace("address: a", "user: a"), "hosts[0] has neither address nor alias"),
        (FOUR.replace("a}", "root@a}"), 'hosts[0].address "root@a" is not an address'),
        (FOUR.replace("a}", "a, name: a/b}"), 'hosts[0].name is "a/b"; expected letters'),
        (FOUR.replace("a}", "a, user: a b}"), 'hosts[0].user "a b" is not a user'),
        (FOUR.replace("a}", "a, python: ''}"), "hosts[0].python"),
        (FOUR.replace("a}", "a, python: [python3, -u]}"), "hosts[0].python is ['python3', '-u']"),
        (FOUR.replace("a}", "a, sudo: maybe}"), 'hosts[0].sudo is "maybe"; expected true or false'),
        (FOUR.replace("a}", "a, port: 70000}"), "hosts[0].port is 70000; expected at most 65535"),
        (FOUR.replace("a}", "a, port: ssh}"), 'hosts[0].port is "ssh"; expected a whole number'),
        (FOUR.replace("a}", "a, key: nowhere}"), 'hosts[0].key "nowhere" does not exist'),
        (FOUR.replace("a}", "a, key: id.pub}"), "hosts[0].key is the public key"),
        (FOUR.replace("a}", "a, interface: eth 0}"), 'hosts[0].interface "eth 0" is not an'),
        (
            FOUR.replace("a}", "a, agent_path: a.zip}"),
            'hosts[0].agent_path "a.zip" is not the path',
        ),
        (FOUR.replace("a}", "a, jump: {user: x}}"), "hosts[0].jump.address is missing"),
        (FOUR.replace("a}", "a, data_address: 10.0.0.300}"), "is not an IPv4 or IPv6 address"),
        (FOUR.replace("a}", "a, data_address: 0.0.0.0}"), "is not an address of one host"),
        (FOUR.replace("b}", "b, data_address: 224.0.0.1}"), "is not an address of one host"),
        (
            FOUR.replace("a}", "a, data_address: 10.0.0.5}").replace(
                "d}", "d, data_address: [10.0.0.6, 10.0.0.5]}"
            ),
            "hosts.yaml:1: hosts[3] has the data_address 10.0.0.5, as hosts[0] has",
        ),
        ("ssh: {known_hosts: nowhere}\n" + FOUR, 'ssh.known_hosts "nowhere" does not exist'),
        ("ssh: {config: nowhere}\n" + FOUR, 'ssh.config "nowhere" does not exist'),
        ("ssh: {password: secret}\n" + FOUR, "hosts.yaml:1: ssh.password is an unknown key"),
        ("hosts: [-oProxyCommand=reboot, b, c, d]", 'hosts[0] "-oProxyCommand=reboot" is not a'),
        (ALIASES + "[proxied, b, c, d]", 'hosts.yaml:2: hosts[0] "proxied" has a ProxyCommand'),
        (ALIASES + "[here, b, c, d]", "hosts.yaml:2: hosts[0] is behind more than 8 jump hosts"),
        (ALIASES + "[a, alias, c, d]", "hosts.yaml:2: hosts[1] is a port 22, as hosts[0] is"),
    ],
)
def test_a_bad_inventory_ends_the_run_with_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    (tmp_path / "ssh_config").write_text(CONFIG)
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA")
    _ends_with(path, message, tmp_path, capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe\x00", "hosts.yaml"), (b"hosts: [\x00]", "hosts.yaml"), (None, "hosts.yaml")],
)
def test_what_is_no_text_ends_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    """The last is a folder."""
    path = tmp_path / "hosts.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    _ends_with(path, message, tmp_path, capsys)


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _ends_with(tmp_path / "hosts.yaml", "hosts.yaml", tmp_path, capsys)


def test_hosts_that_no_name_server_knows_are_all_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`.invalid` is reserved for names that do not exist (RFC 2606)."""
    path = tmp_path / "hosts.yaml"
    key, known = tmp_path / "key", tmp_path / "known"
    for file in (key, known):
        file.write_text("")
    names = ", ".join(f"{{address: {name}.invalid}}" for name in "abcd")
    path.write_text(f"ssh: {{key: {key}, known_hosts: {known}, agent: false}}\nhosts: [{names}]\n")
    error = _ends_with(path, "the hosts cannot run this; nothing was changed:", tmp_path, capsys)
    assert [f"{name}.invalid" in error for name in "abcd"] == [True] * 4


@pytest.mark.ssh
def test_a_host_without_root_is_named_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its sudo wants a password."""
    (tmp_path / "one.yaml").write_text(ONE)
    path = tmp_path / "hosts.yaml"
    with Sshd(tmp_path / "sshd") as server:
        write_script(server.folder / "bin" / "sudo", REFUSES)
        host = server.host(user=server.worker)
        login = f"{{name: gpu-1, address: {host.address}, port: {host.port}, user: {host.user}}}"
        key = f"key: {host.keys[0]}, known_hosts: {server.known_hosts}, agent: false"
        path.write_text(f"ssh: {{{key}}}\nhosts: [{login}]\n")
        scenario = str(tmp_path / "one.yaml")
        error = _ends_with(path, "nothing was changed:", tmp_path, capsys, scenario)
    assert f"gpu-1: {host.user} cannot become root: sudo: a password is required" in error
    assert "NOPASSWD: ALL" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inventory", "{}", "--ssh"], "leave out --testbed and --ssh"),
        (["--inventory", "{}", "--testbed", "sim"], "leave out --testbed and --ssh"),
        (["--replace"], "--replace is for the hosts of an inventory"),
    ],
)
def test_options_that_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(FOUR)
    words = [word.format(path) for word in options]
    assert run(["run", SCENARIO, *words, "--results", str(tmp_path / "results")]) == 2
    assert message in capsys.readouterr().err


def _ends_with(
    path: Path,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    scenario: str = SCENARIO,
) -> str:
    """Run with an inventory; return the error, which has a message and is the only one."""
    results = tmp_path / "results"
    code = run(["run", scenario, "--inventory", str(path), "--results", str(results)])
    printed = capsys.readouterr()
    words = " ".join((printed.out + printed.err).split())
    assert code in (1, 2)
    assert message in words
    assert words.lower().count("error:") == 1
    assert "Traceback" not in words
    assert not list(tmp_path.glob("results/*/records.jsonl"))
    return words
