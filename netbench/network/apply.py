"""Load shaping programs on nodes, read them back, take them away.

All nodes at once, one `tc -batch` each. Whether a root qdisc may be replaced is decided by the
kernel, without a race: adding one fails unless the interface still has its default (handle `0:`,
e.g. noqueue, mq, fq_codel); deleting names our handle, so nothing foreign can be hit.

Nodes here are namespaces that vanish with the session, and their shaping with them. On a node that
outlives the session a dead-man timer has to be armed before `apply` and fed until `clear`; it needs
only `CLEAR`, which is safe to run at any time, any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from netbench.errors import NetworkError
from netbench.network import readback
from netbench.network.command import DEADLINE_S, Run, all_or_error, at_once, output_of
from netbench.network.program import HANDLE, MAX_SEGMENTS, Program

CLEAR = ("tc", "qdisc", "del", "dev", "{interface}", "root", "handle", HANDLE)
"""Removes a netbench program, and only that. It fails where there is none."""

_ALREADY_THERE = ("Exclusivity flag on", "NLM_F_REPLACE", "File exists")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What a node holds, against its program.

    problems: one sentence per field that differs; empty when the node holds what was asked for.
    dropped_packets: dropped by leaves that were not asked to lose any, since `apply`.
    """

    node: int
    problems: tuple[str, ...]
    dropped_packets: int


def apply(programs: Sequence[Program], run: Run, deadline_s: float = DEADLINE_S) -> None:
    """Shape every node. An earlier netbench program is replaced, a foreign root qdisc never.

    Raises NetworkError that lists every node that failed, after clearing all of them.
    """
    loads = {program.node: partial(_load, program, run) for program in programs}
    results = at_once(loads, deadline_s)
    try:
        all_or_error(results, "shaping")
    except NetworkError:
        at_once({p.node: partial(_clear, p, run) for p in programs}, deadline_s)
        raise


def clear(programs: Sequence[Program], run: Run, deadline_s: float = DEADLINE_S) -> None:
    """Remove the shaping of every node. Fine where there is none; never touches a foreign qdisc.

    Raises NetworkError that lists every node that may still be shaped.
    """
    clears = {program.node: partial(_clear, program, run) for program in programs}
    all_or_error(at_once(clears, deadline_s), "removing the shaping")


def read_back(
    programs: Sequence[Program], run: Run, deadline_s: float = DEADLINE_S
) -> tuple[Difference, ...]:
    """Compare what every node's kernel holds with its program, field by field.

    Raises NetworkError that lists every node that could not be read.
    """
    reads = {program.node: partial(_compare, program, run) for program in programs}
    found = all_or_error(at_once(reads, deadline_s), "reading back the shaping")
    return tuple(found[program.node] for program in programs)


def _load(program: Program, run: Run) -> None:
    command, text = _load_command(program), program.text
    status, _, stderr = run(program.node, command, text)
    if status != 0 and any(sign in stderr for sign in _ALREADY_THERE):
        text = f"qdisc del dev {program.interface} root handle {HANDLE}\n{text}"
        status, _, stderr = run(program.node, command, text)
    if status != 0:
        _refuse_foreign(program, run)
        raise NetworkError(_quote_line(text, stderr))


def _load_command(program: Program) -> tuple[str, ...]:
    """`tc -batch`, after the link's own setting where there is one.

    Connections take over the setting when they look up their route: flushing makes them.
    """
    if program.max_segments == MAX_SEGMENTS:
        return ("tc", "-batch", "-")
    limit = f"ip link set dev {program.interface} gso_max_segs {program.max_segments}"
    return ("sh", "-c", f"{limit} && ip route flush cache && exec tc -batch -")


def _clear(program: Program, run: Run) -> None:
    if program.max_segments != MAX_SEGMENTS:
        set_link = ("ip", "link", "set", "dev", program.interface)
        output_of(run, program.node, (*set_link, "gso_max_segs", str(MAX_SEGMENTS)))
    argv = [word.format(interface=program.interface) for word in CLEAR]
    status, _, stderr = run(program.node, argv, "")
    if status != 0 and _root(program, run)[1] == HANDLE:
        raise NetworkError(f"`{' '.join(argv)}` exited with {status}: {stderr.strip()}")


def _refuse_foreign(program: Program, run: Run) -> None:
    kind, handle = _root(program, run)
    if handle not in (HANDLE, "0:"):
        raise NetworkError(
            f"{program.interface} has a root qdisc that is not netbench's: {kind} {handle}. "
            f"It is left as it is; remove it with "
            f"`tc qdisc del dev {program.interface} root` if nothing needs it"
        )


def _root(program: Program, run: Run) -> tuple[str, str]:
    """Kind and handle of the root qdisc."""
    argv = ("tc", "-j", "qdisc", "show", "dev", program.interface)
    return readback.root_qdisc(output_of(run, program.node, argv))


def _compare(program: Program, run: Run) -> Difference:
    dev = program.interface
    show = f"qdisc show dev {dev}\nfilter show dev {dev}\n"
    tables = output_of(run, program.node, ("tc", "-s", "-j", "-batch", "-"), show)
    # Without -j: classes are printed as text up to iproute2 6.12 at least, with -j or without.
    classes = output_of(run, program.node, ("tc", "-d", "class", "show", "dev", dev))
    found = readback.parse(tables, classes)
    return Difference(
        node=program.node,
        problems=readback.differences(program, found),
        dropped_packets=readback.unwanted_drops(program, found),
    )


def _quote_line(text: str, stderr: str) -> str:
    """tc's complaint with the line of the program it is about (`Command failed -:3`)."""
    words = " ".join(stderr.split())
    number = words.rpartition("Command failed -:")[2].split(" ")[0]
    lines = text.splitlines()
    if number.isdigit() and 0 < int(number) <= len(lines):
        return f"tc refused `{lines[int(number) - 1]}`: {words}"
    return f"tc failed: {words or 'it printed nothing'}"
