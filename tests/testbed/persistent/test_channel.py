"""Lines over the connection to a command in a persistent network; its daemon is a double."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from netbench.errors import TestbedError
from netbench.network.nodes import at_once
from netbench.testbed.persistent.channel import FrameChannel
from netbench.testbed.persistent.frames import (
    END,
    ERRORS,
    INPUT,
    OUTPUT,
    FrameReader,
    frame,
    json_frame,
)


@pytest.fixture
def ends() -> Iterator[tuple[FrameChannel, socket.socket]]:
    """A channel, and the daemon's end of its connection."""
    here, there = socket.socketpair()
    with here, there:
        yield FrameChannel(here, "the replay"), there


def test_lines_come_as_they_were_sent(ends: tuple[FrameChannel, socket.socket]) -> None:
    """However they are cut up; what is long is sent in several frames."""
    channel, there = ends
    there.sendall(frame(OUTPUT, b'{"a": 1}\n{"b"') + frame(OUTPUT, b": 2}\n"))
    assert channel.receive() == '{"a": 1}'
    assert channel.receive() == '{"b": 2}'
    long = "x" * 200_000

    def send_and_close() -> None:
        channel.send(long)
        channel.close()

    sender = threading.Thread(target=send_and_close)
    sender.start()
    reader, found, ended = FrameReader(), bytearray(), False
    while not ended:
        for kind, payload in reader.feed(there.recv(1 << 16)):
            assert kind == INPUT
            found += payload
            ended = not payload
    sender.join()
    assert found.decode() == long + "\n"


def test_the_end_of_a_session_is_told(ends: tuple[FrameChannel, socket.socket]) -> None:
    """With what it wrote last, where it failed."""
    channel, there = ends
    there.sendall(frame(ERRORS, b"one\ntwo\n") + json_frame(END, {"status": 1}))
    assert channel.receive() is None
    with pytest.raises(TestbedError, match=r"ended with 1: one \| two"):
        channel.finish(5.0)


def test_a_daemon_that_has_gone_is_told(ends: tuple[FrameChannel, socket.socket]) -> None:
    channel, there = ends
    there.close()
    with pytest.raises(TestbedError, match="the persistent network has gone"):
        channel.receive()
    with pytest.raises(TestbedError, match="the persistent network has gone"):
        channel.send("x")


def test_closing_ends_a_receive_that_waits(ends: tuple[FrameChannel, socket.socket]) -> None:
    """Though the command goes on. Its end can still be waited for."""
    channel, there = ends
    found = at_once({0: channel.receive, 1: channel.close}, 20.0)
    assert found == {0: None, 1: None}
    assert there.recv(100) == frame(INPUT)
    there.sendall(json_frame(END, {"status": 0}))
    channel.finish(5.0)
