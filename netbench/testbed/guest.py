"""Boot a guest kernel on this machine's own files, with one command as its work.

User-Mode Linux is an ordinary process. Its root is the host's file system, seen as the host's
user; /proc, /sys, /dev, /dev/shm and /run are its own, so what netbench makes there stays inside.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from netbench.errors import TestbedError
from netbench.testbed.host import Host

EVENTS_DEVICE = "/dev/ttyS0"
"""The guest's first serial line: what is written to it comes out of a pipe on the host."""

LINE_DEVICE = "/dev/ttyS{number}"
"""The serial lines after it, from 1: streams both ways, raw once who reads them has made them."""

PASSED_VARIABLES = ("HOME", "LANG", "PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")
PASSED_PREFIXES = ("COVERAGE_",)

POWER_OFF = "import ctypes, os; os.sync(); ctypes.CDLL(None).reboot(0x4321FEDC)"
"""For a Python with nothing but its own modules, which is the fastest to start: sync, then
LINUX_REBOOT_CMD_POWER_OFF. Source: linux/reboot.h."""

BOOTED = "netbench: the guest has booted"
"""The console's line after the kernel's own: what follows is of netbench, or an error."""

# Links that come up make the kernel talk; its log keeps that, and the console warnings and worse
# (5): of a guest that falls silent the console is all there is.
# TCP may fill half of the memory. By default it is a tenth, and what many flows have on long paths
# is more: 64 x 100 Mbit/s over 0.6 s came to 0.80 of the rate, now to 0.9999.
INIT = """\
#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs run /run
awk '/^MemTotal:/ {{ pages = int($2 / 8); print pages, pages, pages }}' /proc/meminfo \
  > /proc/sys/net/ipv4/tcp_mem
stty -F {device} raw -echo
echo 5 > /proc/sys/kernel/printk
echo "{booted}"
cd {directory}
export {environment}
{command}
{power_off}
"""


def boot_command(
    kernel: Path,
    init: Path,
    memory_bytes: int,
    events: int,
    *,
    virtual_time: bool,
    lines: Sequence[int] = (),
) -> list[str]:
    """Boot `kernel` with `init` as its first program; the kernel dies with its parent.

    The console goes to stdout; what is written to EVENTS_DEVICE to the descriptor `events`.
    lines: descriptors of sockets that are its further serial lines.
    """
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *(str(kernel), f"mem={memory_bytes >> 20}M", "rootfstype=hostfs", "rw", f"init={init}"),
        *("con=null", "con0=null,fd:1", "ssl=null", f"ssl0=null,fd:{events}"),
        *(f"ssl{number}=fd:{line}" for number, line in enumerate(lines, start=1)),
        *(("time-travel=inf-cpu",) if virtual_time else ()),
    ]


def write_init(path: Path, command: str) -> None:
    """Write the guest's first program: it runs the shell command in this directory, with this
    process's Python path, and powers off."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_VARIABLES or name.startswith(PASSED_PREFIXES)
    }
    environment = {
        **passed,
        "PATH": f"{passed.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin",
        "PYTHONPATH": os.pathsep.join(sys.path),
        # io_uring is off in the guest kernel; libuv would try it and stall.
        "UV_USE_IO_URING": "0",
    }
    path.write_text(
        INIT.format(
            device=EVENTS_DEVICE,
            booted=BOOTED,
            directory=shlex.quote(str(Path.cwd())),
            environment=" ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(environment.items())),
            command=command,
            power_off=shlex.join([sys.executable, "-I", "-S", "-c", POWER_OFF]),
        )
    )
    path.chmod(0o755)


def run_in_guest(
    host: Host,
    argv: Sequence[str],
    *,
    virtual_time: bool = True,
    memory_bytes: int = 2 << 30,
    timeout_s: float = 300.0,
) -> tuple[int, str]:
    """Run a command as root in a guest to its end: its exit status and output, both streams.

    timeout_s: wall seconds. Raises TestbedError if there is no kernel or no end in time.
    """
    if host.guest_kernel is None or host.guest_tmpdir is None:
        raise TestbedError("the guest kernel is not built; run: netbench kernel build")
    with tempfile.TemporaryDirectory(prefix="netbench-") as scratch:
        init = Path(scratch) / "init"
        line = f"{shlex.join(argv)} > {EVENTS_DEVICE} 2>&1"
        write_init(init, f'{line}\necho "exit status $?" > {EVENTS_DEVICE}')
        read_end, write_end = os.pipe()
        guest = subprocess.Popen(
            boot_command(
                host.guest_kernel, init, memory_bytes, write_end, virtual_time=virtual_time
            ),
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            # Through the pipe too: it must not fill up unread, and says why a guest did not start.
            stdout=write_end,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(host.guest_tmpdir)},
            start_new_session=True,
        )
        os.close(write_end)
        try:
            return _read_to_end(guest, read_end, timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(guest.pid, signal.SIGKILL)
            guest.wait()


def _read_to_end(guest: subprocess.Popen[bytes], pipe: int, timeout_s: float) -> tuple[int, str]:
    deadline_s = time.monotonic() + timeout_s
    chunks: list[bytes] = []
    with os.fdopen(pipe, "rb", buffering=0) as stream:
        while select.select([stream], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            if not (chunk := stream.read(1 << 16)):
                break
            chunks.append(chunk)
        else:
            raise TestbedError(f"the guest did not end within {timeout_s:g} s:\n{_text(chunks)}")
    output, mark, status = _text(chunks).rpartition("exit status ")
    if not mark:
        raise TestbedError(f"the guest ended before its command did:\n{_text(chunks)[-2000:]}")
    return int(status.split()[0]), output


def _text(chunks: Sequence[bytes]) -> str:
    return b"".join(chunks).decode(errors="replace")
