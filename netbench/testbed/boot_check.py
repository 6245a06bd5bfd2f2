"""Boots a guest kernel for a moment, to know that it works on this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

BOOT_TIMEOUT_S = 30.0
"""Wall seconds. A boot takes 0.1 s, 1 s with Debian's kernel."""

SLEEP_S = 60.0
"""How long the guest sleeps: in virtual time this costs nothing, in real time it is not asked."""

_MARK = "netbench-booted"

_INIT = """\
#!{python} -ISu
import ctypes, os, time
start_s = time.monotonic()
time.sleep({sleep_s})
print("\\n{mark}", os.uname().release, time.monotonic() - start_s)
ctypes.CDLL(None).reboot(0x4321FEDC)  # LINUX_REBOOT_CMD_POWER_OFF
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BootResult:
    """error: "" if it booted, ran a program and powered off. release: as by uname.

    wall_s: of the whole boot. slept_s: by the guest's clock.
    """

    error: str
    release: str = ""
    wall_s: float = 0.0
    slept_s: float = 0.0


def boot_check(kernel: Path, tmpdir: Path, *, virtual_time: bool) -> BootResult:
    """Boot `kernel` with its memory in `tmpdir`, run one program on the host's files, power off."""
    with tempfile.TemporaryDirectory(prefix="netbench-boot-") as scratch:
        init = Path(scratch) / "init"
        sleep_s = SLEEP_S if virtual_time else 0.0
        init.write_text(_INIT.format(python=sys.executable, sleep_s=sleep_s, mark=_MARK))
        init.chmod(0o755)
        command = [str(kernel), "mem=256M", "rootfstype=hostfs", "ro", f"init={init}"]
        command += ["con=null", "con0=null,fd:1", "ssl=null"]
        command += ["time-travel=inf-cpu"] if virtual_time else []
        start_s = time.monotonic()
        try:
            code, console = _run(command, tmpdir)
        except OSError as error:
            return BootResult(error=f"{shlex.quote(str(kernel))}: {error.strerror}")
        wall_s = time.monotonic() - start_s
    for line in console.splitlines():
        if line.startswith(_MARK):
            _, release, slept_s = line.split()
            return BootResult(error="", release=release, wall_s=wall_s, slept_s=float(slept_s))
    return BootResult(error=_reason(code, console), wall_s=wall_s)


def _run(command: list[str], tmpdir: Path) -> tuple[int | None, str]:
    """Exit status (None: it had to be ended) and console; the guest is gone afterwards."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(tmpdir)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        console, _ = process.communicate(timeout=BOOT_TIMEOUT_S)
        return process.returncode, console
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    finally:
        # A guest that panics leaves the processes it traced; and we may be interrupted.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(code: int | None, console: str) -> str:
    """The line of the console that says most about why the guest did not come up."""
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    for word in ("ptrace set fp regs", "panic", "not syncing", "rror", "denied"):
        for line in lines:
            if word in line:
                return line
    ended = f"no answer in {BOOT_TIMEOUT_S:.0f} s" if code is None else f"exit {code}"
    return f"{ended}; last line: {lines[-1] if lines else '(none)'}"
