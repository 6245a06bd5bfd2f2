"""A table of text, and its three forms: markdown, a terminal's (rich) and CSV."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

Row = TypeVar("Row")
Column = tuple[str, Callable[[Row], str]]

WIDTH = 100
"""Width of generated prose, characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Rows of text under one row of heads; the first `num_labels` columns name the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_labels: int = 1


def table_of(rows: Iterable[Row], columns: Sequence[Column[Row]], num_labels: int = 1) -> Grid:
    """A table of columns, each a head and the text of its cell in a row."""
    return Grid(
        head=tuple(head for head, _ in columns),
        rows=tuple(tuple(text(row) for _, text in columns) for row in rows),
        num_labels=num_labels,
    )


def markdown(grid: Grid) -> str:
    """A GitHub table, padded so that its source is readable; numbers are aligned right."""
    widths = [
        max(3, *(len(row[column]) for row in (grid.head, *grid.rows)))
        for column in range(len(grid.head))
    ]
    rules = (
        "-" * width if column < grid.num_labels else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    )
    lines = [_line(grid, widths, grid.head), _line(grid, widths, rules)]
    return "\n".join(lines + [_line(grid, widths, row) for row in grid.rows])


def bullet(text: str) -> str:
    """A markdown list item, wrapped."""
    return textwrap.fill(
        text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def csv_text(grid: Grid) -> str:
    """The same cells as comma-separated values, heads first."""
    return csv_of(grid.head, grid.rows)


def csv_of(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Values of any type, floats unrounded and None empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((head, *rows))
    return text.getvalue().rstrip("\n")


def rich_table(grid: Grid) -> "Table":
    """The same cells for a terminal; labels wrap, so that the table of a run fits 80 columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for column, head in enumerate(grid.head):
        label = column < grid.num_labels
        # Labels wrap between words; numbers do not wrap.
        words = " ".join((head, *(row[column] for row in grid.rows))).split()
        text = head if label else re.sub(r"([ -])", r"\1\n", head)
        table.add_column(
            text,
            justify="left" if label else "right",
            no_wrap=not label,
            min_width=max(map(len, words)) if label else None,
        )
    for row in grid.rows:
        table.add_row(*row)
    return table


def _line(grid: Grid, widths: list[int], cells: Iterable[str]) -> str:
    padded = (
        cell.ljust(width) if column < grid.num_labels else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"
