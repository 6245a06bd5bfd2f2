"""Shared output of commands."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from netbench.commands.output import print_line, print_warning

SENTENCE = (
    "layers of stage 0 need 112 GB on a device of 80 GB: choose a deeper pipeline, smaller "
    "micro-batches, or sharding, for example zero3-hybrid8, in place of dtfm-scheduled-p4-1f1b"
)


def printed(width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    print_line(console, SENTENCE)
    print_warning(console, "memory", SENTENCE)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_lines_are_broken_between_words(width: int) -> None:
    """At 80 and 120 columns, nothing is cut and no word is divided."""
    lines = printed(width, terminal=True).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert words == [*SENTENCE.split(), "memory:", *SENTENCE.split()]


def test_a_file_has_a_line_per_message() -> None:
    """Readers search files for words."""
    assert printed(80, terminal=False).splitlines() == [SENTENCE, f"memory: {SENTENCE}"]
