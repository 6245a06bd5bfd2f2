"""Modules as Python compiles them, for zips of code that hosts run.

To compile the agent takes longer than most of what it does. A host whose Python is of another
version ignores these files and compiles the sources beside them.
"""

import importlib.util
import marshal
import zipfile

UNCHECKED = 0b1
"""Flags of a file that is used whatever its source is now. Source: PEP 552."""


def add_module(archive: zipfile.ZipFile, name: str, source: bytes) -> None:
    """Add a module to a zip: its source, and beside it what this Python compiles it to."""
    compiled = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
    head = importlib.util.MAGIC_NUMBER + UNCHECKED.to_bytes(4, "little")
    head += importlib.util.source_hash(source)
    for path, data in ((name, source), (f"{name}c", head + compiled)):
        archive.writestr(zipfile.ZipInfo(path), data, archive.compression)
