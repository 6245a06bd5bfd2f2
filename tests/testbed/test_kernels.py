"""Three machines with kernels of their own, in real time: one loses its power, or reboots."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.kernels import Kernels
from tests.testbed.kernels_in_guest import SCRIPT, SCRIPT_NAME

pytestmark = [pytest.mark.guest, pytest.mark.ssh]

NUM_MACHINES = 3
POWER, REBOOT = "power", "reboot"
FAILS = 1
"""The machine that fails. Of three it is neither the first, which has the store, nor the last."""

ENDS_S = 20.0
"""Within this the run ends with a message."""

PATIENCE_S = 400.0
"""Deadline of both runs, wall seconds: most of it is for a busy machine."""


def events(output: Path, kernels: Kernels) -> Iterator[dict[str, Any]]:
    """Yield what the controller says, as it says it, until it has ended."""
    end_s, num_seen = time.monotonic() + PATIENCE_S, 0
    is_over = False
    while not is_over:
        assert time.monotonic() < end_s, output.read_text()[-2000:]
        is_over = not kernels.is_running(NUM_MACHINES)
        lines = output.read_text().splitlines(keepends=True)
        for line in lines[num_seen:]:
            if not line.endswith("\n"):
                break
            num_seen += 1
            if line.startswith("{"):
                yield json.loads(line)
        time.sleep(0.05)


def test_a_machine_that_loses_power_or_reboots_ends_the_run(tmp_path: Path) -> None:
    """Within 20 s, with a message that names it, and nothing is left on the others."""
    module = "tests.testbed.kernels_in_guest"
    injected_s: dict[str, float] = {}
    ended: dict[str, tuple[int, float]] = {}
    printed: dict[str, list[str]] = {POWER: [], REBOOT: []}
    looks: dict[str, dict[str, Any]] = {}
    with Kernels(tmp_path, NUM_MACHINES, {SCRIPT_NAME: SCRIPT}) as kernels:
        output = kernels.run([sys.executable, "-m", module, str(NUM_MACHINES), POWER, REBOOT])
        for event in events(output, kernels):
            fault = event["fault"]
            if "line" in event:
                printed[fault].append(event["line"])
                if "iteration 2:" in event["line"] and fault not in injected_s:
                    kernels.kill(FAILS)
                    injected_s[fault] = time.monotonic()
                    if fault == REBOOT:
                        kernels.boot(FAILS)
            elif "status" in event:
                assert fault in injected_s, printed[fault]
                ended[fault] = event["status"], time.monotonic() - injected_s[fault]
                if fault == POWER:
                    kernels.boot(FAILS)
            else:
                looks[fault] = event
    said = output.read_text()[-3000:]
    assert [*looks] == [POWER, REBOOT], said
    for fault in (POWER, REBOOT):
        text = " ".join(printed[fault])
        assert ended[fault][0] == 1, text
        assert ended[fault][1] < ENDS_S, text
        assert f"host{FAILS}: " in text.partition("error: ")[2], text
        before, after = looks[fault]["before"], looks[fault]["after"]
        for host in (before[f"host{FAILS}"], after[f"host{FAILS}"]):
            del host["settings"]  # another kernel has others
        assert after == before
    assert f"host{FAILS}: unknown: host{FAILS}: silent for 1" in " ".join(printed[POWER])
