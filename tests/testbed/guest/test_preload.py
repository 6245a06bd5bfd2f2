"""The preload library, compiled once."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.testbed.guest import cache as shim
from netbench.testbed.guest.cache import ensure_shim


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "answer.c"
    file.write_text("int answer(void) { return 42; }\n")
    return file


def test_the_library_is_compiled_once_and_again_when_its_source_changes(source: Path) -> None:
    """It loads; it is named after what it was made from."""
    first = ensure_shim(source)
    assert first is not None
    assert ctypes.CDLL(str(first)).answer() == 42
    made_ns = first.stat().st_mtime_ns
    assert ensure_shim(source) == first
    assert first.stat().st_mtime_ns == made_ns
    source.write_text("int answer(void) { return 43; }\n")
    second = ensure_shim(source)
    assert second is not None
    assert ctypes.CDLL(str(second)).answer() == 43
    assert sorted(first.parent.iterdir()) == sorted([first, second])


def test_a_library_that_was_changed_is_compiled_again(source: Path) -> None:
    """It would be loaded into every rank."""
    first = ensure_shim(source)
    assert first is not None
    made = first.read_bytes()
    first.write_bytes(made + b"changed")
    again = ensure_shim(source)
    assert again is not None
    assert again.read_bytes() == made


def test_a_source_the_compiler_refuses_leaves_nothing(source: Path) -> None:
    """The compiler's message is in the error."""
    source.write_text("nonsense\n")
    with pytest.raises(TestbedError, match="cannot compile"):
        ensure_shim(source)
    assert list((source.parent / "cache" / "netbench" / "shim").iterdir()) == []


def test_without_a_compiler_there_is_none(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is slower without it, and as right."""
    monkeypatch.setattr(shim, "find_command", lambda name: None)
    assert ensure_shim(source) is None


def test_without_a_source_there_is_none(source: Path) -> None:
    """A package stripped of its C file still runs."""
    assert ensure_shim(source.with_name("absent.c")) is None
