"""The native testbed: on a machine with netem, which here is a guest that plays the host."""

from __future__ import annotations

import re
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
        f"{sys.executable} -m netbench run example-two-labs --testbed local:native"
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


HOLD = """
{netbench} net apply example-two-labs --testbed local:native > {out} 2>&1 & daemon=$!
until grep -q Ctrl-C {out}; do kill -0 $daemon || exit 1; sleep 0.1; done
echo "said $({netbench} net shell node1 -- hostname)"
{netbench} net shell node0 -- ping -q -c 3 node2
{netbench} net shell node0 -- sh -c 'exit 4'; echo "status $?"
kill -9 $daemon
while pgrep -f "hold_sessio[n]"; do sleep 0.1; done
"""


@pytest.mark.guest
def test_a_network_held_natively_goes_with_its_holder(
    run_in_guest: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Commands run in its nodes at its delays; after SIGKILL the host is as it was."""
    hold = HOLD.format(netbench=f"{sys.executable} -m netbench", out=tmp_path / "out")
    check = f'before=$({HOST_NETWORK}); {hold} [ "$before" = "$({HOST_NETWORK})" ]'
    status, output = run_in_guest(["sh", "-c", check])
    assert status == 0, output + (tmp_path / "out").read_text()
    assert "said node1" in output
    assert "status 4" in output
    least_ms = float(re.findall(r"min/avg/max\S* = ([\d.]+)/", output)[0])
    assert 16.0 <= least_ms < 16.1
