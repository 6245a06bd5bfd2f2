"""The preload library of the trainers, compiled once into the user's cache.

It lengthens the timeout of gloo's polling loop, which in virtual time is the largest host cost
and changes no result. Without a compiler there is none, and runs take longer.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from netbench.errors import TestbedError
from netbench.testbed.kernel import cache_dir
from netbench.testbed.packages import find_command

SHIM_SOURCE = Path(__file__).parent.parent / "trainers" / "epoll_shim.c"


def ensure_shim(source: Path = SHIM_SOURCE) -> Path | None:
    """The compiled library, named after its source; None without a compiler or a source.

    Raises: TestbedError when the compiler refuses it or the cache cannot be written.
    """
    if not source.exists():
        return None
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = cache_dir() / "shim" / f"{source.stem}-{digest}.so"
    if library.exists():
        return library
    compiler = find_command("gcc") or find_command("cc")
    if compiler is None:
        return None
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as work:
            made = Path(work) / library.name
            _compile(compiler, source, made)
            made.rename(library)
    except OSError as error:
        raise TestbedError(f"cannot keep {source.name} in {library.parent}: {error}") from error
    return library


def _compile(compiler: Path, source: Path, library: Path) -> None:
    command = [str(compiler), "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise TestbedError(f"{compiler.name} cannot compile {source}:\n{result.stderr.strip()}")
