"""Commands in namespaces, with the entering of one left out; in a kernel: the guest's tests."""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest

from netbench.errors import TestbedError
from netbench.network.shaping import netlink
from netbench.testbed import local, namespaces
from netbench.testbed.local import NamespaceTestbed, RankSetup
from netbench.testbed.namespaces import NamespaceNode
from tests.networks import two_regions


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "inside", nullcontext)


def test_a_command_has_its_input_and_both_streams_come_apart() -> None:
    """With its exit status; more than a pipe would hold, in and out."""
    text = "a line that counts\n" * 20_000
    found = NamespaceNode(0).run(["sh", "-c", "cat; echo bad >&2; exit 7"], text)
    assert found == (7, text, "bad\n")
    assert NamespaceNode(0).run(["cat"]) == (0, "", "")


def test_a_command_that_is_not_there_is_as_for_a_shell() -> None:
    status, printed, errors = NamespaceNode(0).run(["no-such-command", "-x"])
    assert (status, printed) == (127, "")
    assert errors == "no-such-command: No such file or directory"


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """The error names the node and the command; nothing of it is left."""
    pid = tmp_path / "pid"
    with pytest.raises(TestbedError, match=r"node n3: no answer within 3 s from: sh -c echo"):
        NamespaceNode(3).run(["sh", "-c", f"echo $$ > {pid}; exec sleep 600"], timeout_s=3.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_channel_to_a_command_that_is_not_there_is_an_error() -> None:
    """One error names node and command; no descriptor stays open."""
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(TestbedError, match=r"^node n3: cannot start no-such: No such file"):
        NamespaceNode(3).open(["no-such"])
    assert len([*Path("/proc/self/fd").iterdir()]) == before


class Recorded(subprocess.Popen[bytes]):
    """The first process that is started ends, but its end is never seen."""

    started: ClassVar[list[Recorded]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.started.append(self)

    def wait(self, timeout: float | None = None) -> int:
        status = super().wait()
        if self is self.started[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status


def test_a_process_that_does_not_end_keeps_no_other_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Everything else of the testbed is killed and waited for; then the error names the first."""
    monkeypatch.setattr(local, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(namespaces, "build", lambda *_: None)
    monkeypatch.setattr(namespaces, "write_hosts", lambda *_: None)
    monkeypatch.setattr(namespaces, "named_command", lambda node, argv: argv)
    sleep = RankSetup(environment={}, scripts=True)
    monkeypatch.setattr(RankSetup, "command", ["sleep", "600"])
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    network = two_regions()
    names = ["node"] * network.num_nodes
    testbed = NamespaceTestbed(names, network, name="native", tolerance=0.05, ranks=sleep)
    for node in range(3):
        testbed.start_rank(node, node)
    started = Recorded.started
    with pytest.raises(TestbedError, match=rf"not ended within 10 s: process {started[0].pid}$"):
        testbed.close()
    assert [process.returncode for process in started] == [-9] * 3


def test_a_proc_that_cannot_be_written_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have a read-only /proc/sys; a kernel without IPv6 needs nothing."""
    monkeypatch.setattr(namespaces, "PROC_SYS", tmp_path)
    namespaces.without_ipv6("eth0")
    (tmp_path / "net/ipv6/conf/eth0/disable_ipv6").mkdir(parents=True)
    with pytest.raises(TestbedError, match=r"disable_ipv6: cannot be written: .*--privileged"):
        namespaces.without_ipv6("eth0")
