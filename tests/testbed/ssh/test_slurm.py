"""Hosts of a Slurm job, from a stand-in for scontrol and without one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from netbench.errors import UsageError
from netbench.testbed.ssh.inventory import load_inventory
from netbench.testbed.ssh.slurm import NODE_LIST, expand, job_hosts

SCONTROL = """\
#!/bin/sh
test "$*" = "show hostnames gpu[1-2]" || { echo "invalid: $*" >&2; exit 1; }
echo gpu1; echo gpu2
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "scontrol"
    script.write_text(SCONTROL)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.fixture
def no_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.mark.usefixtures("scontrol")
def test_scontrol_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE_LIST, "gpu[1-2]")
    assert job_hosts() == ("gpu1", "gpu2")
    monkeypatch.setenv(NODE_LIST, "nonsense")
    with pytest.raises(UsageError, match=r"`.*scontrol show hostnames nonsense` failed: invalid"):
        job_hosts()


@pytest.mark.usefixtures("scontrol")
@pytest.mark.skipif(shutil.which("ssh") is None, reason="the OpenSSH client is not installed")
def test_hosts_of_the_job_are_an_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is what one would type after `ssh`."""
    monkeypatch.setenv(NODE_LIST, "gpu[1-2]")
    found = load_inventory(Path("slurm:"))
    assert [host.name for host in found.hosts] == ["gpu1", "gpu2"]
    assert not found.is_divided


def test_outside_of_a_job_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NODE_LIST, raising=False)
    with pytest.raises(UsageError, match=r"this process is in none .*salloc"):
        load_inventory(Path("slurm:"))


@pytest.mark.usefixtures("no_scontrol")
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login1", ("login1",)),
        ("gpu[01-03,07],login1", ("gpu01", "gpu02", "gpu03", "gpu07", "login1")),
        ("gpu[9-11]", ("gpu9", "gpu10", "gpu11")),
        ("r[1-2]n[3-4]-ib", ("r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib")),
    ],
)
def test_a_list_is_expanded_without_scontrol(
    text: str, hosts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forms of Slurm's manual; scontrol expands them likewise."""
    monkeypatch.setenv(NODE_LIST, text)
    assert job_hosts() == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu[1-", "cannot expand from character 4 on"),
        ("gpu[3-1]", '"3-1" is not a range'),
        ("gpu[a-b]", "cannot expand"),
        ("a,,b", "cannot expand from character 2"),
        (",a", "cannot expand from character 1"),
        ("a,", "cannot expand from character 2"),
        ("a b", "cannot expand"),
        ("a[1-9999999999]", "more than 4096 hosts"),
        ("a[1-99]b[1-99]", "more than 4096 hosts"),
    ],
)
def test_another_syntax_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        expand(text)
    assert message in str(error.value)
