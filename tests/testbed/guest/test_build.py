"""Parts of the kernel build that need no kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.testbed.guest import build as kernel_build
from netbench.testbed.guest.build import Recipe, ineffective_options


def test_options_without_effect_are_found() -> None:
    """Dropped, changed, and switched on although asked off; comments are not options."""
    asked = "# a comment\nCONFIG_A=y\nCONFIG_B=4\n# CONFIG_C is not set\n# CONFIG_D is not set\n"
    result = "CONFIG_B=2\nCONFIG_C=y\nCONFIG_CC=y\n# CONFIG_D is not set\n"
    assert ineffective_options(asked, result) == (
        "CONFIG_A=y",
        "CONFIG_B=4",
        "# CONFIG_C is not set",
    )


def test_a_recipe_is_named_after_configuration_and_patch() -> None:
    """Moving a byte from one to the other is another recipe."""
    assert Recipe(config="ab", patch="c").digest != Recipe(config="a", patch="bc").digest


def test_without_the_source_package_and_apt_the_remedy_is_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another distribution the user is told to give the sources."""
    monkeypatch.setattr(kernel_build, "SOURCE_TARBALL", tmp_path / "absent.tar.xz")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(kernel_build, "find_command", lambda name: None)
    with pytest.raises(TestbedError, match="--source FILE"):
        kernel_build.find_source(tmp_path, lambda text: None)


def test_a_refused_download_names_the_package_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root and without package lists, the command for root is printed."""
    apt = tmp_path / "bin" / "apt-get"
    apt.parent.mkdir()
    apt.write_text("#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:/usr/bin:/bin")
    monkeypatch.setattr(kernel_build, "SOURCE_TARBALL", tmp_path / "absent.tar.xz")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match=r"Unable to locate.*sudo apt-get install .*linux-sourc"):
        kernel_build.find_source(tmp_path, lambda text: None)
