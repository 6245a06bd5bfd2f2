"""The server of one host in a cluster run: starts its ranks and carries their lines.

It is `python -m netbench.trainers --node-server FOLDER INTERFACE`, over one SSH channel, and
imports only the standard library. JSON objects, one per line. Controller to server:

    {"op": "start", "rank": r, "script": b, "modules": [m, ..], "environment": {..}, "option": o}
                                                          o: of `netbench.trainers`, for a script
    {"op": "line", "rank": r, "text": one line for the rank}
    {"op": "close", "rank": r}                            the rank reads the end of its channel
    {"op": "clock" | "sample" | "use" | "end", "id": n}
    {"op": "publish", "id": n, "name": f, "text": t}      a file in FOLDER
    {"op": "beat"}                                        without one for `BEAT_S`, all ends; the
                                                          answer is {"beat": true}

Server to controller:

    {"hello": {"pid": p, "python": v, "executable": e, "torch": v or null, "host": name,   first
     "environment": {..}}}
    {"rank": r, "text": one line of the rank}             its protocol or output
    {"rank": r, "end": true}                              its channel has ended
    {"rank": r or null, "error": one line of stderr}      null: before the first rank was there
    {"id": n, "answer": a} | {"id": n, "failed": message}

A sample is {"sent": bytes that the queues of netbench on INTERFACE have sent, 0 without any: SSH is
not among them; "oom_kills": n, "processes": {pid as text: [session, state, CPU seconds]}}. `use` is
answered with what all processes have used since it was last asked (`host_use.HostUse.take`).

Every process that the server started, and whatever those started, ends with it: when its input
ends, when beats stop, or when the controller says so. The kernel makes it the parent of orphans
(PR_SET_CHILD_SUBREAPER), so none can hide. FOLDER is deleted last.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from netbench.trainers.host_use import HostUse

Message = dict[str, Any]

BEAT_S = 30.0
"""Time without a beat after which the controller counts as gone, seconds."""

WATCH_S = 1.0
"""Interval at which the time since the last beat is checked, seconds."""

END_S = 10.0
"""Deadline for killed processes to end, seconds. A process in an uninterruptible wait does not."""

LINE_BYTES = 1 << 16
"""Longer lines of stderr are passed on in pieces."""

SHOWN = ("HOME", "LANG", "PATH", "XDG_CACHE_HOME")
"""Environment variables of the login that scripts inherit."""

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""Prefix of a command that ends with the thread that started it."""

FORK_SERVER_S = 300.0
"""Deadline for the fork server to import torch, seconds."""

PROC = Path("/proc")

HANDLE = "6e62:"
"""Handle of netbench's root qdisc."""

SYSTEM_PATH = ":/usr/sbin:/sbin"
"""Folders of `tc`, which the search path of a login may lack."""


def serve(folder: Path, interface: str) -> int:
    """Serve the controller on standard input and output until either ends."""
    server = NodeServer(folder, interface)
    try:
        with suppress(ConnectionError):  # the controller has gone
            server.run(sys.stdin.buffer)
    finally:
        server.end()
    return 0


class NodeServer:
    """See the module. folder: private, for files and sockets. interface: that is shaped."""

    def __init__(self, folder: Path, interface: str) -> None:
        self._folder = folder
        self._interface = interface
        self._output = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._writing = threading.Lock()
        self._ending = threading.RLock()
        self._starts: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._forks: subprocess.Popen[bytes] | None = None
        self._ranks: dict[int, socket.socket] = {}
        self._early: dict[int, list[bytes]] = {}
        self._joining = threading.Lock()
        self._beat_s = time.monotonic()
        self._is_over = False
        self._use = HostUse(_descendants)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self._leave())

    def run(self, orders: BinaryIO) -> None:
        """Carry out orders until there are no more."""
        self._send({"hello": self._hello()})
        self._use.watch()
        for work in (self._watch, self._start_all):
            threading.Thread(target=work, daemon=True).start()
        while not self._is_over and (line := orders.readline()).endswith(b"\n"):
            order = json.loads(line)
            try:
                answer = getattr(self, f"_do_{order['op']}")(order)
            except (OSError, LookupError, subprocess.SubprocessError) as error:
                self._send({"id": order["id"], "failed": f"{order['op']}: {error}"})
                continue
            if "id" in order:
                self._send({"id": order["id"], "answer": answer})

    def end(self) -> list[int]:
        """Kill everything that was started and delete the folder. Return processes that stay."""
        with self._ending:
            left = _kill_descendants()
            shutil.rmtree(self._folder, ignore_errors=True)
        return left

    def _hello(self) -> Message:
        try:
            torch: str | None = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            torch = None
        return {
            "pid": os.getpid(),
            "python": platform.python_version(),
            "executable": sys.executable,
            "torch": torch,
            "host": socket.gethostname(),
            "environment": {key: os.environ[key] for key in SHOWN if key in os.environ},
        }

    def _do_beat(self, order: Message) -> None:
        self._beat_s = time.monotonic()
        self._send({"beat": True})

    def _do_clock(self, order: Message) -> float:
        return time.monotonic()

    def _do_sample(self, order: Message) -> Message:
        return {
            "sent": _sent_bytes(self._interface),
            "oom_kills": _oom_kills(),
            "processes": _processes(),
        }

    def _do_use(self, order: Message) -> Message:
        return self._use.take()

    def _do_publish(self, order: Message) -> str:
        path = self._folder / order["name"]
        path.write_text(order["text"])
        return str(path)

    def _do_end(self, order: Message) -> list[int]:
        self._is_over = True
        return self.end()

    def _do_start(self, order: Message) -> None:
        self._early[order["rank"]] = []
        self._starts.put(order)

    def _start_all(self) -> None:
        """Start ranks in order; importing torch must not delay the answers to other orders."""
        while True:
            order = self._starts.get()
            try:
                self._start(order)
            except OSError as error:
                self._early.pop(order["rank"], None)
                self._send({"rank": order["rank"], "error": str(error)})
                self._send({"rank": order["rank"], "end": True})

    def _start(self, order: Message) -> None:
        rank = order["rank"]
        reader, writer = os.pipe()
        if order["script"]:
            connection = self._start_script(order, writer)
        else:
            connection = self._fork(order, writer)
        os.close(writer)
        with self._joining:
            self._ranks[rank] = connection
            connection.sendall(b"".join(self._early.pop(rank)))
        self._pass_on_errors(rank, reader)
        threading.Thread(target=self._pass_on, args=(rank, connection), daemon=True).start()

    def _do_line(self, order: Message) -> None:
        rank, data = order["rank"], order["text"].encode() + b"\n"
        with self._joining, suppress(OSError, KeyError):  # ended; its end is reported
            if rank in self._early:  # not started yet
                self._early[rank].append(data)
            else:
                self._ranks[rank].sendall(data)

    def _do_close(self, order: Message) -> None:
        with suppress(OSError, KeyError):  # it was faster
            self._ranks.pop(order["rank"]).shutdown(socket.SHUT_RDWR)

    def _start_script(self, order: Message, errors: int) -> socket.socket:
        """Start the process that starts the script of a rank (`systems.script`), or measures."""
        here, there = socket.socketpair()
        with there:
            subprocess.Popen(
                [*WITH_PARENT, sys.executable, "-m", "netbench.trainers", order["option"]],
                stdin=there.fileno(),
                stdout=there.fileno(),
                stderr=errors,
                env={**os.environ, **order["environment"]},
            )
        return here

    def _fork(self, order: Message, errors: int) -> socket.socket:
        """Have the fork server, which starts now if there is none, fork a rank."""
        path = self._folder / "ranks.sock"
        if self._forks is None:
            reader, writer = os.pipe()
            server = ("-m", "netbench.trainers", "--fork-server", str(path))
            self._forks = subprocess.Popen(
                [*WITH_PARENT, sys.executable, *server, *order["modules"]],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env={**os.environ, **order["environment"]},
            )
            os.close(writer)
            self._pass_on_errors(None, reader)
        end_s = time.monotonic() + FORK_SERVER_S
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            try:
                connection.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if self._forks.poll() is not None:
                    raise OSError(f"its fork server ended with {self._forks.returncode}") from None
                if time.monotonic() > end_s:
                    raise OSError(f"torch was not imported in {FORK_SERVER_S:g} s") from None
                time.sleep(0.05)
        request = json.dumps({"op": "fork", "rank": order["rank"], "netns": None})
        socket.send_fds(connection, [request.encode() + b"\n"], [errors])
        return connection

    def _pass_on(self, rank: int, connection: socket.socket) -> None:
        with suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                self._send({"rank": rank, "text": line.decode(errors="replace").rstrip("\n")})
        with suppress(OSError):
            self._send({"rank": rank, "end": True})

    def _pass_on_errors(self, rank: int | None, reader: int) -> None:
        def read() -> None:
            with suppress(OSError), os.fdopen(reader, "rb") as lines:
                while line := lines.readline(LINE_BYTES):
                    self._send({"rank": rank, "error": line.decode(errors="replace").rstrip()})

        threading.Thread(target=read, daemon=True).start()

    def _send(self, message: Message) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._writing:
            self._output.write(data)
            self._output.flush()

    def _watch(self) -> None:
        """End everything if beats stop, even while the main thread waits for the controller."""
        while time.monotonic() < self._beat_s + BEAT_S:
            time.sleep(WATCH_S)
        self._leave()

    def _leave(self) -> None:
        self.end()
        os._exit(1)


def _kill_descendants() -> list[int]:
    """Kill all descendants of this process until none is left; return those that stay."""
    end_s = time.monotonic() + END_S
    while left := _descendants():
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > end_s:
            break
        time.sleep(0.01)
    return left


def _descendants() -> list[int]:
    """Return the processes below this one that have not ended."""
    parents: dict[int, int] = {}
    for path in PROC.glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(path.parent.name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def _sent_bytes(interface: str) -> int:
    """Count the bytes that were sent to other nodes: each has a netem queue below netbench's."""
    tc = shutil.which("tc", path=os.environ.get("PATH", os.defpath) + SYSTEM_PATH)
    command = [tc or "tc", "-s", "-j", "qdisc", "show", "dev", interface]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    queues = [found for found in json.loads(done.stdout) if found["kind"] == "netem"]
    return sum(found["bytes"] for found in queues if found.get("parent", "").startswith(HANDLE))


def _processes() -> dict[str, list[Any]]:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found: dict[str, list[Any]] = {}
    for pid in _descendants():
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / ticks_per_s
            found[str(pid)] = [int(fields[3]), fields[0], cpu_s]
    return found


def _oom_kills() -> int:
    for line in (PROC / "vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
