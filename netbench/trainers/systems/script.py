"""One rank that is a user's script.

It starts the script, forwards its output, and reports its exit status. It does not import torch,
and does not interpret the output. The messages are those of `protocol`, with other orders and
answers:

    {"op": "start", "argv": [..], "environment": {..}, "directory": d}
    {"op": "stop"}

    {"event": "started", "rank": null, "pid": p}           once; p leads no session of its own
    {"event": "running", "pid": p}                         answers start; p leads the script's
    {"event": "output", "text": one line, without its end} stdout and stderr, in the order written
    {"event": "step", "iteration_s": t}                    its optimizer has stepped (`steps`)
    {"event": "ended", "status": s}                        as `subprocess` has it: -9 = SIGKILL
    {"event": "error", "message": m}

The script, and every process in its session, ends with the channel.
"""

import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from netbench.trainers.protocol import ChannelClosed, Message, MessageChannel
from netbench.trainers.systems.steps import sitecustomize

LINE_BYTES = 1 << 16
"""Longer lines are forwarded in pieces: a progress bar may never end its line. A pipe holds as
much."""

LINGER_S = 1.0
"""Wait for the rest of the output after the script has ended, seconds. Processes that it left may
keep the pipe open for ever."""

GRACE_S = 5.0
"""Time from SIGTERM to SIGKILL for a script that is told to stop, seconds."""


def serve(channel: MessageChannel) -> int:
    """Serve the controller on `channel` until the script ends; return the exit status."""
    try:
        channel.send(event="started", rank=None, pid=os.getpid())
        order = channel.receive()
        if order["op"] != "start":
            return 0
        script, steps = _start(order)
    except ChannelClosed:
        return 0
    except OSError as error:
        channel.send(event="error", message=str(error))
        return 1
    return _follow(channel, script, steps)


def _follow(channel: MessageChannel, script: subprocess.Popen[bytes], steps: int) -> int:
    """Report what a script prints and the steps of its optimizer until it ends."""
    with suppress(ChannelClosed):
        channel.send(event="running", pid=script.pid)
    threading.Thread(target=_end_with, args=(channel, script), daemon=True).start()
    told = threading.Thread(target=_pass_on, args=(channel, script, steps), daemon=True)
    told.start()
    status = script.wait()
    told.join(LINGER_S)
    with suppress(ChannelClosed):
        channel.send(event="ended", status=status)
    _kill(script, signal.SIGKILL)
    return 0


def _start(order: Message) -> tuple[subprocess.Popen[bytes], int]:
    """Start the script; return it and the pipe with the times of its steps."""
    environment: dict[str, str] = dict(order["environment"])
    folder = Path(sitecustomize.__file__).parent  # on a host, in the zip of the code
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{path}" if path else str(folder)
    steps, pipe = os.pipe()
    environment[sitecustomize.PIPE] = str(pipe)
    try:
        script = subprocess.Popen(
            # The script dies with this process, however that ends.
            ["setpriv", "--pdeathsig", "KILL", "--", *order["argv"]],
            cwd=order["directory"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(pipe,),
        )
    except OSError:
        os.close(steps)
        raise
    finally:
        os.close(pipe)
    return script, steps


class _Lines:
    """Lines of a pipe, without their ends."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.is_open = True
        self._rest = b""

    def read(self) -> list[bytes]:
        """Return the lines that are complete with what the pipe holds now, without waiting."""
        if not (self.is_open and _wait([self.pipe], 0)):
            return []
        data = os.read(self.pipe, LINE_BYTES)
        self.is_open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and not data:
            lines.append(self._rest)
        while len(self._rest) >= LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        return lines


def _pass_on(channel: MessageChannel, script: subprocess.Popen[bytes], steps: int) -> None:
    """Forward lines and steps until both pipes end. A step comes after all that was printed before
    it: a script that reports by itself is known by its first line, before its second step."""
    assert script.stdout is not None
    printed, stepped = _Lines(script.stdout.fileno()), _Lines(steps)
    with suppress(ChannelClosed):
        while pipes := [lines.pipe for lines in (printed, stepped) if lines.is_open]:
            _wait(pipes, None)
            times = stepped.read()  # what was printed before them is in the other pipe by now
            for line in printed.read():
                channel.send(event="output", text=line.decode(errors="replace").rstrip("\r"))
            for time in times:
                channel.send(event="step", iteration_s=float(time))
    os.close(steps)


def _wait(pipes: Sequence[int], timeout_ms: float | None) -> bool:
    """Wait until one of the pipes can be read, or has ended. Return false if none can in time."""
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _end_with(channel: MessageChannel, script: subprocess.Popen[bytes]) -> None:
    """Stop the script at the next message, or at the end of the channel."""
    with suppress(ChannelClosed):
        channel.receive()
    _kill(script, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        script.wait(GRACE_S)
    _kill(script, signal.SIGKILL)


def _kill(script: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # its session has ended
        os.killpg(script.pid, number)
