"""Runs of `net apply` that have ended: who knows the session of one may clear its network.

$XDG_STATE_HOME/netbench/runs    a line per run: session, path of the inventory
"""

import os
from pathlib import Path


def known_runs(inventory: Path) -> tuple[str, ...]:
    """Return the sessions of this user's runs with an inventory."""
    try:
        lines = _file().read_text(encoding="utf-8").splitlines()
    except (OSError, RuntimeError, ValueError):
        return ()
    pairs = [line.partition(" ") for line in lines]
    return tuple(session for session, _, path in pairs if path == str(inventory.resolve()))


def remember(inventory: Path, session: str) -> bool:
    """Record a run; return False if there is no place to."""
    try:
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.write(f"{session} {inventory.resolve()}\n")
    except (OSError, RuntimeError):
        return False
    return True


def _file() -> Path:
    """Return the path of the file. Raises RuntimeError if this user has no home."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return home / "netbench" / "runs"
