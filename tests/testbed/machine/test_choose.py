"""Which testbed a request and a machine come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from netbench.errors import TestbedError, UsageError
from netbench.testbed.machine.capabilities import Capabilities
from netbench.testbed.machine.choose import choose
from netbench.testing.nodes import LAPTOP, SERVER


def test_a_laptop_with_the_guest_kernel_runs_in_virtual_time() -> None:
    """No root, no netem, two cores: the guest is exact all the same, and says why."""
    choice = choose("local", LAPTOP, num_ranks=64)
    assert choice.testbed == "guest-virtual"
    assert "2 cores" in choice.reason


def test_virtual_time_is_preferred_to_a_native_kernel() -> None:
    """If both would do, the one that cannot be disturbed is chosen."""
    assert (
        choose("local", replace(LAPTOP, is_root=True, has_netem=True), 4).testbed == "guest-virtual"
    )


def test_root_with_netem_and_a_core_per_rank_runs_natively() -> None:
    """A machine that needs no guest is not asked to build one."""
    assert choose("local", SERVER, num_ranks=64).testbed == "native"


def test_more_ranks_than_cores_are_not_run_natively_unasked() -> None:
    """They would compete for the processor, and the figures would be wrong."""
    with pytest.raises(TestbedError, match="netbench kernel build"):
        choose("local", SERVER, num_ranks=65)


@pytest.mark.parametrize(
    ("request_", "machine", "remedy"),
    [
        ("local:native", LAPTOP, "needs root"),
        ("local:guest", SERVER, "netbench kernel build"),
        ("local:guest", replace(LAPTOP, guest_tmpdir=None), "TMPDIR"),
        ("local:guest-real", SERVER, "user-mode-linux"),
    ],
)
def test_what_cannot_run_says_what_to_do(request_: str, machine: Capabilities, remedy: str) -> None:
    """A forced testbed that is not there is an error with its remedy."""
    with pytest.raises(TestbedError, match=remedy):
        choose(request_, machine, num_ranks=4)


def test_each_testbed_can_be_forced() -> None:
    """Native is taken although the guest would be preferred, and so on."""
    both = replace(SERVER, guest_kernel=Path("/cache/linux"))
    requests = ("local:native", "local:guest", "local:guest-real")
    found = [choose(request, both, num_ranks=4).testbed for request in requests]
    assert found == ["native", "guest-virtual", "guest-real"]


def test_the_simulator_needs_nothing_of_the_machine() -> None:
    """More ranks than cores, no root, no guest kernel."""
    bare = replace(LAPTOP, guest_kernel=None, packaged_kernel=None)
    assert choose("sim", bare, num_ranks=4096).testbed == "sim"


def test_an_unknown_testbed_names_the_nearest() -> None:
    """A typing error is a usage error."""
    with pytest.raises(UsageError, match=r"local:native"):
        choose("local:nativ", LAPTOP, num_ranks=4)
