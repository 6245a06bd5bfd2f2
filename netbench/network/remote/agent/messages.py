"""Parts of requests and answers that the controller and the agent both name.

A request is one JSON object on a line of stdin: `interface`, or where that is empty the
`addresses` by which the agent finds it; `owner`; `namespace` if a node of the host is meant, and
not the host itself; and what the operation takes. The answer is one line: `{"ok": ...}`, or
`{"error": "..."}` with exit status 1. A process that stays (`SERVE`) takes the name of the
operation and a blank before each request.

Hosts may start many agents, and `dataclasses` takes longer to import than the agent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FOLDER_PREFIX = "netbench."
"""Prefix of the temporary folder that the controller makes for the agent."""

SERVE = "serve"
"""Argument of the agent that answers requests until its stdin ends."""

STATE_FOLDER = "/run/netbench"
"""Folder of the records of shaped interfaces, and of a copy of the agent for each of them. It goes
with the last of them, and on a reboot, as shaping does."""

MAX_LEASE_S = 30 * 86400.0

Request = dict[str, Any]


class Owner(NamedTuple):
    """A person on a machine (`name`), and one process of theirs (`session`).

    runs: sessions that left a network behind, which this one may change and clear.
    """

    name: str
    pid: int
    session: str
    runs: tuple[str, ...] = ()


class Lease(NamedTuple):
    """A lease on an interface.

    owner: `Owner` as a dict. held: only its session may change it. applied: a tc configuration was
    loaded. since_s: Unix time. left_s: seconds left, None = without end. who: all of it as text.
    """

    owner: dict[str, Any]
    held: bool
    applied: bool
    since_s: float
    left_s: float | None
    who: str


def taken(interface: str, who: str) -> str:
    """Say that somebody else's lease is in the way, and what to do."""
    return (
        f"{interface} is shaped by {who}; wait, or take it away from them with "
        "`netbench net clear --force`"
    )
