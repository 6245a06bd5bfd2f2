"""The guest kernel in the user's cache: found and checked, or built once.

    $XDG_CACHE_HOME/netbench/kernel/<recipe>/linux, guest-kernel.config, build.json

The directory is named after the recipe (our configuration and patch) and not after the source
package or compiler, which build.json records: an upgrade of either does not throw away a kernel
that works. A directory appears by one rename, complete or not at all.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from netbench.errors import TestbedError
from netbench.testbed.kernel_build import Recipe, Source, build, find_source, prepare_tools
from netbench.testbed.packages import find_command
from netbench.testbed.progress import Progress, open_progress
from netbench.units import format_bytes

GOOD, CORRUPT, MISSING = "good", "corrupt", "missing"

_HERE = Path(__file__).parent
_BUILD_PREFIX = "building-"
_REQUIRED_FREE_BYTES = 1_000_000_000
"""Free space a build is started with: sources take 0.6 GB, objects 0.1 GB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a kernel was made from (build.json). sha256: of `linux`. build_s: wall seconds."""

    source_version: str
    compiler: str
    sha256: str
    build_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelStatus:
    """state: good, corrupt or missing. path: where the kernel is or would be. detail: one line."""

    state: str
    path: Path
    detail: str
    manifest: Manifest | None = None


def cache_dir() -> Path:
    """netbench's directory in the user's cache; not created."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "netbench"


def guest_recipe() -> Recipe:
    """The configuration and patch that come with netbench."""
    return Recipe(
        config=(_HERE / "guest-kernel.config").read_text(encoding="utf-8"),
        patch=(_HERE / "guest-kernel.patch").read_text(encoding="utf-8"),
    )


def kernel_status(recipe: Recipe | None = None) -> KernelStatus:
    """Look at the kernel in the cache and compare its checksum."""
    directory = _directory(recipe or guest_recipe())
    path = directory / "linux"
    if not directory.is_dir():
        return KernelStatus(state=MISSING, path=path, detail="run: netbench kernel build")
    try:
        manifest = Manifest(**json.loads((directory / "build.json").read_text(encoding="utf-8")))
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, TypeError) as error:
        return KernelStatus(state=CORRUPT, path=path, detail=f"{type(error).__name__}: {error}")
    if found != manifest.sha256 or not os.access(path, os.X_OK):
        detail = f"sha256 is {found[:16]}..., the build recorded {manifest.sha256[:16]}..."
        return KernelStatus(state=CORRUPT, path=path, detail=detail, manifest=manifest)
    detail = f"from {manifest.source_version}, {manifest.compiler}"
    return KernelStatus(state=GOOD, path=path, detail=detail, manifest=manifest)


def locate_kernel() -> Path | None:
    """The guest kernel, if it is in the cache and its checksum is right."""
    status = kernel_status()
    return status.path if status.state == GOOD else None


def locate_packaged_kernel() -> Path | None:
    """Debian's `user-mode-linux` kernel: netem, but no virtual time."""
    return find_command("linux.uml")


def ensure_kernel(
    progress: Progress | None = None,
    *,
    rebuild: bool = False,
    source: Source | None = None,
    recipe: Recipe | None = None,
) -> Path:
    """The guest kernel, built first if it is not there, is corrupt, or `rebuild` is set.

    Of several at once, one builds and the others wait for it.
    Raises: TestbedError with the remedy, when packages or space are missing or the build fails.
    """
    recipe = recipe or guest_recipe()
    status = kernel_status(recipe)
    if status.state == GOOD and not rebuild:
        return status.path
    root = status.path.parent.parent
    _check_place(root)
    with ExitStack() as stack:
        progress = progress or stack.enter_context(open_progress())
        stack.enter_context(_lock(root, progress))
        status = kernel_status(recipe)  # another process may have built it while we waited
        if status.state == GOOD and not rebuild:
            return status.path
        if status.state == CORRUPT:
            progress.say(f"the guest kernel in the cache is corrupt ({status.detail}): rebuilding")
        _build_and_install(recipe, source, status.path.parent, progress)
    return status.path


def _directory(recipe: Recipe) -> Path:
    return cache_dir() / "kernel" / recipe.digest


def _check_place(root: Path) -> None:
    """Create the cache directory; refuse, before any work, a place where a build would fail."""
    if set(str(root)) & set(" :"):
        raise TestbedError(
            f"the kernel cannot be built under {root}: make accepts no space or colon in a path. "
            "Set XDG_CACHE_HOME to another directory"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(root).free
    except OSError as error:
        raise TestbedError(
            f"cannot create the cache {root}: {error.strerror}. Set XDG_CACHE_HOME to a directory "
            "you can write to"
        ) from error
    if free_bytes < _REQUIRED_FREE_BYTES:
        raise TestbedError(
            f"{root} has {format_bytes(free_bytes, 2)} free; building the guest kernel takes "
            f"{format_bytes(_REQUIRED_FREE_BYTES)} for a while. Free some space, or set "
            "XDG_CACHE_HOME to a larger file system"
        )


@contextmanager
def _lock(root: Path, progress: Progress) -> Iterator[None]:
    """Hold the only right to build in `root`. The kernel releases it however we end."""
    with (root / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another netbench is building the guest kernel: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_and_install(
    recipe: Recipe, source: Source | None, directory: Path, progress: Progress
) -> None:
    """Build in a directory beside `directory`, then rename the result into its place."""
    root = directory.parent
    # We hold the lock, so what an earlier build left is nobody's: it was killed.
    for stale in root.glob(f"{_BUILD_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)
    prepare_tools(progress.say)
    work = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX, dir=root))
    try:
        source = source or find_source(work, progress.say)
        built = build(recipe, source, work, root / "build.log", progress)
        manifest = Manifest(
            source_version=source.version,
            compiler=built.compiler,
            sha256=hashlib.sha256(built.path.read_bytes()).hexdigest(),
            build_s=round(built.build_s, 1),
        )
        _install(built.path, recipe, manifest, work, directory)
    except OSError as error:
        raise TestbedError(f"cannot build the guest kernel in {root}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _install(kernel: Path, recipe: Recipe, manifest: Manifest, work: Path, directory: Path) -> None:
    """Put kernel, configuration and manifest in place, with a single rename."""
    complete = work / "complete"
    complete.mkdir()
    kernel.rename(complete / "linux")
    (complete / "guest-kernel.config").write_text(recipe.config, encoding="utf-8")
    text = json.dumps(dataclasses.asdict(manifest), indent=2) + "\n"
    (complete / "build.json").write_text(text, encoding="utf-8")
    if directory.exists():
        directory.rename(work / "replaced")
    complete.rename(directory)
