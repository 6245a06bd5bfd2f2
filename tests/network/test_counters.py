"""Counters of namespaces, line by line; with a kernel: tests/testbed/test_guest_hold.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_every_line_is_answered_for_every_namespace(tmp_path: Path) -> None:
    """One that is not there is said, and is no reason not to answer for the others, or again."""
    missing = [str(tmp_path / name) for name in ("n0", "n1")]
    argv = [sys.executable, "-m", "netbench.network.counters", "eth0", *missing]
    done = subprocess.run(
        argv, input="\n\n", capture_output=True, text=True, check=True, timeout=60
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 2
    for answer in answers:
        for found, name in zip(answer, missing, strict=True):
            assert f"cannot enter the namespace {name}" in found["error"]
