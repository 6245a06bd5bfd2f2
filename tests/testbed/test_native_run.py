"""The native testbed: on a machine with netem, which here is a guest that plays the host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from netbench.records import find_run, read_run

HOST_NETWORK = "ip -o link; tc qdisc show; ls /run/netns 2>&1; cat /proc/sys/net/ipv4/tcp_rmem"


@pytest.mark.guest
def test_a_native_run_is_trusted_and_leaves_the_host_as_it_was(
    run_in_guest: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Same records as elsewhere; interfaces, qdiscs, namespaces and sysctls are untouched."""
    run = (
        f"{sys.executable} -m netbench.cli run example-two-labs --testbed local:native"
        f" --systems megatron --iterations 1 --results {tmp_path}"
    )
    check = f'before=$({HOST_NETWORK}); {run} || exit; [ "$before" = "$({HOST_NETWORK})" ]'
    status, output = run_in_guest(["sh", "-c", check], memory_bytes=3 << 30)
    assert status == 0, output
    assert "native" in output
    path = find_run(tmp_path, "example-two-labs")
    assert path is not None
    found = read_run(path)
    assert [record.warmup for record in found.records] == [True, False]
    assert found.sessions[0].environment.mode == "native"
    assert found.verdicts[-1].trustworthy
