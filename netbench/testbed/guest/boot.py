"""Boot a guest kernel on this machine's own files: for a session, for one command, or as a test.

User-Mode Linux is an ordinary process. Its root is the host's file system with the rights of the
host's user. /proc, /sys, /dev, /dev/shm and /run are its own, so files made there stay inside.
"""

import fcntl
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from netbench.testbed.lifetime import Scratch, tied

EVENTS_DEVICE = "/dev/ttyS0"
"""The guest's first serial line: its output goes to a file on the host. A pipe would interrupt the
guest whenever it is read, at a moment of real time."""

LINE_DEVICE = "/dev/ttyS{number}"
"""The further serial lines, from 1: streams in both directions, made raw by their reader."""

CORE = "/sys/devices/system/cpu/cpu{number}"
TURNS = ("", "topology")
"""The kernel's folder of a core, and folders in it. A guest locks one of them while it has the
core, so that two guests of each core are counted. No file is left."""

PASSED_VARIABLES = ("HOME", "LANG", "PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")

POWER_OFF = "import ctypes, os; os.sync(); ctypes.CDLL(None).reboot(0x4321FEDC)"
"""Program of a Python without site packages, which starts fastest: sync, then
LINUX_REBOOT_CMD_POWER_OFF. Source: linux/reboot.h."""

HANG_S = 900.0
"""Deadline of a command in a guest, wall seconds: hosts differ, and are busy."""

BOOTED = "netbench: the guest has booted"
"""Console line after the kernel's messages. Later lines are netbench's, or errors."""

# Timers become exact at the kernel's first tick, 10 ms after the boot. In virtual time less may
# have passed by now: a packet due after 5.0 ms came after 7.4.
# The console shows only warnings and worse (5), not the messages of links that come up: of a guest
# that falls silent it is all there is.
# TCP may use half of the memory. The default, a tenth, is too little for many flows on long paths:
# 64 x 100 Mbit/s over 0.6 s got 0.80 of the rate, now 0.9999.
# All nodes share one table of neighbours. By default it has 1024 entries; pairs of 64 nodes need
# 4032. Beyond that a node is unreachable ("No route to host"), or loses its entry for a while.
INIT = """\
#!{shell}
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs run /run
awk '/^MemTotal:/ {{ pages = int($2 / 8); print pages, pages, pages }}' /proc/meminfo \
  > /proc/sys/net/ipv4/tcp_mem
for level in 1 2 3; do echo 1048576 > /proc/sys/net/ipv4/neigh/default/gc_thresh$level; done
stty -F {device} raw -echo
sleep 0.05
echo 5 > /proc/sys/kernel/printk
echo "{booted}"
cd {directory}
export {environment}
{command}
{power_off}
"""


BOOT_TIMEOUT_S = 30.0
"""Deadline of a test boot, wall seconds. It takes 0.1 s, or 1 s with Debian's kernel."""

SLEEP_S = 60.0
"""Sleep of a guest that is tested, seconds of virtual time, which cost nothing. None in real time.
"""

CHECKED = "netbench-booted"

CHECK_INIT = """\
#!{python} -ISu
import ctypes, os, time
start_s = time.monotonic()
time.sleep({sleep_s})
print("\\n{mark}", os.uname().release, time.monotonic() - start_s)
ctypes.CDLL(None).reboot(0x4321FEDC)  # LINUX_REBOOT_CMD_POWER_OFF
"""


def take_core(command: Sequence[str]) -> tuple[list[str], int]:
    """Return `command` on one core, one that fewest guests have, and a descriptor that it must
    inherit to keep the core.

    A guest's kernel and its processes take turns thousands of times a second. On several cores each
    turn may wake another core, which takes up to twice as long (docs/local-testbed.md).
    """
    cores = sorted(os.sched_getaffinity(0))
    free = {core: _free_turns(core) for core in random.sample(cores, len(cores))}
    core = max(free, key=lambda core: len(free[core]))
    first, *others = free[core] or [os.open(os.devnull, os.O_RDONLY)]
    for turns in (others, *(turns for other, turns in free.items() if other != core)):
        for kept in turns:
            os.close(kept)
    return ["taskset", "--cpu-list", str(core), *command], first


def _free_turns(core: int) -> list[int]:
    """Lock the folders of a core that no guest has locked; return their descriptors."""
    free = []
    for turn in TURNS:
        kept = os.open(Path(CORE.format(number=core), turn), os.O_RDONLY)
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(kept)
        except BlockingIOError:
            os.close(kept)
    return free


def boot_command(
    kernel: Path,
    init: Path,
    memory_bytes: int,
    events: int,
    *,
    virtual_time: bool,
    lines: Sequence[int] = (),
) -> list[str]:
    """Boot `kernel` with `init` as its first program; all its processes die with this one.

    The console goes to stdout, EVENTS_DEVICE to the descriptor `events`. lines: descriptors of
    sockets that are the further serial lines.
    """
    return [
        *(*tied(), "env", "-C", str(init.parent)),
        *(str(kernel), f"mem={memory_bytes >> 20}M", "rootfstype=hostfs", "rw", f'init="{init}"'),
        "uml_dir=.",  # else ~/.uml, which a user may lack
        *("con=null", "con0=null,fd:1", "ssl=null", f"ssl0=null,fd:{events}"),
        *(f"ssl{number}=fd:{line}" for number, line in enumerate(lines, start=1)),
        *(("time-travel=inf-cpu",) if virtual_time else ()),
    ]


def write_init(path: Path, command: str) -> None:
    """Write the guest's first program: it runs a shell command here, then powers off.

    Directory and Python path are those of this process.
    """
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    environment = {
        **passed,
        "PATH": f"{passed.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin",
        "PYTHONPATH": os.pathsep.join(sys.path),
        # The kernel would write compiled files back during an iteration, and read the clock.
        "PYTHONDONTWRITEBYTECODE": "1",
        # io_uring is off in the guest kernel; libuv would try it and stall.
        "UV_USE_IO_URING": "0",
    }
    # In a namespace of the user's own (`tied`), root's programs with the setuid bit, as mount is,
    # belong to nobody; they must not become nobody.
    setuid = os.geteuid() == 0
    path.write_text(
        INIT.format(
            shell="/bin/sh" if setuid else "/usr/bin/env -S setpriv --no-new-privs sh",
            device=EVENTS_DEVICE,
            booted=BOOTED,
            directory=shlex.quote(str(Path.cwd())),
            environment=" ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(environment.items())),
            command=command,
            power_off=shlex.join([sys.executable, "-I", "-S", "-c", POWER_OFF]),
        )
    )
    path.chmod(0o755)


@dataclass(frozen=True, kw_only=True, slots=True)
class BootResult:
    """Result of a test boot.

    error: "" if it booted, ran a program and powered off. release: from uname. wall_s: of the whole
    boot. slept_s: by the guest's clock.
    """

    error: str
    release: str = ""
    wall_s: float = 0.0
    slept_s: float = 0.0


def boot_check(kernel: Path, tmpdir: Path, *, virtual_time: bool) -> BootResult:
    """Boot `kernel` with its memory in `tmpdir`, run one program on the host's files, power off."""
    with Scratch() as scratch:
        init = scratch / "init"
        sleep_s = SLEEP_S if virtual_time else 0.0
        init.write_text(CHECK_INIT.format(python=sys.executable, sleep_s=sleep_s, mark=CHECKED))
        init.chmod(0o755)
        command = boot_command(kernel, init, 256 << 20, events=1, virtual_time=virtual_time)
        start_s = time.monotonic()
        code, console = run_to_end(command, tmpdir, BOOT_TIMEOUT_S)
        wall_s = time.monotonic() - start_s
    for line in console.splitlines():
        if line.startswith(CHECKED):
            _, release, slept_s = line.split()
            return BootResult(error="", release=release, wall_s=wall_s, slept_s=float(slept_s))
    return BootResult(error=_reason(code, console), wall_s=wall_s)


def run_to_end(command: Sequence[str], tmpdir: Path, timeout_s: float) -> tuple[int | None, str]:
    """Return the exit status (None: it was killed) and the console. The guest has ended then."""
    on_core, core = take_core(command)
    with tempfile.TemporaryFile() as console:
        process = subprocess.Popen(
            on_core,
            env={**os.environ, "TMPDIR": str(tmpdir)},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            pass_fds=(core,),
            start_new_session=True,
        )
        os.close(core)
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout_s)
        finally:
            # A guest that panics leaves its traced processes; and this process may be interrupted.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        console.seek(0)
        return code, console.read().decode(errors="replace").replace("\r\n", "\n")


def _reason(code: int | None, console: str) -> str:
    """Return the console line that explains best why the guest did not boot."""
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    for word in ("ptrace set fp regs", "panic", "not syncing", "rror", "denied"):
        for line in lines:
            if word in line:
                return line
    ended = f"no answer in {BOOT_TIMEOUT_S:.0f} s" if code is None else f"exit {code}"
    return f"{ended}; last line: {lines[-1] if lines else '(none)'}"
