"""Where `netbench net` commands write what they make."""

from __future__ import annotations

from pathlib import Path

import click

from netbench.errors import UsageError


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
