"""Shared fixtures: a guest to run a command in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.guest import run_in_guest as run
from netbench.testbed.machine.capabilities import probe_machine

# Random inputs are the same every time: a run that fails can be repeated. Others are found with
# `--hypothesis-profile=default`.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

FIRST = (
    "test_safety.py", "test_guest_run.py", "test_fuzz.py", "trainers/test_parity.py",
    "test_agent_in_guest.py", "test_in_guest.py", "test_guest_failures.py",
    "search/test_scheduler.py", "test_wire_bytes.py", "test_verify_in_guest.py",
    "test_guest_sharded.py", "test_guest_pipelines.py", "test_guest_peers.py",
    "test_guest_collective.py", "test_native_run.py",
)  # fmt: skip
"""Files that keep a core for 10 s or more, longest first: at the end the others would wait."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m guest`, import only files that mark a test so; importing the others takes 10 s."""
    if config.getoption("markexpr") != "guest" or not collection_path.match("test_*.py"):
        return None
    return True if "mark.guest" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`FIRST`, then the others. `make test` keeps this order where files run side by side."""
    place = {
        item.path: next((i for i, name in enumerate(FIRST) if item.path.match(name)), len(FIRST))
        for item in items
    }
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="session")
def run_in_guest() -> Callable[..., tuple[int, str]]:
    """Run argv in a guest kernel on this host (`testbed.guest.boot`): exit status, output."""
    return partial(run, probe_machine())
