"""Several nodes per host, on the kernel of this machine: two hosts in namespaces of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.network.remote.deployer import ROOT, agent_zip

TRIALS = {
    "routes": "ip link add v type veth peer name w",
    "vxlan": "ip link add v type veth peer name w && ip link add x type vxlan id 1 dstport 4789",
}
"""Needs of an overlay, which not every kernel has."""


@pytest.mark.parametrize("overlay", TRIALS)
def test_nodes_of_two_hosts_reach_each_other_and_nothing_is_left(
    overlay: str, tmp_path: Path
) -> None:
    """One host is cleared, the lease of the other ends; processes of its nodes end with it."""
    alone = ["unshare", "--net", "--mount", "--"]
    trial = [*alone, "sh", "-c", TRIALS[overlay]]
    if os.geteuid() or subprocess.run(trial, check=False, capture_output=True).returncode:
        pytest.skip("not root, or this kernel has not what it takes")
    (tmp_path / "agent.zip").write_bytes(agent_zip())
    module = "tests.network.remote.division_in_namespace"
    argv = [*alone, sys.executable, "-m", module, str(tmp_path / "agent.zip"), overlay]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as before" in done.stdout
