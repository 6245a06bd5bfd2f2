"""Input files, which are regular and of bounded size, and outputs, which never replace an input."""

import errno
import gzip
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from netbench.errors import NetbenchError, UsageError
from netbench.units import format_bytes

MAX_TEXT_BYTES = 2 * 2**20
"""Scenario, inventory, trace, placement, profile or measurement. YAML takes 15 s for so much."""

MAX_RECORD_BYTES = 256 * 2**20
"""Records of a run, or timeline of its ranks."""

INPUT, OUTPUT, WRITTEN = range(3)

_uses: ContextVar[dict[tuple[int, int], int] | None] = ContextVar("uses", default=None)
"""Use of a file by the command in this process, by device and inode."""


@contextmanager
def files_of_command() -> Iterator[None]:
    """Remember the files that one command reads and writes."""
    token = _uses.set({})
    try:
        yield
    finally:
        _uses.reset(token)


def read_input(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the bytes of a file, decompressed if it ends in `.gz`.

    Raises OSError if it cannot be read, is not a regular file or is too large, and UsageError if
    it is also an output of the command.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    _note(path, INPUT)
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if path.suffix == ".gz" and len(data) <= most_bytes:
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(most_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise OSError(errno.EINVAL, f"damaged: {error}") from None
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {format_bytes(most_bytes)}, the limit")
    return data


def read_text(path: Path) -> str:
    """Return the text of a file without a byte order mark; raises like `read_input`, and
    UnicodeDecodeError."""
    return read_input(path).decode("utf-8-sig")


def check_no_input(path: Path) -> None:
    """Raise UsageError if the command has read the file that it is about to write."""
    if path.exists():
        _note(path, OUTPUT)


def note_written(path: Path) -> None:
    """Let the command read what it has written."""
    _note(path, WRITTEN)


def write_file(path: Path, content: str | bytes, problem: type[NetbenchError] = UsageError) -> None:
    """Write a file. Raises `problem` if that fails, and like `check_no_input`."""
    check_no_input(path)
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise problem(f"{path}: cannot be written: {error.strerror}") from error
    note_written(path)


def _note(path: Path, use: int) -> None:
    """Remember a file. Raises UsageError if the command both reads and writes it."""
    found, uses = path.stat(), _uses.get()
    if uses is None or not stat.S_ISREG(found.st_mode):
        return
    key = (found.st_dev, found.st_ino)
    if {uses.get(key, use), use} == {INPUT, OUTPUT}:
        raise UsageError(f"{path}: is an input of this command; choose another file to write")
    uses[key] = max(use, uses.get(key, use))
