"""Processes and folders that end with this process, even if it is killed."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netbench.errors import TestbedError

# The kernel signals only a parent's later end, so both shells check that theirs has not ended yet:
# a dead one has no /proc/PID/exe. With the last `exit` the second shell stays, because a command
# that is the first process of its namespace could not end itself by a signal.
TIED = """\
[ "$PPID" = "$1" ] || exit
shift
alone='unshare --pid --fork --kill-child=KILL --'
$alone true 2>/dev/null || exec "$@"
exec $alone sh -c "[ -e /proc/$$/exe ] || exit; "'"$@"; exit' sh "$@"
"""

# It comes first: a process that enters a user namespace no longer hears of its parent's end.
OWN_USERS = """\
own='unshare --user --map-current-user --keep-caps --'
$own true 2>/dev/null || own=
exec $own "$@"
"""

# The cleanup process locks its folder. A folder without a lock has lost that process, and the next
# start removes it. If that hits a folder made just now, its process makes another.
CLEANUP = """\
folder=
trap '' HUP INT TERM PIPE
for old in "$1"????????; do
  [ -O "$old" ] && [ ! -h "$old" ] && flock -n "$old" rm -rf "$old"
done
until [ -d "$folder" ]; do
  folder=$(mktemp -d "$1"XXXXXXXX) || exit
  command exec 9< "$folder" && flock 9
done
echo "$folder" 2>/dev/null
read -r _
rm -rf "$folder"
"""


def tied() -> list[str]:
    """Return the beginning of a command whose processes all end when this thread ends.

    They are in a PID namespace, so they also end with their first process. Where this user may not
    make one, only the process that is started is sure to end.
    """
    own_users = [] if os.geteuid() == 0 else ["sh", "-c", OWN_USERS, "sh"]
    setpriv = ["setpriv", "--pdeathsig", "KILL", "--"]
    return [*own_users, *setpriv, "sh", "-c", TIED, "sh", str(os.getpid())]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM, e.g. while a network is restored. What runs in it has a deadline.

    Only the main thread handles signals, so in others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Scratch:
    """A new folder that only this user may enter. Another process makes it, and removes it once
    this process and all that inherit `fd` have ended, or closed it. If all of them are killed, the
    next one like it does. Raises TestbedError."""

    def __init__(self, parent: Path | None = None, prefix: str = "netbench-run-") -> None:
        parent = parent or Path(tempfile.gettempdir())
        self._cleanup = subprocess.Popen(
            ["sh", "-c", CLEANUP, "sh", parent / prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._cleanup.stdin is not None
        assert self._cleanup.stdout is not None
        self.fd = self._cleanup.stdin.fileno()
        os.set_inheritable(self.fd, True)
        with self._cleanup.stdout as answer:
            self.path = Path(os.fsdecode(answer.readline().rstrip(b"\n")))
        if not self.path.name:
            raise TestbedError(f"cannot make a temporary folder in {parent}; set TMPDIR to another")

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: Any) -> None:
        """Remove the folder. Waits for the processes that have inherited `fd`."""
        assert self._cleanup.stdin is not None
        self._cleanup.stdin.close()
        self._cleanup.wait()
