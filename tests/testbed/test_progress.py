"""Progress where there is no terminal."""

from __future__ import annotations

import io

from netbench.testbed.progress import LineProgress, open_progress


def test_lines_come_at_the_interval_and_not_with_every_step() -> None:
    """At 4 s a step and 10 s an interval, steps at 0, 12 and 24 s are written."""
    times = iter(range(0, 1000, 4))
    stream = io.StringIO()
    progress = LineProgress(stream, interval_s=10.0, clock=lambda: next(times) - 4.0)
    for done in range(1, 9):
        progress.advance("compiling", done, 8)
    assert stream.getvalue().splitlines() == [
        "compiling: 1 of about 8",
        "compiling: 4 of about 8",
        "compiling: 7 of about 8",
    ]


def test_a_stream_that_is_no_terminal_gets_lines() -> None:
    """What is said is written at once."""
    stream = io.StringIO()
    with open_progress(stream) as progress:
        progress.say("hello")
        assert stream.getvalue() == "hello\n"


def test_a_terminal_gets_a_bar() -> None:
    """The bar shows how many of how many, and never more than all."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with open_progress(stream) as progress:
        progress.say("hello")
        progress.advance("compiling", 9, 8)
    assert "hello" in stream.getvalue()
    assert "9/9" in stream.getvalue()
