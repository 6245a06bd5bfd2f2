"""`netbench run --inventory` with hosts that cannot be used: one message, and nothing is started.

`tests.testbed.ssh.test_inventory` has what a file may have wrong; here is that it ends a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run

SCENARIO = "example-two-labs"
"""Four nodes."""

FOUR = "hosts: [{address: a}, {address: b}, {address: c}, {address: d}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hosts.yaml"),
        ("{}", "hosts is missing"),
        ("hosts: []", "expected at least 1"),
        ("hosts: [", "hosts.yaml:1"),
        ("hosts:\n\t- a", "hosts.yaml:2"),
        ("hosts: [{address: a}]\nhosts: [{address: b}]", "hosts.yaml:2"),
        ("hosts: &a [*a]", "hosts.yaml: more than 1000000 values"),
        ("hosts: [{address: a}]", "has 1 host, the scenario needs 4; add 3"),
        (FOUR.replace("b}", "a, name: b}"), "hosts[1] is a port 22, as hosts[0] is"),
        (FOUR.replace("b}", "b, name: a}"), 'hosts[1] has the name "a", as hosts[0] has'),
        (FOUR + "nodes: 8\n", "nodes is an unknown key"),
        (FOUR.replace("a}", "a, python: ''}"), "hosts[0].python"),
        (FOUR.replace("a}", "a, port: 70000}"), "hosts[0].port is 70000"),
        (FOUR.replace("a}", "a, key: nowhere}"), 'hosts[0].key "nowhere" does not exist'),
        (FOUR.replace("a}", "a, data_address: 10.0.0.300}"), "is not an IPv4 or IPv6 address"),
        ("ssh: {known_hosts: nowhere}\n" + FOUR, 'ssh.known_hosts "nowhere" does not exist'),
        ("ssh: {password: secret}\n" + FOUR, "ssh.password is an unknown key"),
    ],
)
def test_a_bad_inventory_ends_the_run_with_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
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


def _ends_with(path: Path, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run with an inventory; return the error, which has a message and is the only one."""
    results = tmp_path / "results"
    code = run(["run", SCENARIO, "--inventory", str(path), "--results", str(results)])
    printed = capsys.readouterr()
    words = " ".join((printed.out + printed.err).split())
    assert code in (1, 2)
    assert message in words
    assert words.lower().count("error:") == 1
    assert "Traceback" not in words
    assert not list(tmp_path.glob("results/*/records.jsonl"))
    return words
