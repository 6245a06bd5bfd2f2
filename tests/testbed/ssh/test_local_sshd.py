"""Ranks over SSH. That whole runs work over it: tests/testbed/test_guest_run.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netbench.testbed.ssh import nodes
from netbench.testbed.ssh.local_sshd import RankChannel
from netbench.testbed.ssh.machines import Hosts
from tests.sshd_here import Sshd

pytestmark = pytest.mark.ssh


def test_a_rank_that_fails_says_why_once(tmp_path: Path) -> None:
    """The end of its stderr is the last message, in the form of a rank's own errors."""
    script = 'echo \'{"event": "ready"}\'; for i in 1 2 3 4; do echo line $i >&2; done; exit 1'
    with Sshd(tmp_path / "sshd") as server, Hosts([server.host()], [server.known_hosts]) as hosts:
        failing = RankChannel(hosts[0].open(["sh", "-c", script]))
        assert json.loads(failing.receive() or "") == {"event": "ready"}
        last = json.loads(failing.receive() or "")
        assert last == {"event": "error", "message": "line 2 | line 3 | line 4"}
        assert failing.receive() is None
        quiet = RankChannel(hosts[0].open(["true"]))
        assert quiet.receive() is None


def test_a_rank_that_writes_much_to_stderr_is_not_blocked(tmp_path: Path) -> None:
    """3 MiB, more than SSH's window of 2 MiB, before its first answer; then once more.

    Of a rank that fails after it, the last lines are the message.
    """
    noise = f"head -c {3 << 20} /dev/zero | tr '\\0' x >&2"
    script = f"{noise}; echo '{{}}'; read line; {noise}; echo >&2; echo the end >&2; exit 1"
    with Sshd(tmp_path / "sshd") as server, Hosts([server.host()], [server.known_hosts]) as hosts:
        channel = hosts[0].open(["sh", "-c", script])
        assert channel.receive(timeout_s=30.0) == "{}"
        rank = RankChannel(channel)
        rank.send("go on")
        last = json.loads(rank.receive() or "")
        assert last["message"].endswith("xxx | the end")
        assert len(last["message"]) < 2 * nodes.KEPT_ERROR_BYTES
