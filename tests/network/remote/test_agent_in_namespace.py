"""The agent that hosts get, on the kernel of this machine: in a network namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netbench.network.remote.deployer import agent_zip

UNSHARE = ("unshare", "--map-root-user", "--net", "--mount", "--")


@pytest.mark.parametrize("scenario", ["renamed", "lost", "timer_killed"])
def test_a_foreign_root_qdisc_comes_back_with_its_parameters(scenario: str, tmp_path: Path) -> None:
    """`pfifo limit 77`, whatever happens while it is set aside."""
    trial = "mount -t tmpfs tmpfs /run && ip link add eth0 type veth peer name p0"
    if subprocess.run([*UNSHARE, "sh", "-c", trial], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces of its own, or no veth")
    (tmp_path / "agent.zip").write_bytes(agent_zip())
    script = Path(__file__).with_name("agent_in_namespace.py")
    argv = [*UNSHARE, sys.executable, str(script), str(tmp_path / "agent.zip"), scenario]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as before" in done.stdout
