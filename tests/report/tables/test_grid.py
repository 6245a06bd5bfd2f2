"""The three forms of a table."""

from __future__ import annotations

import csv
import io

from rich.console import Console

from netbench.report.tables.grid import Grid, csv_text, markdown, rich_table

GRID = Grid(head=("Setting", "published s"), rows=(("L24 B1024", "18.87 ±0.21"), ('a "b", c', "9")))


def test_markdown_aligns_labels_left_and_figures_right() -> None:
    """The source is padded; the rule sets the alignment on GitHub."""
    assert markdown(GRID).splitlines() == [
        "| Setting   | published s |",
        "| --------- | ----------: |",
        "| L24 B1024 | 18.87 ±0.21 |",
        '| a "b", c  |           9 |',
    ]


def test_csv_reads_back() -> None:
    """Quotes and commas survive."""
    assert [tuple(row) for row in csv.reader(io.StringIO(csv_text(GRID)))] == [
        GRID.head,
        *GRID.rows,
    ]


def test_a_terminal_table_breaks_long_heads_not_cells() -> None:
    """A head wraps to two lines; every cell is on one line."""
    console = Console(width=30, file=io.StringIO(), record=True)
    console.print(rich_table(GRID))
    lines = console.export_text().splitlines()
    assert lines[0].split() == ["published"]
    assert lines[1].split() == ["Setting", "s"]
    assert "L24 B1024 18.87 ±0.21" in lines


def test_a_narrow_terminal_breaks_the_first_label_and_leaves_figures_whole() -> None:
    """If the table is too wide, the first label wraps between its words."""
    console = Console(width=20, file=io.StringIO(), record=True)
    console.print(rich_table(GRID))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert [line.split() for line in lines[3:5]] == [["L24", "18.87", "±0.21"], ["B1024"]]
    assert "…" not in "".join(lines)
