"""Build the guest kernel from Debian's kernel source package, in a given directory."""

import hashlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from netbench.errors import TestbedError
from netbench.progress import Progress
from netbench.testbed.lifetime import tied
from netbench.testbed.machine.packages import (
    FEATURES,
    find_command,
    install,
    install_line,
    missing_packages,
)
from netbench.units import counted

SOURCE_PACKAGE = "linux-source-6.12"
SOURCE_TARBALL = Path("/usr/src/linux-source-6.12.tar.xz")
EXPECTED_OBJECTS = 660
"""Number of `CC` lines of a build of 6.12.117, for the progress bar."""

FAILURE_LINES = 30
"""Number of last lines of a failed build that are shown."""

PURPOSE = "building the guest kernel"

_UNUSED_SOURCES = (
    "*/Documentation/*/*",
    "*/arch/*/boot/dts/*",
    "*/arch/[!ux]*/*.[chS]",
    "*/drivers/gpu/*.[chS]",
    "*/drivers/infiniband/*.[chS]",
    "*/drivers/media/*.[chS]",
    "*/drivers/net/ethernet/*.[chS]",
    "*/drivers/net/wireless/*.[chS]",
    "*/drivers/scsi/*.[chS]",
    "*/drivers/staging/*.[chS]",
    "*/sound/*.[chS]",
    "*/tools/testing/*",
)
"""Patterns not unpacked: 1 GB of code that no UML kernel compiles. Kconfig and Makefiles are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Changes to a kernel. config: lines of a .config. patch: applied with -p1, or empty."""

    config: str
    patch: str = ""

    @property
    def digest(self) -> str:
        """Name of this recipe: 16 hex digits."""
        text = f"{self.config}\0{self.patch}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSource:
    """Tarball of kernel sources with one directory at its top. version: recorded as provenance."""

    version: str
    tarball: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Origin of a kernel (build.json). sha256: of `linux`. build_s: wall seconds."""

    source_version: str
    compiler: str
    sha256: str
    build_s: float


def prepare_tools(say: Callable[[str], None], may_install: bool = False) -> None:
    """Install missing build tools if that is allowed. Raises TestbedError with the command to run
    as root."""
    missing = missing_packages(FEATURES["build"])
    install(missing, purpose=PURPOSE, say=say, allowed=may_install)


def find_source(work: Path, say: Callable[[str], None], may_install: bool = False) -> KernelSource:
    """Return Debian's source tarball: of the installed package, which root installs if that is
    allowed, or unpacked in `work`.

    Raises TestbedError when neither works.
    """
    if may_install and not SOURCE_TARBALL.exists() and os.geteuid() == 0:
        install((SOURCE_PACKAGE,), purpose=PURPOSE, say=say)
    if SOURCE_TARBALL.exists():
        return KernelSource(version=_installed_version(), tarball=SOURCE_TARBALL)
    return _download_source(work, say)


def build(
    recipe: Recipe, source: KernelSource, work: Path, log_path: Path, progress: Progress
) -> tuple[Path, Manifest]:
    """Unpack, patch, configure and compile in `work`; return the kernel there, and its origin.

    All output goes to `log_path`. Raises TestbedError with the last lines of the log.
    """
    start_s = time.monotonic()
    tree, objects = work / "source", work / "objects"
    tree.mkdir()
    objects.mkdir()
    with log_path.open("w", encoding="utf-8") as log:
        progress.say(f"{PURPOSE} from {source.version}; log: {log_path}")
        excludes = [f"--exclude={pattern}" for pattern in _UNUSED_SOURCES]
        unpack = ("tar", "-xf", str(source.tarball), "--strip-components=1", *excludes)
        _run(unpack, cwd=tree, log=log)
        if recipe.patch:
            patch = work / "guest-kernel.patch"
            patch.write_text(recipe.patch, encoding="utf-8")
            _run(("patch", "-p1", "--batch", "--forward", "-i", str(patch)), cwd=tree, log=log)
        _configure(recipe, tree, objects, work, log)
        num_objects = 0

        def count(line: str) -> None:
            nonlocal num_objects
            if line.startswith("  CC "):
                num_objects += 1
                progress.advance("compiling the guest kernel", num_objects, EXPECTED_OBJECTS)

        jobs = len(os.sched_getaffinity(0))
        _run((*_make(tree, objects), f"-j{jobs}", "linux"), cwd=tree, log=log, on_line=count)
    build_s = time.monotonic() - start_s
    progress.say(f"built the guest kernel: {num_objects} objects in {build_s:.0f} s")
    kernel = objects / "linux"
    return kernel, Manifest(
        source_version=source.version,
        compiler=_output(("gcc", "--version"), work).stdout.partition("\n")[0],
        sha256=hashlib.sha256(kernel.read_bytes()).hexdigest(),
        build_s=round(build_s, 1),
    )


def ineffective_options(asked: str, result: str) -> tuple[str, ...]:
    """Return the lines of the configuration `asked` that the .config `result` does not honour.

    Kconfig silently drops unknown or unsatisfied options.
    """
    got = set(result.splitlines())
    lines = [line.strip() for line in asked.splitlines()]
    dropped = [line for line in lines if line.startswith("CONFIG_") and line not in got]
    for line in lines:
        off = re.fullmatch(r"# (CONFIG_\w+) is not set", line)
        if off and any(other.startswith(f"{off[1]}=") for other in got):
            dropped.append(line)
    return tuple(dropped)


def _make(tree: Path, objects: Path) -> tuple[str, ...]:
    return ("make", "-C", str(tree), "ARCH=um", f"O={objects}")


def _configure(recipe: Recipe, tree: Path, objects: Path, work: Path, log: TextIO) -> None:
    file = work / "guest-kernel.config"
    file.write_text(recipe.config, encoding="utf-8")
    _run((*_make(tree, objects), f"KCONFIG_ALLCONFIG={file}", "allnoconfig"), cwd=tree, log=log)
    result = (objects / ".config").read_text(encoding="utf-8")
    dropped = ineffective_options(recipe.config, result)
    if dropped:
        raise TestbedError(
            f"these kernel sources do not honour {counted(len(dropped), 'option')} of "
            f"guest-kernel.config: {', '.join(dropped)}. Use the sources of {SOURCE_PACKAGE}"
        )


def _run(
    command: Sequence[str],
    *,
    cwd: Path,
    log: TextIO,
    on_line: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a build command with its output in the log. No process of it outlives this call."""
    tail: deque[str] = deque(maxlen=FAILURE_LINES)
    log.write(f"$ {shlex.join(command)}\n")
    process = subprocess.Popen(
        [*tied(), *command],
        close_fds=False,  # it has the lock of the cache, too, and keeps the build's folder
        cwd=cwd,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            log.write(line)
            tail.append(line)
            on_line(line)
        code = process.wait()
    finally:
        if process.poll() is None:  # interrupted: make and its compilers must not continue
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.read()  # until the last of them has ended
        process.stdout.close()
    if code != 0:
        raise TestbedError(
            f"{PURPOSE}: `{command[0]}` failed (exit {code}). Last lines of {log.name}:\n"
            f"{''.join(tail).rstrip()}"
        )


def _environment() -> dict[str, str]:
    """Return the user's environment without variables of an outer make or a cross-compiler.

    User and host name get into the kernel's version string, and so into records: use neutral ones.
    """
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARCH", "CROSS_COMPILE", "O"}
    kept = {name: value for name, value in os.environ.items() if name not in outer}
    names = {"KBUILD_BUILD_USER": "netbench", "KBUILD_BUILD_HOST": "netbench"}
    return {**kept, **names, "LC_ALL": "C"}


def _installed_version() -> str:
    answer = _output(("dpkg-query", "-W", "-f", "${Version}", SOURCE_PACKAGE), Path.cwd())
    # Without an entry in dpkg's list the version of the file is unknown.
    return f"{SOURCE_PACKAGE} {answer.stdout.strip() or '(version unknown)'}"


def _download_source(work: Path, say: Callable[[str], None]) -> KernelSource:
    """Download and unpack Debian's package without installing it, so without root."""
    say(f"{SOURCE_PACKAGE} is not installed: downloading it (150 MB)")
    remedy = f"run: {install_line([SOURCE_PACKAGE])}"
    if find_command("apt-get") is None:
        raise TestbedError(
            f"{PURPOSE} needs Debian's package {SOURCE_PACKAGE}, and this machine has no apt-get. "
            "Give a Linux 6.12 source archive: netbench kernel build --source FILE"
        )
    fetched = _output(("apt-get", "download", SOURCE_PACKAGE), work)
    packages = sorted(work.glob(f"{SOURCE_PACKAGE}_*.deb"))
    if fetched.returncode != 0 or not packages:
        raise TestbedError(f"cannot download {SOURCE_PACKAGE} ({fetched.stderr.strip()}); {remedy}")
    version = _output(("dpkg-deb", "-f", str(packages[0]), "Version"), work).stdout.strip()
    opened = _output(("dpkg-deb", "-x", str(packages[0]), str(work / "package")), work)
    tarball = work / "package" / SOURCE_TARBALL.relative_to("/")
    if opened.returncode != 0 or not tarball.exists():
        raise TestbedError(f"cannot open {packages[0].name} ({opened.stderr.strip()}); {remedy}")
    packages[0].unlink()
    return KernelSource(version=f"{SOURCE_PACKAGE} {version}", tarball=tarball)


def _output(command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
