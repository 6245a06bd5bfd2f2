"""Which package brings a command, and installing where allowed; apt-get here is a script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.testbed.guest.build import prepare_tools
from netbench.testbed.machine import packages
from netbench.testbed.machine.packages import FEATURES, PACKAGES, install, missing_packages

APT = """\
#!/bin/sh
echo "$@" >> {log}
case "$*" in *update*) touch {log}.updated; exit 0;; esac
[ -e {log}.updated ] || {{ echo "E: Unable to locate package" >&2; exit 100; }}
"""


@pytest.fixture
def apt_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an apt-get first on PATH that works only after an update; returns its log."""
    log, script = tmp_path / "log", tmp_path / "bin" / "apt-get"
    script.parent.mkdir()
    script.write_text(APT.format(log=log))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    return log


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_every_command_a_feature_needs_has_a_package() -> None:
    """The report can always say what to install."""
    assert {name for names in FEATURES.values() for name in names} <= set(PACKAGES)


def test_missing_packages_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """ip and tc come from one package; gcc brings the C library's headers."""
    monkeypatch.setattr(packages, "find_command", lambda name: None)
    assert missing_packages(["tc", "ip", "gcc"]) == ("gcc", "iproute2", "libc6-dev")


def test_root_installs_and_is_told_the_command(
    apt_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists are updated only when the first attempt fails."""
    as_user(monkeypatch, 0)
    said: list[str] = []
    install(["bc"], purpose="testing", say=said.append)
    assert said[0] == ("testing needs packages: apt-get install -y --no-install-recommends bc")
    assert [line.split()[-1] for line in apt_log.read_text().splitlines()] == ["bc", "update", "bc"]


def test_nothing_missing_runs_nothing(apt_log: Path) -> None:
    """No package, no apt-get."""
    install([], purpose="testing", say=lambda text: pytest.fail(text))
    assert not apt_log.exists()


def test_a_user_is_given_the_command(apt_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root nothing is run; the message can be pasted."""
    as_user(monkeypatch, 1000)
    with pytest.raises(TestbedError, match=r"sudo apt-get install -y --no-install-recommends bc$"):
        install(["bc"], purpose="testing", say=lambda text: None)
    assert not apt_log.exists()


def test_root_too_is_given_the_command_where_nobody_asked_to_install(
    apt_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools of the guest kernel, whose build a run starts."""
    as_user(monkeypatch, 0)
    monkeypatch.setenv("PATH", str(apt_log.parent / "bin"))  # apt-get, and no compiler
    with pytest.raises(TestbedError, match=r"run: apt-get install .* gcc"):
        prepare_tools(lambda text: None)
    assert not apt_log.exists()


def test_a_failing_apt_get_is_quoted(apt_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines of apt-get are in the error."""
    as_user(monkeypatch, 0)
    script = apt_log.parent / "bin" / "apt-get"
    script.write_text("#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    with pytest.raises(TestbedError, match=r"exit 100(.|\n)*E: no network"):
        install(["bc"], purpose="testing", say=lambda text: None)


def test_another_distribution_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without apt-get the packages are named all the same."""
    monkeypatch.setattr(packages, "find_command", lambda name: None)
    with pytest.raises(TestbedError, match=r"bc, m4.*no apt-get"):
        install(["bc", "m4"], purpose="testing", say=lambda text: None)
