"""Compare the software of workers with that of the client, before any cell starts."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from netbench.errors import TestbedError
from netbench.version import __version__

COMPARED = ("numpy", "numba", "torch")
"""Packages whose versions can change a figure."""

CODE_DIGITS = 8


@cache
def software() -> dict[str, str]:
    """Return the versions of this process's software. Imports none of it."""
    found = {"netbench": f"{__version__} ({code_digest()})"}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    for package in COMPARED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def code_digest() -> str:
    """Return the first digits of the SHA-256 of netbench's modules."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:CODE_DIGITS]


def check_versions(
    here: Mapping[str, str], workers: Mapping[str, Mapping[str, str] | BaseException]
) -> None:
    """Raises TestbedError with a table if a worker's software differs.

    here: of the client. workers: name -> its software, or the error of a worker that cannot tell.
    """
    wrong = {name: found for name, found in workers.items() if found != here}
    if not wrong:
        return
    names = [*here]
    rows = [["", *names], ["this machine", *here.values()]]
    for name, found in wrong.items():
        if isinstance(found, BaseException):
            rows.append([name, f"{type(found).__name__}: {found}"])
        else:
            rows.append([name, *(found.get(key, "?") for key in names)])
    widths = [max(len(row[i]) for row in rows if len(row) > 2) for i in range(len(names) + 1)]
    widths[0] = max(len(row[0]) for row in rows)
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        for row in rows
    ]
    raise TestbedError(
        "the software of the Dask cluster differs from this machine's; install the same versions "
        "there (docs/scaling.md):\n" + "\n".join(f"  {line.rstrip()}" for line in lines)
    )
