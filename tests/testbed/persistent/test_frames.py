"""Frames are put together again however a stream cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.errors import TestbedError
from netbench.testbed.persistent.frames import (
    END,
    INPUT,
    MAX_PAYLOAD_BYTES,
    OUTPUT,
    FrameReader,
    frame,
)


@given(
    frames=st.lists(st.tuples(st.sampled_from([INPUT, OUTPUT, END]), st.binary(max_size=40))),
    cut=st.integers(min_value=1, max_value=30),
)
def test_any_cut_gives_the_same_frames(frames: list[tuple[bytes, bytes]], cut: int) -> None:
    """Empty frames too, and frames whose payload looks like a frame."""
    stream = b"".join(frame(kind, payload) for kind, payload in frames)
    reader = FrameReader()
    found: list[tuple[bytes, bytes]] = []
    for at in range(0, len(stream), cut):
        found += reader.feed(stream[at : at + cut])
    assert found == frames


def test_what_is_no_frame_is_said_so() -> None:
    """A letter that is none, or a length that cannot be."""
    for nonsense in (b"GET / HTTP/1.1\r\n", INPUT + b"\xff\xff\xff\xff"):
        with pytest.raises(TestbedError, match="not a frame"):
            list(FrameReader().feed(nonsense))


def test_a_frame_too_long_to_be_read_is_not_written() -> None:
    """The longest is read again."""
    longest = frame(INPUT, bytes(MAX_PAYLOAD_BYTES))
    assert [len(payload) for _, payload in FrameReader().feed(longest)] == [MAX_PAYLOAD_BYTES]
    with pytest.raises(TestbedError, match="do not fit"):
        frame(INPUT, bytes(MAX_PAYLOAD_BYTES + 1))
