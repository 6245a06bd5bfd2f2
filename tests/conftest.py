"""Shared fixtures: a guest to run a command in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings

from netbench.testbed.guest import run_in_guest as run
from netbench.testbed.host import probe_host

# Random inputs are the same every time: a run that fails can be repeated. Others are found with
# `--hypothesis-profile=default`.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

LONGEST = {
    "test_safety.py", "test_agent_in_guest.py", "test_guest_run.py", "test_guest_failures.py",
    "test_in_guest.py", "test_wire_bytes.py", "test_parity.py", "test_named.py",
}  # fmt: skip
"""Files that keep a core for a minute or more: at the end the others would wait for them."""

HANG_S = 900.0
"""Wall seconds after which a guest is taken for hung: hosts differ, and are busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first. `make test` keeps this order where files run side by side."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def run_in_guest() -> Callable[..., tuple[int, str]]:
    """`netbench.testbed.guest.run_in_guest` on this host: (argv, ...) -> exit status, output."""
    return partial(run, probe_host(), timeout_s=HANG_S)
