"""Functions that tests run in cells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netbench.errors import PlanError
from netbench.pool import Work

Report = Callable[[Any], None]


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> int:
    raise PlanError(f"{number} layers cannot be placed")


def crash(number: int) -> int:
    print("about to crash")
    os.kill(os.getpid(), signal.SIGSEGV)
    return number


def hoard(num_bytes: int) -> int:
    """Have a child process use memory, for as long as it is let."""
    program = "import sys, time; held = b'x' * int(sys.argv[1]); time.sleep(600)"
    subprocess.run([sys.executable, "-c", program, str(num_bytes)], check=True)
    return num_bytes


def count_and_wait(path: Path, report: Report) -> int:
    """Report this process and a child in a session of its own, then wait until a file is there."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    report([os.getpid(), child.pid])
    while not path.exists():
        time.sleep(0.05)
    child.kill()
    child.wait()
    return child.pid


WAITING = Work(name="wait", function=count_and_wait, reports=True)
