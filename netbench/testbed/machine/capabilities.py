"""Capabilities of this machine: read from it, or tried in private namespaces."""

import importlib.metadata
import mmap
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from netbench.limits import available_memory_bytes
from netbench.testbed.guest.cache import cache_dir, locate_kernel, locate_packaged_kernel
from netbench.testbed.machine.packages import find_command

PROBE_TIMEOUT_S = 20.0
"""Deadline of a probe, seconds. The first one may load kernel modules from a slow disk."""

GUEST_ROOM_BYTES = 4 << 30
"""Free space wanted for a guest's memory, a sparse file. Guests with 64 ranks filled 0.6-1.6 GB."""

NATIVE_PROBE = """\
ip link add nb0 type bridge
ip link add nb1 type veth peer name nb2
tc qdisc add dev nb1 root handle 1: htb default 0
tc class add dev nb1 parent 1: classid 1:1 htb rate 1gbit quantum 1514
tc qdisc add dev nb1 parent 1:1 netem delay 1ms limit 1000 rate 1gbit
"""
"""Network commands of the native testbed, tried in a namespace that ends with the probe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Capabilities of a machine that decide which testbeds it can run.

    has_netem: this kernel shapes (bridge, veth, HTB, netem) in a namespace; netem_error: its error
    if not. has_user_namespaces: an unprivileged process may make them. guest_kernel: built, with
    the right checksum. packaged_kernel: Debian's, without virtual time. guest_tmpdir: folder for a
    guest's memory; None if no folder allows executable mappings. num_cores: usable by this process.
    memory_bytes: available now. tc_version, torch_version: empty if not installed.
    """

    is_root: bool
    has_netem: bool
    netem_error: str
    has_user_namespaces: bool
    guest_kernel: Path | None
    packaged_kernel: Path | None
    guest_tmpdir: Path | None
    num_cores: int
    memory_bytes: float
    tc_version: str
    torch_version: str


def probe_machine() -> Capabilities:
    """Probe this machine, in some tens of milliseconds. Imports neither torch nor paramiko."""
    netem_error = _native_error()
    return Capabilities(
        is_root=os.geteuid() == 0,
        has_netem=not netem_error,
        netem_error=netem_error,
        has_user_namespaces=_succeeds("unshare", "--user", "--map-root-user", "true"),
        guest_kernel=locate_kernel(),
        packaged_kernel=locate_packaged_kernel(),
        guest_tmpdir=guest_tmpdir((Path("/dev/shm"), Path(tempfile.gettempdir()), cache_dir())),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=available_memory_bytes(),
        tc_version=_tc_version(),
        torch_version=_installed_version("torch"),
    )


def guest_tmpdir(candidates: tuple[Path, ...]) -> Path | None:
    """Choose the folder for a guest's memory: the first candidate with room, else the roomiest.

    Code must be mappable from it: /dev/shm of a container is often noexec, and has only 64 MB.
    """
    usable = [path for path in candidates if allows_executable_mappings(path)]
    free_bytes = {path: shutil.disk_usage(path).free for path in usable}
    with_room = (path for path in usable if free_bytes[path] >= GUEST_ROOM_BYTES)
    return next(with_room, max(usable, key=free_bytes.__getitem__, default=None))


def allows_executable_mappings(directory: Path) -> bool:
    """Return whether files in `directory` can be mapped as code, i.e. it is not mounted noexec."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.truncate(mmap.PAGESIZE)
            protection = mmap.PROT_READ | mmap.PROT_EXEC
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, protection).close()
    except OSError:
        return False
    return True


def _native_error() -> str:
    """Try what the native testbed needs, in private namespaces. Return the error, or ""."""
    if find_command("ip") is None or find_command("tc") is None:
        return "ip and tc are not installed"
    unshare = ["unshare", "--net"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    result = _run(*unshare, "sh", "-ex", "-c", NATIVE_PROBE)
    if result is None:
        return "unshare is not installed, or did not end"
    if result.returncode == 0:
        return ""
    return failed_step(result.stderr)


def failed_step(trace: str) -> str:
    """Return the command that failed and its error, from the stderr of `sh -ex`."""
    lines = trace.strip().splitlines()
    steps = [line[2:] for line in lines if line.startswith("+ ")]
    said = lines[-1] if lines and not lines[-1].startswith("+ ") else "failed"
    return f"{steps[-1]}: {said}" if steps else said


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    try:
        return subprocess.run(
            command,
            env={**os.environ, "PATH": path, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _succeeds(*command: str) -> bool:
    result = _run(*command)
    return result is not None and result.returncode == 0


def _tc_version() -> str:
    result = _run("tc", "-V")
    return result.stdout.strip() if result is not None else ""


def _installed_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
