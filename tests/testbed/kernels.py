"""Machines that are guest kernels of their own, in real time, and the switch that joins them.

Each machine is a process of this one, without any right on the host: kill -9 is a power failure.
`kernel_machine` is the program in the guest. The guest kernel has no network device that leaves it,
so Ethernet frames cross a serial line, one or a few at a time (`LINE_WINDOW_BYTES`): about a
megabyte a second.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from netbench.testbed.guest.boot import EVENTS_DEVICE, boot_command, write_init
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.machine.capabilities import probe_machine
from netbench.testbed.machine.packages import find_command
from netbench.testbed.namespaces import checked
from netbench.testbed.persistent.frames import (
    COUNT,
    INPUT,
    LINE_WINDOW_BYTES,
    OUTPUT,
    TAKEN,
    FrameReader,
    frame,
)
from tests.testbed.kernel_machine import UP, address

MEMORY_BYTES = 768 << 20

QUEUED_FRAMES = 1000
"""Frames that wait for a machine; more are dropped, as by any switch."""

BROADCAST = b"\xff" * 6

START_S = 200.0
"""Deadline for a machine to take SSH, wall seconds, on a busy host."""


class Port:
    """The switch's end of a machine's wire."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = FrameReader()
        self._queue: deque[bytes] = deque(maxlen=QUEUED_FRAMES)
        self._on_line = 0

    def receive(self) -> list[bytes]:
        """Return the Ethernet frames that came. Raises OSError without a machine."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        found = []
        for kind, payload in self._reader.feed(data):
            if kind == TAKEN:
                self._on_line -= COUNT.unpack(payload)[0]
            elif kind == OUTPUT:
                found.append(payload)
        self._pass_on()
        return found

    def send(self, ethernet: bytes) -> None:
        if len(self._queue) < QUEUED_FRAMES:
            self._queue.append(frame(INPUT, ethernet))
        self._pass_on()

    def _pass_on(self) -> None:
        while self._queue:
            size = len(self._queue[0])
            if self._on_line and self._on_line + size > LINE_WINDOW_BYTES:
                return
            self._on_line += size
            self.connection.sendall(self._queue.popleft())


class Switch(threading.Thread):
    """A learning switch. A port without a machine drops its frames."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ports: dict[int, Port] = {}
        self._learnt: dict[bytes, int] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self.start()

    def plug_in(self, number: int, connection: socket.socket) -> None:
        port = Port(connection)
        with self._lock:
            self._ports[number] = port
        self._selector.register(connection, selectors.EVENT_READ, (number, port))

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(0.05):
                number, port = key.data  # a machine that reboots has another port
                try:
                    for ethernet in port.receive():
                        self._forward(number, ethernet)
                except OSError:
                    self._selector.unregister(key.fileobj)
                    with self._lock:
                        if self._ports.get(number) is port:
                            del self._ports[number]

    def _forward(self, number: int, ethernet: bytes) -> None:
        target, source = ethernet[:6], ethernet[6:12]
        self._learnt[source] = number
        with self._lock:
            others = {n: port for n, port in self._ports.items() if n != number}
        known = self._learnt.get(target)
        chosen = [n for n in others if n == known] if known is not None else [*others]
        for other in chosen if target != BROADCAST else others:
            with suppress(OSError):  # it has just lost power
                others[other].send(ethernet)


class Kernels:
    """Machines 0 to `count` - 1, and one more, which runs a command: the controller.

    files: name -> text, that each has beside its keys.
    """

    def __init__(self, folder: Path, count: int, files: Mapping[str, str]) -> None:
        ensure_kernel()
        self.folder, self.count = folder, count
        self.keys = folder / "keys"
        self.keys.mkdir()
        for name in ("host_key", "client_key"):
            checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.keys / name)])
        host_key = " ".join((self.keys / "host_key.pub").read_text().split()[:2])
        known = [f"{address(number)} {host_key}\n" for number in range(count)]
        (self.keys / "known_hosts").write_text("".join(known))
        for name, text in files.items():
            (self.keys / name).write_text(text)
        self._switch = Switch()
        self._guests: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(count):
            self.boot(number)
        for number in range(count):
            self.await_up(number)

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *_: object) -> None:
        for number in [*self._guests]:
            self.kill(number)

    def boot(self, number: int) -> None:
        """Start a machine; it takes SSH a few seconds later. Call it from the main thread."""
        self._start(number, self._program(number), self.folder / f"events{number}")

    def run(self, command: list[str]) -> Path:
        """Start a command on the controller; return the file of its output."""
        output = self.folder / "controller"
        program = f"{self._program(self.count)} &\nuntil [ -e {UP} ]; do sleep 0.1; done\n"
        self._start(self.count, f"{program}{shlex.join(command)}", output)
        return output

    def is_running(self, number: int) -> bool:
        return self._guests[number].poll() is None

    def kill(self, number: int) -> None:
        """Take a machine's power away."""
        guest = self._guests.pop(number)
        with suppress(ProcessLookupError):
            os.killpg(guest.pid, signal.SIGKILL)
        guest.wait()

    def await_up(self, number: int) -> None:
        """Wait until a machine takes SSH. Raises TimeoutError with what it has said."""
        end_s = time.monotonic() + START_S
        while "up\n" not in (said := (self.folder / f"events{number}").read_text()):
            if time.monotonic() > end_s or not self.is_running(number):
                console = (self.folder / f"console{number}").read_text(errors="replace")
                raise TimeoutError(f"machine {number} did not start: {said}{console[-2000:]}")
            time.sleep(0.1)

    def _program(self, number: int) -> str:
        words = [sys.executable, "-m", "tests.testbed.kernel_machine", str(number)]
        return shlex.join([*words, secrets.token_hex(32), str(self.keys)])

    def _start(self, number: int, command: str, output: Path) -> None:
        machine = probe_machine()
        assert machine.guest_kernel is not None
        assert find_command("sshd") is not None, "sshd is not installed (make ssh-packages)"
        folder = self.folder / f"machine{number}"
        folder.mkdir(exist_ok=True)
        init = folder / "init"
        write_init(init, f"{{ {command}\n}} > {EVENTS_DEVICE} 2>&1")
        here, there = socket.socketpair()
        console = (self.folder / f"console{number}").open("wb")
        events = output.open("wb")
        with there, console, events:
            boot = boot_command(
                machine.guest_kernel,
                init,
                MEMORY_BYTES,
                events.fileno(),
                virtual_time=False,
                lines=[there.fileno()],
            )
            core = str(number % (os.cpu_count() or 1))
            self._guests[number] = subprocess.Popen(
                ["taskset", "--cpu-list", core, *boot],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                pass_fds=(events.fileno(), there.fileno()),
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(machine.guest_tmpdir)},
            )
        self._switch.plug_in(number, here)
