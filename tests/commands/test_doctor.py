"""`netbench doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench import cli
from netbench.commands import doctor


def test_the_report_covers_machine_and_testbeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a kernel in the cache, the report suggests to build one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        "netbench.testbed.machine.capabilities.locate_packaged_kernel", lambda: None
    )
    code = cli.run(["doctor"])
    out = capsys.readouterr().out
    assert "-> netbench kernel build" in out
    # On a machine without a kernel in the cache only native can run.
    native = next(line for line in out.splitlines() if "local:native" in line)
    assert code == (0 if native.split()[0] == "yes" else 1)


def test_install_installs_missing_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--install may be repeated; the packages of all features are installed together."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(doctor, "missing_packages", lambda commands: tuple(commands))
    monkeypatch.setattr(doctor, "install", lambda missing, **_: asked.append(missing))
    assert cli.run(["doctor", "--install", "ssh", "--install", "realtime"]) == 0
    assert asked == [("sshd", "linux.uml")]


@pytest.mark.guest
def test_a_built_guest_kernel_is_booted_and_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """The report says that it boots because it booted."""
    assert cli.run(["doctor"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "virtual time" in line)
    assert line.split()[0] == "yes"
    assert "boots in" in line
