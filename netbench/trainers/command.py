"""One rank that is a script of somebody's own.

Starts it, passes on what it prints, says how it ended; knows nothing of torch, nor of what the
lines mean. The messages are those of `protocol`, with other orders and answers:

    {"op": "start", "argv": [..], "environment": {..}, "directory": d}
    {"op": "stop"}

    {"event": "started", "rank": null, "pid": p}           once; p leads no session of its own
    {"event": "running", "pid": p}                         answers start; p leads the script's
    {"event": "output", "text": one line, without its end} stdout and stderr, in the order written
    {"event": "ended", "status": s}                        as `subprocess` has it: -9 = SIGKILL
    {"event": "error", "message": m}

The script ends with the channel, and all that it started in its session with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress

from netbench.trainers.protocol import Channel, ChannelClosed, Message

LINE_BYTES = 1 << 16
"""Longer lines are passed on in pieces: a progress bar may never end its own."""

LINGER_S = 1.0
"""After the script has ended, wait so long for the rest of its output: what it left running may
hold the pipe open for ever."""

GRACE_S = 5.0
"""From SIGTERM to SIGKILL for a script that is told to stop: it may close what it has open."""


def serve(channel: Channel) -> int:
    """Serve the controller on `channel` until the script has ended or shall: the exit status."""
    try:
        channel.send(event="started", rank=None, pid=os.getpid())
        order = channel.receive()
        if order["op"] != "start":
            return 0
        script = _start(order)
    except ChannelClosed:
        return 0
    except OSError as error:
        channel.send(event="error", message=str(error))
        return 1
    with suppress(ChannelClosed):
        channel.send(event="running", pid=script.pid)
    threading.Thread(target=_end_with, args=(channel, script), daemon=True).start()
    printed = threading.Thread(target=_pass_on, args=(channel, script), daemon=True)
    printed.start()
    status = script.wait()
    printed.join(LINGER_S)
    with suppress(ChannelClosed):
        channel.send(event="ended", status=status)
    _kill(script, signal.SIGKILL)
    return 0


def _start(order: Message) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # It dies with this process, however that ends.
        ["setpriv", "--pdeathsig", "KILL", "--", *order["argv"]],
        cwd=order["directory"],
        env=order["environment"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _pass_on(channel: Channel, script: subprocess.Popen[bytes]) -> None:
    assert script.stdout is not None
    with suppress(ChannelClosed):
        while line := script.stdout.readline(LINE_BYTES):
            text = line.decode(errors="replace").rstrip("\r\n")
            channel.send(event="output", text=text)


def _end_with(channel: Channel, script: subprocess.Popen[bytes]) -> None:
    """Whatever comes next, or the end of the channel, means stop."""
    with suppress(ChannelClosed):
        channel.receive()
    _kill(script, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        script.wait(GRACE_S)
    _kill(script, signal.SIGKILL)


def _kill(script: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # all of its session have ended
        os.killpg(script.pid, number)
