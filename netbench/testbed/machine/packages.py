"""Debian packages: map commands to packages, find missing ones, install them if allowed."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from netbench.errors import TestbedError

PACKAGES: dict[str, tuple[str, ...]] = {
    "bc": ("bc",),
    "bison": ("bison",),
    "chromedriver": ("chromium-driver",),
    "chromium": ("chromium",),
    "flex": ("flex",),
    "gcc": ("gcc", "libc6-dev"),
    "ip": ("iproute2",),
    "linux.uml": ("user-mode-linux",),
    "m4": ("m4",),
    "make": ("make",),
    "patch": ("patch",),
    "ping": ("iputils-ping",),
    "sshd": ("openssh-server",),
    "tar": ("tar",),
    "tc": ("iproute2",),
    "unshare": ("util-linux",),
    "xz": ("xz-utils",),
}
"""Command -> the Debian packages that contain it and its requirements."""

FEATURES: dict[str, tuple[str, ...]] = {
    "run": ("ip", "tc", "ping", "unshare"),
    "build": ("gcc", "make", "flex", "bison", "bc", "m4", "patch", "tar", "xz"),
    "ssh": ("sshd",),
    "realtime": ("linux.uml",),
    "browser": ("chromium", "chromedriver"),
}
"""Feature -> the commands it needs. `build` is of the guest kernel; `browser` is for tests."""

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Debian's folders of tc and sshd, which are not on an unprivileged user's PATH."""


def find_command(name: str) -> Path | None:
    """Return the full path of a command on PATH or on root's PATH, if there is one."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_PATH))
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def missing_packages(commands: Iterable[str]) -> tuple[str, ...]:
    """Return the packages, sorted, of those `commands` that this machine lacks."""
    missing = (name for name in commands if find_command(name) is None)
    return tuple(sorted({package for name in missing for package in PACKAGES[name]}))


def install_command(packages: Iterable[str]) -> tuple[str, ...]:
    """Return the command that installs `packages`, to run as root or to print for the user."""
    return ("apt-get", "install", "-y", "--no-install-recommends", *packages)


def install_line(packages: Iterable[str]) -> str:
    """Return `install_command` as this user would type it."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return sudo + shlex.join(install_command(packages))


def install(
    packages: Iterable[str], *, purpose: str, say: Callable[[str], None], allowed: bool = True
) -> None:
    """Print the command that installs Debian packages, and run it.

    Raises: TestbedError, naming the packages and the command, when not `allowed`, when not root,
    when there is no apt-get, or when it fails.
    """
    packages = tuple(packages)
    if not packages:
        return
    command = install_command(packages)
    if find_command("apt-get") is None:
        raise TestbedError(
            f"{purpose} needs the Debian packages {', '.join(packages)}, and this machine has no "
            "apt-get: install what they hold with its own package manager"
        )
    if os.geteuid() != 0 or not allowed:
        raise TestbedError(
            f"{purpose} needs the packages {', '.join(packages)}; run: {install_line(packages)}"
        )
    say(f"{purpose} needs packages: {shlex.join(command)}")
    first = _apt(command)
    if first.returncode == 0:
        return
    say("package lists are missing or old: apt-get update")
    _apt(("apt-get", "update"))
    second = _apt(command)
    if second.returncode != 0:
        tail = "\n".join(second.stderr.strip().splitlines()[-5:])
        raise TestbedError(f"`{shlex.join(command)}` failed (exit {second.returncode}):\n{tail}")


def _apt(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run apt-get without questions. Wait for a lock of another apt-get."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    waiting = (command[0], "-q", "-o", "DPkg::Lock::Timeout=120", *command[1:])
    return subprocess.run(
        waiting, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
