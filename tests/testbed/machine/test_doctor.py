"""Reports on machines of each kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netbench.testbed.guest.boot import BootResult
from netbench.testbed.machine import doctor
from netbench.testbed.machine.capabilities import Capabilities
from netbench.testing.nodes import CAPABLE

BOOTED = BootResult(error="", release="6.12.1", wall_s=0.1, slept_s=60.0)
PANIC = BootResult(error="panic")


@pytest.fixture(autouse=True)
def nothing_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_packages", lambda commands: ())


def by_name(
    machine: Capabilities, virtual: BootResult | None = BOOTED, packaged: BootResult | None = None
) -> dict[str, doctor.Finding]:
    return {one.name: one for one in doctor.testbed_findings(machine, virtual, packaged)}


def test_a_machine_with_everything_can_run_everything() -> None:
    """Every line of both blocks is good."""
    findings = (*doctor.machine_findings(CAPABLE), *by_name(CAPABLE).values())
    assert [finding.name for finding in findings if not finding.good] == []
    assert doctor.can_run(by_name(CAPABLE).values())


def test_without_root_native_says_so_and_the_guest_still_runs() -> None:
    """An unprivileged user has the guest testbeds."""
    found = by_name(replace(CAPABLE, is_root=False))
    assert (found["local:native"].good, found["local:native"].detail) == (False, "not root")
    assert found["local:native"].remedy == "run netbench as root"
    assert found["local:guest, virtual time"].good


def test_without_netem_root_does_not_help() -> None:
    """Nothing to install brings a kernel module; no remedy is invented."""
    native = by_name(replace(CAPABLE, has_netem=False, netem_error="unknown"))["local:native"]
    assert (native.good, native.remedy) == (False, "")


def test_a_kernel_that_is_not_built_can_be_built() -> None:
    """The remedy is the command, for real time too."""
    found = by_name(replace(CAPABLE, guest_kernel=None), virtual=None)
    assert found["local:guest, virtual time"].remedy == "netbench kernel build"
    assert found["local:guest, real time"].remedy == "netbench kernel build"


def test_a_kernel_that_does_not_boot_is_not_offered() -> None:
    """Nothing can run if neither shaping nor any guest works."""
    found = by_name(replace(CAPABLE, is_root=False), virtual=PANIC, packaged=PANIC)
    assert found["local:guest, virtual time"].detail == "does not boot: panic"
    assert "user-mode-linux does not boot: panic" in found["local:guest, real time"].detail
    assert not doctor.can_run(found.values())


def test_debians_kernel_serves_real_time() -> None:
    """Without ours, Debian's runs, in real time only."""
    found = by_name(replace(CAPABLE, guest_kernel=None), virtual=None, packaged=BOOTED)
    assert not found["local:guest, virtual time"].good
    assert found["local:guest, real time"].good


def test_a_missing_package_is_given_as_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is printed beneath the line that is not good."""
    monkeypatch.setattr(doctor, "missing_packages", lambda commands: ("openssh-server",))
    text = doctor.render("title", by_name(CAPABLE).values())
    lines = text.splitlines()
    index = next(i for i, line in enumerate(lines) if "--ssh" in line)
    assert lines[index].split()[0] == "no"
    assert lines[index + 1].strip().endswith("--no-install-recommends openssh-server")
