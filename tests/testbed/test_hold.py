"""A held network without its kernel: holder, lines and commands in one process, nodes left out."""

from __future__ import annotations

import dataclasses
import itertools
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from netbench.errors import TestbedError, UsageError
from netbench.network.command import at_once
from netbench.plan.serial import network_from_json, network_to_json
from netbench.testbed import hold, holder, shells
from netbench.testbed.frames import (
    COUNT,
    END,
    INPUT,
    LINE_WINDOW_BYTES,
    OUTPUT,
    REQUEST,
    TAKEN,
    WINDOW,
    frame,
    json_frame,
)
from netbench.testbed.hold import Held, find_held, frames_of, held_names, held_networks
from netbench.testbed.hold_session import hosts_text
from netbench.testbed.namespaces import node_addresses
from tests.testbed.inside_trunks import NETWORK, addresses

PATIENCE_S = 20.0
NAMES = tuple(f"lab-{i}" for i in range(9))

NUMBERS = itertools.count()
"""Of networks: the name of one that has ended is free only when its last thread has noticed."""


@pytest.fixture
def open_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Held]]:
    """Serves a network under a name of this test's own: (lines) -> what is held. Commands run
    here, not in a node."""
    monkeypatch.setattr(shells, "node_command", lambda node, argv: ["env", *argv])
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve(num_lines: int = 2) -> Held:
        name = f"test-{os.getpid()}-{next(NUMBERS)}"
        pairs = [socket.socketpair() for _ in range(num_lines)]
        for _, there in pairs:
            line = (there.fileno(), node_addresses(NAMES))
            threads.append(threading.Thread(target=shells.serve_line, args=line, daemon=True))
            threads[-1].start()
        listener = holder.listen(name)
        about = {
            "pid": os.getpid(),
            "mode": "guest-real",
            "started_at": 0.0,
            "network": network_to_json(NETWORK),
            "node_names": NAMES,
        }
        holder.Holder(listener, [here for here, _ in pairs], about, events).start()
        opened.extend([listener, *(end for pair in pairs for end in pair)])
        return find_held(name)

    # Under nohup it is ignored, and would be by all commands.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield serve
    signal.signal(signal.SIGHUP, before)
    for one in opened:
        with suppress(OSError):  # not connected
            one.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(PATIENCE_S)
    for one in opened:
        one.close()


def output_of(connection: socket.socket) -> tuple[bytes, int]:
    """All it printed, and its status."""
    printed = b""
    connection.settimeout(PATIENCE_S)
    for kind, payload in frames_of(connection):
        if kind == END:
            return printed, hold.end_status(payload)
        printed += payload
    raise AssertionError("no end")


def read_until(connection: socket.socket, wanted: bytes) -> None:
    """Until `wanted` has been printed."""
    printed = b""
    connection.settimeout(PATIENCE_S)
    for _, payload in frames_of(connection):
        printed += payload
        if wanted in printed:
            return
    raise AssertionError(printed)


def test_what_is_held_is_found_by_its_name_and_known_in_full(
    open_network: Callable[..., Held],
) -> None:
    """The network as it is, link by link, to whoever asks."""
    held = open_network()
    assert held.network == NETWORK
    assert held.node_names == NAMES
    assert held.pid == os.getpid()
    assert held.addresses[:2] == ("10.77.0.1", "10.77.0.2")
    assert held in held_networks()


def test_a_name_is_held_once(open_network: Callable[..., Held]) -> None:
    """The second is told where to look."""
    held = open_network()
    with pytest.raises(UsageError, match="is held already"):
        holder.listen(held.name)


def test_an_unknown_network_is_answered_with_the_nearest(open_network: Callable[..., Held]) -> None:
    """And what is open is asked for by name where there are several."""
    first, second = open_network(), open_network()
    with pytest.raises(UsageError, match=f"did you mean .*{first.name}"):
        find_held(first.name + "x")
    with pytest.raises(UsageError, match=f"{first.name} or .*{second.name}"):
        find_held(None)


def test_a_command_has_its_own_streams_and_status(open_network: Callable[..., Held]) -> None:
    """Input to its end, output, errors, exit status; a signal as a shell gives it."""
    held = open_network()
    script = "cat; echo bad >&2; exit 7"
    assert held.run(0, ["sh", "-c", script], "good\n") == (7, "good\n", "bad\n")
    assert held.run(0, ["sh", "-c", "kill -TERM $$"]) == (128 + signal.SIGTERM, "", "")
    assert held.run(0, ["no-such-command"])[0] == 127


def test_more_is_passed_on_than_any_buffer_holds(open_network: Callable[..., Held]) -> None:
    """Both ways at once, 3 MB, while neither end waits for the other."""
    text = "".join(f"{i}\n" for i in range(450_000))
    assert open_network().run(0, ["cat"], text) == (0, text, "")


def test_commands_wait_for_a_line_and_are_not_mixed_up(open_network: Callable[..., Held]) -> None:
    """Twenty commands on two lines: each gets its own."""
    held = open_network(2)
    tasks = {
        i: lambda i=i: held.run(i % 9, ["sh", "-c", f"cat; exit {i}"], f"{i}") for i in range(20)
    }
    assert at_once(tasks, PATIENCE_S) == {i: (i, f"{i}", "") for i in range(20)}


def test_one_who_does_not_wait_is_told_that_all_lines_are_taken(
    open_network: Callable[..., Held],
) -> None:
    """A person would not know what is going on."""
    held = open_network(1)
    with held.start(0, ["sh", "-c", "echo here; exec sleep 60"], None) as first:
        read_until(first, b"here")
        with (
            held.start(0, ["true"], None) as second,
            pytest.raises(TestbedError, match="commands are running"),
        ):
            output_of(second)


def test_who_goes_takes_the_command_along(open_network: Callable[..., Held]) -> None:
    """Even one that does not want to hear of it; then its line serves the next."""
    held = open_network(1)
    deaf = "import signal, time; signal.signal(1, signal.SIG_IGN); print('deaf', flush=True); "
    connection = held.start(0, [sys.executable, "-c", deaf + "time.sleep(600)"], None)
    read_until(connection, b"deaf")
    connection.close()
    started_s = time.monotonic()
    assert held.run(0, ["echo", "next"]) == (0, "next\n", "")
    assert time.monotonic() - started_s < PATIENCE_S


@pytest.mark.parametrize("size", [None, (24, 80)])
def test_who_goes_takes_one_along_that_reads_nothing(
    open_network: Callable[..., Held], size: tuple[int, int] | None
) -> None:
    """Though its input, and all that is on the way to it, is full."""
    held = open_network(1)
    script = "import time; print('here', flush=True); time.sleep(600)"
    connection = held.start(0, [sys.executable, "-c", script], size)
    read_until(connection, b"here")
    connection.settimeout(0.3)
    with suppress(TimeoutError):
        while True:
            connection.sendall(frame(INPUT, b"line\n" * 10_000))
    connection.close()
    assert held.run(0, ["cat"], "next\n", timeout_s=PATIENCE_S) == (0, "next\n", "")


def test_a_command_may_ask_for_time_to_end(
    open_network: Callable[..., Held], tmp_path: Path
) -> None:
    """More than the 2 s of others."""
    held, done = open_network(1), tmp_path / "done"
    script = f"trap 'sleep 3; touch {done}; exit' HUP; echo here; while :; do sleep 0.1; done"
    connection = held.start(0, ["bash", "-c", script], None, patience_s=60.0)
    read_until(connection, b"here")
    connection.close()
    assert held.run(0, ["echo", "next"])[1] == "next\n"
    assert done.exists()


def test_a_command_that_keeps_printing_is_late_all_the_same(
    open_network: Callable[..., Held],
) -> None:
    """The time is for all of it."""
    held = open_network(1)
    started_s = time.monotonic()
    with pytest.raises(TestbedError, match="no answer within 1 s from: sh"):
        held.run(0, ["sh", "-c", "while :; do echo; sleep 0.1; done"], timeout_s=1.0)
    assert time.monotonic() - started_s < PATIENCE_S


def test_a_network_that_does_not_end_is_told(
    open_network: Callable[..., Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder of these tests does not."""
    monkeypatch.setattr(hold, "ANSWER_S", 0.2)
    with pytest.raises(TestbedError, match=f"still there .* process {os.getpid()}"):
        open_network().stop()


def test_what_is_left_in_the_background_keeps_nobody_waiting(
    open_network: Callable[..., Held],
) -> None:
    """Its output is still open; the command has ended."""
    status, printed, _ = open_network().run(0, ["sh", "-c", "sleep 600 & echo $!"])
    assert status == 0
    os.kill(int(printed), signal.SIGKILL)


def test_a_command_on_a_terminal_has_one(open_network: Callable[..., Held]) -> None:
    """Of the size it was started with, and then of the new one; Ctrl-C is a signal there."""
    held = open_network()
    script = "trap 'stty size; exit 3' INT; stty size; read line; echo no"
    with held.start(0, ["bash", "-c", script], (40, 100)) as connection:
        read_until(connection, b"40 100\r\n")
        connection.sendall(json_frame(WINDOW, (50, 120)))
        connection.sendall(frame(INPUT, b"\x03"))
        printed, status = output_of(connection)
    assert b"50 120\r\n" in printed
    assert status == 3


def test_the_last_words_on_a_terminal_are_not_lost(open_network: Callable[..., Held]) -> None:
    """All of 10,000 lines, though the command ends at once."""
    with open_network().start(0, ["seq", "10000"], (24, 80)) as connection:
        printed, status = output_of(connection)
    assert printed.decode().split() == [str(i) for i in range(1, 10_001)]
    assert status == 0


def test_environment_and_directory_are_those_of_whoever_asks(
    open_network: Callable[..., Held], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in any other shell of theirs; `tc` is found by those who have no sbin in their path."""
    held = open_network()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOUR", "green")
    _, printed, _ = held.run(0, ["sh", "-c", "pwd; echo $COLOUR; echo $PATH"])
    directory, colour, path = printed.splitlines()
    assert (directory, colour) == (str(tmp_path), "green")
    assert path == f"{os.environ['PATH']}:/usr/sbin:/sbin"


def test_nodes_are_found_by_name_or_number(open_network: Callable[..., Held]) -> None:
    """An unknown one is answered with the nearest."""
    held = open_network()
    assert [held.node(name) for name in ("lab-3", "node3", "3")] == [3, 3, 3]
    with pytest.raises(UsageError, match="did you mean lab-8"):
        held.node("lab-9")
    renamed = dataclasses.replace(held, node_names=("node1", "node0"))
    assert renamed.node("node1") == 0


def test_only_listening_sockets_of_the_user_are_networks() -> None:
    """Text as the kernel prints it: others' names, connections and files do not count."""
    sockets = """Num       RefCount Protocol Flags    Type St Inode Path
000000003c79523d: 00000003 00000000 00000000 0001 03  1073
0000000012641b68: 00000002 00000000 00010000 0001 01 718407 @netbench-1000/wan
0000000012641b69: 00000003 00000000 00000000 0001 03 718408 @netbench-1000/wan
0000000012641b6a: 00000002 00000000 00010000 0001 01 718409 @netbench-10000/lan
0000000012641b6b: 00000002 00000000 00010000 0001 01 718410 /run/netbench-1000/man
0000000012641b6c: 00000002 00000000 00010000 0001 01 718411 @netbench-1000/cluster-2
"""
    assert held_names(sockets, 1000) == ("cluster-2", "wan")
    assert held_names(sockets, 1) == ()


def test_every_node_is_in_the_hosts_file_by_both_names() -> None:
    """And the routers; a node that is called node0 only once."""
    text = hosts_text(addresses(), 9)
    assert "10.77.0.1\tn0 node0\n" in text
    assert "10.77.0.10\trouter0\n" in text
    assert "127.0.0.1\tlocalhost\n" in text
    plain = hosts_text(node_addresses(["node0"]), 1)
    assert plain.endswith("10.77.0.1\tnode0\n")


def test_a_network_is_the_same_after_its_journey() -> None:
    """To the session, and to whoever asks the holder."""
    assert network_from_json(network_to_json(NETWORK)) == NETWORK


def test_output_is_not_touched(open_network: Callable[..., Held]) -> None:
    """All 256 bytes come out of a pipe as they are."""
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)))"
    with open_network().start(0, [sys.executable, "-c", script], None) as connection:
        kinds = {kind for kind, _ in [*frames_of(connection)]}
    assert kinds == {OUTPUT, END}
    with open_network().start(0, [sys.executable, "-c", script], None) as connection:
        assert output_of(connection) == (bytes(range(256)), 0)


def test_no_more_goes_into_a_line_than_is_taken_off_it() -> None:
    """A serial line of the guest is not read again once it was full."""
    here, there = socket.socketpair()
    asker, user = socket.socketpair()
    with here, there, asker, user:
        line = holder.Line(here, queue.SimpleQueue())
        line.start()
        sender = threading.Thread(target=line.begin, args=(user, bytes(5000)), daemon=True)
        sender.start()
        whole, found = frame(REQUEST, bytes(5000)), b""
        there.settimeout(PATIENCE_S)
        while len(found) < len(whole):
            piece = there.recv(1 << 16)
            assert len(piece) <= LINE_WINDOW_BYTES
            found += piece
            assert sender.is_alive() or found == whole
            there.sendall(frame(TAKEN, COUNT.pack(len(piece))))
        assert found == whole
        sender.join(PATIENCE_S)
        there.shutdown(socket.SHUT_RDWR)
        line.join(PATIENCE_S)
        assert not line.is_alive()
