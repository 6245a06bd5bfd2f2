"""Start a session where it may change the network: in private namespaces, or in a guest kernel.

Either way the session is a child of the controller that the kernel kills with it
(`setpriv --pdeathsig`), its namespaces or its whole kernel vanish with its last process, and what
it leaves on the host is one scratch directory, removed here.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from netbench.errors import TestbedError
from netbench.testbed.guest import BOOTED, EVENTS_DEVICE, LINE_DEVICE, boot_command, write_init
from netbench.testbed.host import Host

MODES = ("native", "guest-virtual", "guest-real")
"""native: this kernel. guest-virtual: guest kernel, virtual time. guest-real: in real time."""

SESSION = "netbench.testbed.session"
"""The module that carries out a job, where nothing else is said."""

GUEST_BASE_BYTES = 4 << 30
GUEST_BYTES_PER_RANK = 32 << 20
"""Memory of a guest: Python with torch in its page cache and room for messages at full size, and
what a forked rank adds. Sparse on the host: 64 ranks of zero3 were seen to use 2.8 GB."""

CONSOLE_LINES = 12
"""How much of a failed guest's console an error shows."""

CHATTER = "is non-work-conserving?"
"""In the kernel's one warning about every netem beneath HTB, which is as netbench means it. Source:
net/sched/sch_api.c."""


class SessionProcess:
    """A running session. Its console is a file without a name: nothing of it can be left behind."""

    def __init__(self, command: Sequence[str], fds: Sequence[int], tmpdir: Path) -> None:
        # Open for reading on its own, so that the tail can be read while the session writes.
        self._console = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmpdir)},
        )

    def console_tail(self, *, booted: bool = False) -> str:
        """The last lines that the session's console printed, as the end of an error message: none
        where it printed nothing. booted: without those of a guest's boot, which went well."""
        size = os.fstat(self._console.fileno()).st_size
        text = os.pread(self._console.fileno(), size, 0).decode(errors="replace")
        lines = (text.rpartition(BOOTED)[2] if booted else text).splitlines()
        said = [line for line in lines if line.strip() and CHATTER not in line]
        shown = [f"\n  | {line}" for line in said[-CONSOLE_LINES:]]
        return "".join(["\nlast console lines:", *shown]) if shown else ""

    def close(self) -> None:
        """End everything the session started."""
        with suppress(ProcessLookupError):  # ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._console.close()


def start_session(
    mode: str,
    host: Host,
    job: Mapping[str, Any],
    num_ranks: int,
    on_event: Callable[[dict[str, Any] | None], None],
    module: str = SESSION,
    lines: Sequence[int] = (),
) -> SessionProcess:
    """Start `module` on `job` in `mode`; its events go to `on_event` from a thread, then None once.

    lines: descriptors of sockets into the session, which finds them in the job as `lines`: by
    number, or in a guest as devices.

    Call it from the main thread: the kernel ends the session when the thread that started it ends.
    Raises TestbedError when the mode cannot run on `host`.
    """
    scratch = Path(tempfile.mkdtemp(prefix="netbench-"))
    job_file = scratch / "job.json"
    inner: list[int | str] = [*lines]
    if mode != "native":
        inner = [LINE_DEVICE.format(number=number + 1) for number in range(len(lines))]
    job_file.write_text(json.dumps({**job, "mode": mode, "lines": inner}))
    program = [sys.executable, "-m", module, str(job_file)]
    read_end, write_end = os.pipe()
    if mode == "native":
        command = _native_command(program, write_end)
    else:
        command = _guest_command(mode, host, scratch, program, num_ranks, write_end, lines)
    try:
        session = SessionProcess(command, (write_end, *lines), host.guest_tmpdir or scratch)
    except OSError as error:
        shutil.rmtree(scratch)
        raise TestbedError(f"cannot start a session with {command[0]}: {error}") from error
    finally:
        os.close(write_end)
    threading.Thread(target=_forward, args=(read_end, on_event, scratch), daemon=True).start()
    return session


def _forward(events: int, on_event: Callable[[dict[str, Any] | None], None], scratch: Path) -> None:
    """Pass on every event line until the session closes its end, then None."""
    with os.fdopen(events, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            # It speaks, so it has read its files: a killed controller now leaves none behind.
            shutil.rmtree(scratch, ignore_errors=True)
            if line.strip():
                on_event(_parse(line))
    shutil.rmtree(scratch, ignore_errors=True)
    on_event(None)


def _native_command(program: Sequence[str], events: int) -> list[str]:
    private = ["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", *private, "--", "sh", "-c", 'mount -t tmpfs run /run && exec "$@"', "sh"),
        *(*program, f"/proc/self/fd/{events}"),
    ]


def _guest_command(
    mode: str,
    host: Host,
    scratch: Path,
    program: Sequence[str],
    num_ranks: int,
    events: int,
    lines: Sequence[int],
) -> list[str]:
    kernel = host.guest_kernel or (host.packaged_kernel if mode == "guest-real" else None)
    if kernel is None:
        raise TestbedError("the guest kernel is not built; run: netbench kernel build")
    init = scratch / "init"
    write_init(init, shlex.join([*program, EVENTS_DEVICE]))
    memory_bytes = GUEST_BASE_BYTES + num_ranks * GUEST_BYTES_PER_RANK
    virtual = mode == "guest-virtual"
    return boot_command(kernel, init, memory_bytes, events, virtual_time=virtual, lines=lines)


def _parse(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        event = None
    if not isinstance(event, dict) or "event" not in event:
        return {"event": "error", "message": f"the session wrote something else: {line.strip()!r}"}
    return event
