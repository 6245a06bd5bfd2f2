"""Facts about `tc -batch` that the controller and the agent share.

Sent to hosts in the agent's zip: Python 3.9, no import beyond the standard library.
"""

from __future__ import annotations

import re

HANDLE = "6e62:"
"""Handle of the root qdisc of a tc configuration ("nb" in ASCII). It identifies qdiscs owned by
netbench; a root with another handle is foreign."""

DEFAULT_HANDLE = "0:"
"""Handle of the kernel's default root qdisc, which comes back by itself."""


_LINE = re.compile(
    r"(qdisc|class|filter) (add|change|replace|del) dev (?P<interface>\S+)"
    r"( [A-Za-z0-9_.:%+-]+(/[A-Za-z0-9]+)?)*"
)
"""A line that changes an interface. No word is the path of a file."""

_LOADERS = {"bpf", "ipt", "xt"}
"""Words with which tc loads code."""


def foreign_line(batch: str, interface: str) -> str:
    """Return the first line that does more than change the qdiscs of `interface`, or ""."""
    for line in batch.splitlines():
        found = _LINE.fullmatch(line)
        if not found or found["interface"] != interface or _LOADERS & set(line.split()):
            return line
    return ""


def refusal_text(batch: str, stderr: str) -> str:
    """Return tc's error with the line of `batch` that it is about (`Command failed -:3`)."""
    text = " ".join(stderr.split())
    number = text.rpartition("Command failed -:")[2].split(" ")[0]
    lines = batch.splitlines()
    if number.isdigit() and 0 < int(number) <= len(lines):
        return f"tc refused `{lines[int(number) - 1]}`: {text}"
    return f"tc failed: {text or 'it printed nothing'}"
