"""A persistent network without nodes: daemon, lines and commands in one process."""

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
from netbench.network.nodes import at_once
from netbench.plan.serial import network_from_json, network_to_json
from netbench.testbed.namespaces import hosts_text, node_addresses
from netbench.testbed.persistent import client, daemon, shells
from netbench.testbed.persistent.channel import end_status
from netbench.testbed.persistent.client import (
    PersistentNetwork,
    find_persistent,
    persistent_names,
    persistent_networks,
)
from netbench.testbed.persistent.frames import (
    COUNT,
    END,
    INPUT,
    LINE_WINDOW_BYTES,
    OUTPUT,
    REQUEST,
    TAKEN,
    WINDOW,
    Frames,
    frame,
    json_frame,
)
from tests.testbed.inside_trunks import NETWORK, addresses

PATIENCE_S = 120.0
NAMES = tuple(f"lab-{i}" for i in range(9))

NUMBERS = itertools.count()
"""Numbers of networks: a name is free only once the last thread of its network has ended."""


@pytest.fixture
def open_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PersistentNetwork]]:
    """Serves a network under a name of this test's own: (lines) -> the network. Commands run
    here, not in a node."""
    monkeypatch.setattr(shells, "node_command", lambda node, argv: ["env", *argv])
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve(num_lines: int = 2) -> PersistentNetwork:
        name = f"test-{os.getpid()}-{next(NUMBERS)}"
        pairs = [socket.socketpair() for _ in range(num_lines)]
        for _, there in pairs:
            line = (there.fileno(), node_addresses(NAMES))
            threads.append(threading.Thread(target=shells.serve_line, args=line, daemon=True))
            threads[-1].start()
        listener = daemon.listen(name)
        about = {
            "pid": os.getpid(),
            "testbed": "guest-real",
            "started_at": 0.0,
            "network": network_to_json(NETWORK),
            "node_names": NAMES,
        }
        daemon.Daemon(listener, [here for here, _ in pairs], about, events).start()
        opened.extend([listener, *(end for pair in pairs for end in pair)])
        return find_persistent(name)

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
    for kind, payload in Frames(connection, time.monotonic() + PATIENCE_S):
        if kind == END:
            return printed, end_status(payload)
        printed += payload
    raise AssertionError("no end")


def read_until(connection: socket.socket, wanted: bytes) -> None:
    """Until `wanted` has been printed."""
    printed = b""
    for _, payload in Frames(connection, time.monotonic() + PATIENCE_S):
        printed += payload
        if wanted in printed:
            return
    raise AssertionError(printed)


def test_what_is_held_is_found_by_its_name_and_known_in_full(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """The network as it is, link by link, to whoever asks."""
    opened = open_network()
    assert opened.network == NETWORK
    assert opened.node_names == NAMES
    assert opened.pid == os.getpid()
    assert opened.addresses[:2] == ("10.77.0.1", "10.77.0.2")
    assert opened in persistent_networks()


def test_a_name_is_held_once(open_network: Callable[..., PersistentNetwork]) -> None:
    """The second is told where to look."""
    opened = open_network()
    with pytest.raises(UsageError, match="is open already"):
        daemon.listen(opened.name)


def test_an_unknown_network_is_answered_with_the_nearest(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """And what is open is asked for by name where there are several."""
    first, second = open_network(), open_network()
    with pytest.raises(UsageError, match=f"did you mean .*{first.name}"):
        find_persistent(first.name + "x")
    with pytest.raises(UsageError, match=f"{first.name} or .*{second.name}"):
        find_persistent(None)


def test_a_command_has_its_own_streams_and_status(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """Input to its end, output, errors, exit status; a signal as a shell gives it."""
    opened = open_network()
    script = "cat; echo bad >&2; exit 7"
    assert opened.nodes[0].run(["sh", "-c", script], "good\n") == (7, "good\n", "bad\n")
    assert opened.nodes[0].run(["sh", "-c", "kill -TERM $$"]) == (128 + signal.SIGTERM, "", "")
    assert opened.nodes[0].run(["no-such-command"])[0] == 127


def test_more_is_passed_on_than_any_buffer_holds(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """Both ways at once, 3 MB, while neither end waits for the other."""
    text = "".join(f"{i}\n" for i in range(450_000))
    assert open_network().nodes[0].run(["cat"], text) == (0, text, "")


def test_commands_wait_for_a_line_and_are_not_mixed_up(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """Twenty commands on two lines: each gets its own."""
    opened = open_network(2)
    tasks = {
        i: lambda i=i: opened.nodes[i % 9].run(["sh", "-c", f"cat; exit {i}"], f"{i}")
        for i in range(20)
    }
    assert at_once(tasks, PATIENCE_S) == {i: (i, f"{i}", "") for i in range(20)}


def test_one_who_does_not_wait_is_told_that_all_lines_are_taken(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """A person would not know what is going on."""
    opened = open_network(1)
    with opened.start(0, ["sh", "-c", "echo here; exec sleep 60"], None) as first:
        read_until(first, b"here")
        with (
            opened.start(0, ["true"], None) as second,
            pytest.raises(TestbedError, match="commands are running"),
        ):
            output_of(second)


def test_who_goes_takes_the_command_along(open_network: Callable[..., PersistentNetwork]) -> None:
    """Even one that does not want to hear of it; then its line serves the next."""
    opened = open_network(1)
    deaf = "import signal, time; signal.signal(1, signal.SIG_IGN); print('deaf', flush=True); "
    connection = opened.start(0, [sys.executable, "-c", deaf + "time.sleep(600)"], None)
    read_until(connection, b"deaf")
    connection.close()
    started_s = time.monotonic()
    assert opened.nodes[0].run(["echo", "next"]) == (0, "next\n", "")
    assert time.monotonic() - started_s < PATIENCE_S


@pytest.mark.parametrize("size", [None, (24, 80)])
def test_who_goes_takes_one_along_that_reads_nothing(
    open_network: Callable[..., PersistentNetwork], size: tuple[int, int] | None
) -> None:
    """Though its input, and all that is on the way to it, is full."""
    opened = open_network(1)
    script = "import time; print('here', flush=True); time.sleep(600)"
    connection = opened.start(0, [sys.executable, "-c", script], size)
    read_until(connection, b"here")
    connection.settimeout(0.3)
    with suppress(TimeoutError):
        while True:
            connection.sendall(frame(INPUT, b"line\n" * 10_000))
    connection.close()
    assert opened.nodes[0].run(["cat"], "next\n", timeout_s=PATIENCE_S) == (0, "next\n", "")


def test_a_command_may_ask_for_time_to_end(
    open_network: Callable[..., PersistentNetwork], tmp_path: Path
) -> None:
    """More than the 2 s of others."""
    opened, done = open_network(1), tmp_path / "done"
    script = f"trap 'sleep 3; touch {done}; exit' HUP; echo here; while :; do sleep 0.1; done"
    connection = opened.start(0, ["bash", "-c", script], None, patience_s=60.0)
    read_until(connection, b"here")
    connection.close()
    assert opened.nodes[0].run(["echo", "next"])[1] == "next\n"
    assert done.exists()


def test_a_command_that_keeps_printing_is_late_all_the_same(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """The time is for all of it."""
    opened = open_network(1)
    started_s = time.monotonic()
    with pytest.raises(TestbedError, match="no answer within 1 s from: sh"):
        opened.nodes[0].run(["sh", "-c", "while :; do echo; sleep 0.1; done"], timeout_s=1.0)
    assert time.monotonic() - started_s < PATIENCE_S


def test_output_without_an_end_is_an_error(
    open_network: Callable[..., PersistentNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its limit in the message; nothing is collected beyond it."""
    monkeypatch.setattr(client, "MAX_OUTPUT_BYTES", 1 << 20)
    for script in ("cat /dev/zero", "cat /dev/zero >&2"):
        with pytest.raises(TestbedError, match="more than 1MiB of output from: sh -c cat"):
            open_network(1).nodes[0].run(["sh", "-c", script])


def test_a_network_that_does_not_end_is_told(
    open_network: Callable[..., PersistentNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon of these tests does not."""
    monkeypatch.setattr(client, "ANSWER_S", 0.2)
    with pytest.raises(TestbedError, match=f"still open .* process {os.getpid()}"):
        open_network().stop()


def test_what_is_left_in_the_background_keeps_nobody_waiting(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """Its output is still open; the command has ended."""
    status, printed, _ = open_network().nodes[0].run(["sh", "-c", "sleep 600 & echo $!"])
    assert status == 0
    os.kill(int(printed), signal.SIGKILL)


def test_a_command_on_a_terminal_has_one(open_network: Callable[..., PersistentNetwork]) -> None:
    """The terminal has the size it was started with, then the new one; Ctrl-C is a signal there."""
    opened = open_network()
    # Not `read`: bash may start it just after a signal came, and then waits for input all the same.
    script = "trap 'stty size; exit 3' INT; stty size; while true; do sleep 0.05; done"
    with opened.start(0, ["bash", "-c", script], (40, 100)) as connection:
        read_until(connection, b"40 100\r\n")
        connection.sendall(json_frame(WINDOW, (50, 120)))
        connection.sendall(frame(INPUT, b"\x03"))
        printed, status = output_of(connection)
    assert b"50 120\r\n" in printed
    assert status == 3


def test_the_last_words_on_a_terminal_are_not_lost(
    open_network: Callable[..., PersistentNetwork],
) -> None:
    """All of 10,000 lines, though the command ends at once."""
    with open_network().start(0, ["seq", "10000"], (24, 80)) as connection:
        printed, status = output_of(connection)
    assert printed.decode().split() == [str(i) for i in range(1, 10_001)]
    assert status == 0


def test_environment_and_directory_are_those_of_whoever_asks(
    open_network: Callable[..., PersistentNetwork], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is like any other shell; `tc` is found without sbin in the user's path."""
    opened = open_network()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOUR", "green")
    _, printed, _ = opened.nodes[0].run(["sh", "-c", "pwd; echo $COLOUR; echo $PATH"])
    directory, colour, path = printed.splitlines()
    assert (directory, colour) == (str(tmp_path), "green")
    assert path == f"{os.environ['PATH']}:/usr/sbin:/sbin"


def test_nodes_are_found_by_name_or_number(open_network: Callable[..., PersistentNetwork]) -> None:
    """An unknown one is answered with the nearest."""
    opened = open_network()
    assert [opened.node(name) for name in ("lab-3", "node3", "3")] == [3, 3, 3]
    with pytest.raises(UsageError, match="did you mean lab-8"):
        opened.node("lab-9")
    renamed = dataclasses.replace(opened, node_names=("node1", "node0"))
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
    assert persistent_names(sockets, 1000) == ("cluster-2", "wan")
    assert persistent_names(sockets, 1) == ()


def test_every_node_is_in_the_hosts_file_by_both_names() -> None:
    """And the routers; a node that is called node0 only once."""
    text = hosts_text(addresses(), 9)
    assert "10.77.0.1\tn0 node0\n" in text
    assert "10.77.0.10\trouter0\n" in text
    assert "127.0.0.1\tlocalhost\n" in text
    plain = hosts_text(node_addresses(["node0"]), 1)
    assert plain.endswith("10.77.0.1\tnode0\n")


def test_a_network_is_the_same_after_its_journey() -> None:
    """To the session, and to whoever asks the daemon."""
    assert network_from_json(network_to_json(NETWORK)) == NETWORK


def test_output_is_not_touched(open_network: Callable[..., PersistentNetwork]) -> None:
    """All 256 bytes come out of a pipe as they are."""
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)))"
    with open_network().start(0, [sys.executable, "-c", script], None) as connection:
        frames = Frames(connection)
        kinds = [next(frames)[0]]
        while kinds[-1] != END:
            kinds.append(next(frames)[0])
    assert set(kinds) == {OUTPUT, END}
    with open_network().start(0, [sys.executable, "-c", script], None) as connection:
        assert output_of(connection) == (bytes(range(256)), 0)


def test_no_more_goes_into_a_line_than_is_taken_off_it() -> None:
    """A serial line of the guest is not read again once it was full."""
    here, there = socket.socketpair()
    asker, user = socket.socketpair()
    with here, there, asker, user:
        line = daemon.Line(here, queue.SimpleQueue())
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
