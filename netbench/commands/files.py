"""Files that commands write: refused before any work where they cannot be written; and the folder
of runs."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import click

from netbench.errors import UsageError

results_option = click.option(
    "--results",
    default="results",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of runs.",
)


def check_writable(*paths: Path | None) -> None:
    """Raises UsageError where one cannot be written, or is to be written twice, before anything is
    simulated."""
    wanted = [path for path in paths if path is not None]
    for path, count in Counter(path.absolute() for path in wanted).items():
        if count > 1:
            raise UsageError(f"{path}: is named for {count} files; give each a name of its own")
    for path in wanted:
        folder = path.absolute().parent
        if not folder.is_dir():
            raise UsageError(f"{path}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name a file in it")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"{path}: may not be written by this user; choose another place")


def check_formats(*pictures: Path | None) -> None:
    """Raises UsageError for a suffix that no picture has, before anything is searched."""
    wanted = [path for path in pictures if path is not None]
    if wanted:
        from netbench.report.picture import check_format  # matplotlib

        for path in wanted:
            check_format(path)


def write_text(output: Path | None, text: str, what: str) -> None:
    """To a file, and say so; or to standard output. Raises UsageError."""
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from None
    click.echo(f"wrote {output}: {what}", err=True)
