"""Compiled files in the user's cache: the guest kernel, and the library that trainers preload.

    $XDG_CACHE_HOME/netbench/kernel/<recipe>/linux, guest-kernel.config, build.json

The directory is named after the recipe (configuration and patch), not after the source package or
the compiler: an upgrade of either does not invalidate a kernel that works. build.json records them.
A directory appears by one rename, complete or not at all.
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from netbench.errors import TestbedError
from netbench.progress import Progress, open_progress
from netbench.testbed.guest.build import (
    KernelSource,
    Manifest,
    Recipe,
    build,
    find_source,
    prepare_tools,
)
from netbench.testbed.lifetime import Scratch
from netbench.testbed.machine.packages import find_command
from netbench.units import format_bytes

SHIM_SOURCE = Path(__file__).parents[2] / "trainers" / "gloo_shim.c"

GOOD, CORRUPT, MISSING = "good", "corrupt", "missing"

_HERE = Path(__file__).parent
_BUILD_PREFIX = "building-"
START_S = 20.0
"""Deadline for a kernel to print its version, seconds."""

_REQUIRED_FREE_BYTES = 1_000_000_000
"""Free space needed to start a build: sources take 0.6 GB, objects 0.1 GB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelStatus:
    """State of the cached kernel: good, corrupt or missing. detail: one line."""

    state: str
    path: Path
    detail: str
    manifest: Manifest | None = None


def cache_dir() -> Path:
    """Return netbench's directory in the user's cache. Does not create it.

    Raises TestbedError if the user has no home directory and XDG_CACHE_HOME is not set.
    """
    homes = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # a container may run as a user without a name
        homes.append(pwd.getpwuid(os.geteuid()).pw_dir)
    bases = [os.environ.get("XDG_CACHE_HOME", ""), *(f"{home}/.cache" for home in homes if home)]
    for base in bases:
        if base.startswith("/"):  # the XDG specification: others are to be ignored
            return Path(base) / "netbench"
    raise TestbedError("this user has no home directory; set XDG_CACHE_HOME to a directory")


def guest_recipe() -> Recipe:
    """Return the configuration and patch that come with netbench."""
    return Recipe(
        config=(_HERE / "kernel.config").read_text(encoding="utf-8"),
        patch=(_HERE / "kernel.patch").read_text(encoding="utf-8"),
    )


def kernel_status(recipe: Recipe | None = None) -> KernelStatus:
    """Check the kernel in the cache and its checksum."""
    directory = cache_dir() / "kernel" / (recipe or guest_recipe()).digest
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
    """Return the guest kernel, if it is in the cache with the right checksum."""
    status = kernel_status()
    return status.path if status.state == GOOD else None


def locate_packaged_kernel() -> Path | None:
    """Return Debian's `user-mode-linux` kernel, which has netem but no virtual time."""
    return find_command("linux.uml")


def ensure_kernel(
    progress: Progress | None = None,
    *,
    rebuild: bool = False,
    source: KernelSource | None = None,
    recipe: Recipe | None = None,
    may_install: bool = False,
) -> Path:
    """Return the guest kernel. Build it first if it is missing or corrupt, or `rebuild` is set.

    may_install: install missing packages first, as root.

    Of several processes one builds and the others wait. Raises TestbedError with the remedy when
    packages or space are missing, or the build fails.
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
        _build_and_install(recipe, source, status.path.parent, progress, may_install)
    return status.path


def _check_place(root: Path) -> None:
    """Create the cache directory. Raises TestbedError if a build would fail there."""
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
    """Take the lock for building in `root`, until this process and its compilers have ended."""
    with (root / "lock").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another netbench is building the guest kernel: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_and_install(
    recipe: Recipe,
    source: KernelSource | None,
    directory: Path,
    progress: Progress,
    may_install: bool,
) -> None:
    """Build in a directory beside `directory`, then rename the result into its place."""
    root = directory.parent
    prepare_tools(progress.say, may_install)
    try:
        with Scratch(root, _BUILD_PREFIX) as work:
            source = source or find_source(work, progress.say, may_install)
            kernel, manifest = build(recipe, source, work, root / "build.log", progress)
            _install(kernel, recipe, manifest, work, directory)
    except OSError as error:
        raise TestbedError(f"cannot build the guest kernel in {root}: {error}") from error


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


def receive_kernel(kernel: bytes, manifest: Manifest) -> Path:
    """Put a kernel that another machine has built into the cache, unless there is a good one.

    Raises TestbedError if it is damaged, cannot be written, or does not start on this machine.
    """
    if hashlib.sha256(kernel).hexdigest() != manifest.sha256:
        raise TestbedError("the guest kernel was damaged on its way; try again")
    recipe, path = guest_recipe(), kernel_status().path
    root = path.parent.parent
    _check_place(root)
    try:
        with ExitStack() as stack:
            stack.enter_context(_lock(root, stack.enter_context(open_progress())))
            work = stack.enter_context(Scratch(root, _BUILD_PREFIX))
            if kernel_status(recipe).state == GOOD:
                return path
            made = work / "linux"
            made.write_bytes(kernel)
            made.chmod(0o755)
            _check_starts(made)
            _install(made, recipe, manifest, work, path.parent)
    except OSError as error:
        raise TestbedError(f"cannot keep the guest kernel in {root}: {error}") from error
    return path


def _check_starts(kernel: Path) -> None:
    """Raises TestbedError if a kernel, which is a program, does not print its version."""
    command = [str(kernel), "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S)
    if result.returncode != 0:
        raise TestbedError(
            "the guest kernel of the client does not start on this machine: "
            f"{(result.stderr or result.stdout).strip()}"
        )


def ensure_shim(source: Path = SHIM_SOURCE) -> Path | None:
    """Return the library that trainers preload, or None without a compiler or a source.

    It spares gloo's event loop most of its system calls, the largest host cost in virtual time.
    Results do not change, but without it runs take longer. Its name has the checksums of its source
    and of itself; a file with another checksum is compiled again. Raises TestbedError when the
    compiler fails or the cache cannot be written.
    """
    if not source.exists():
        return None
    directory, name = cache_dir() / "shim", f"{source.stem}-{_digest(source)}"
    for library in directory.glob(f"{name}-*.so"):
        if library.stem == f"{name}-{_digest(library)}":
            return library
    compiler = find_command("gcc") or find_command("cc")
    if compiler is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as work:
            made = Path(work) / name
            _compile(compiler, source, made)
            return made.rename(directory / f"{name}-{_digest(made)}.so")
    except OSError as error:
        raise TestbedError(f"cannot keep {source.name} in {directory}: {error}") from error


def _digest(path: Path) -> str:
    """Return half of a file's SHA-256, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _compile(compiler: Path, source: Path, library: Path) -> None:
    command = [str(compiler), "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise TestbedError(f"{compiler.name} cannot compile {source}:\n{result.stderr.strip()}")
