"""Runs that their user may clear: recorded per inventory, and never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.network.remote.runs import known_runs, remember


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "my hosts.yaml"


def test_runs_of_the_same_inventory_are_known(inventory: Path) -> None:
    """Whatever path leads to it. Others are not."""
    assert known_runs(inventory) == ()
    assert remember(inventory, "one")
    assert remember(inventory.parent / "other.yaml", "two")
    assert remember(inventory, "three")
    assert known_runs(inventory.parent / "x" / ".." / inventory.name) == ("one", "three")
    assert [path.name for path in (inventory.parent / "state" / "netbench").iterdir()] == ["runs"]


@pytest.mark.parametrize("home", ["missing", "file"])
def test_no_place_for_it_is_no_error(
    inventory: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No home, or one that is a file: the caller says that clearing needs --force."""
    inventory.write_text("")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", str(inventory) if home == "file" else "")
    monkeypatch.setattr(Path, "home", no_home)
    assert not remember(inventory, "one")
    assert known_runs(inventory) == ()
