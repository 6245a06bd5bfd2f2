"""`netbench kernel`."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench import cli


def test_status_of_an_empty_cache_says_how_to_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1; the output has the command and the path of the kernel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.run(["kernel", "status"]) == 1
    out = capsys.readouterr().out
    assert "missing, run: netbench kernel build" in out
    assert str(tmp_path) in out


def test_a_missing_source_archive_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """It is found before anything is built."""
    assert cli.run(["kernel", "build", "--source", "/nonexistent.tar.xz"]) == 2
    assert "/nonexistent.tar.xz" in capsys.readouterr().err


@pytest.mark.guest
def test_status_and_build_agree_on_a_built_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    """A second build only prints the path of the kernel."""
    assert cli.run(["kernel", "status"]) == 0
    assert "good" in capsys.readouterr().out
    assert cli.run(["kernel", "build"]) == 0
    assert capsys.readouterr().out.startswith("guest kernel: /")
