"""Errors that netbench raises on purpose; `cli` catches `NetbenchError`, prints it and exits.

A message says where, what was found, what was expected and what to do, e.g.
`scenarios/wan.yaml:14: links[2].rate "1.1" has no unit; write e.g. "1.1Gbit"`.
"""

import difflib
from collections.abc import Iterable

EXIT_NOT_TRUSTWORTHY = 3
"""Exit code of a command that finished with the network or the machine outside tolerance."""

EXIT_INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it; also if the command kept its result so far."""


class NetbenchError(Exception):
    """Base of every expected failure. `exit_code` is the exit code of the process."""

    exit_code = 1


class UsageError(NetbenchError):
    """The request itself is wrong: an unknown name, a combination that cannot exist."""

    exit_code = 2


class ScenarioError(UsageError):
    """A scenario file, or a value in it, is wrong."""


class PlanError(UsageError):
    """A plan cannot be built: the layout, batch or placement does not fit the scenario."""


class NetworkError(NetbenchError):
    """The kernel rejected a tc configuration, or has another one than requested."""


class TestbedError(NetbenchError):
    """A kernel, guest, node or rank failed."""

    __test__ = False  # pytest: the name starts with "Test"


class RecordError(NetbenchError):
    """A record file cannot be read or written."""


def nearest(found: str, known: Iterable[str]) -> str:
    """Suggest the nearest known names for an unknown one, or list all."""
    names = list(known)
    near = difflib.get_close_matches(found, names, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"
