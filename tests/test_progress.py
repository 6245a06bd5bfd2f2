"""Progress on a terminal, in a log, and around a loop."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from netbench import progress as progress_module
from netbench.progress import LineProgress, open_progress, track


class Terminal(io.StringIO):
    """Text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def console_on(stream: io.StringIO) -> Console:
    return Console(file=stream, width=100, force_terminal=stream.isatty())


def test_lines_come_at_the_interval_and_at_the_end() -> None:
    """With steps of 4 s and an interval of 10 s, the steps at 0, 12, 24 and 28 s are written."""
    times = iter(range(0, 1000, 4))
    stream = io.StringIO()
    progress = LineProgress(console_on(stream), 10.0, clock=lambda: next(times))
    for done in range(1, 9):
        progress.advance("compiling", done, 8)
    assert stream.getvalue().splitlines() == [
        "   4.0 s  compiling: 1 of 8",
        "  16.0 s  compiling: 4 of 8",
        "  28.0 s  compiling: 7 of 8",
        "  32.0 s  compiling: 8 of 8",
    ]


def test_a_note_replaces_the_counts_and_is_written_once() -> None:
    """With an interval of 0 every new note is a line, and tasks are independent."""
    stream = io.StringIO()
    progress = LineProgress(console_on(stream), 0.0, clock=lambda: 0.0)
    for done in range(3):
        progress.advance("session 1", done, 5, note="building nodes")
    progress.advance("session 2", 1, 5, note="building nodes")
    progress.advance("session 1", 1, 5, note="shaping links")
    assert [line.split("s  ")[1] for line in stream.getvalue().splitlines()] == [
        "session 1: building nodes",
        "session 2: building nodes",
        "session 1: shaping links",
    ]


def test_text_is_printed_as_it_is() -> None:
    """Brackets, e.g. of a path, are not markup, and long lines are not wrapped."""
    stream = io.StringIO()
    with open_progress(console_on(stream)) as progress:
        progress.say("log: /tmp/[red]/" + "x" * 200)
        assert stream.getvalue() == "log: /tmp/[red]/" + "x" * 200 + "\n"


def test_a_terminal_gets_a_bar() -> None:
    """The bar shows counts, never more than all, with the note; a finished task vanishes."""
    stream = Terminal()
    with open_progress(console_on(stream)) as progress:
        progress.say("hello")
        progress.advance("compiling", 9, 8, note="a.o")
        progress.advance("linking", 1, 2)
        progress.finish("linking")
    assert "hello" in stream.getvalue()
    assert "9/9" in stream.getvalue()
    assert "a.o" in stream.getvalue()
    last_frame = stream.getvalue().rpartition("compiling")[2]
    assert "linking" not in last_frame


def test_the_bar_of_a_task_with_a_time_limit_follows_the_clock() -> None:
    """Tasks with a time limit have no counts."""
    stream = Terminal()
    with open_progress(console_on(stream)) as progress:
        progress.limit("dtfm", 30.0)
        progress.advance("dtfm", 7, None, "best 3 s")
    assert "best 3 s" in stream.getvalue()
    assert "7/" not in stream.getvalue()
    assert "/30" not in stream.getvalue()
    assert "0:00:" in stream.getvalue()


def test_a_tracked_loop_passes_its_items_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines go to standard error; a short loop writes none."""
    assert list(track(console_on(io.StringIO()), "abc", 3, "letters")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress_module, "LINE_INTERVAL_S", 0.0)
    stream = io.StringIO()
    list(track(console_on(stream), "abc", 3, "letters"))
    assert "letters: 0 of 3" in capsys.readouterr().err
    assert stream.getvalue() == ""
