"""What a machine can do and what to install for the rest; pure, from what was probed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from netbench.testbed.boot_check import BootResult
from netbench.testbed.host import Host
from netbench.testbed.packages import FEATURES, install_line, missing_packages

LARGE_RUN_BYTES = 4_000_000_000
"""Memory for 64 ranks in two guests side by side: 0.6-1.6 GB were seen in each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report. remedy: what to do if not `good`; "" where nothing can be done."""

    name: str
    good: bool
    detail: str
    remedy: str = ""


def machine_findings(host: Host) -> tuple[Finding, ...]:
    """What the machine has, fact by fact."""
    gigabytes = host.memory_bytes / 1e9
    return (
        Finding(name="cores", good=host.num_cores >= 2, detail=f"{host.num_cores}"),
        Finding(
            name="memory",
            good=host.memory_bytes >= LARGE_RUN_BYTES,
            detail=f"{gigabytes:.1f} GB available; 64 ranks take up to 4",
        ),
        Finding(name="root", good=host.is_root, detail="yes" if host.is_root else "no"),
        Finding(
            name="user namespaces",
            good=host.has_user_namespaces,
            detail="allowed" if host.has_user_namespaces else "not allowed",
        ),
        Finding(
            name="netem in this kernel",
            good=host.has_netem,
            detail=host.netem_error or "bridge, veth, HTB and netem work",
        ),
        Finding(
            name="guest memory",
            good=host.guest_tmpdir is not None,
            detail=f"in {host.guest_tmpdir}" if host.guest_tmpdir else "nowhere to map code from",
            remedy="" if host.guest_tmpdir else "set TMPDIR to a directory not mounted noexec",
        ),
        _tool("tc", host.has_tc and host.has_ip, "run", host.tc_version),
        _tool("ping", host.has_ping, "run", "installed"),
        _tool("sshd", host.has_sshd, "ssh", "installed"),
        Finding(
            name="torch",
            good=bool(host.torch_version),
            detail=host.torch_version or "not installed",
            remedy="" if host.torch_version else "pip install torch",
        ),
    )


def mode_findings(
    host: Host, virtual: BootResult | None, packaged: BootResult | None
) -> tuple[Finding, ...]:
    """What can be run. `virtual`, `packaged`: a boot of either kernel; None if there is none."""
    guest = _guest_virtual(host, virtual)
    return (
        _native(host),
        guest,
        _guest_real(guest, packaged),
        _ssh(host),
    )


def _native(host: Host) -> Finding:
    """Root, and a kernel that shapes."""
    lacking = [] if host.is_root else ["not root"]
    lacking += [] if host.has_netem else ["this kernel cannot shape (see above)"]
    return Finding(
        name="local:native",
        good=not lacking,
        detail="; ".join(lacking) or "in this kernel, real time",
        remedy=_install("run") or ("run netbench as root" if host.has_netem and lacking else ""),
    )


def _guest_virtual(host: Host, boot: BootResult | None) -> Finding:
    name = "local:guest, virtual time"
    if boot is None and host.guest_kernel is None:
        return Finding(name=name, good=False, detail="not built", remedy="netbench kernel build")
    if boot is None or boot.error:
        reason = boot.error if boot else "nowhere to keep its memory"
        return Finding(name=name, good=False, detail=f"does not boot: {reason}")
    missing = _install("run")
    detail = f"Linux {boot.release} boots in {boot.wall_s:.1f} s"
    return Finding(name=name, good=not missing, detail=detail, remedy=missing)


def _guest_real(guest: Finding, packaged: BootResult | None) -> Finding:
    """The guest kernel runs in real time too; Debian's is for those who have not built it."""
    name = "local:guest, real time"
    if guest.good:
        return Finding(name=name, good=True, detail="with the same kernel")
    if packaged is None:
        return Finding(
            name=name, good=False, detail="no kernel", remedy=_install("realtime") or guest.remedy
        )
    if packaged.error:
        detail = f"Debian's user-mode-linux does not boot: {packaged.error}"
        return Finding(name=name, good=False, detail=detail, remedy=guest.remedy)
    missing = _install("run")
    detail = f"Debian's user-mode-linux, Linux {packaged.release}"
    return Finding(name=name, good=not missing, detail=detail, remedy=missing)


def _ssh(host: Host) -> Finding:
    detail = "one sshd per node" if host.has_sshd else "no sshd"
    return Finding(name="--ssh", good=host.has_sshd, detail=detail, remedy=_install("ssh"))


def _tool(name: str, found: bool, feature: str, detail: str) -> Finding:
    shown = detail if found else "not installed"
    return Finding(name=name, good=found, detail=shown, remedy="" if found else _install(feature))


def _install(feature: str) -> str:
    """The command that brings what `feature` lacks, or "" if nothing is missing."""
    packages = missing_packages(FEATURES[feature])
    return install_line(packages) if packages else ""


def can_run(modes: Iterable[Finding]) -> bool:
    """Whether any testbed works."""
    return any(mode.good for mode in modes if mode.name.startswith("local:"))


def render(title: str, findings: Iterable[Finding]) -> str:
    """A block of the report: one line per finding, the remedy beneath what is not good."""
    lines = [title]
    for finding in findings:
        lines.append(f"  {'yes' if finding.good else 'no ':3} {finding.name:26} {finding.detail}")
        if finding.remedy and not finding.good:
            lines.append(f"      {'':26} -> {finding.remedy}")
    return "\n".join(lines)
