"""Start a session where it may change the network: in private namespaces, or in a guest kernel.

`start_session` writes a job file and reads events; `carry_out` is the other end, in the session.

Either way all of the session ends with the controller (`testbed.lifetime`). Its namespaces or its
whole kernel vanish with its last process, and so does its scratch folder.
"""

import compileall
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from netbench.errors import NetbenchError, TestbedError
from netbench.testbed.guest.boot import (
    BOOTED,
    EVENTS_DEVICE,
    LINE_DEVICE,
    boot_command,
    take_core,
    write_init,
)
from netbench.testbed.lifetime import Scratch, tied
from netbench.testbed.machine.capabilities import Capabilities

PACKAGE = Path(__file__).parents[2]
"""The folder of netbench's own modules."""

SESSION = "netbench.testbed.runs.local_session"
"""Default module that carries out a job."""

GUEST_BASE_BYTES = 4 << 30
GUEST_BYTES_PER_RANK = 32 << 20
"""Memory of a guest: Python with torch in its page cache, room for messages at full size, and the
addition per forked rank. It is sparse on the host: 64 ranks of zero3 were seen to use 2.8 GB."""

POLL_S = 0.02
"""Interval at which events of a session are looked for, seconds."""

CONSOLE_LINES = 12
"""Number of console lines of a failed guest in an error message."""

CHATTER = "is non-work-conserving?"
"""Marks the kernel's warning about every netem beneath HTB, which is intended. Source:
net/sched/sch_api.c."""


class Emit(Protocol):
    """Receives the events of a session."""

    def __call__(self, event: str, **fields: Any) -> None: ...


class SessionProcess:
    """A running session. Its console is an unnamed file, so that nothing can be left behind."""

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
        """Return the last lines of the session's console as the end of an error message, or "".

        booted: leave out the lines of a guest's boot, which succeeded.
        """
        size = os.fstat(self._console.fileno()).st_size
        text = os.pread(self._console.fileno(), size, 0).decode(errors="replace")
        lines = (text.rpartition(BOOTED)[2] if booted else text).splitlines()
        said = [line for line in lines if line.strip() and CHATTER not in line]
        shown = [f"\n  | {line}" for line in said[-CONSOLE_LINES:]]
        return "".join(["\nlast console lines:", *shown]) if shown else ""

    def close(self) -> None:
        """Kill everything the session started."""
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._console.close()


def start_session(
    testbed: str,
    machine: Capabilities,
    job: Mapping[str, Any],
    num_ranks: int,
    on_event: Callable[[dict[str, Any] | None], None],
    module: str = SESSION,
    lines: Sequence[int] = (),
) -> SessionProcess:
    """Start `module` with `job` on `testbed`; a thread passes its events to `on_event`, then None.

    lines: descriptors of sockets into the session. They are `lines` of the job there: numbers, or
    devices in a guest. Call this from the main thread: the kernel ends the session when the thread
    that started it ends. Raises TestbedError when the testbed cannot run on `machine`.
    """
    temporary = Scratch()
    scratch = temporary.path
    job_file = scratch / "job.json"
    inner: list[int | str] = [*lines]
    if testbed != "native":
        inner = [LINE_DEVICE.format(number=number + 1) for number in range(len(lines))]
    job_file.write_text(json.dumps({**job, "testbed": testbed, "lines": inner}))
    program = [sys.executable, "-m", module, str(job_file)]
    events_file = scratch / "events"
    events = os.open(events_file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    alive, held = os.pipe()
    inherited = [events, held]
    try:
        if testbed == "native":
            command = _native_command(program, events)
        else:
            command, turn = take_core(
                _guest_command(testbed, machine, scratch, program, num_ranks, events, lines)
            )
            inherited.append(turn)
        fds = (*inherited, temporary.fd, *lines)
        session = SessionProcess(command, fds, machine.guest_tmpdir or scratch)
    except (OSError, TestbedError) as error:
        os.close(alive)
        if isinstance(error, TestbedError):
            raise
        raise TestbedError(f"cannot start a session on {testbed}: {error}") from error
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    forward = (events_file, alive, on_event, temporary)
    threading.Thread(target=_forward, args=forward, daemon=True).start()
    return session


def _forward(
    events: Path, alive: int, on_event: Callable[[dict[str, Any] | None], None], scratch: Scratch
) -> None:
    """Pass on every line of the file of events until the session closes `alive`, then None."""
    with scratch, events.open(encoding="utf-8", errors="replace") as stream:
        rest, has_ended, end = "", False, select.poll()
        end.register(alive)
        while not has_ended:
            has_ended = bool(end.poll(POLL_S * 1e3))
            *lines, rest = (rest + stream.read()).split("\n")
            for line in lines:
                if line.strip():
                    on_event(_parse(line))
        os.close(alive)
        on_event(None)


def _native_command(program: Sequence[str], events: int) -> list[str]:
    private = ["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return [
        *tied(),
        *("unshare", *private, "--", "sh", "-c", 'mount -t tmpfs run /run && exec "$@"', "sh"),
        *(*program, f"/proc/self/fd/{events}"),
    ]


def _guest_command(
    testbed: str,
    machine: Capabilities,
    scratch: Path,
    program: Sequence[str],
    num_ranks: int,
    events: int,
    lines: Sequence[int],
) -> list[str]:
    kernel = machine.guest_kernel or (machine.packaged_kernel if testbed == "guest-real" else None)
    if kernel is None:
        raise TestbedError("the guest kernel is not built; run: netbench kernel build")
    # In the guest, compiling takes virtual time, and what is written there is written back later.
    compileall.compile_dir(PACKAGE, quiet=2)
    init = scratch / "init"
    write_init(init, shlex.join([*program, EVENTS_DEVICE]))
    memory_bytes = GUEST_BASE_BYTES + num_ranks * GUEST_BYTES_PER_RANK
    virtual = testbed == "guest-virtual"
    return boot_command(kernel, init, memory_bytes, events, virtual_time=virtual, lines=lines)


def carry_out(run: Callable[[Mapping[str, Any], Emit], None]) -> None:
    """Call `run` with the job of `python -m MODULE JOB EVENTS`, and report its NetbenchError."""
    job, events = sys.argv[1:]
    with Path(events).open("w") as output:

        def emit(event: str, **fields: Any) -> None:
            output.write(json.dumps({"event": event, **fields}) + "\n")
            output.flush()

        try:
            run(json.loads(Path(job).read_text()), emit)
        except NetbenchError as error:
            emit("error", message=str(error))


@contextmanager
def phase(emit: Emit, name: str, total: int) -> Iterator[None]:
    """Report the start of step `name`, with none of `total` done, and its end, with all."""
    emit("phase", name=name, done=0, total=total)
    yield
    emit("phase", name=name, done=total, total=total)


def _parse(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        event = None
    if not isinstance(event, dict) or "event" not in event:
        return {
            "event": "error",
            "message": f"the session wrote a line that is not an event: {line.strip()!r}",
        }
    return event
