"""Start a command in the namespace of a node, as the user who called sudo.

A login user without root cannot enter a network namespace. The agent can, and gives up root before
it becomes the command: sudo has told it the user (SUDO_UID), so nobody gets more than the rights
that they logged in with. Somebody who logs in as root stays root.
"""

from __future__ import annotations

import os
from typing import Any

from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.messages import Request


def enter(request: Request) -> Any:
    """Become {argv, environment, namespace}: the rest of stdin, and the output, are the command's.

    The namespace was entered already (`operations.main`). umask: as the user had it.
    """
    argv, environment = request["argv"], request["environment"]
    if not request.get("namespace"):
        raise AgentError("`enter` needs the namespace of a node")
    _drop_root()
    os.umask(request["umask"])
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        raise AgentError(f"there is no command `{argv[0]}`") from None


def read_line() -> str:
    """Read a line from stdin, and nothing of what follows."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def _drop_root() -> None:
    """Become the user who called sudo, for good: with their groups, without capabilities."""
    if "SUDO_UID" not in os.environ:
        return
    import pwd

    uid, gid = int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"])
    os.initgroups(pwd.getpwuid(uid).pw_name, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
