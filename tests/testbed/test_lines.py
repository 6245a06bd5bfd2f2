"""Lines cut from a stream of bytes."""

from __future__ import annotations

import pytest

from netbench.errors import TestbedError
from netbench.testbed import lines
from netbench.testbed.lines import LineBuffer, last_lines


def taken(buffer: LineBuffer) -> list[str]:
    found = []
    while (line := buffer.take()) is not None:
        found.append(line)
    return found


def test_lines_come_as_they_were_sent_however_the_stream_is_cut() -> None:
    """Byte by byte, at once, and with an incomplete line at the end."""
    stream = "first\n\nüñ third\nrest".encode()
    for size in (1, 2, 7, len(stream)):
        buffer, found = LineBuffer(), list[str]()
        for at in range(0, len(stream), size):
            buffer.feed(stream[at : at + size])
            found += taken(buffer)
        assert found == ["first", "", "üñ third"]
        buffer.feed(b" of it\n")
        assert taken(buffer) == ["rest of it"]


def test_every_byte_is_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long line that arrives in pieces does not take quadratic time."""

    class Counting(bytearray):
        scanned = 0

        def find(self, wanted: object, start: int = 0) -> int:  # type: ignore[override]
            Counting.scanned += len(self) - start
            return super().find(b"\n", start)

    buffer = LineBuffer()
    buffer._received = Counting()
    for _ in range(1000):
        buffer.feed(b"x" * 1000)
        assert buffer.take() is None
    buffer.feed(b"\n")
    assert buffer.take() == "x" * 1_000_000
    assert Counting.scanned == 1_000_001


def test_a_line_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its limit in the message."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 2000)
    buffer = LineBuffer()
    buffer.feed(b"x" * 2000)
    assert buffer.take() is None
    buffer.feed(b"x")
    with pytest.raises(TestbedError, match="a line is longer than 2KB"):
        buffer.take()


def test_the_last_lines_of_an_output_are_joined_for_a_message() -> None:
    """Three of them; what is not text is replaced."""
    assert last_lines(b"1\n2\n3\n\xff4\n\n") == "2 | 3 | \ufffd4"
