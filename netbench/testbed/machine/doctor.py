"""Report what a machine can do, and what to install for the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from netbench.testbed.guest.boot import BootResult
from netbench.testbed.machine.capabilities import Capabilities
from netbench.testbed.machine.packages import FEATURES, install_line, missing_packages

LARGE_RUN_BYTES = 4_000_000_000
"""Memory for 64 ranks in two guests side by side, bytes: each was seen to use 0.6-1.6 GB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report. remedy: advice, shown if not `good`; "" = none."""

    name: str
    good: bool
    detail: str
    remedy: str = ""


def machine_findings(machine: Capabilities) -> tuple[Finding, ...]:
    """List the machine's capabilities."""
    gigabytes = machine.memory_bytes / 1e9
    return (
        Finding(name="cores", good=machine.num_cores >= 2, detail=f"{machine.num_cores}"),
        Finding(
            name="memory",
            good=machine.memory_bytes >= LARGE_RUN_BYTES,
            detail=f"{gigabytes:.1f} GB available; 64 ranks take up to 4",
        ),
        Finding(name="root", good=machine.is_root, detail="yes" if machine.is_root else "no"),
        Finding(
            name="user namespaces",
            good=machine.has_user_namespaces,
            detail="allowed" if machine.has_user_namespaces else "not allowed",
        ),
        Finding(
            name="netem in this kernel",
            good=machine.has_netem,
            detail=machine.netem_error or "bridge, veth, HTB and netem work",
        ),
        Finding(
            name="guest memory",
            good=machine.guest_tmpdir is not None,
            detail=f"in {machine.guest_tmpdir}" if machine.guest_tmpdir else "nowhere to map code",
            remedy="set TMPDIR to a directory not mounted noexec",
        ),
        _tool("tc", ("tc", "ip"), "run", machine.tc_version),
        _tool("ping", ("ping",), "run", "installed"),
        _tool("sshd", ("sshd",), "ssh", "installed"),
        Finding(
            name="torch",
            good=bool(machine.torch_version),
            detail=machine.torch_version or "not installed",
            remedy="pip install torch",
        ),
    )


def testbed_findings(
    machine: Capabilities, virtual: BootResult | None, packaged: BootResult | None
) -> tuple[Finding, ...]:
    """List the testbeds. virtual, packaged: test boots of the kernels; None without that kernel."""
    guest = _guest_virtual(machine, virtual)
    real, ssh = _guest_real(guest, packaged), _tool("--ssh", ("sshd",), "ssh", "one sshd per node")
    return _native(machine), guest, real, ssh


def _native(machine: Capabilities) -> Finding:
    """Report on the native testbed, which needs root and a kernel that shapes."""
    lacking = [] if machine.is_root else ["not root"]
    lacking += [] if machine.has_netem else ["this kernel cannot shape (see above)"]
    return Finding(
        name="local:native",
        good=not lacking,
        detail="; ".join(lacking) or "in this kernel, real time",
        remedy=_install("run") or ("run netbench as root" if machine.has_netem and lacking else ""),
    )


def _guest_virtual(machine: Capabilities, boot: BootResult | None) -> Finding:
    name = "local:guest, virtual time"
    if boot is None and machine.guest_kernel is None:
        return Finding(name=name, good=False, detail="not built", remedy="netbench kernel build")
    if boot is None or boot.error:
        reason = boot.error if boot else "nowhere to keep its memory"
        return Finding(name=name, good=False, detail=f"does not boot: {reason}")
    missing = _install("run")
    detail = f"Linux {boot.release} boots in {boot.wall_s:.1f} s"
    return Finding(name=name, good=not missing, detail=detail, remedy=missing)


def _guest_real(guest: Finding, packaged: BootResult | None) -> Finding:
    """Report on real time in a guest: with the guest kernel, or Debian's if it is not built."""
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


def _tool(name: str, commands: Sequence[str], feature: str, detail: str) -> Finding:
    good = not missing_packages(commands)
    shown = detail if good else "not installed"
    return Finding(name=name, good=good, detail=shown, remedy=_install(feature))


def _install(feature: str) -> str:
    """Return the command that installs what `feature` lacks, or ""."""
    packages = missing_packages(FEATURES[feature])
    return install_line(packages) if packages else ""


def can_run(testbeds: Iterable[Finding]) -> bool:
    """Return whether any testbed works."""
    return any(one.good for one in testbeds if one.name.startswith("local:"))


def render(title: str, findings: Iterable[Finding]) -> str:
    """Return a block of the report: a line per finding, with the remedy beneath a bad one."""
    lines = [title]
    for finding in findings:
        lines.append(f"  {'yes' if finding.good else 'no ':3} {finding.name:26} {finding.detail}")
        if finding.remedy and not finding.good:
            lines.append(f"      {'':26} -> {finding.remedy}")
    return "\n".join(lines)
