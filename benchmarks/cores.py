"""A run in a guest that keeps one core, beside the same run on all cores of the machine."""

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Sequence
from unittest.mock import patch

from benchmarks.simulator import Row
from netbench.cli import run

RUN = ("run", "example-two-labs", "--systems", "megatron", "--iterations", "2")


def rows() -> list[Row]:
    """One row: whole commands, from their start to the table."""
    on_one_s = timed()
    with patch("netbench.testbed.runs.launch.take_core", on_all_cores):
        on_all_s = timed()
    return [(f"`netbench {' '.join(RUN)}`", "a core per guest", on_one_s, "all cores", on_all_s)]


def timed() -> float:
    with tempfile.TemporaryDirectory() as results, contextlib.redirect_stdout(io.StringIO()):
        start_s = time.monotonic()
        status = run([*RUN, "--testbed", "local", "--results", results])
        if status != 0:
            raise SystemExit(status)
        return time.monotonic() - start_s


def on_all_cores(command: Sequence[str]) -> tuple[list[str], int]:
    """Replace `take_core`: keep none."""
    return list(command), os.open(os.devnull, os.O_RDONLY)


if __name__ == "__main__":
    for row in rows():
        print(row)
