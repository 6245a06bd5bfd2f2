"""Commands in namespaces, with the entering of one left out; in a kernel: the guest's tests."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.network import netlink
from netbench.testbed.namespaces import run


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "inside", nullcontext)


def test_a_command_has_its_input_and_both_streams_come_apart() -> None:
    """With its exit status; more than a pipe would hold, in and out."""
    text = "a line that counts\n" * 20_000
    found = run(0, ["sh", "-c", "cat; echo bad >&2; exit 7"], text)
    assert found == (7, text, "bad\n")
    assert run(0, ["cat"]) == (0, "", "")


def test_a_command_that_is_not_there_is_as_for_a_shell() -> None:
    status, printed, errors = run(0, ["no-such-command", "-x"])
    assert (status, printed) == (127, "")
    assert errors == "no-such-command: No such file or directory"


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """The error names the node and the command; nothing of it is left."""
    pid = tmp_path / "pid"
    with pytest.raises(TestbedError, match=r"node n3: no answer within 3 s from: sh -c echo"):
        run(3, ["sh", "-c", f"echo $$ > {pid}; exec sleep 600"], timeout_s=3.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
