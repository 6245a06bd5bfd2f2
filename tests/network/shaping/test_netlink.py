"""Recorded answers of the kernel in a guest, against what tc printed of the same interface."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from netbench.errors import NetworkError
from netbench.network.shaping import netlink
from netbench.network.shaping.program import MAX_SEGMENTS
from netbench.network.shaping.readback import differences, parse
from netbench.network.shaping.update import update_text
from tests.network.shaping_cases import CASES, kept_program

GOLDEN = Path(__file__).parents[2] / "golden" / "network"
NAMESPACE = Path("/run/netns/n0")
COUNTERS = ("bytes", "packets", "drops", "overlimits", "backlog", "qlen")


class Recorded:
    """A netlink socket that gives the answers of a recording, in order."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers = answers

    def send(self, request: bytes) -> None:
        """The requests of a recording are always the same."""

    def recv(self, size: int) -> bytes:
        assert size >= len(self.answers[0])
        return self.answers.pop(0)


def replay(monkeypatch: pytest.MonkeyPatch, answers: list[bytes]) -> None:
    @contextmanager
    def connect(namespace: Path) -> Iterator[Recorded]:
        assert namespace == NAMESPACE
        yield Recorded(answers)

    monkeypatch.setattr(netlink, "_connect", connect)


def recording(name: str) -> list[bytes]:
    return [
        bytes.fromhex(text) for text in json.loads((GOLDEN / f"{name}.netlink.json").read_text())
    ]


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_same_is_found_as_by_tc(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, classes, leaves and their counters, filters and tables; and it is what was planned."""
    printed = parse(
        (GOLDEN / f"{name}.tables.json").read_text(), (GOLDEN / f"{name}.classes.txt").read_text()
    )
    replay(monkeypatch, recording(name))
    found = netlink.read(NAMESPACE, "eth0")
    for field in ("root", "default_class", "filters", "tables", "led_to"):
        assert getattr(found, field) == getattr(printed, field)
    assert found.classes.keys() == printed.classes.keys()
    assert found.leaves.keys() == printed.leaves.keys()
    for where, leaf in printed.leaves.items():
        for what in ("kind", "handle", *COUNTERS):
            assert found.leaves[where][what] == leaf[what]
    # The limit of the link was left as it was for the recording.
    assert found.max_segments == MAX_SEGMENTS
    assert differences(kept_program(name), replace(found, max_segments=0)) == ()


def test_a_dump_that_was_interrupted_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says so in the flags of its messages (NLM_F_DUMP_INTR)."""
    answers = recording("pair")
    flags = int.from_bytes(answers[1][6:8], "little") | 0x10
    answers[1] = answers[1][:6] + flags.to_bytes(2, "little") + answers[1][8:]
    replay(monkeypatch, answers)
    with pytest.raises(NetworkError, match="changed while it was read"):
        netlink.read(NAMESPACE, "eth0")


def test_one_value_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of a filter's destination counts, though filters of the same bytes are understood
    once: first the recording as it is, then with another address."""
    program, address = kept_program("pair"), bytes([10, 77, 0, 3])
    for wrong, count in ((address, 0), (bytes([10, 77, 0, 9]), 2)):
        replay(monkeypatch, [answer.replace(address, wrong) for answer in recording("pair")])
        found = netlink.read(NAMESPACE, "eth0")
        assert len(differences(program, found)) == count
        assert (update_text(program, found) == "") == (count == 0)


def test_every_line_is_answered_for_every_namespace(tmp_path: Path) -> None:
    """A missing namespace gives an error in its place, each time; the others are answered."""
    missing = [str(tmp_path / name) for name in ("n0", "n1")]
    argv = [sys.executable, "-m", "netbench.network.shaping.netlink", "eth0", *missing]
    done = subprocess.run(
        argv, input="\n\n", capture_output=True, text=True, check=True, timeout=60
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 2
    for answer in answers:
        for found, name in zip(answer, missing, strict=True):
            assert f"cannot enter the namespace {name}" in found["error"]
