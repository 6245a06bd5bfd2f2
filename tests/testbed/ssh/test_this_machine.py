"""This machine as a host: the interface of a host over SSH, without an sshd."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.machines import Hosts
from netbench.testbed.ssh.nodes import HostNode

PATIENCE_S = 30.0


@pytest.fixture
def here() -> HostNode:
    host = Host(name="localhost", address="localhost", user=getpass.getuser(), is_local=True)
    return Hosts([host], [])[0]


def test_a_command_has_input_output_and_status(here: HostNode) -> None:
    found = here.run(["sh", "-c", "cat; echo no >&2; exit 3"], "in\n")
    assert found == (3, "in\n", "no\n")
    assert here.run(["no-such-command"])[0] == 127


def test_a_late_command_is_ended(here: HostNode) -> None:
    with pytest.raises(TestbedError, match=r"^localhost: no answer within 0.1 s from: sleep"):
        here.run(["sleep", "60"], timeout_s=0.1)


def test_a_command_knows_nothing_of_how_the_user_came(
    here: HostNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SUDO_UID, the agent would give up the root that netbench itself runs as."""
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 5 192.0.2.2 22")
    assert here.run(["printenv", "SUDO_UID", "SSH_CONNECTION"]) == (1, "", "")
    with pytest.raises(TestbedError, match="write its data_address into the inventory"):
        here.own_address()


def test_a_channel_carries_lines_and_ends_with_its_command(here: HostNode) -> None:
    channel = here.open(["sh", "-c", "read line; echo got $line; echo why >&2"])
    channel.send("this")
    assert channel.receive(PATIENCE_S) == "got this"
    assert channel.receive(PATIENCE_S) is None
    assert channel.last_words() == "why"
    with pytest.raises(TestbedError, match="localhost: the command there has ended: why"):
        channel.send("more")
    with pytest.raises(TestbedError, match="localhost: cannot start no-such-command"):
        here.open(["no-such-command"])


def test_a_closed_channel_ends_the_input(here: HostNode, tmp_path: Path) -> None:
    """Ctrl-C in the terminal does not reach the command: it has a session of its own."""
    channel = here.open(["sh", "-c", f"echo $$; cat; touch {tmp_path}/ended"])
    pid = int(channel.receive(PATIENCE_S) or 0)
    assert os.getsid(pid) == pid
    channel.close()
    channel.last_words()
    assert (tmp_path / "ended").exists()
