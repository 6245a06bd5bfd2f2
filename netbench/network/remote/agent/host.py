"""Commands, files and interfaces of this machine: what tests replace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from _socket import if_indextoname, if_nametoindex  # `socket` takes 20 times longer to import
from pathlib import Path
from typing import Any

from netbench.network.shaping.batch import DEFAULT_HANDLE, HANDLE, foreign_line, refusal_text

SYSCTL = Path("/proc/sys")

TOOL_S = 30.0
"""Deadline of one `tc` or `ip`, seconds; a batch for thousands of peers takes about one."""


class AgentError(Exception):
    """A failure on this host: what went wrong, and what to do."""


def tool_environment() -> dict[str, str]:
    """Return an environment in which `tc` is found: root's PATH may lack it."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    return {"PATH": path, "LC_ALL": "C"}


def run_tool(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
    """Run a command without a shell; return exit status, stdout and stderr."""
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TOOL_S,
            check=False,
            env=tool_environment(),
        )
    except FileNotFoundError:
        packages = dict.fromkeys(("tc", "ip", "bridge"), "iproute2") | {"unshare": "util-linux"}
        package = packages.get(argv[0], "systemd")
        raise AgentError(f"there is no command `{argv[0]}`; install {package}") from None
    except subprocess.TimeoutExpired:
        raise AgentError(f"no answer within {TOOL_S:g} s from `{' '.join(argv)}`") from None
    return done.returncode, done.stdout, done.stderr


def output_of(argv: list[str], stdin: str = "") -> str:
    """Return what a command printed. Raises AgentError with its stderr where it failed."""
    status, stdout, stderr = run_tool(argv, stdin)
    if status:
        text = " ".join(stderr.split()) or "it printed nothing"
        raise AgentError(f"`{' '.join(argv)}` exited with {status}: {text}")
    return stdout


def json_of(argv: list[str]) -> Any:
    """Parse the JSON that a command printed; an empty list where it printed nothing."""
    return json.loads(output_of(argv) or "[]")


def load_batch(text: str) -> None:
    """Load `tc -batch` text. The error quotes the line that tc refused."""
    status, _, stderr = run_tool(["tc", "-batch", "-"], text)
    if status:
        raise AgentError(refusal_text(text, stderr))


def check_batch(text: str, interface: str) -> None:
    """Raises AgentError unless `tc -batch` text only changes the qdiscs of `interface`.

    tc can also run programs and load code, which a user without full sudo must not do as root.
    """
    if line := foreign_line(text, interface):
        raise AgentError(f"`{line[:200]}` is not a change of the qdiscs of {interface}")


def now_s() -> float:
    """Read a clock that nobody sets and that goes on during suspend, seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def namespace(process: str = "self") -> int:
    """Return the number of a process's network namespace, unique until the next boot."""
    return Path(f"/proc/{process}/ns/net").stat().st_ino


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def ifindex(interface: str) -> int | None:
    """Return the kernel's number of an interface; None where there is no such interface."""
    try:
        return if_nametoindex(interface)
    except OSError:
        return None


def ifname(index: int) -> str | None:
    """Return the name that an interface has now; None where it has gone."""
    try:
        return if_indextoname(index)
    except OSError:
        return None


def _sysctl(name: str) -> Path:
    """Return the file of a setting. With slashes, as sysctl(8) has it for names with dots."""
    if re.fullmatch(r"net(\.[a-z0-9_]+)+", name):
        return SYSCTL.joinpath(*name.split("."))
    interface = re.fullmatch(r"net/ipv4/conf/([^/\s]{1,15})/forwarding", name)
    if not interface or interface[1] in (".", ".."):
        raise AgentError(f"{name!r} is not a setting of the network")
    return SYSCTL / name


def read_sysctl(name: str) -> str | None:
    """Return a setting as the kernel prints it; None for one that this kernel lacks."""
    try:
        return _sysctl(name).read_text().rstrip("\n")
    except FileNotFoundError:
        return None


def write_sysctl(name: str, value: str) -> None:
    try:
        _sysctl(name).write_text(value + "\n")
    except OSError as error:
        raise AgentError(f"cannot set {name} to {value!r}: {error.strerror}") from None


def link_of(interface: str) -> dict[str, Any]:
    """Return what `ip -j -d link show` says of an interface. Raises AgentError if it is missing."""
    status, stdout, stderr = run_tool(["ip", "-j", "-d", "link", "show", "dev", interface])
    if status:
        raise AgentError(f"no interface {interface}: {' '.join(stderr.split())}")
    found: dict[str, Any] = json.loads(stdout)[0]
    return found


def qdiscs_of(interface: str) -> list[dict[str, Any]]:
    """Return the egress qdiscs of an interface, as `tc -j` prints them."""
    found = json_of(["tc", "-j", "qdisc", "show", "dev", interface])
    kept = [qdisc for qdisc in found if qdisc["kind"] not in ("ingress", "clsact")]
    return [{key: value for key, value in q.items() if key not in ("dev", "refcnt")} for q in kept]


def root_of(qdiscs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the root among `qdiscs`, or the kernel's default where none is listed."""
    return next((q for q in qdiscs if q.get("root")), {"kind": "noqueue", "handle": DEFAULT_HANDLE})


def is_shaped(interface: str) -> bool:
    """Return whether the interface is there and its root qdisc is netbench's."""
    if ifindex(interface) is None:
        return False
    return bool(root_of(qdiscs_of(interface))["handle"] == HANDLE)


def is_foreign(qdiscs: list[dict[str, Any]]) -> bool:
    return root_of(qdiscs)["handle"] not in (HANDLE, DEFAULT_HANDLE)


def describe(interface: str) -> str:
    """Return the root qdisc with its options, as tc prints it."""
    lines = output_of(["tc", "qdisc", "show", "dev", interface]).splitlines()
    return next((" ".join(line.split()[1:]) for line in lines if " root " in line), "none")


def delete_root(interface: str, handle: str = HANDLE) -> None:
    """Delete the root qdisc, if it has this handle. Raises AgentError if it is still there."""
    output_of(["tc", "qdisc", "del", "dev", interface, "root", "handle", handle])
    if root_of(qdiscs_of(interface))["handle"] == handle:
        raise AgentError(f"{interface} still has its root qdisc {handle} after tc deleted it")


def set_segments(interface: str, segments: int) -> None:
    """Set the largest number of segments in a packet that TCP hands to the interface."""
    output_of(["ip", "link", "set", "dev", interface, "gso_max_segs", str(segments)])
    # Connections adopt the setting when they look up their route.
    output_of(["ip", "route", "flush", "cache"])


def interface_with(addresses: list[str]) -> str:
    """Return the name of the one interface that has all of `addresses`."""
    if not addresses:
        raise AgentError(
            "the address of this host on the network to shape is not known, as it is not reached "
            "by SSH; write it into the inventory (`data_address:`)"
        )
    links = json.loads(output_of(["ip", "-j", "addr", "show"]))
    have = {info["local"]: link["ifname"] for link in links for info in link.get("addr_info", [])}
    missing = [address for address in addresses if address not in have]
    if missing:
        raise AgentError(
            f"no interface has the address {', '.join(missing)}; "
            f"there are: {', '.join(f'{a} ({i})' for a, i in sorted(have.items()))}"
        )
    names = sorted({have[address] for address in addresses})
    if len(names) > 1:
        raise AgentError(f"{', '.join(addresses)} are on several interfaces: {', '.join(names)}")
    return str(names[0])
