"""Ranks over SSH. That whole runs work over it: tests/testbed/test_guest_run.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netbench.testbed.ssh import Hosts
from netbench.testbed.sshd import RankChannel
from tests.testbed.sshd_here import Sshd

pytestmark = pytest.mark.ssh


def test_a_rank_that_fails_says_why_once(tmp_path: Path) -> None:
    """What it wrote to stderr is the last message, in the form of a rank's own errors."""
    script = 'echo \'{"event": "ready"}\'; for i in 1 2 3 4; do echo line $i >&2; done; exit 1'
    with (
        Sshd(tmp_path / "sshd") as server,
        Hosts([server.host()], [server.known_hosts]) as hosts,
    ):
        failing = RankChannel(hosts.open(0, ["sh", "-c", script]))
        assert json.loads(failing.receive() or "") == {"event": "ready"}
        last = json.loads(failing.receive() or "")
        assert last == {"event": "error", "message": "line 2 | line 3 | line 4"}
        assert failing.receive() is None
        quiet = RankChannel(hosts.open(0, ["true"]))
        assert quiet.receive() is None
