"""The profiles that a calibration of transport writes."""

from __future__ import annotations

import pytest

from benchmarks.calibrate_transport import MESSAGES
from netbench.transport.profile import PROFILES


@pytest.mark.parametrize("library", MESSAGES)
def test_a_calibration_writes_the_sizes_of_messages_that_are_there(library: str) -> None:
    """Line by line, but for values that it fits: it would delete a line that only a file has."""
    written = MESSAGES[library].splitlines()
    lines = (PROFILES / f"{library}.yaml").read_text().splitlines()
    keys = [line.split(":")[0] for line in lines]
    first = keys.index(written[0].split(":")[0])
    there = lines[first : keys.index("source")]
    for line, found in zip(written, there, strict=True):
        start = line.split("{")[0]
        assert found.startswith(start) if "{" in line else found == line
