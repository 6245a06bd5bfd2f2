"""Play scenarios of a module in one guest: each is a test, and all share one boot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping

import pytest

from netbench.testbed.machine.packages import find_command

Played = Mapping[str, list[str]]


def play_asked(
    module: str,
    scenarios: Iterable[str],
    request: pytest.FixtureRequest,
    run_in_guest: Callable[..., tuple[int, str]],
) -> Played:
    """Return scenario -> what was not as it must be, of those that tests were asked for."""
    if find_command("sshd") is None:
        pytest.skip("sshd is not installed (make ssh-packages)")
    asked = [item.name for item in request.session.items if item.path == request.path]
    names = [name for name in scenarios if any(f"[{name}]" in item for item in asked)]
    _, output = run_in_guest([sys.executable, "-m", module, *names])
    lines = [line for line in output.splitlines() if line.startswith('{"scenario"')]
    found = {line["scenario"]: line["problems"] for line in map(json.loads, lines)}
    return {name: found.get(name, [f"not played: {output[-2000:]}"]) for name in names}
